//! The manifests' values: what was typed, and what the gateway says of itself.

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use proto::agent_api::{ENROLMENT_PREFIX, InstallSettings};
use secrecy::SecretString;
use serde_json::{Map, Value};
use url::Url;

use crate::{
    args::{AgentArgs, AgentProxyArgs},
    client::Client,
    failure::{Failure, Outcome},
    manifests::{self, HostAlias, Image, Values},
};

/// Asks the gateway where it is, whom it trusts and with which keys.
pub async fn settings(client: &Client) -> Outcome<InstallSettings> {
    let path = format!("{}{ENROLMENT_PREFIX}/settings", client.address().path);
    let answer = client.ask(Request::get(path).body(Full::new(Bytes::new()))?).await?;
    if !answer.status().is_success() {
        let error = anyhow!("the gateway answers {} when asked for what agents need", answer.status());
        return Err(Failure::from(error).hint("is it a Towline gateway, of a version that this command fits?"));
    }
    Ok(serde_json::from_slice(answer.body()).context("what the gateway says that agents need")?)
}

/// Reads the proxy of the agents; part of usage, so before anything else.
pub fn proxy(args: &AgentProxyArgs) -> Outcome<Option<manifests::Proxy>> {
    let mut proxy = Values::default().proxy;
    let Some(text) = args.proxy_https.as_ref().or(args.proxy_http.as_ref()) else {
        if args.proxy_skip_range.is_empty() {
            return Ok(None);
        }
        let error = anyhow!("--proxy-skip-range without a proxy");
        return Err(Failure::usage(error).hint("name it: --proxy-https http://proxy.example.org:3128"));
    };
    let wrong = || {
        let error = anyhow!("--proxy-https: expected http://[user:password@]host:port or https://...");
        Failure::usage(error).hint("characters with a meaning in URLs are written as %40 and the like")
    };
    let url = Url::parse(text).map_err(|_| wrong())?;
    let host = url.host_str().ok_or_else(wrong)?;
    if !matches!(url.scheme(), "http" | "https") || !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(wrong());
    }
    let port = url.port_or_known_default().ok_or_else(wrong)?;
    proxy.url = format!("{}://{host}:{port}", url.scheme());
    let plain = |text: &str| {
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
        decoded.map(|text| text.into_owned()).map_err(|_| wrong())
    };
    match (url.username(), url.password()) {
        ("", None) => {}
        (user, Some(password)) if !user.is_empty() => {
            proxy.username = plain(user)?;
            proxy.password = SecretString::from(plain(password)?);
        }
        _ => return Err(Failure::usage(anyhow!("--proxy-https: user and password go together"))),
    }
    proxy.no_proxy = args.proxy_skip_range.iter().map(|rule| rule.trim().to_owned()).collect();
    for rule in &proxy.no_proxy {
        let parsed = rule.parse::<agent::config::NoProxy>();
        parsed.map_err(|problem| Failure::usage(anyhow!("--proxy-skip-range: {rule}: {problem}")))?;
    }
    Ok(Some(proxy))
}

/// All of them, but for the private key.
pub fn values(
    cluster_id: &str,
    args: &AgentArgs,
    proxy: Option<manifests::Proxy>,
    settings: &InstallSettings,
) -> Outcome<Values> {
    let mut values = Values::default();
    values.gateway.urls.clone_from(&settings.urls);
    values.gateway.ca.clone_from(&settings.roots);
    values.identity.cluster_id = cluster_id.to_owned();
    let issuers: Result<Vec<Map<String, Value>>, _> =
        settings.issuers.iter().map(|issuer| serde_json::from_value(issuer.clone())).collect();
    values.issuers = issuers.context("the issuers that the gateway names")?;
    if args.azure_rbac {
        let pinned = |issuer: &&Map<String, Value>| issuer.contains_key("pinnedKeys");
        let name = values.issuers.iter().find(pinned).and_then(|issuer| issuer.get("name")).and_then(Value::as_str);
        let Some(name) = name else {
            return Err(Failure::usage(anyhow!(
                "--azure-rbac: the gateway has no issuer of its own whose keys could be pinned in the cluster, so nobody vouches for roles and assignments"
            )));
        };
        name.clone_into(&mut values.azure_rbac.issuer);
        values.azure_rbac.enabled = true;
    }
    if let Some(file) = &args.proxy.proxy_cert {
        let text = std::fs::read_to_string(file).map_err(|error| {
            let said = format!("Proxy cert path {} does not exist. Please check the path provided", file.display());
            Failure::usage(anyhow!(error).context(said))
        })?;
        if !text.contains("-----BEGIN CERTIFICATE") {
            return Err(Failure::usage(anyhow!("--proxy-cert: {} holds no PEM certificate", file.display())));
        }
        values.extra_ca = text;
    }
    if let Some(mut proxy) = proxy {
        if proxy.url.starts_with("https:") {
            proxy.ca.clone_from(&values.extra_ca);
        }
        values.proxy = proxy;
    }
    if let Some(image) = &args.image {
        set_image(&mut values.image, image);
    }
    values.replicas = args.replicas.unwrap_or(values.replicas);
    if let Some(carrier) = &args.carrier {
        values.gateway.carrier.clone_from(carrier);
    }
    let alias = |(ip, hostnames): &(std::net::IpAddr, Vec<String>)| HostAlias {
        ip: ip.to_string(),
        hostnames: hostnames.clone(),
    };
    values.host_aliases = args.host_aliases.iter().map(alias).collect();
    values.metadata.distribution = args.distribution.clone().unwrap_or_default();
    values.metadata.infrastructure = args.infrastructure.clone().unwrap_or_default();
    Ok(values)
}

/// `REPOSITORY[:TAG]` or `REPOSITORY@DIGEST`; a registry's port is no tag.
fn set_image(image: &mut Image, name: &str) {
    if let Some((repository, digest)) = name.split_once('@') {
        (image.repository, image.digest) = (repository.to_owned(), digest.to_owned());
        return;
    }
    let last = name.rfind('/').map_or(0, |at| at + 1);
    match name[last..].find(':') {
        Some(at) => {
            image.repository = name[..last + at].to_owned();
            image.tag = name[last + at + 1..].to_owned();
        }
        None => name.clone_into(&mut image.repository),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn typed(https: &str, skip: &[&str]) -> Outcome<Option<manifests::Proxy>> {
        let skip = skip.iter().map(|rule| (*rule).to_owned()).collect();
        let https = Some(https.to_owned()).filter(|text| !text.is_empty());
        proxy(&AgentProxyArgs { proxy_https: https, proxy_http: None, proxy_skip_range: skip, proxy_cert: None })
    }

    #[test]
    fn n3_a_proxy_is_read_with_its_password_and_what_goes_without_it() {
        let proxy = typed("http://me:a%40b@proxy.example.org:3128", &["10.0.0.0/8", ".svc"]).unwrap().unwrap();
        assert_eq!((proxy.url.as_str(), proxy.username.as_str()), ("http://proxy.example.org:3128", "me"));
        assert_eq!((proxy.password.expose_secret(), proxy.no_proxy.len()), ("a@b", 2));
        assert!(typed("", &[]).unwrap().is_none());
        for (https, skip) in [
            ("proxy:3128", &[][..]),
            ("ftp://p", &[]),
            ("http://p/path", &[]),
            ("", &["x"]),
            ("http://p", &["10.0.0.0/99"]),
            ("http://me@p", &[]),
        ] {
            assert!(typed(https, skip).is_err(), "{https}");
        }
    }

    #[test]
    fn i3_an_image_has_a_repository_and_a_tag_or_a_digest() {
        for (name, expected) in [
            ("registry.example.org:5000/agent", ("registry.example.org:5000/agent", "", "")),
            ("registry.example.org:5000/agent:1", ("registry.example.org:5000/agent", "1", "")),
            ("agent@sha256:a", ("agent", "", "sha256:a")),
        ] {
            let mut image = Values::default().image;
            set_image(&mut image, name);
            assert_eq!((image.repository.as_str(), image.tag.as_str(), image.digest.as_str()), expected);
        }
    }
}
