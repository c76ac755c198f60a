//! The environment variables that `towline` reads, all of them.

use std::{env, path::PathBuf};

use secrecy::SecretString;

/// A password for `towline token` and its kin, instead of a file.
pub const PASSWORD: &str = "TOWLINE_PASSWORD";

fn text(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| env::var(name).ok()).filter(|value| !value.is_empty())
}

/// [`PASSWORD`].
pub fn password() -> Option<SecretString> {
    text(&[PASSWORD]).map(Into::into)
}

/// The proxy for HTTPS, in either spelling.
pub fn https_proxy() -> Option<String> {
    text(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
}

/// Hosts that are reached without the proxy.
pub fn no_proxy() -> Option<String> {
    text(&["NO_PROXY", "no_proxy"])
}

/// The kubeconfig to merge into: the first file of `KUBECONFIG`, else `~/.kube/config`.
pub fn kubeconfig() -> Option<PathBuf> {
    let listed =
        env::var_os("KUBECONFIG").and_then(|list| env::split_paths(&list).find(|path| !path.as_os_str().is_empty()));
    listed.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".kube/config")))
}

/// What kubectl tells a credential plugin: JSON with the version it speaks.
pub fn exec_info() -> Option<String> {
    text(&["KUBERNETES_EXEC_INFO"])
}
