//! The agents' proxy: what was typed of it, over what it was before (docs/features.md N3, T13).

use std::path::PathBuf;

use anyhow::anyhow;
use secrecy::SecretString;
use url::Url;

use crate::{
    environment,
    failure::{Failure, Outcome},
    manifests::Values,
    secret::read_secret,
    terminal::say,
};

/// How the agents get to the gateway.
#[derive(Debug, clap::Args, Clone, Default)]
pub struct AgentProxyArgs {
    /// The proxy of the agents, http://[user@]host:port or https://...
    #[arg(long, value_name = "URL", help_heading = "Agents")]
    pub proxy_https: Option<String>,
    /// As --proxy-https, for clusters where only this is set: all that agents do is HTTPS
    #[arg(long, value_name = "URL", help_heading = "Agents")]
    pub proxy_http: Option<String>,
    /// Hosts, domains and networks that are reached without it, with commas between
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Agents")]
    pub proxy_skip_range: Vec<String>,
    /// PEM file of the authority of the proxy, or of one that ends the TLS on the way
    #[arg(long, visible_alias = "custom-ca-cert", value_name = "FILE", help_heading = "Agents")]
    pub proxy_cert: Option<PathBuf>,
    /// File with the proxy's password (- is standard input), or TOWLINE_AGENT_PROXY_PASSWORD; the user's name is part
    /// of the URL
    #[arg(long, value_name = "FILE", help_heading = "Agents")]
    pub proxy_password_file: Option<PathBuf>,
    /// Go without the proxy that was set before
    #[arg(long, help_heading = "Agents")]
    pub disable_proxy: bool,
}

/// What was typed. Does not print.
#[derive(Default)]
pub struct Typed {
    off: bool,
    to: Option<Address>,
    password: Option<SecretString>,
    no_proxy: Option<Vec<String>>,
    /// PEM of the authority of the proxy's certificate, or of one that ends the TLS on the way.
    cert: Option<String>,
}

struct Address {
    url: String,
    username: String,
    password: Option<SecretString>,
}

impl Typed {
    /// Reads it; part of usage, so before anything else.
    pub fn read(args: &AgentProxyArgs) -> Outcome<Self> {
        let url = args.proxy_https.as_ref().or(args.proxy_http.as_ref());
        let file = args.proxy_password_file.as_deref();
        let others = url.is_some() || file.is_some() || args.proxy_cert.is_some() || !args.proxy_skip_range.is_empty();
        if args.disable_proxy && others {
            let error = anyhow!(
                "Conflict: --disable-proxy cannot be set together with --proxy-https, --proxy-http, --proxy-skip-range or --proxy-cert"
            );
            return Err(
                Failure::usage(error).hint("leave out either; the former alone removes all settings of the proxy")
            );
        }
        let mut to = url.map(|url| address(url)).transpose()?;
        let mut password = file.map(read_secret).transpose().map_err(Failure::usage)?;
        if let Some(to) = &mut to {
            if to.password.is_some() {
                say(
                    "warning: everybody on this machine can read the proxy's password: --proxy-password-file, or TOWLINE_AGENT_PROXY_PASSWORD",
                );
            }
            let by_environment = || environment::agent_proxy_password().filter(|_| !to.username.is_empty());
            to.password = password.take().or_else(|| to.password.clone()).or_else(by_environment);
            if to.username.is_empty() != to.password.is_none() {
                return Err(Failure::usage(anyhow!("--proxy-https: user and password go together")).hint(
                    "http://user@host:port with --proxy-password-file FILE, or the environment variable TOWLINE_AGENT_PROXY_PASSWORD",
                ));
            }
        }
        let no_proxy: Vec<String> = args.proxy_skip_range.iter().map(|rule| rule.trim().to_owned()).collect();
        for rule in no_proxy.iter().filter(|rule| !rule.is_empty()) {
            let parsed = rule.parse::<agent::config::NoProxy>();
            parsed.map_err(|problem| Failure::usage(anyhow!("--proxy-skip-range: {rule}: {problem}")))?;
        }
        let cert = args.proxy_cert.as_deref().map(certificate).transpose()?;
        Ok(Self { off: args.disable_proxy, to, password, no_proxy: Some(no_proxy).filter(|all| !all.is_empty()), cert })
    }

    /// Whether nothing was typed.
    pub fn is_nothing(&self) -> bool {
        !self.off && self.to.is_none() && self.password.is_none() && self.no_proxy.is_none() && self.cert.is_none()
    }

    /// Changes values that hold what was before.
    ///
    /// # Errors
    /// When something belongs to a proxy, and there is none.
    pub fn apply(self, values: &mut Values) -> Outcome<()> {
        if self.off {
            values.proxy = Values::default().proxy;
            values.extra_ca.clear();
            return Ok(());
        }
        let goes_with_url = self.to.is_some() || self.cert.is_some();
        let proxy = &mut values.proxy;
        if let Some(to) = self.to {
            (proxy.url, proxy.username, proxy.password) = (to.url, to.username, to.password.unwrap_or_default());
        }
        let missing = |option: &str| {
            Failure::usage(anyhow!("{option} without a proxy"))
                .hint("name it: --proxy-https http://[user@]proxy.example.org:3128")
        };
        if let Some(password) = self.password {
            if proxy.username.is_empty() {
                return Err(missing("--proxy-password-file"));
            }
            proxy.password = password;
        }
        if let Some(rules) = self.no_proxy {
            if proxy.url.is_empty() {
                return Err(missing("--proxy-skip-range"));
            }
            proxy.no_proxy = rules.into_iter().filter(|rule| !rule.is_empty()).collect();
        }
        if let Some(cert) = self.cert {
            values.extra_ca = cert;
        }
        match proxy.url.starts_with("https:") {
            true if goes_with_url => proxy.ca.clone_from(&values.extra_ca),
            true => {}
            false => proxy.ca.clear(),
        }
        Ok(())
    }
}

/// Errors never quote it: it may hold a password.
fn address(text: &str) -> Outcome<Address> {
    let wrong = || {
        let error = anyhow!("--proxy-https: expected http://[user[:password]@]host:port or https://...");
        Failure::usage(error).hint("characters with a meaning in URLs are written as %40 and the like")
    };
    let url = Url::parse(text).map_err(|_| wrong())?;
    let host = url.host_str().ok_or_else(wrong)?;
    if !matches!(url.scheme(), "http" | "https") || !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(wrong());
    }
    let port = url.port_or_known_default().ok_or_else(wrong)?;
    let plain = |text: &str| {
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
        decoded.map(|text| text.into_owned()).map_err(|_| wrong())
    };
    Ok(Address {
        url: format!("{}://{host}:{port}", url.scheme()),
        username: plain(url.username())?,
        password: url.password().map(plain).transpose()?.map(SecretString::from),
    })
}

fn certificate(file: &std::path::Path) -> Outcome<String> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let said = format!("Proxy cert path {} does not exist. Please check the path provided", file.display());
        Failure::usage(anyhow!(error).context(said))
    })?;
    if !text.contains("-----BEGIN CERTIFICATE") {
        return Err(Failure::usage(anyhow!("--proxy-cert: {} holds no PEM certificate", file.display())));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn args(https: &str, skip: &[&str]) -> AgentProxyArgs {
        AgentProxyArgs {
            proxy_https: Some(https.to_owned()).filter(|text| !text.is_empty()),
            proxy_skip_range: skip.iter().map(|rule| (*rule).to_owned()).collect(),
            ..AgentProxyArgs::default()
        }
    }

    fn applied(args: &AgentProxyArgs, values: &mut Values) -> Outcome<()> {
        Typed::read(args)?.apply(values)
    }

    #[test]
    fn n3_a_proxy_is_read_with_its_password_and_what_goes_without_it() {
        let mut values = Values::default();
        applied(&args("http://me:a%40b@proxy.example.org:3128", &["10.0.0.0/8", ".svc"]), &mut values).unwrap();
        let proxy = &values.proxy;
        assert_eq!((proxy.url.as_str(), proxy.username.as_str()), ("http://proxy.example.org:3128", "me"));
        assert_eq!((proxy.password.expose_secret(), proxy.no_proxy.len()), ("a@b", 2));
        assert!(Typed::read(&args("", &[])).is_ok_and(|typed| typed.is_nothing()));
        for (https, skip) in [
            ("proxy:3128", &[][..]),
            ("ftp://p", &[]),
            ("http://p/path", &[]),
            ("", &["x"]),
            ("http://p", &["10.0.0.0/99"]),
            ("http://me@p", &[]),
            ("http://:geheim@p", &[]),
        ] {
            let error = applied(&args(https, skip), &mut Values::default()).unwrap_err().into_error();
            assert!(!format!("{error:#}").contains("geheim"), "{https}");
        }
    }

    #[test]
    fn n3_a_proxys_password_comes_from_a_file_and_is_never_on_a_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "p:w@/\n").unwrap();
        let typed = AgentProxyArgs { proxy_password_file: Some(file.clone()), ..args("http://me@p:1", &[]) };
        let mut values = Values::default();
        applied(&typed, &mut values).unwrap();
        assert_eq!(values.proxy.password.expose_secret(), "p:w@/");
        // A new password of the proxy that there is.
        std::fs::write(&file, "new").unwrap();
        let alone = AgentProxyArgs { proxy_password_file: Some(file), ..args("", &[]) };
        applied(&alone, &mut values).unwrap();
        assert_eq!((values.proxy.password.expose_secret(), values.proxy.url.as_str()), ("new", "http://p:1"));
        assert!(applied(&alone, &mut Values::default()).is_err(), "there is no proxy");
    }

    #[test]
    fn t13_what_is_typed_changes_that_and_leaves_the_rest() {
        let mut values = Values::default();
        applied(&args("http://one:1", &[".svc"]), &mut values).unwrap();
        applied(&args("", &["10.0.0.0/8"]), &mut values).unwrap();
        assert_eq!(
            (values.proxy.url.as_str(), &values.proxy.no_proxy[..]),
            ("http://one:1", &["10.0.0.0/8".to_owned()][..])
        );
        applied(&args("http://two:2", &[]), &mut values).unwrap();
        assert_eq!((values.proxy.url.as_str(), values.proxy.no_proxy.len()), ("http://two:2", 1));
        let off = AgentProxyArgs { disable_proxy: true, ..AgentProxyArgs::default() };
        applied(&off, &mut values).unwrap();
        assert!(values.proxy.url.is_empty() && values.proxy.no_proxy.is_empty());
        let both = AgentProxyArgs { disable_proxy: true, ..args("http://two:2", &[]) };
        let error = Typed::read(&both).err().unwrap().into_error().to_string();
        assert!(error.contains("Conflict: --disable-proxy"), "{error}");
    }
}
