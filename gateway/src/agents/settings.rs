//! What whoever installs agents needs to know of the gateway (`GET /.towline/agent/settings`): where it is, whom it
//! trusts and with which keys. Public, as the key sets of issuers are.

use std::path::Path;

use ::catalogue::key::PublicKey;
use auth::token::RawIssuer;
use serde_json::{Map, Value};
use types::agent_api::{CatalogueTrust, InstallSettings};

use super::{Call, Reply};
use crate::{api_error::ApiError, issuer::Issuer};

/// Answers with what an agent's installation needs: URL, trust, issuers, version and catalogue.
pub async fn serve(call: &Call) -> Result<Reply, ApiError> {
    let settings = &call.control.settings;
    let own = call.core.issuer.load_full();
    let roots = call.core.trust.gateway_ca();
    let snapshot = call.core.snapshots.load();
    let catalogue = call.control.catalogue();
    let issuers: Result<_, _> = snapshot.issuers().iter().map(|issuer| entry(issuer, own.as_deref(), &roots)).collect();
    Reply::json(&InstallSettings {
        urls: vec![settings.url.clone()],
        roots,
        issuers: issuers?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        tenant_id: settings.tenant.clone(),
        catalogue: catalogue.map(|index| CatalogueTrust {
            id: index.catalogue.to_string(),
            keys: index.keys.iter().map(PublicKey::to_pem).collect(),
        }),
    })
}

/// An issuer as the agent's chart takes it: names in camel case, files by their content. The gateway's own one is read
/// at the gateway's public address, with the key that it signs with now.
fn entry(issuer: &RawIssuer, own: Option<&Issuer>, roots: &str) -> Result<Value, ApiError> {
    let own = own.filter(|own| own.settings().url == issuer.url);
    let said = serde_json::to_value(issuer).map_err(ApiError::internal)?;
    let mut entry = Map::new();
    for (name, value) in said.as_object().into_iter().flatten() {
        match name.as_str() {
            "ca_file" | "keys_file" | "pinned_keys_file" | "jwks_url" if own.is_some() => {}
            // An address of this machine is nothing in another one, and agents serve no resource API.
            "allow_http_loopback" | "api_audiences" => {}
            name => match (name.strip_suffix("_file"), value.as_str()) {
                (Some(name), Some(file)) => drop(entry.insert(camel(name), content(Path::new(file))?.into())),
                _ if value.as_array().is_some_and(Vec::is_empty) => {}
                _ => drop(entry.insert(camel(name), value.clone())),
            },
        }
    }
    if let Some(own) = own {
        entry.insert("pinnedKeys".to_owned(), own.pinned_keys().to_string().into());
        if !roots.is_empty() {
            entry.insert("ca".to_owned(), roots.into());
        }
    }
    Ok(Value::Object(entry))
}

fn content(file: &Path) -> Result<String, ApiError> {
    std::fs::read_to_string(file)
        .map_err(|error| ApiError::internal(format!("{}, which an issuer's settings name: {error}", file.display())))
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut text, word| {
        let mut rest = word.chars();
        text.extend(rest.next().map(|initial| initial.to_ascii_uppercase()));
        text + rest.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the chart's values take is in its schema.
    #[test]
    fn r13_issuers_are_as_the_chart_takes_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n").unwrap();
        let raw: RawIssuer = serde_json::from_value(serde_json::json!({
            "name": "corporate", "url": "https://login.test", "audiences": ["a"], "api_audiences": ["b"], "ca_file": file,
            "username_prefix": "c:", "groups_prefix": "c:", "kind": "entra", "algorithms": ["RS256"],
            "keys_max_age": "1h", "username_claim": "upn", "groups_claim": "groups", "uid_claim": "oid",
            "extra": {"oid": "oid"}, "required_claims": {"tid": "t"}, "clock_skew": "1m", "pop": "off",
            "pop_validity": "5m", "tokens": "access", "allow_reserved": ["system:x"],
            "authorized_parties": ["p"], "jwks_url": "https://login.test/keys", "allow_http_loopback": true,
        }))
        .unwrap();
        let entry = entry(&raw, None, "").unwrap();
        let schema = include_str!("../../../docker/chart/towline-agent/values.schema.json");
        let schema: Value = serde_json::from_str(schema).unwrap();
        let known = &schema["properties"]["issuers"]["items"]["properties"];
        for name in entry.as_object().unwrap().keys() {
            assert!(known.get(name).is_some(), "{name} is not in the schema");
        }
        assert_eq!(entry["ca"], "-----BEGIN CERTIFICATE-----\n");
        assert_eq!((&entry["usernamePrefix"], &entry["popValidity"]), (&"c:".into(), &"5m".into()));
    }
}
