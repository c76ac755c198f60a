//! From a credential to an identity, verified in the cluster with the agent's own issuers and for the audience of its
//! own cluster, which it reads from its own certificate. What the gateway says of a user counts for nothing.

use std::{sync::Arc, time::SystemTime};

use auth::token::{Identity, Statement, TokenError, Verifier};
use secrecy::{ExposeSecret as _, SecretString};
use types::ids::ClusterId;

use super::{
    Refusal,
    admit::{Credential, Scheme},
};

/// The stage's name in logs, metrics and refusals.
pub const STAGE: &str = "authenticate";

/// Verifies tokens against the configured issuers, for the audience of one cluster.
pub struct Authenticator {
    verifier: Arc<Verifier>,
    cluster: ClusterId,
    audience: String,
}

/// Who a request is from.
#[derive(Debug)]
pub enum Authenticated {
    /// The bearer of a token of a known issuer.
    User(Arc<Identity>),
    /// A token that only the apiserver can judge: of an issuer that is not configured here, or no JWT.
    Unjudged(SecretString),
}

impl Authenticator {
    /// For the agent's own cluster.
    pub fn new(verifier: Verifier, cluster: ClusterId) -> Self {
        let audience = cluster.audience();
        Self { verifier: Arc::new(verifier), cluster, audience }
    }

    /// The verifier that judges tokens.
    pub fn verifier(&self) -> &Arc<Verifier> {
        &self.verifier
    }

    /// Keeps the issuers' keys fresh; runs until dropped.
    pub async fn keep_fresh(&self) {
        self.verifier.keep_fresh().await;
    }

    /// The cluster that this agent serves.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// What a token is worth here.
    pub async fn judge(&self, credential: &Credential) -> Result<Arc<Identity>, TokenError> {
        self.verifier.verify(credential.token.expose_secret(), &self.audience, SystemTime::now()).await
    }

    /// Whether a token cannot be judged before its issuer has been asked for keys ([`Verifier::must_ask`]).
    pub fn must_ask(&self, token: &SecretString) -> bool {
        self.verifier.must_ask(token.expose_secret())
    }

    /// What an issuer states beside its tokens ([`Verifier::verify_statement`]).
    pub async fn statement(
        &self,
        statement: &str,
        issuer: &str,
        kind: &str,
        audience: &str,
        now: SystemTime,
    ) -> Result<Statement, TokenError> {
        self.verifier.verify_statement(statement, issuer, kind, audience, now).await
    }

    /// Without a credential, or with one that a known issuer's checks refuse: 401, which says no more than Kubernetes
    /// does.
    pub async fn authenticate(&self, credential: Option<Credential>) -> Result<Authenticated, Refusal> {
        let Some(credential) = credential else { return Err(Refusal::unauthorized(STAGE, "no credential")) };
        match self.judge(&credential).await {
            Ok(identity) => Ok(Authenticated::User(identity)),
            Err(err) if credential.scheme == Scheme::Bearer && is_unjudged(&err) => {
                Ok(Authenticated::Unjudged(credential.token))
            }
            Err(err) if err.is_unavailable() => {
                let message = "the issuer's keys cannot be read, so the token cannot be judged; try again";
                Err(Refusal::unavailable(STAGE, message).because(crate::chain(&err)))
            }
            Err(err) => Err(Refusal::unauthorized(STAGE, crate::chain(&err))),
        }
    }
}

/// Whether the token is of nobody that the agent knows, and so the apiserver's to judge.
pub fn is_unjudged(err: &TokenError) -> bool {
    err.is_foreign()
}
