//! One-time enrolment tokens: whoever holds one may create one connected cluster in one resource group,
//! without a role of their own. Made by who may write clusters there (`POST <group>/createEnrolmentToken`), shown once,
//! kept as a hash below the group, and used up by the batch that creates the cluster, so that of two users at once one
//! wins. It is its maker's right, lent: it ends when they are removed or lose it. `POST <group>/listEnrolmentTokens`
//! tells which there are, `POST <group>/withdrawEnrolmentToken` with an `id` ends one.
//!
//! ```text
//! token = "towline-enrol" . base64url(id of the resource group) . id (32 hex digits) . secret (64 hex digits)
//! ```

use auth::rbac::{Action, Plane, Scope, principal::group_key};
use aws_lc_rs::{constant_time, digest};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde_json::{Map, Value, json};
use types::{
    api::{ResourceId, id::RESOURCE_GROUPS},
    instants::instant,
};

use super::{
    Acting,
    schema::{self, Property, Type},
    usual_name,
};
use crate::{
    api_error::{ApiError, QUOTA_EXCEEDED},
    directory::Directory,
    identity::Holder,
    issuer::Issuer,
    random,
    snapshot::Snapshot,
    store::{
        batch::{AtMost, Batch, Expect, Refused},
        resources::Stored,
    },
    stored::last_name,
};

/// The actions: makes one,
pub const CREATE: &str = "createEnrolmentToken";
/// tells which there are, without their secrets,
pub const LIST: &str = "listEnrolmentTokens";
/// and ends one before its time.
pub const WITHDRAW: &str = "withdrawEnrolmentToken";
/// What its kept rows are; no kind of resource, so that no path of the API leads to one.
pub const KIND: &str = "towline.enrolment/tokens";
const PREFIX: &str = "towline-enrol";
/// Bytes of a token at most.
const TEXT_BYTES: usize = 1024;
/// Tokens of a resource group at once that have not ended.
const OF_ONE_GROUP: u32 = 500;
/// Lifetime of a token in seconds, where the request names none.
const LIFE_SECONDS: i64 = 3600;
/// Shortest lifetime that a request may name, in seconds.
const SHORTEST_SECONDS: i64 = 60;
/// Longest lifetime that a request may name, in seconds.
const LONGEST_SECONDS: i64 = 7 * 86_400;

const BODY: &[Property] = &[
    Property::new("name", Type::Text),
    Property::new("expiresInSeconds", Type::Count),
    Property::new("tags", Type::Tags),
];
const WITHDRAWN: &[Property] = &[Property::new("id", Type::Text).required()];
/// What who makes a token must have the right to, and what they must still have when it is used.
pub const PERMISSION: &str = "Microsoft.Kubernetes/connectedClusters/write";
/// Groups of its maker that a token remembers at most; each of them gives that right.
const MAKERS_GROUPS: usize = 8;

/// A token that was shown, and holds.
pub struct Held {
    /// The resource group.
    pub group: ResourceId,
    /// The one name that a cluster may have, if there is only one.
    pub name: Option<String>,
    /// The tags that a cluster has, whatever the enrolment says, where its maker gave some: they choose what it gets.
    pub tags: Option<Map<String, Value>>,
    /// Who made it.
    pub created_by: String,
    /// Whose right it rests on.
    maker: Holder,
    /// What is kept of it.
    pub kept: Stored,
}

impl Held {
    /// Whether its maker could still do what it is for: a token is their right, lent.
    pub fn is_lent(&self, snapshot: &Snapshot, issuer: Option<&Issuer>, now_ms: i64) -> bool {
        let Holder { issuer: name, subject, username, .. } = &self.maker;
        let principals = self.maker.principals();
        !snapshot.policy.is_disabled(username)
            && snapshot.has_issuer(name)
            && snapshot.is_known(issuer, name, subject, None)
            && may(&snapshot.directory, &principals, &self.group, now_ms)
    }
}

fn may(directory: &Directory, principals: &[String], group: &ResourceId, now_ms: i64) -> bool {
    let action = Action::new(PERMISSION);
    directory.decide(principals, Plane::Control, &action, &Scope::from(group), now_ms / 1000).is_ok()
}

/// Does an action of the group.
pub async fn act(acting: &Acting<'_>) -> Result<Value, ApiError> {
    match acting.action {
        LIST => list(acting).await,
        WITHDRAW => withdraw(acting).await,
        _ => create(acting).await,
    }
}

/// Those that have not ended, the newest last. No page has more than there may be.
async fn list(acting: &Acting<'_>) -> Result<Value, ApiError> {
    schema::check(&[], acting.body)?;
    let kept = acting.control.store.all_below(KIND, &acting.resource.key, OF_ONE_GROUP).await?;
    let mut held: Vec<&Stored> = kept.iter().filter(|kept| !has_ended(kept, acting.now_ms)).collect();
    held.sort_by_key(|kept| kept.revision);
    let shown = |kept: &&Stored| {
        json!({
            "id": last_name(&kept.key),
            "name": kept.body["name"],
            "tags": kept.body["tags"],
            "createdBy": kept.body["createdBy"],
            "createdOn": kept.body["createdMs"].as_i64().map(instant),
            "expiresOn": kept.body["endsMs"].as_i64().map(instant),
        })
    };
    Ok(json!({"value": held.iter().map(shown).collect::<Vec<_>>()}))
}

/// Ends one, by the id that creating and listing tell, which is no secret.
async fn withdraw(acting: &Acting<'_>) -> Result<Value, ApiError> {
    let asked = schema::check(WITHDRAWN, acting.body)?;
    let id = asked.get("id").and_then(Value::as_str).unwrap_or_default();
    let group = ResourceId::parse(&acting.resource.id)?;
    let unknown = || {
        let message = format!(
            "The resource group has no enrolment token '{}': it was used, withdrawn, or has ended; see listEnrolmentTokens.",
            id.chars().take(64).collect::<String>()
        );
        ApiError::of(StatusCode::NOT_FOUND, "EnrolmentTokenNotFound", message).at("id")
    };
    if id.len() != 32 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(unknown());
    }
    let kept = acting.control.store.get(&key(&group, id)).await?.filter(|kept| !has_ended(kept, acting.now_ms));
    let kept = kept.ok_or_else(unknown)?;
    let batch = Batch { deletes: vec![(kept.key, Expect::Revision(kept.revision))], ..Batch::default() };
    acting.control.write(&batch).await?.map_err(|_| unknown())?;
    Ok(json!({"id": id.to_ascii_lowercase()}))
}

/// The maker, with those of their groups alone that give the right.
fn maker(acting: &Acting<'_>, group: &ResourceId) -> Result<Holder, ApiError> {
    let identity = acting.caller.identity().ok_or_else(|| ApiError::internal("nobody makes a token"))?;
    let directory = acting.control.directory();
    let gives = |name: &&String| may(&directory, &[group_key(name)], group, acting.now_ms);
    Ok(Holder {
        issuer: identity.issuer.clone(),
        subject: identity.subject.clone(),
        username: identity.username.clone(),
        principal: identity.principal.clone(),
        groups: identity.groups.iter().filter(gives).take(MAKERS_GROUPS).cloned().collect(),
        cluster: None,
        // It is a credential of its own, which its maker withdraws: machines get it beforehand.
        credential: None,
    })
}

/// Creates a token. The answer alone holds its secret: the store keeps a hash.
async fn create(acting: &Acting<'_>) -> Result<Value, ApiError> {
    let asked = schema::check(BODY, acting.body)?;
    let group = ResourceId::parse(&acting.resource.id)?;
    let name = asked.get("name").and_then(Value::as_str);
    name.map_or(Ok(()), |name| usual_name(name, 63, "-_."))?;
    let life = asked.get("expiresInSeconds").and_then(Value::as_i64).unwrap_or(LIFE_SECONDS);
    if !(SHORTEST_SECONDS..=LONGEST_SECONDS).contains(&life) {
        let message = format!("expiresInSeconds must be from {SHORTEST_SECONDS} to {LONGEST_SECONDS}.");
        return Err(ApiError::bad_request("InvalidRequestContent", message).at("expiresInSeconds"));
    }
    let ends_ms = acting.now_ms + life * 1000;
    let (id, secret) = (types::ids::hex(&random::bytes::<16>()), types::ids::hex(&random::bytes::<32>()));
    let kept = Stored {
        key: key(&group, &id),
        kind: KIND.to_owned(),
        parent: group.key().to_owned(),
        id: format!("{group}/providers/{KIND}/{id}"),
        revision: 0,
        body: json!({
            "hash": hashed(&secret),
            "endsMs": ends_ms,
            "name": name,
            "tags": asked.get("tags"),
            "createdBy": acting.caller.name(),
            "createdMs": acting.now_ms,
            "maker": maker(acting, &group)?,
        }),
        protected: None,
    };
    let mut batch = Batch { puts: vec![(kept, Expect::Absent)], ..Batch::default() };
    let others = acting.control.store.all_below(KIND, group.key(), OF_ONE_GROUP).await?;
    let over = others.iter().filter(|other| has_ended(other, acting.now_ms));
    batch.deletes = over.map(|other| (other.key.clone(), Expect::Any)).collect();
    let full = || {
        let message =
            format!("The resource group has {OF_ONE_GROUP} enrolment tokens, the limit; wait until some end.");
        ApiError::of(StatusCode::CONFLICT, QUOTA_EXCEEDED, message)
    };
    if others.len() - batch.deletes.len() >= OF_ONE_GROUP as usize {
        return Err(full());
    }
    // At this gateway tokens are created one after the other; other replicas create them at the same time.
    batch.at_most.push(AtMost { kind: KIND.to_owned(), parent: group.key().to_owned(), count: OF_ONE_GROUP.into() });
    let _room = acting.control.quotas.take(&batch)?;
    acting.control.write(&batch).await?.map_err(|refused| match refused {
        Refused::Full { .. } => full(),
        Refused::Changed { .. }
        | Refused::NotEmpty { .. }
        | Refused::TooManyOperations { .. }
        | Refused::NoParent { .. } => ApiError::resource_not_found(&group),
    })?;
    let token = format!("{PREFIX}.{}.{id}.{secret}", URL_SAFE_NO_PAD.encode(group.as_str()));
    Ok(json!({"token": token, "id": id, "expiresOn": instant(ends_ms), "resourceGroup": group.as_str(), "name": name}))
}

/// What the actions take and answer, as schemas of OpenAPI.
pub fn described(action: &str) -> (Value, Value) {
    let text = || json!({"type": "string"});
    let instant = || json!({"type": "string", "format": "date-time"});
    let name = || json!({"type": ["string", "null"]});
    match action {
        LIST => {
            let item = json!({"type": "object", "required": ["id", "createdBy", "createdOn", "expiresOn"], "properties": {
                "id": text(),
                "name": name(),
                "createdBy": text(),
                "createdOn": instant(),
                "expiresOn": instant(),
            }});
            let list = json!({"type": "object", "required": ["value"], "properties": {
                "value": {"type": "array", "items": item},
            }});
            (schema::open_api(&[]), list)
        }
        WITHDRAW => {
            let answer = json!({"type": "object", "required": ["id"], "properties": {"id": text()}});
            (schema::open_api(WITHDRAWN), answer)
        }
        _ => {
            let required = ["token", "id", "expiresOn", "resourceGroup"];
            let answer = json!({"type": "object", "required": required, "properties": {
                "token": text(),
                "id": text(),
                "expiresOn": instant(),
                "resourceGroup": text(),
                "name": name(),
            }});
            (schema::open_api(BODY), answer)
        }
    }
}

/// The token of a text, if it is one that holds; it may be used at the same time by somebody else.
pub async fn held(control: &crate::control::Control, text: &str) -> Result<Option<Held>, ApiError> {
    let Some((group, id, secret)) = parts(text) else { return Ok(None) };
    if !control.has_subscription(group.subscription()) {
        return Ok(None);
    }
    let Some(kept) = control.store.get(&key(&group, id)).await? else { return Ok(None) };
    let text = |name: &str| kept.body.get(name).and_then(Value::as_str).map(str::to_owned);
    let hash = text("hash").unwrap_or_default();
    let same = constant_time::verify_slices_are_equal(hash.as_bytes(), hashed(secret).as_bytes()).is_ok();
    if !same || kept.kind != KIND || has_ended(&kept, control.now_ms()) {
        return Ok(None);
    }
    // One of before it was kept whose right it lends is nobody's.
    let Ok(maker) = serde_json::from_value(kept.body["maker"].clone()) else { return Ok(None) };
    let tags = kept.body["tags"].as_object().cloned();
    Ok(Some(Held { group, name: text("name"), tags, created_by: text("createdBy").unwrap_or_default(), maker, kept }))
}

/// What somebody with a token may say of the cluster, as the API would be told.
pub fn body(location: &str, key: &str, tags: &Map<String, Value>) -> Map<String, Value> {
    let body = json!({
        "location": location,
        "tags": tags,
        "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": key},
    });
    body.as_object().cloned().unwrap_or_default()
}

fn parts(text: &str) -> Option<(ResourceId, &str, &str)> {
    let mut parts = (text.len() <= TEXT_BYTES).then(|| text.split('.'))?;
    let (prefix, group, id, secret) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let digits = |text: &str, length| text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit());
    let group = String::from_utf8(URL_SAFE_NO_PAD.decode(group).ok()?).ok()?;
    let group = ResourceId::parse(&group).ok().filter(|group| group.is(RESOURCE_GROUPS))?;
    let fine = prefix == PREFIX && parts.next().is_none() && digits(id, 32) && digits(secret, 64);
    fine.then_some((group, id, secret))
}

fn key(group: &ResourceId, id: &str) -> String {
    format!("{}/providers/{KIND}/{}", group.key(), id.to_ascii_lowercase())
}

fn has_ended(kept: &Stored, now_ms: i64) -> bool {
    kept.body.get("endsMs").and_then(Value::as_i64).is_none_or(|ends| ends <= now_ms)
}

fn hashed(secret: &str) -> String {
    types::ids::hex(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r14_a_text_that_is_no_token_is_none() {
        let group = "/subscriptions/11111111-1111-4111-8111-111111111111/resourceGroups/g";
        let encoded = URL_SAFE_NO_PAD.encode(group);
        let (id, secret) = ("a".repeat(32), "b".repeat(64));
        let good = format!("{PREFIX}.{encoded}.{id}.{secret}");
        assert_eq!(parts(&good).unwrap().0.as_str(), group);
        let cluster = URL_SAFE_NO_PAD.encode(format!("{group}/providers/Microsoft.Kubernetes/connectedClusters/c"));
        for bad in [
            String::new(),
            "....".to_owned(),
            good[1..].to_owned(),
            good[..good.len() - 1].to_owned(),
            format!("{good}."),
            format!("{PREFIX}.{cluster}.{id}.{secret}"),
            format!("{PREFIX}.%.{id}.{secret}"),
            format!("{PREFIX}.{encoded}.{}.{secret}", "../".repeat(11)),
            "x".repeat(TEXT_BYTES + 1),
        ] {
            assert!(parts(&bad).is_none(), "{bad}");
        }
    }
}
