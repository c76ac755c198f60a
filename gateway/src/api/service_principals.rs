//! The service principals of the built-in issuer, for who owns the gateway (docs/features.md S1-S3; `towline sp`):
//! below `/providers/Microsoft.Authorization/servicePrincipals`. A secret is in the answer that made it, and in no
//! other.

use std::time::{Duration, SystemTime};

use auth::rbac::principal::user_key;
use http::{Method, Response, StatusCode, header};
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};
use types::{api::ResourceId, instants::instant};

use super::{Call, body, json, write::rights_turn};
use crate::{
    answers::Body,
    api_error::{ApiError, QUOTA_EXCEEDED},
    issuer::{
        Issuer, KeptError, NewSecret, Principal, Principals, PrincipalsError,
        principals::{SECRET_LIFE, SECRETS_MAX},
    },
    owners::{Change, SignedIn},
    resources::schema::{self, Property, Type},
};

/// What is asked of service principals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// All service principals.
    All,
    /// One, by name, object id or client id.
    One(String),
    /// `POST .../<one>/rotate`: another secret.
    Rotate(String),
}

/// Answers it. Whoever may give every right of the gateway may do this too, and nobody else: who makes a secret can be
/// who it is of.
pub async fn serve<B>(call: &Call<'_>, question: &Question, body: B) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    call.any_version()?;
    let verb = match call.method {
        Method::GET | Method::HEAD => "read",
        Method::DELETE => "delete",
        _ => "write",
    };
    authorize(call, &format!("Microsoft.Authorization/servicePrincipals/{verb}"))?;
    let sent = match call.method {
        Method::POST => body::read(call, body).await?,
        _ => {
            body::discard(call, body).await?;
            Map::new()
        }
    };
    let issuer = call.issuer.as_ref().ok_or_else(|| {
        let message =
            "This gateway has no issuer of its own: service principals are made at the issuer that it trusts.";
        ApiError::of(StatusCode::NOT_FOUND, "NoBuiltInIssuer", message)
    })?;
    match (question, &call.method) {
        (Question::All, &Method::GET | &Method::HEAD) => {
            let all: Vec<Value> = issuer.known().1.iter().map(shown).collect();
            Ok(json(StatusCode::OK, &json!({"value": all})))
        }
        (Question::All, &Method::POST) => {
            let sent = schema::check(NEW, &sent)?;
            let name = sent.get("displayName").and_then(Value::as_str).unwrap_or_default().to_owned();
            let life = life(&sent);
            let (made, secret) = edit(issuer, move |all| all.create(&name, life, SystemTime::now())).await?;
            Ok(json(StatusCode::CREATED, &with_secret(shown(&made), &secret)))
        }
        (Question::One(key), &Method::GET | &Method::HEAD) => {
            let found = issuer.known().1.find(key).map(shown);
            found.map(|one| json(StatusCode::OK, &one)).ok_or_else(|| PrincipalsError::Unknown(key.clone()).into())
        }
        (Question::One(key), &Method::DELETE) => {
            let (key, _turn) = (key.clone(), rights_turn(call).await?);
            call.may_still().await?;
            may_go(call, issuer, &key)?;
            match edit(issuer, move |all| all.delete(&key)).await {
                Ok(gone) => Ok(json(StatusCode::OK, &shown(&gone))),
                Err(error) if error.status == StatusCode::NOT_FOUND => Ok(super::empty(StatusCode::NO_CONTENT)),
                Err(error) => Err(error),
            }
        }
        (Question::Rotate(key), &Method::POST) => {
            let sent = schema::check(ROTATE, &sent)?;
            let (key, life) = (key.clone(), life(&sent));
            let keep = sent.get("keepExisting").and_then(Value::as_bool).unwrap_or(false);
            let (of, secret) = edit(issuer, move |all| rotate(all, &key, keep, life)).await?;
            Ok(json(StatusCode::OK, &with_secret(shown(&of), &secret)))
        }
        _ => Err(ApiError::method_not_allowed("service principals have GET, POST and DELETE")
            .with(header::ALLOW, "GET, HEAD, POST, DELETE")),
    }
}

/// The last owner stays.
fn may_go(call: &Call<'_>, issuer: &Issuer, key: &str) -> Result<(), ApiError> {
    let (users, principals) = issuer.known();
    let Some(going) = principals.find(key) else { return Ok(()) };
    let accounts = Some((&*users, &*principals));
    let names = call.snapshot().names();
    let before = SignedIn { names: &names, accounts, caller: call.caller.principals(), gone: None, now: call.now() };
    // Who removes themselves is not there behind it, in no group either.
    let themselves = user_key(&names.principal(&going.object_id)) == user_key(call.caller.object_id());
    let caller = if themselves { &[] } else { before.caller };
    let after = SignedIn { gone: Some(&going.object_id), caller, ..before };
    Change { before, after, assignment: None }.check(&call.control.settings, &call.control.directory())
}

/// A service principal belongs to the tenant and may have rights everywhere in it: the right is needed at every
/// subscription.
fn authorize(call: &Call<'_>, action: &str) -> Result<(), ApiError> {
    let subscriptions = &call.control.settings.subscriptions;
    let allowed = |id: &str| ResourceId::top(id).is_ok_and(|id| call.authorize(action, &id).is_ok());
    let everywhere = subscriptions.iter().all(|subscription| allowed(&subscription.id));
    if everywhere && !subscriptions.is_empty() { Ok(()) } else { Err(call.forbidden(action, "/")) }
}

fn rotate(
    all: &mut Principals,
    key: &str,
    keep: bool,
    life: Duration,
) -> Result<(Principal, NewSecret), PrincipalsError> {
    let unknown = || PrincipalsError::Unknown(key.to_owned());
    let before = all.find(key).ok_or_else(unknown)?.clone();
    // Room for the new one is made first; a failure changes nothing, because the file is then not written.
    let gone = if keep { 0 } else { before.secrets.len().min(SECRETS_MAX) };
    for secret in before.secrets.iter().take(gone) {
        all.remove_secret(&before.object_id, &secret.id)?;
    }
    let secret = all.add_secret(&before.object_id, life, SystemTime::now())?;
    Ok((all.find(key).ok_or_else(unknown)?.clone(), secret))
}

/// Nobody else changes them meanwhile, in another process neither.
async fn edit<T: Send + 'static>(
    issuer: &Issuer,
    change: impl FnOnce(&mut Principals) -> Result<T, PrincipalsError> + Send + 'static,
) -> Result<T, ApiError> {
    Ok(issuer.edit_principals(change).await?)
}

const LIFE: &str = "secretLifetimeSeconds";
/// The body of POST.
const NEW: &[Property] = &[Property::new("displayName", Type::Text).required(), Property::new(LIFE, Type::Count)];
/// The body of `rotate`. A misspelt `keepExisting` would withdraw what is in use.
const ROTATE: &[Property] = &[Property::new("keepExisting", Type::Bool), Property::new(LIFE, Type::Count)];

fn life(sent: &Map<String, Value>) -> Duration {
    sent.get(LIFE).and_then(Value::as_u64).map_or(SECRET_LIFE, Duration::from_secs)
}

fn shown(principal: &Principal) -> Value {
    let at = |seconds: u64| instant(i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX));
    let secret = |secret: &crate::issuer::principals::Secret| json!({"id": secret.id, "created": at(secret.created), "expires": at(secret.expires)});
    json!({
        "displayName": principal.name,
        "objectId": principal.object_id,
        "clientId": principal.client_id,
        "disabled": principal.disabled,
        "secrets": principal.secrets.iter().map(secret).collect::<Vec<_>>(),
    })
}

fn with_secret(mut shown: Value, secret: &NewSecret) -> Value {
    shown["clientSecret"] = secret.secret.expose_secret().into();
    shown["secretId"] = secret.id.as_str().into();
    shown
}

impl From<PrincipalsError> for ApiError {
    fn from(error: PrincipalsError) -> Self {
        let error = match error {
            PrincipalsError::Kept(KeptError::Store(error)) => return error.into(),
            other => other,
        };
        let message = format!("{error}.");
        let (status, code) = match &error {
            PrincipalsError::Name(_) | PrincipalsError::Life => (StatusCode::BAD_REQUEST, "InvalidRequestContent"),
            PrincipalsError::Taken(_) => (StatusCode::CONFLICT, "ServicePrincipalExists"),
            PrincipalsError::Unknown(_) | PrincipalsError::UnknownSecret(_) => {
                (StatusCode::NOT_FOUND, "ServicePrincipalNotFound")
            }
            PrincipalsError::TooMany | PrincipalsError::TooManySecrets => (StatusCode::CONFLICT, QUOTA_EXCEEDED),
            PrincipalsError::File(_) | PrincipalsError::Kept(_) | PrincipalsError::Random(_) => {
                return Self::internal(daemon::chain(&error));
            }
        };
        Self::of(status, code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_property_withdraws_no_secret() {
        let check = |properties, body: Value| schema::check(properties, body.as_object().unwrap());
        assert!(check(ROTATE, json!({})).is_ok() && check(ROTATE, json!({"keepExisting": true, LIFE: 60})).is_ok());
        for (bad, at) in [
            (json!({"keepexisting": true}), "keepexisting"),
            (json!({"keepExisting": "true"}), "keepExisting"),
            (json!({LIFE: -1}), LIFE),
            (json!({LIFE: "60"}), LIFE),
        ] {
            assert_eq!(check(ROTATE, bad).unwrap_err().target.as_deref(), Some(at));
        }
        for (bad, at) in [(json!({}), "displayName"), (json!({"displayName": "a", "owner": true}), "owner")] {
            assert_eq!(check(NEW, bad).unwrap_err().target.as_deref(), Some(at));
        }
    }
}
