//! What `towline` reads of its surroundings: environment variables, all of them, and how it was started.

use std::{env, ffi::OsString, fs, os::unix::fs::MetadataExt, path::PathBuf};

use anyhow::Context as _;
use secrecy::SecretString;

use crate::{failure::Advised, program::Program};

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
/// That client's secret, instead of a file.
pub const CLIENT_SECRET: &str = "TOWLINE_CLIENT_SECRET";
/// The file with that secret.
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

/// The value of [`PASSWORD`].
pub fn password() -> Option<SecretString> {
    text(&[PASSWORD]).map(Into::into)
}

/// The value of [`AGENT_PROXY_PASSWORD`].
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

/// The files of the kubeconfig to merge into: those of `KUBECONFIG`, else `~/.kube/config`. Empty where neither is
/// known.
pub fn kubeconfigs() -> Vec<PathBuf> {
    let listed = env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<PathBuf> = env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if !listed.is_empty() {
        return listed;
    }
    env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config")).into_iter().collect()
}

/// The path by which this program was called, for what is to call it again: links stay, so that the next version is
/// called where they lead to it.
///
/// # Errors
/// When it is not known, or would be the gateway or an agent by its name.
pub fn program() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot tell where this program is")?;
    called(env::args_os().next().map(PathBuf::from), env::var_os("PATH"), own)
}

fn called(typed: Option<PathBuf>, path: Option<OsString>, own: PathBuf) -> anyhow::Result<PathBuf> {
    let is_own = |path: &PathBuf| match (fs::metadata(path), fs::metadata(&own)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    };
    let runs = |path: &PathBuf| fs::metadata(path).is_ok_and(|data| data.is_file() && data.mode() & 0o111 != 0);
    let found = typed.and_then(|typed| match typed.components().count() {
        // As the shell finds it.
        1 if !typed.has_root() && !typed.as_os_str().as_encoded_bytes().contains(&b'/') => {
            let folders = path.unwrap_or_default();
            env::split_paths(&folders).map(|folder| folder.join(&typed)).find(runs)
        }
        _ => Some(typed),
    });
    let found = found.and_then(|found| std::path::absolute(found).ok()).filter(is_own);
    let program = found.unwrap_or(own);
    if Program::of(Some(program.clone().into_os_string())) != Program::Command {
        return Err(Advised::new(
            format!("kubectl cannot call this program as {}: by that name it is another one", program.display()),
            "call it by the name towline, from PATH or by its path",
        )
        .into());
    }
    Ok(program)
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

/// What stands in for `towline login` where nobody can sign in, such as in CI (docs/features.md K10).
#[derive(Default)]
pub struct Automation {
    /// The value of [`GATEWAY`].
    pub gateway: Option<String>,
    /// The value of [`CLIENT_ID`].
    pub client_id: Option<String>,
    /// The value of [`CLIENT_SECRET`].
    pub client_secret: Option<SecretString>,
    /// The value of [`CLIENT_SECRET_FILE`].
    pub client_secret_file: Option<PathBuf>,
    /// The value of [`TENANT`].
    pub tenant: Option<String>,
    /// The value of [`CA_FILE`].
    pub ca_file: Option<PathBuf>,
}

/// Reads the variables. One that is not set or empty is absent.
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

/// The value of [`SUBSCRIPTION`].
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
    std::io::stdout().is_terminal() && text(&["NO_COLOR"]).is_none() && !is_dumb()
}

/// Whether the terminal is one that shows text and nothing else.
pub fn is_dumb() -> bool {
    text(&["TERM"]).is_some_and(|term| term == "dumb")
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

    /// A package manager's link leads to the next version; the program's own path is that of one version, and perhaps
    /// another name of the program.
    #[test]
    fn program_called_through_a_link_is_named_by_the_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let make = |name: &str| {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), "x").unwrap();
            fs::set_permissions(at(name), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        };
        make("opt/towline-1.0/towline-gateway");
        make("other/towline");
        fs::create_dir_all(at("bin")).unwrap();
        let (own, link) = (at("opt/towline-1.0/towline-gateway"), at("bin/towline"));
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let path = |folders: &[&str]| Some(env::join_paths(folders.iter().map(|folder| at(folder))).unwrap());
        let of = |typed: &str, folders: &[&str]| called(Some(typed.into()), path(folders), own.clone());
        assert_eq!(of("towline", &["none", "bin"]).unwrap(), link);
        assert_eq!(of(link.to_str().unwrap(), &[]).unwrap(), link);
        // Another program of the name comes first, and the own path would be the gateway.
        for (typed, folders) in [("towline", &["other", "bin"][..]), ("towline", &[]), ("towline-gateway", &["bin"])] {
            let error = of(typed, folders).unwrap_err().to_string();
            assert!(error.contains("by that name it is another one"), "{error}");
        }
        make("usr/towline");
        assert_eq!(called(Some("x".into()), None, at("usr/towline")).unwrap(), at("usr/towline"));
        assert_eq!(called(None, None, at("usr/towline")).unwrap(), at("usr/towline"));
    }

    #[test]
    fn nohup_is_seen() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup(""));
    }
}
