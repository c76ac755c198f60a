//! kubectl's credential plugin interface: `client.authentication.k8s.io/v1` and `v1beta1`.

use std::time::{Duration, SystemTime};

use secrecy::ExposeSecret;
use serde_json::{Value, json};
use types::instants::rfc3339_seconds;

use crate::token::Token;

/// A version of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecVersion {
    /// Since Kubernetes 1.22.
    V1,
    /// Since Kubernetes 1.11 and still served.
    V1Beta1,
}

impl ExecVersion {
    /// The value of `apiVersion` that names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "client.authentication.k8s.io/v1",
            Self::V1Beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }

    /// Which version kubectl asks for in `KUBERNETES_EXEC_INFO`; without that `v1beta1`, because it is known to all.
    ///
    /// # Errors
    /// The version asked for, if it is neither.
    pub fn asked(info: Option<&str>) -> Result<Self, String> {
        let Some(info) = info else { return Ok(Self::V1Beta1) };
        let info: Value = serde_json::from_str(info).map_err(|_| "what is not JSON".to_owned())?;
        match info["apiVersion"].as_str() {
            Some("client.authentication.k8s.io/v1") => Ok(Self::V1),
            Some("client.authentication.k8s.io/v1beta1") => Ok(Self::V1Beta1),
            other => Err(other.unwrap_or("no apiVersion").to_owned()),
        }
    }
}

/// The object that a plugin prints. kubectl is told an end a little before the token's own, so that a request does not
/// arrive with a token that has just ended.
pub fn exec_credential(version: ExecVersion, token: &Token) -> anyhow::Result<Value> {
    let mut status = json!({ "token": token.secret.expose_secret() });
    if let Some(expires) = token.expires {
        status["expirationTimestamp"] = rfc3339_seconds(expires - margin(token.obtained, expires)).into();
    }
    Ok(json!({ "apiVersion": version.as_str(), "kind": "ExecCredential", "status": status }))
}

/// A tenth of the life, at most ten seconds.
fn margin(obtained: SystemTime, expires: SystemTime) -> Duration {
    let life = expires.duration_since(obtained).unwrap_or_default();
    (life / 10).min(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_that_kubectl_asks_for() {
        let info = |version: &str| format!(r#"{{"apiVersion":"{version}","kind":"ExecCredential","spec":{{}}}}"#);
        for version in [ExecVersion::V1, ExecVersion::V1Beta1] {
            assert_eq!(ExecVersion::asked(Some(&info(version.as_str()))), Ok(version));
        }
        assert_eq!(ExecVersion::asked(None), Ok(ExecVersion::V1Beta1));
        assert!(ExecVersion::asked(Some(&info("client.authentication.k8s.io/v1alpha1"))).is_err());
        assert!(ExecVersion::asked(Some("x")).is_err());
    }

    #[test]
    fn the_credential_ends_a_little_before_the_token() {
        let obtained = SystemTime::UNIX_EPOCH;
        let mut token = Token { secret: "t".into(), expires: Some(obtained + Duration::from_secs(3600)), obtained };
        let credential = exec_credential(ExecVersion::V1, &token).unwrap();
        assert_eq!(
            credential,
            json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                   "status": {"token": "t", "expirationTimestamp": "1970-01-01T00:59:50Z"}})
        );
        token.expires = Some(obtained + Duration::from_secs(20));
        let credential = exec_credential(ExecVersion::V1Beta1, &token).unwrap();
        assert_eq!(credential["status"]["expirationTimestamp"], "1970-01-01T00:00:18Z");
        token.expires = None;
        assert!(exec_credential(ExecVersion::V1, &token).unwrap()["status"].get("expirationTimestamp").is_none());
    }
}
