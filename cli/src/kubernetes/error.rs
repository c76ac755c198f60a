//! What an apiserver refused, or why it did not answer, in one sentence. The library says the same twice, once in
//! Rust's words.

use daemon::chain;

use crate::terminal::line;

/// A request to a cluster that failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    text: String,
    /// HTTP's code of a refusal; none where there was no answer.
    code: Option<u16>,
    may_pass: bool,
}

/// Words of the libraries in front of a reason, which say nothing to who reads it.
const WORDS: &[&str] =
    &["ServiceError: ", "HyperError: ", "HttpError: ", "client error (Connect): ", "tcp connect error: "];

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let message = Some(status.message.as_str()).filter(|message| !message.is_empty());
                let said =
                    format!("{} ({} {}", message.unwrap_or("the apiserver gave no reason"), status.code, status.reason);
                Self {
                    text: line(&format!("{})", said.trim_end())),
                    code: Some(status.code),
                    may_pass: status.code == 429 || status.code >= 500,
                }
            }
            error => {
                let text = chain(&error);
                let mut text = text.as_str();
                while let Some(rest) = WORDS.iter().find_map(|kind| text.strip_prefix(kind)) {
                    text = rest;
                }
                let may_pass = matches!(error, kube::Error::HyperError(_) | kube::Error::Service(_));
                Self { text: line(text), code: None, may_pass }
            }
        }
    }
}

impl Error {
    /// 404: neither the object nor, perhaps, its kind.
    pub fn is_missing(&self) -> bool {
        self.code == Some(404)
    }

    /// Whether it is 404 because the namespace of the object is not there.
    pub(super) fn is_of_missing_namespace(&self, namespace: &str) -> bool {
        self.is_missing() && self.text.contains(&format!("namespaces \"{namespace}\" not found"))
    }

    /// The value that stands for what is not there, or the error.
    pub(super) fn unless_missing<T>(self, nothing: T) -> Result<T, Self> {
        if self.is_missing() { Ok(nothing) } else { Err(self) }
    }

    /// Whether the same request may do in a moment: the apiserver has no room or no answer, or was not reached.
    pub fn is_passing(&self) -> bool {
        self.may_pass
    }

    /// Whether the user may not.
    pub fn is_forbidden(&self) -> bool {
        self.code == Some(403)
    }

    /// Whether somebody else made or changed the object first.
    pub fn is_conflict(&self) -> bool {
        self.code == Some(409)
    }

    /// What to do, where the answer tells it. A quota and an admission plug-in refuse with 403, too.
    pub fn hint(&self) -> Option<String> {
        let says = |words: &str| self.text.contains(words);
        let hint = match self.code? {
            401 => "the kubeconfig's credential is not accepted: kubectl get --raw /version must work with it",
            403 if says("exceeded quota") => {
                "raise the ResourceQuota of the namespace, or choose another: --namespace NAME"
            }
            403 if says("because it is being terminated") => {
                "wait until the namespace is gone, then run the command again"
            }
            403 if says(" cannot ") => "use a kubeconfig of a cluster administrator (ClusterRole cluster-admin)",
            404 if says("namespaces \"") && says("\" not found") => {
                "the namespace was deleted in between: run the command again"
            }
            500 if says("failed calling webhook") => {
                "an admission webhook of the cluster does not answer: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
            }
            _ if says("admission webhook") => "an admission webhook of the cluster refuses it, and says why",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn refusal_of_an_apiserver_is_said_once_and_without_rust() {
        let message = "configmaps is forbidden: User \"v\" cannot list resource \"configmaps\"";
        let refused = kube::Error::Api(Status::failure(message, "Forbidden").with_code(403).boxed());
        let error = Error::from(refused);
        let shown = chain(&error);
        assert_eq!(shown, format!("{message} (403 Forbidden)"));
        assert!(error.is_forbidden() && error.hint().unwrap().contains("cluster administrator"));
        let failure = crate::failure::Failure::from(anyhow::Error::from(error).context("cannot look for agents"));
        let failure = format!("{:#}", failure.into_error());
        assert_eq!(failure.matches("forbidden").count(), 1, "{failure}");
        assert!(!failure.contains("Status") && !failure.contains("ApiError"), "{failure}");
    }

    #[test]
    fn refusal_that_passes_is_told_from_one_that_does_not() {
        let of = |code: u16, message: &str| {
            Error::from(kube::Error::Api(Status::failure(message, "").with_code(code).boxed()))
        };
        assert!(of(429, "").is_passing() && of(503, "").is_passing() && !of(403, "").is_passing());
        assert!(of(404, "").is_missing() && of(409, "").is_conflict());
        assert_eq!(of(503, "").to_string(), "the apiserver gave no reason (503)");
        let quota = of(403, "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1");
        assert!(quota.hint().unwrap().contains("ResourceQuota"));
        assert!(of(500, "failed calling webhook \"x\": timeout").hint().unwrap().contains("does not answer"));
    }
}
