//! ARM's error envelope (RPC contract, "Error response content"): `{"error": {code, message, target, details}}`.

use serde::{Deserialize, Serialize};

/// The whole body of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The code and the sentence of the error.
    pub error: ErrorDetail,
}

/// One fault, with the faults that it is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// A word that programs compare: `ResourceNotFound`.
    pub code: String,
    /// A sentence for people: what was tried, why it failed, what to do.
    pub message: String,
    /// Where in the request, as a path of names: `properties.agentPublicKeyCertificate`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<String>,
    /// The single faults, all of them at once.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub details: Vec<ErrorDetail>,
}

impl ErrorDetail {
    /// A fault of the whole request.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), target: None, details: Vec::new() }
    }

    /// A fault at one place of it.
    #[must_use]
    pub fn at(mut self, target: impl Into<String>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// All faults of a request as one: a single one stands for itself, several are details. `None` if there is none.
    pub fn all(mut faults: Vec<Self>) -> Option<Self> {
        match faults.len() {
            0 | 1 => faults.pop(),
            count => {
                let message = format!("The request has {count} faults; see details.");
                Some(Self { details: faults, ..Self::new("InvalidRequestContent", message) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_stands_for_itself_and_several_are_details() {
        let fault = |at: &str| ErrorDetail::new("MissingRequiredProperty", "is missing").at(at);
        assert_eq!(ErrorDetail::all(vec![]), None);
        assert_eq!(ErrorDetail::all(vec![fault("a")]), Some(fault("a")));
        let body = ErrorBody { error: ErrorDetail::all(vec![fault("a"), fault("b")]).unwrap() };
        let text = serde_json::to_value(&body).unwrap();
        assert_eq!(text["error"]["code"], "InvalidRequestContent");
        assert_eq!(text["error"]["details"][1]["target"], "b");
        assert!(text["error"].get("target").is_none());
        assert_eq!(serde_json::from_value::<ErrorBody>(text).unwrap(), body);
    }
}
