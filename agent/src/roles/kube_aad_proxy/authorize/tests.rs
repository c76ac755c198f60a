use auth::{
    rbac::{Assignment, Window, principal::user_key, role::built_in},
    token::{
        Fetch, Issuer, RawIssuer,
        testing::{MemoryFetch, TestIssuer, TestKey, unix_seconds},
    },
};
use bytes::Bytes;
use http::Method;
use serde_json::json;

use super::*;
use crate::roles::kube_aad_proxy::target::Target;

const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";

struct Site {
    issuer: TestIssuer,
    authorizer: Arc<Authorizer>,
    now: SystemTime,
}

fn site() -> Site {
    let issuer = TestIssuer::new("https://issuer.test");
    let authenticator = Arc::new(Authenticator::new(issuer.verifier(), CLUSTER.parse().unwrap()));
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds(SystemTime::now()));
    Site { authorizer: Authorizer::new(authenticator, Some("test".to_owned())), issuer, now }
}

fn document(revision: i64, enabled: bool, roles: &[(&str, &str)]) -> Document {
    let assignment = |(name, scope): &(&str, &str)| Assignment {
        id: "a".into(),
        principal: user_key("jane").into(),
        scope: format!("{CLUSTER}{scope}").parse().unwrap(),
        role: built_in().iter().find(|role| role.name == *name).unwrap().role.clone(),
        window: Window::default(),
    };
    let all: Vec<_> = roles.iter().map(assignment).collect();
    Document::new(&CLUSTER.parse().unwrap(), revision, enabled, &all)
}

impl Site {
    fn sign(&self, document: &Document, change: impl FnOnce(&mut serde_json::Value)) -> Signed {
        let document = serde_json::to_string(document).unwrap();
        let audience = snapshot::audience(&CLUSTER.parse().unwrap());
        let mut claims = self.issuer.claims("-", &audience, self.now);
        claims["sha256"] = json!(snapshot::digest_of(&document));
        change(&mut claims);
        let header = json!({"alg": "ES256", "kid": self.issuer.key().kid, "typ": STATEMENT_TYPE});
        Signed { statement: self.issuer.mint_with(&header, &claims), document, etag: String::new(), omitted: None }
    }

    async fn take(&self, signed: &Signed) -> Result<(), SnapshotError> {
        self.authorizer.take(signed, self.now).await.map(drop)
    }

    async fn jane(&self) -> Arc<Identity> {
        let audience = self.authorizer.authenticator.cluster().audience();
        let token = self.issuer.token("jane", &[], &audience, self.now);
        self.issuer.verifier().verify(&token, &audience, self.now).await.unwrap()
    }

    async fn right(&self, target: &'static str) -> Option<Box<Right>> {
        self.right_to_upgrade(target, None).await
    }

    async fn right_to_upgrade(&self, target: &'static str, upgrade: Option<&'static str>) -> Option<Box<Right>> {
        let identity = self.jane().await;
        let admitted = Admitted {
            method: Method::GET,
            target: Target::new(Bytes::copy_from_slice(target.as_bytes())).unwrap(),
            headers: http::HeaderMap::new(),
            upgrade: upgrade.map(http::HeaderValue::from_static),
            content_length: None,
            credential: None,
            asked: None,
        };
        self.authorizer.right(&identity, &admitted, self.now)
    }
}

const DEV_PODS: &str = "/api/v1/namespaces/dev/pods";
const VIEWER: &str = "Azure Arc Kubernetes Viewer";
const ADMIN: &str = "Azure Arc Kubernetes Cluster Admin";

#[tokio::test]
async fn z9_calls_are_allowed_by_the_signed_snapshot_and_without_one_by_nothing() {
    let site = site();
    assert!(site.right(DEV_PODS).await.is_none(), "no snapshot yet");
    site.take(&site.sign(&document(1, true, &[(VIEWER, "/namespaces/dev")]), |_| {})).await.unwrap();
    assert_eq!(site.right(DEV_PODS).await.unwrap().verbs(), ["list"]);
    assert_eq!(site.right("/api/v1/namespaces/%64ev/pods?watch=true").await.unwrap().verbs(), ["watch"]);
    for target in [
        "/api/v1/namespaces/other/pods",
        "/api/v1/pods",
        "/api/v1/namespaces/dev/secrets",
        "/api/v1/namespaces/%ff/pods",
    ] {
        assert!(site.right(target).await.is_none(), "{target}");
    }
    site.take(&site.sign(&document(2, false, &[(VIEWER, "")]), |_| {})).await.unwrap();
    assert!(site.right(DEV_PODS).await.is_none(), "switched off");
}

/// A thief of a signing key could state a policy without an end and of so high a revision that every true one was older.
#[tokio::test]
async fn z9_what_a_revoked_key_signed_decides_nothing_and_holds_no_other_back() {
    const URL: &str = "https://issuer.test";
    let [stolen, next] = ["k1", "k2"].map(TestKey::es256);
    let nothing: Arc<dyn Fetch> = MemoryFetch::new();
    let verifier = Verifier::with_fetch(Issuer::all(vec![RawIssuer::new("test", URL)]).unwrap(), &nothing);
    let authenticator = Arc::new(Authenticator::new(verifier, CLUSTER.parse().unwrap()));
    let authorizer = Authorizer::new(authenticator.clone(), Some("test".to_owned()));
    let site = Site { authorizer, ..site() };
    let sign = |key: &TestKey, kid: &str, revision: i64| {
        let signed = site.sign(&document(revision, true, &[(ADMIN, "")]), |_| {});
        let mut claims = site.issuer.claims("-", &snapshot::audience(&CLUSTER.parse().unwrap()), site.now);
        claims["sha256"] = json!(snapshot::digest_of(&signed.document));
        claims["exp"] = json!(253_402_300_799_u64);
        let header = json!({"alg": "ES256", "kid": kid, "typ": STATEMENT_TYPE});
        Signed { statement: key.jws(&header, claims.to_string().as_bytes()), ..signed }
    };
    authenticator.verifier().take_keys(URL, &json!({"keys": [stolen.jwk()]})).unwrap();
    site.take(&sign(&stolen, "k1", 1 << 62)).await.unwrap();
    let right = site.right(DEV_PODS).await.unwrap();
    assert!(site.authorizer.edition(site.now).is_some());
    assert_eq!(site.authorizer.edition(site.now + LONGEST), None, "whatever end it names");

    let mut newest = next.jwk();
    newest["towline_attestation"] = json!(stolen.attest(&next));
    let published = json!({"keys": [newest, stolen.jwk()], "towline_ended": [next.end(&stolen, 0)]});
    authenticator.verifier().take_keys(URL, &published).unwrap();
    assert!(site.right(DEV_PODS).await.is_none());
    assert_eq!((site.authorizer.edition(site.now), site.authorizer.revision()), (None, 0));
    right.withdrawn().await;
    site.take(&sign(&next, "k2", 7)).await.unwrap();
    assert_eq!(site.authorizer.revision(), 7);
    assert!(site.take(&sign(&stolen, "k1", 1 << 62)).await.is_err());
}

/// A WebSocket is a GET, whose verb is `get`: a viewer got into a virtual machine's console by it.
#[tokio::test]
async fn websocket_on_any_subresource_needs_more_than_read() {
    let site = site();
    site.take(&site.sign(&document(1, true, &[(VIEWER, "")]), |_| {})).await.unwrap();
    for target in ["/api/v1/namespaces/dev/pods/p", "/api/v1/namespaces/dev/pods/p/log", DEV_PODS] {
        assert!(site.right(target).await.is_some(), "{target}");
        for protocol in ["websocket", "SPDY/3.1"] {
            assert!(site.right_to_upgrade(target, Some(protocol)).await.is_none(), "{protocol} {target}");
        }
    }
    site.take(&site.sign(&document(2, true, &[(ADMIN, "")]), |_| {})).await.unwrap();
    let console = "/apis/subresources.kubevirt.io/v1/namespaces/dev/virtualmachineinstances/x/console";
    assert_eq!(site.right_to_upgrade(console, Some("websocket")).await.unwrap().verbs(), ["get"]);
}

/// A hostile gateway can leave snapshots out, and no more.
#[tokio::test]
async fn z9_a_hostile_gateway_cannot_widen_the_snapshot() {
    let site = site();
    let good = document(5, true, &[(VIEWER, "/namespaces/dev")]);
    let wide = serde_json::to_string(&document(9, true, &[("Azure Arc Kubernetes Cluster Admin", "")])).unwrap();
    let signed = site.sign(&good, |_| {});
    let swapped = Signed { document: wide.clone(), ..signed.clone() };
    assert!(matches!(site.take(&swapped).await, Err(SnapshotError::Digest)));
    let own =
        Site { issuer: TestIssuer::new("https://issuer.test"), authorizer: site.authorizer.clone(), now: site.now };
    let forged = own.sign(&document(9, true, &[("Azure Arc Kubernetes Cluster Admin", "")]), |_| {});
    assert!(matches!(site.take(&forged).await, Err(SnapshotError::Statement(_))));
    let elsewhere =
        site.sign(&good, |claims| claims["aud"] = json!(format!("towline:policy:{}x", CLUSTER.to_lowercase())));
    assert!(matches!(site.take(&elsewhere).await, Err(SnapshotError::Statement(TokenError::Audience))));
    let late = site.sign(&good, |claims| claims["exp"] = json!(unix_seconds(site.now) - 600));
    assert!(matches!(site.take(&late).await, Err(SnapshotError::Statement(TokenError::Expired { .. }))));
    // A user's token is no statement, though the same key signed it.
    let audience = snapshot::audience(site.authorizer.authenticator.cluster());
    let token = site.issuer.token("jane", &[], &audience, site.now);
    let token = Signed { document: wide, statement: token, etag: String::new(), omitted: None };
    assert!(matches!(site.take(&token).await, Err(SnapshotError::Statement(TokenError::Kind))));
    assert_eq!(site.authorizer.revision(), 0, "nothing of it was taken");
    site.take(&signed).await.unwrap();
    let before = site.sign(&document(4, true, &[("Azure Arc Kubernetes Cluster Admin", "")]), |_| {});
    assert!(
        matches!(site.take(&before).await, Err(SnapshotError::Older(4, 5))),
        "what was withdrawn does not come back"
    );
    assert!(site.right("/api/v1/namespaces/dev/secrets").await.is_none());
}

#[tokio::test]
async fn z9_a_withdrawn_right_ends_what_it_allowed() {
    let site = site();
    site.take(&site.sign(&document(1, true, &[(VIEWER, "")]), |_| {})).await.unwrap();
    let right = site.right(DEV_PODS).await.unwrap();
    let mut withdrawn = Box::pin(right.withdrawn());
    assert!(futures_util::poll!(&mut withdrawn).is_pending());
    // The same right by another assignment goes on.
    site.take(&site.sign(&document(2, true, &[(VIEWER, "/namespaces/dev")]), |_| {})).await.unwrap();
    assert!(futures_util::poll!(&mut withdrawn).is_pending());
    site.take(&site.sign(&document(3, true, &[]), |_| {})).await.unwrap();
    withdrawn.await;
}

/// A watch as somebody else outlived the assignment that had allowed it, until its token ended.
#[tokio::test]
async fn z9_a_withdrawn_right_to_impersonate_ends_what_goes_on_as_somebody_else() {
    let site = site();
    let jane = site.jane().await;
    let as_user = Asked { user: "jim".to_owned(), uid: None, groups: vec!["devs".to_owned()], extra: [].into() };
    let account = Asked { user: "system:serviceaccount:dev:web".to_owned(), groups: Vec::new(), ..as_user.clone() };
    let may = |asked: &Asked| site.authorizer.right_to_impersonate(&jane, asked, site.now);
    assert!(may(&as_user).is_none(), "no snapshot yet");
    site.take(&site.sign(&document(1, true, &[(VIEWER, "")]), |_| {})).await.unwrap();
    assert!(may(&as_user).is_none(), "who may read is nobody else");
    site.take(&site.sign(&document(2, true, &[(ADMIN, "")]), |_| {})).await.unwrap();
    let rights = [may(&as_user).unwrap(), may(&account).unwrap()];
    assert!(rights.iter().all(|right| right.verbs().is_empty()), "as whom it goes on, the cluster decides");
    let mut ends: Vec<_> = rights.iter().map(|right| Box::pin(right.withdrawn())).collect();
    assert!(futures_util::poll!(&mut ends[0]).is_pending() && futures_util::poll!(&mut ends[1]).is_pending());
    site.take(&site.sign(&document(3, true, &[(VIEWER, "")]), |_| {})).await.unwrap();
    for end in ends {
        end.await;
    }
}

#[tokio::test]
async fn z9_where_the_cluster_is_not_told_to_nothing_is_taken() {
    let site = site();
    let off = Authorizer::new(site.authorizer.authenticator.clone(), None);
    let signed = site.sign(&document(1, true, &[(VIEWER, "")]), |_| {});
    assert!(matches!(off.take(&signed, site.now).await.map(drop), Err(SnapshotError::Off)));
    assert!(!off.is_on());
}
