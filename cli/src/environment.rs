//! What `towline` reads of its surroundings: environment variables, all of them, and how it was started.

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

/// Whether whoever started this program had it ignore SIGHUP, as nohup does. Asked before a handler is installed.
pub fn hangup_is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

/// `SigIgn` is a mask in hex, and SIGHUP its lowest bit (proc_pid_status(5)).
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_seen() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup(""));
    }
}
