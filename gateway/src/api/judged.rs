//! What a request is judged by. A right is asked before the body, so that nobody without one takes a body's place, and
//! again when the body has come and just before something is kept: who sends a body chooses how long that takes, and
//! whoever lost a right, or their account, in between has lost it for this request too.
//!
//! Handlers ask by [`Call::authorize`] and know nothing of this: what they were allowed is noted and asked again.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::SystemTime,
};

use types::api::ResourceId;

use super::{Call, refused};
use crate::{
    api_error::ApiError,
    identity::{AuthenticateError, Credential},
    snapshot::Snapshot,
};

/// Roles, accounts and clusters at an instant.
#[derive(Clone)]
pub struct Basis {
    /// What decisions are made by.
    pub snapshot: Arc<Snapshot>,
    /// In milliseconds since 1970.
    pub now_ms: i64,
}

/// What one request is judged by: as it began, and since its body has come.
pub struct Judged {
    began: Basis,
    since: OnceLock<Basis>,
    /// What the caller was allowed, as it was asked.
    allowed: Mutex<Vec<(String, ResourceId)>>,
    /// The caller's token; none where the gateway itself acts, as for a fleet assignment.
    credential: Option<Credential>,
}

impl Judged {
    /// Of a request that begins now.
    pub fn new(began: Basis, credential: Option<Credential>) -> Self {
        Self { began, since: OnceLock::new(), allowed: Mutex::default(), credential }
    }

    /// What decisions are made by now.
    pub fn basis(&self) -> &Basis {
        self.since.get().unwrap_or(&self.began)
    }

    /// Notes what the caller was allowed.
    pub fn note(&self, action: &str, id: &ResourceId) {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner).push((action.to_owned(), id.clone()));
    }
}

impl Call<'_> {
    /// Goes on only if the caller still is who they were and may all that they were allowed, now that the body has come.
    pub async fn body_arrived(&self) -> Result<(), ApiError> {
        let basis = self.judge_again().await?;
        // A second body is none: what is known of the first stays.
        let _ = self.judged.since.set(basis);
        Ok(())
    }

    /// The same just before something is kept, after what the kind asked and others took their turns for.
    pub async fn may_still(&self) -> Result<(), ApiError> {
        self.judge_again().await.map(drop)
    }

    async fn judge_again(&self) -> Result<Basis, ApiError> {
        let basis = Basis { snapshot: self.control.snapshot(), now_ms: self.control.now_ms() };
        self.still_signed_in(&basis.snapshot).await?;
        self.still_allowed(&basis)?;
        Ok(basis)
    }

    async fn still_signed_in(&self, now: &Arc<Snapshot>) -> Result<(), ApiError> {
        let Some(credential) = &self.judged.credential else { return Ok(()) };
        let refuse = |error: AuthenticateError| refused(self.control, &error);
        // The signature is checked again only where keys, issuers or accounts may have changed.
        if !now.has_keys_of(self.snapshot()) {
            let verified = credential.verify_for_api(&now.verifier, &self.control.settings.url, SystemTime::now());
            verified.await.map_err(refuse)?;
        }
        let is_welcome = now.is_welcome(self.issuer.as_deref(), self.identity()?);
        is_welcome.then_some(()).ok_or_else(|| refuse(AuthenticateError::Disabled))
    }

    fn still_allowed(&self, now: &Basis) -> Result<(), ApiError> {
        let allowed = self.judged.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = allowed.iter().find(|(action, id)| !self.may_by(now, action, &id.into()));
        lost.map_or(Ok(()), |(action, id)| Err(self.forbidden(action, id.as_str())))
    }
}
