//! A request of kubectl's, for the benches of what it costs.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tunnel::wire::head::RequestHead;
use types::ids::RequestId;

/// What kubectl sends, with a token of so many bytes.
pub fn sent(token: usize) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, text) in [
        ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
        ("accept-encoding", "gzip"),
        ("user-agent", "kubectl/v1.34.0 (linux/amd64) kubernetes/0000000"),
        ("kubectl-command", "kubectl get"),
        ("kubectl-session", "7e4c1b9c-0000-4000-8000-000000000000"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(text));
    }
    let token = format!("Bearer {}", "t".repeat(token));
    headers.insert(http::header::AUTHORIZATION, HeaderValue::try_from(token).expect("visible ASCII"));
    headers
}

/// With these headers.
pub fn head(headers: HeaderMap) -> RequestHead {
    RequestHead {
        role: "kube-aad-proxy".to_owned(),
        request_id: RequestId([7; 16]),
        method: Method::GET,
        target: Bytes::from_static(b"/api/v1/namespaces/default/pods?limit=500"),
        headers,
        deadline_ms: Some(60_000),
        traceparent: None,
        user_address: Some(Bytes::from_static(b"192.0.2.1:40000")),
    }
}
