//! `listClusterUserCredential`: how to reach a cluster (docs/features.md K1, K2, A6).

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD},
};
use serde_json::{Map, Value, json};
use types::ids::ClusterId;

use super::{Acting, OLD, Property, Type};
use crate::{
    api_error::ApiError,
    control::ACCESS_LIFE,
    random,
    resources::schema::{check, open_api},
};

/// Properties of the body of `listClusterUserCredential`.
const REQUEST: &[Property] = &[
    Property::new("authenticationMethod", Type::Words(&["AAD", "Token"])).required(),
    Property::new("clientProxy", Type::Bool).required(),
];
/// What senders' tokens are sealed for.
const SENDER: &str = "hybridConnection";

/// What it takes and answers, as schemas of OpenAPI 3.1.
pub fn described() -> (Value, Value) {
    let text = |description: &str| json!({"type": "string", "description": description});
    let one = json!({"type": "object", "required": ["name", "value"], "properties": {
        "name": {"type": "string"},
        "value": text("base64 of a kubeconfig"),
    }});
    let connection = json!({
        "type": "object",
        "description": "there if clientProxy is true",
        "required": ["expirationTime", "hybridConnectionName", "relay", "token"],
        "properties": {
            "expirationTime": {"type": "integer", "format": "int64", "description": "seconds since 1970"},
            "hybridConnectionName": text("microsoft.kubernetes/connectedclusters/<the cluster's key>/<one of many>"),
            "relay": text("the gateway's host and port"),
            "token": text("opaque; by itself it opens nothing"),
            "relayTid": text("the tenant; since 2024-01-02"),
            "relayType": text("since 2024-01-02"),
        },
    });
    let answer = json!({"type": "object", "required": ["kubeconfigs"], "properties": {
        "kubeconfigs": {"type": "array", "items": one},
        "hybridConnectionConfig": connection,
    }});
    (open_api(REQUEST), answer)
}

/// The answer. With `Token` the kubeconfig holds a certificate that is the right to reach the cluster: who one is
/// there, the cluster's own token says, which the user adds. With `AAD` kubectl asks `towline` for a token of who is
/// signed in.
pub fn credential(acting: &Acting<'_>) -> Result<Value, ApiError> {
    let body = check(REQUEST, acting.body)?;
    let id: ClusterId = acting.resource.id.parse().map_err(|_| ApiError::internal("a kept id cannot be read"))?;
    let mut kubeconfig = acting.control.settings.kubeconfig(&id, &acting.control.gateway_ca());
    kubeconfig["users"][0]["user"] = if body.get("authenticationMethod").is_some_and(|method| method == "Token") {
        let issued = acting.control.access(&id, acting.caller)?;
        json!({
            "client-certificate-data": BASE64.encode(&issued.certificate_pem),
            "client-key-data": BASE64.encode(issued.key_pem()),
        })
    } else {
        json!({"exec": sign_in(&id)})
    };
    let mut answer =
        json!({"kubeconfigs": [{"name": "credentialName1", "value": BASE64.encode(kubeconfig.to_string())}]});
    if body.get("clientProxy").is_some_and(|yes| *yes == true) {
        answer["hybridConnectionConfig"] = connection(acting, &id)?;
    }
    Ok(answer)
}

/// kubectl's credential plugin (client.authentication.k8s.io/v1), which signs in as the account that `towline login`
/// kept.
fn sign_in(id: &ClusterId) -> Value {
    json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "towline",
        "args": ["token", "--exec-credential", "--log", "warn", "--cluster", id.as_str()],
        "env": null,
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": false,
        "installHint": "This kubeconfig signs in by the command towline: put it on the PATH and run towline login.",
    })
}

/// Where a local proxy sends what it is sent. The gateway is its own relay and lets in whoever has a token or
/// certificate of the cluster; the sender's token is there because clients of ARM expect one.
fn connection(acting: &Acting<'_>, id: &ClusterId) -> Result<Value, ApiError> {
    let ends = acting.now_ms / 1000 + i64::try_from(ACCESS_LIFE.as_secs()).unwrap_or_default();
    let statement = json!({"cluster": id.as_str(), "principal": acting.caller.object_id(), "ends": ends});
    let url = &acting.control.settings.url;
    let mut connection = Map::new();
    let mut set = |name: &str, value: Value| drop(connection.insert(name.to_owned(), value));
    set("expirationTime", ends.into());
    let name = format!("microsoft.kubernetes/connectedclusters/{}/{}", id.key().hex(), random::guid());
    set("hybridConnectionName", name.into());
    set("relay", url.trim_start_matches("https://").into());
    set("token", URL_SAFE_NO_PAD.encode(acting.control.seal(SENDER, &statement)?).into());
    if acting.version >= OLD {
        set("relayTid", acting.control.settings.tenant.as_str().into());
        set("relayType", "towline".into());
    }
    Ok(connection.into())
}
