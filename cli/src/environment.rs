//! What `towline` reads of its surroundings: environment variables, all of them, and how it was started.

use std::{env, path::PathBuf};

use secrecy::SecretString;

/// A password for `towline token` and its kin, instead of a file.
pub const PASSWORD: &str = "TOWLINE_PASSWORD";

/// The password of the agents' proxy, instead of a file.
pub const AGENT_PROXY_PASSWORD: &str = "TOWLINE_AGENT_PROXY_PASSWORD";

/// The folder of contexts.
pub const CONFIG_DIR: &str = "TOWLINE_CONFIG_DIR";
/// The gateway's URL, for automation.
pub const GATEWAY: &str = "TOWLINE_GATEWAY";
/// A service principal's client id.
pub const CLIENT_ID: &str = "TOWLINE_CLIENT_ID";
/// Its secret,
pub const CLIENT_SECRET: &str = "TOWLINE_CLIENT_SECRET";
/// or the file that holds it.
pub const CLIENT_SECRET_FILE: &str = "TOWLINE_CLIENT_SECRET_FILE";
/// The tenant that is expected.
pub const TENANT: &str = "TOWLINE_TENANT";
/// The subscription to work in.
pub const SUBSCRIPTION: &str = "TOWLINE_SUBSCRIPTION";
/// The authority of the gateway's certificate, PEM.
pub const CA_FILE: &str = "TOWLINE_CA_FILE";

fn text(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| env::var(name).ok()).filter(|value| !value.is_empty())
}

/// [`PASSWORD`].
pub fn password() -> Option<SecretString> {
    text(&[PASSWORD]).map(Into::into)
}

/// [`AGENT_PROXY_PASSWORD`].
pub fn agent_proxy_password() -> Option<SecretString> {
    text(&[AGENT_PROXY_PASSWORD]).map(Into::into)
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

/// Where contexts are kept: [`CONFIG_DIR`], else `towline` in the configuration folder of the XDG base directory
/// specification.
pub fn config_dir() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let own = env::var_os(CONFIG_DIR).filter(|path| !path.is_empty()).map(PathBuf::from);
    let xdg = || folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    own.or_else(|| Some(xdg()?.join("towline")))
}

/// [`CONFIG_DIR`] by its whole path, where it was given.
pub fn own_config_dir() -> Option<PathBuf> {
    let given = env::var_os(CONFIG_DIR).filter(|path| !path.is_empty())?;
    std::path::absolute(given).ok()
}

/// What stands in for `towline login` where nobody can sign in, such as in CI (features row K10).
#[derive(Default)]
pub struct Automation {
    /// [`GATEWAY`].
    pub gateway: Option<String>,
    /// [`CLIENT_ID`].
    pub client_id: Option<String>,
    /// [`CLIENT_SECRET`].
    pub client_secret: Option<SecretString>,
    /// [`CLIENT_SECRET_FILE`].
    pub client_secret_file: Option<PathBuf>,
    /// [`TENANT`].
    pub tenant: Option<String>,
    /// [`CA_FILE`].
    pub ca_file: Option<PathBuf>,
}

/// Reads it.
pub fn automation() -> Automation {
    Automation {
        gateway: text(&[GATEWAY]),
        client_id: text(&[CLIENT_ID]),
        client_secret: text(&[CLIENT_SECRET]).map(Into::into),
        client_secret_file: text(&[CLIENT_SECRET_FILE]).map(Into::into),
        tenant: text(&[TENANT]),
        ca_file: text(&[CA_FILE]).map(Into::into),
    }
}

/// [`SUBSCRIPTION`].
pub fn subscription() -> Option<String> {
    text(&[SUBSCRIPTION])
}

/// The program that shows a page, as many programs have it.
pub fn browser() -> Option<String> {
    text(&["BROWSER"])
}

/// Whether output may have colour: a terminal, and nobody who asked for none (no-color.org).
pub fn colour() -> bool {
    use std::io::IsTerminal;
    std::io::stdout().is_terminal()
        && text(&["NO_COLOR"]).is_none()
        && text(&["TERM"]).is_none_or(|term| term != "dumb")
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
