//! The built-in issuer: OpenID Connect at its own mount, and in the shapes of the Microsoft identity platform below the
//! tenant's GUID.

use serde_json::{Map, Value, json};

use super::names;
use crate::issuer;

/// What is at the end of a path.
#[derive(Clone, Copy)]
enum Endpoint {
    Discovery,
    Keys,
    Token,
    DeviceCode,
    /// A page for people, with its form.
    Page(&'static str),
}

/// The paths with their operations.
pub fn paths() -> Map<String, Value> {
    let mut paths = Map::new();
    for (own, tenants, endpoint) in [
        ("/.well-known/openid-configuration", "/v2.0/.well-known/openid-configuration", Endpoint::Discovery),
        ("/keys", "/discovery/v2.0/keys", Endpoint::Keys),
        ("/token", "/oauth2/v2.0/token", Endpoint::Token),
        ("/devicecode", "/oauth2/v2.0/devicecode", Endpoint::DeviceCode),
        ("/authorize", "/oauth2/v2.0/authorize", Endpoint::Page("authorize")),
        ("/device", "/oauth2/deviceauth", Endpoint::Page("device")),
    ] {
        for (path, suffix) in [(format!("{}{own}", issuer::MOUNT), ""), (format!("/{{tenantId}}{tenants}"), "-2")] {
            let mut item = endpoint.item(suffix);
            item["parameters"] = names(&path).into();
            if let Some(tenant) = item["parameters"].get_mut(0) {
                tenant["schema"] = json!({"type": "string", "format": "uuid"});
            }
            paths.insert(path, item);
        }
    }
    paths
}

impl Endpoint {
    fn item(self, suffix: &str) -> Value {
        let text = || json!({"type": "string"});
        let get = |id: &str, schema: Value| json!({"get": {"operationId": format!("{id}{suffix}"), "security": [], "responses": answers("application/json", &schema)}});
        let post = |id: &str, form: Value, schema: Value| json!({"post": {"operationId": format!("{id}{suffix}"), "security": [], "requestBody": form_of(&form), "responses": answers("application/json", &schema)}});
        match self {
            Self::Discovery => {
                let document = json!({"type": "object", "required": ["issuer", "jwks_uri", "token_endpoint"]});
                get("issuer-discovery", document)
            }
            Self::Keys => get(
                "issuer-keys",
                json!({"type": "object", "required": ["keys"], "properties": {"keys": {"type": "array", "items": {"type": "object"}}}}),
            ),
            Self::Token => {
                let form = json!({"type": "object", "required": ["grant_type"], "properties": {
                    "grant_type": text(), "client_id": text(), "client_secret": text(), "scope": text(), "audience": text(),
                    "username": text(), "password": text(), "code": text(), "code_verifier": text(), "redirect_uri": text(),
                    "device_code": text(), "refresh_token": text(), "expires_in": {"type": "integer", "minimum": 1},
                }});
                let answer = json!({"type": "object", "required": ["token_type", "expires_in", "access_token"], "properties": {
                    "token_type": text(), "expires_in": {"type": "integer"}, "access_token": text(), "id_token": text(), "refresh_token": text(),
                }});
                post("issuer-token", form, answer)
            }
            Self::DeviceCode => {
                let form =
                    json!({"type": "object", "properties": {"client_id": text(), "scope": text(), "audience": text()}});
                let answer = json!({"type": "object", "required": ["device_code", "user_code", "verification_uri", "expires_in"], "properties": {
                    "device_code": text(), "user_code": text(), "verification_uri": text(), "expires_in": {"type": "integer"}, "interval": {"type": "integer"},
                }});
                post("issuer-devicecode", form, answer)
            }
            Self::Page(name) => {
                let page = answers("text/html", &text());
                let form = form_of(&json!({"type": "object", "additionalProperties": text()}));
                json!({
                    "get": {"operationId": format!("issuer-{name}-page{suffix}"), "security": [], "responses": page.clone()},
                    "post": {"operationId": format!("issuer-{name}-form{suffix}"), "security": [], "requestBody": form, "responses": page},
                })
            }
        }
    }
}

fn form_of(schema: &Value) -> Value {
    json!({"required": true, "content": {"application/x-www-form-urlencoded": {"schema": schema}}})
}

/// RFC 6749 section 5.2 for whatever is refused; a page says the same to people.
fn answers(kind: &str, schema: &Value) -> Value {
    let refusal = json!({"type": "object", "required": ["error"], "properties": {
        "error": {"type": "string"}, "error_description": {"type": "string"},
    }});
    let mut refused = json!({"application/json": {"schema": refusal}});
    if kind == "text/html" {
        refused[kind] = json!({"schema": schema});
    }
    json!({
        "200": {"description": "done", "content": {kind: {"schema": schema}}},
        "default": {"description": "refused, or sent on", "content": refused},
    })
}
