//! From a verified token to who it speaks for. The only place where an [`Identity`] is made; a fault in any claim
//! refuses the token, for an identity with something missing is another identity (docs/threats.md TH7).

use std::{collections::BTreeMap, fmt, ops::Deref, sync::Arc, time::SystemTime};

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::{Map, Value};
use types::limits;

use super::{
    config::{Issuer, Username},
    error::TokenError,
    fetch::Boxed,
    names::{self, Names},
};

/// The claim of [`Details::credential`].
pub const CREDENTIAL: &str = "credential";
/// Bytes of a `sid`, and of the name of a credential, at most.
const SID_BYTES: usize = 256;

/// Who a verified token speaks for. There is no way to make or change one outside the module [`crate::token`]; its
/// fields are read through [`Details`].
#[derive(Debug, PartialEq, Eq)]
pub struct Identity(Details);

/// What an [`Identity`] holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Details {
    /// User name with the issuer's prefix.
    pub username: String,
    /// What role assignments call them: the object id where the issuer is Entra, else `sub`, with the issuer's prefix
    /// of user names, so that two issuers' users are never one.
    pub principal: String,
    /// `uid` for `Impersonate-Uid`.
    pub uid: Option<String>,
    /// Groups with the issuer's prefix, in the token's order.
    pub groups: Vec<String>,
    /// Extra, keys lower-case (`oid` for Entra users, docs/features.md A2).
    pub extra: BTreeMap<String, Vec<String>>,
    /// The configured name of the issuer.
    pub issuer: String,
    /// `sub` as in the token.
    pub subject: String,
    /// Whether the token is an application's own (Entra: `idtyp`), not one for a person.
    pub application: bool,
    /// When the token ends.
    pub expires: SystemTime,
    /// Thumbprint (RFC 7638) of the issuer's key that signed the token ([`super::Verifier::has_revoked`]).
    pub key: Arc<str>,
    /// The sign-in that the token came of, where the issuer says (`sid`). Only tokens of the same one extend each
    /// other's sessions; of two without nobody knows whether the same person was there.
    pub sign_in: Option<SignIn>,
    /// What somebody signed in with, as the issuer calls it (`credential`, a claim of the gateway's own issuer): of a
    /// service principal its secret, of a user the number of their password. Whoever knows the issuer's accounts can tell
    /// whether that still holds.
    pub credential: Option<String>,
}

/// A sign-in of somebody at an issuer: a digest of all three.
pub type SignIn = [u8; 16];

impl Deref for Identity {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

/// Whose groups are too many for their token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overage {
    /// The configured name of the issuer.
    pub issuer: String,
    /// The token's claim `sub`.
    pub subject: String,
    /// `oid`, if the token has it.
    pub object_id: Option<String>,
    /// `tid`, if the token has it.
    pub tenant_id: Option<String>,
    /// Whether the token is a service principal's.
    pub service_principal: bool,
}

/// Looks up groups that an issuer left out of a token. What addresses the token itself names (`_claim_sources`) must
/// not be asked: they are its bearer's choice as far as anybody knows.
pub trait GroupsResolver: Send + Sync {
    /// The names of the groups, without the issuer's prefix. `None`: cannot be looked up, the token is refused.
    fn resolve(&self, overage: Overage) -> Boxed<Option<Vec<String>>>;
}

impl fmt::Debug for dyn GroupsResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupsResolver")
    }
}

type Claims = Map<String, Value>;

/// Whether the issuer left groups out, which must never be read as "no groups" (docs/features.md A4).
pub(super) fn overage(claims: &Claims, issuer: &Issuer) -> Result<Option<Overage>, TokenError> {
    let Some(groups) = issuer.groups_claim.as_deref() else { return Ok(None) };
    let named = match claims.get("_claim_names") {
        None => false,
        Some(Value::Object(elsewhere)) => elsewhere.contains_key(groups) || elsewhere.contains_key("groups"),
        Some(_) => return Err(bad("_claim_names", "an object")),
    };
    let has = match claims.get("hasgroups") {
        None | Some(Value::Bool(false)) => false,
        Some(Value::String(word)) if word == "false" => false,
        Some(_) => true,
    };
    if !named && !has && !claims.keys().any(|claim| claim.starts_with("groups:src")) {
        return Ok(None);
    }
    let text = |claim: &str| claims.get(claim).and_then(Value::as_str).map(str::to_owned);
    let (subject, object_id) = (text("sub").unwrap_or_default(), text("oid"));
    Ok(Some(Overage {
        issuer: issuer.name.clone(),
        service_principal: is_application(claims) || object_id.as_deref() == Some(&subject),
        subject,
        object_id,
        tenant_id: text("tid"),
    }))
}

/// Makes the identity of a token that the key of this thumbprint signed. `resolved`: groups looked up elsewhere because of
/// an overage.
pub(super) fn identity(
    claims: &Claims,
    issuer: &Issuer,
    resolved: Option<Vec<String>>,
    expires: SystemTime,
    key: &str,
) -> Result<Identity, TokenError> {
    let subject = required_text(claims, "sub")?;
    if subject.is_empty() || subject.len() > 1024 || names::has_forbidden(subject) {
        return Err(TokenError::BadName("sub"));
    }
    let groups = match resolved {
        Some(groups) => groups,
        None => issuer.groups_claim.as_deref().map_or(Ok(Vec::new()), |claim| texts(claims, claim))?,
    };
    if groups.len() > limits::GROUPS {
        return Err(TokenError::TooManyGroups { count: groups.len(), limit: limits::GROUPS });
    }
    let reserved = &issuer.reserved;
    let users = Names { prefix: &issuer.username_prefix, reserved, others: &issuer.others_names };
    let of_groups = Names { prefix: &issuer.groups_prefix, reserved, others: &issuer.others_groups };
    let group = |name: &String| of_groups.prefixed("group name", name);
    Ok(Identity(Details {
        principal: users.principal(principal(claims, issuer, subject)?)?,
        username: users.prefixed("user name", username(claims, issuer)?)?,
        uid: match &issuer.uid_claim {
            None => None,
            Some(claim) => Some(names::id("uid", required_text(claims, claim)?)?),
        },
        groups: groups.iter().map(group).collect::<Result<_, _>>()?,
        extra: extra(claims, issuer)?,
        issuer: issuer.name.clone(),
        subject: subject.to_owned(),
        application: is_application(claims),
        expires,
        key: key.into(),
        sign_in: sign_in(claims, issuer, subject),
        credential: claims
            .get(CREDENTIAL)
            .and_then(Value::as_str)
            .filter(|name| (1..=SID_BYTES).contains(&name.len()))
            .map(str::to_owned),
    }))
}

/// OpenID Connect Front-Channel Logout 1.0, section 3: `sid` names a session at the issuer. What is no such name is
/// nothing.
fn sign_in(claims: &Claims, issuer: &Issuer, subject: &str) -> Option<SignIn> {
    let sid = claims.get("sid").and_then(Value::as_str).filter(|sid| (1..=SID_BYTES).contains(&sid.len()))?;
    let mut digest = Context::new(&SHA256);
    for part in [issuer.name.as_str(), subject, sid] {
        // With their lengths, so that no two triples read the same.
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part.as_bytes());
    }
    digest.finish().as_ref().first_chunk().copied()
}

fn bad(claim: &str, wanted: &'static str) -> TokenError {
    TokenError::BadClaim { claim: claim.to_owned(), wanted }
}

fn optional_text<'a>(claims: &'a Claims, claim: &str) -> Result<Option<&'a str>, TokenError> {
    match claims.get(claim) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(bad(claim, "a text")),
    }
}

fn required_text<'a>(claims: &'a Claims, claim: &str) -> Result<&'a str, TokenError> {
    optional_text(claims, claim)?.ok_or_else(|| TokenError::MissingClaim(claim.to_owned()))
}

/// None, one text, or a list of texts; anything else refuses.
fn texts(claims: &Claims, claim: &str) -> Result<Vec<String>, TokenError> {
    let wanted = "a text or a list of texts";
    match claims.get(claim) {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(Value::Array(list)) => {
            list.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(|| bad(claim, wanted))).collect()
        }
        Some(_) => Err(bad(claim, wanted)),
    }
}

fn principal<'a>(claims: &'a Claims, issuer: &Issuer, subject: &'a str) -> Result<&'a str, TokenError> {
    match &issuer.username {
        Username::Entra => required_text(claims, "oid"),
        Username::Claim(_) => Ok(subject),
    }
}

/// An application's own token (Entra: `idtyp`).
fn is_application(claims: &Claims) -> bool {
    claims.get("idtyp").and_then(Value::as_str) == Some("app")
}

fn username<'a>(claims: &'a Claims, issuer: &Issuer) -> Result<&'a str, TokenError> {
    match &issuer.username {
        Username::Claim(claim) => {
            let name = required_text(claims, claim)?;
            // As Kubernetes does: an unverified address is anybody's claim.
            if claim == "email" && claims.get("email_verified").is_some_and(|v| v != &Value::Bool(true)) {
                return Err(bad("email_verified", "true"));
            }
            Ok(name)
        }
        Username::Entra => {
            let object_id = required_text(claims, "oid")?;
            let principal_name = optional_text(claims, "upn")?.filter(|_| !is_application(claims));
            Ok(principal_name.unwrap_or(object_id))
        }
    }
}

fn extra(claims: &Claims, issuer: &Issuer) -> Result<BTreeMap<String, Vec<String>>, TokenError> {
    let mut out = BTreeMap::new();
    for (key, claim) in &issuer.extra {
        let values = texts(claims, claim)?;
        if values.len() > limits::GROUPS {
            return Err(TokenError::TooManyGroups { count: values.len(), limit: limits::GROUPS });
        }
        for value in &values {
            Names { prefix: "", reserved: &issuer.reserved, others: &[] }.prefixed("extra", value)?;
        }
        if !values.is_empty() {
            out.insert(key.clone(), values);
        }
    }
    Ok(out)
}
