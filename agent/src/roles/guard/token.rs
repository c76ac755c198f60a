//! Whose a token is, as an apiserver asks it: the user whom role kube-aad-proxy would impersonate for the same token.

use std::sync::Arc;

use serde_json::{Value, json};

use secrecy::SecretString;

use crate::roles::kube_aad_proxy::{
    Refusal,
    admit::{Credential, Scheme},
    authenticate::{Authenticated, Authenticator},
    impersonate::{ISSUER, Names, Subject},
};

/// Answers TokenReviews by the agent's own issuers.
pub struct Tokens {
    /// By the agent's own issuers.
    pub authenticator: Arc<Authenticator>,
    /// Whom users may be.
    pub names: Names,
}

impl Tokens {
    /// The status of a TokenReview, and what it came to in one word. A token of nobody that is known here is answered
    /// without an error, for another authenticator of the apiserver may know it. No error has anything of the token.
    ///
    /// The status names no audiences: an apiserver then takes it for its own audience, as it takes its own tokens.
    pub async fn review(&self, token: SecretString) -> (Value, &'static str) {
        let refused = |error: Refusal| {
            let error = error.detail.unwrap_or(error.message);
            (json!({"authenticated": false, "error": error}), "refused")
        };
        // What an apiserver has as a bearer token may be a proof of possession around one.
        let identity = match self.authenticator.authenticate(Some(Credential { scheme: Scheme::Bearer, token })).await {
            Ok(Authenticated::User(identity)) => identity,
            Ok(Authenticated::Unjudged(_)) => return (json!({"authenticated": false}), "unknown_issuer"),
            Err(refusal) => return refused(refusal),
        };
        match Subject::of(&identity, &self.names) {
            Ok(subject) => (json!({"authenticated": true, "user": user(&subject, &identity.issuer)}), "authenticated"),
            Err(refusal) => refused(refusal),
        }
    }
}

/// The user of the tunnel, and the extra that tells guard later, when the apiserver asks what they may do, that it was
/// guard who said whose the token is: a name and a uid may also be in a client certificate of the cluster's own.
fn user(subject: &Subject, issuer: &str) -> Value {
    let mut extra = subject.extra().clone();
    extra.insert(ISSUER.to_owned(), vec![issuer.to_owned()]);
    let mut user = json!({"username": subject.user(), "groups": subject.groups(), "extra": extra});
    if let Some(uid) = subject.uid() {
        user["uid"] = uid.into();
    }
    user
}
