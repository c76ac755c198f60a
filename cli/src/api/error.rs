//! Refusals of the resource API as errors for people: ARM's error envelope, shortened and without what could steer a
//! terminal, with a hint of what to type next where the code tells.

use std::fmt;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;
use types::api::ResourceId;

use super::Call;
use crate::{
    account::{Account, SignsIn},
    failure::Failure,
    terminal::line,
};

/// Characters of a text of the gateway that are shown at most.
const TEXT: usize = 4000;
/// Details that are shown at most.
const DETAILS: usize = 20;

/// A refusal of the resource API.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// What was tried: method and path.
    pub what: String,
    /// HTTP status of the answer. It is a success where an operation was read that has failed.
    pub status: StatusCode,
    /// The error's code for programs; empty if the answer has none.
    pub code: String,
    /// The error in a sentence for people.
    pub message: String,
    /// Which part of the request is wrong.
    pub target: Option<String>,
    /// Each with its target.
    pub details: Vec<(Option<String>, String)>,
    /// How logs name the request.
    pub request_id: Option<String>,
    hint: Option<String>,
}

impl std::error::Error for ApiError {}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (", self.what, self.message)?;
        // An operation that failed was looked at with success.
        if self.status.is_success() {
            f.write_str(if self.code.is_empty() { "failed" } else { &self.code })?;
        } else {
            write!(f, "{}", self.status.as_u16())?;
            if !self.code.is_empty() {
                write!(f, " {}", self.code)?;
            }
        }
        if let Some(target) = &self.target {
            write!(f, ", at {target}")?;
        }
        f.write_str(")")?;
        for (target, message) in &self.details {
            match target {
                Some(target) => write!(f, "\n  {target}: {message}")?,
                None => write!(f, "\n  {message}")?,
            }
        }
        if let Some(id) = &self.request_id {
            write!(f, "\n  request id {id}")?;
        }
        Ok(())
    }
}

/// Without what could steer a terminal.
fn plain(text: &str) -> String {
    line(text).chars().take(TEXT).collect()
}

impl ApiError {
    /// From an answer.
    pub(super) fn read(call: &Call<'_>, account: &Account, answer: &Response<Bytes>) -> Self {
        let status = answer.status();
        let path = call.target.split('?').next().unwrap_or_default();
        let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let error = &body["error"];
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(plain);
        let details = error["details"].as_array().into_iter().flatten().take(DETAILS);
        let details = details.filter_map(|detail| Some((text(&detail["target"]), text(&detail["message"])?))).collect();
        let mut this = Self {
            what: format!("{} {}", call.method, plain(path)),
            status,
            code: text(&error["code"]).unwrap_or_default(),
            message: text(&error["message"])
                .or_else(|| text(&body["message"]))
                .unwrap_or_else(|| "the gateway gave no reason".to_owned()),
            target: text(&error["target"]),
            details,
            request_id: answer.headers().get("x-ms-request-id").and_then(|id| Some(plain(id.to_str().ok()?))),
            hint: None,
        };
        this.hint = this.next_step(path, account);
        this
    }

    /// Of an operation that failed after it had begun.
    pub(super) fn of_operation(what: &str, error: &Value) -> Self {
        let text = |name: &str| error[name].as_str().map(plain);
        Self {
            what: what.to_owned(),
            status: StatusCode::OK,
            code: text("code").unwrap_or_default(),
            message: text("message").unwrap_or_else(|| "it failed, and no reason was given".to_owned()),
            target: text("target"),
            details: Vec::new(),
            request_id: None,
            hint: None,
        }
    }

    /// The refusal of the API that a failure comes from, if one is.
    pub fn behind(failure: &Failure) -> Option<&Self> {
        failure.error().downcast_ref()
    }

    /// What to type next.
    pub fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    /// The reason first, for a reader who knows what was tried.
    pub fn reason(&self) -> String {
        let all = self.to_string();
        all.strip_prefix(&format!("{}: ", self.what)).unwrap_or(&all).to_owned()
    }

    fn next_step(&self, path: &str, account: &Account) -> Option<String> {
        // An action is behind what it is done to.
        let above = path.rsplit_once('/').map_or(path, |(above, _)| above);
        let id = ResourceId::parse(path).or_else(|_| ResourceId::parse(above)).ok();
        let group = id.as_ref().and_then(ResourceId::resource_group);
        let hint = match (self.code.as_str(), self.status) {
            ("AuthorizationFailed", _) => format!(
                "an owner can give the right: towline role assignment create --assignee {} --role ROLE --scope {}",
                account.object_id,
                id.as_ref().map_or("SCOPE", ResourceId::as_str)
            ),
            ("ResourceGroupNotFound", _) => {
                format!(
                    "make it: towline group create -g {} -l LOCATION; or see which there are: towline group list",
                    group?
                )
            }
            ("ResourceNotFound", _) if path.to_ascii_lowercase().contains("connectedclusters") => {
                format!(
                    "see which clusters there are: towline list{}",
                    group.map(|g| format!(" -g {g}")).unwrap_or_default()
                )
            }
            ("SubscriptionNotFound", _) => {
                "see which there are: towline account list --all; choose one: towline account set --subscription ID"
                    .to_owned()
            }
            ("SessionNotFound", _) => "see which are open: towline sessions list".to_owned(),
            ("ServicePrincipalNotFound", _) => "see which there are: towline sp list".to_owned(),
            ("PreconditionFailed" | "Conflict", _) => {
                "it was changed by another request at the same time: run the command again".to_owned()
            }
            (_, StatusCode::UNAUTHORIZED) => match account.signs_in {
                SignsIn::ServicePrincipal { .. } => format!(
                    "is the service principal disabled? Sign in again: towline login {} --service-principal",
                    account.gateway
                ),
                _ => format!("sign in again: towline login {}", account.gateway),
            },
            (_, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => "try again in a moment".to_owned(),
            _ => return None,
        };
        Some(hint)
    }
}
