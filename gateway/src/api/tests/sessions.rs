//! Open sessions: whose they are, and who may see and end those of others.

use types::ids::ClusterId;

use super::*;
use crate::{
    permit::{Permit, authorize},
    sessions::{EndReason, SessionHandle, Sessions, What, told::Wanted},
};

const PATH: &str = "/providers/Microsoft.Kubernetes/sessions";

fn of(user: &str) -> What {
    What::new(&Method::GET, &Bytes::from(format!("/of/{user}?command=secret")))
}

struct Open {
    site: Bench,
    sessions: Arc<Sessions>,
}

impl Open {
    async fn permit(&self, user: &str, cluster: &ClusterId) -> Permit {
        let identity = self.site.identity(user, &cluster.audience()).await;
        let snapshot = self.site.snapshots.load();
        authorize(&snapshot, &Principal::User(identity), snapshot.cluster(&cluster.key())).ok().unwrap()
    }

    async fn session(&self, user: &str, cluster: &ClusterId, id: u8) -> SessionHandle {
        let permit = self.permit(user, cluster).await;
        self.sessions.open(RequestId([id; 16]), &permit, of(user), Duration::from_secs(60))
    }

    async fn call(&self, user: &str, method: &str, path: &str) -> (u16, Value) {
        self.call_begun_at(self.site.snapshots.load(), user, method, path).await
    }

    /// A call that was let in by what was known then.
    async fn call_begun_at(&self, snapshot: Arc<Snapshot>, user: &str, method: &str, path: &str) -> (u16, Value) {
        let token = self.site.issuer.token(user, &[], URL, SystemTime::now());
        let uri = format!("{path}{}api-version=2026-05-01", if path.contains('?') { '&' } else { '?' });
        let request = Request::builder().method(method).uri(uri).header("authorization", format!("Bearer {token}"));
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let id = RequestId([7; 16]);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut record = Record::open(AuditLog::nowhere(), Arc::new(Metrics::new()), id, peer, method);
        let sessions = Some(Arc::clone(&self.sessions));
        let site = Site { control: &self.site.control, snapshot, issuer: None, sessions, hops: None };
        let path = request.uri().path().to_owned();
        let (head, body) = serve(site, id, &path, request, &mut record).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn seen(&self, user: &str, query: &str) -> Vec<String> {
        let (status, body) = self.call(user, "GET", &format!("{PATH}{query}")).await;
        assert_eq!(status, 200, "{body}");
        let rows = body["value"].as_array().unwrap();
        // An hour of the token, and what it may be outlived by.
        let instant = |text: &Value| types::instants::parse(text.as_str().unwrap()).unwrap();
        assert!(rows.iter().all(|row| (instant(&row["ends"]) - instant(&row["started"])).whole_hours() >= 8));
        let mut seen: Vec<String> = rows.iter().map(|row| row["what"].as_str().unwrap().to_owned()).collect();
        seen.sort();
        seen
    }
}

fn one(id: u8) -> String {
    format!("{PATH}/{}", RequestId([id; 16]))
}

#[tokio::test]
async fn a_session_is_seen_and_ended_by_its_owner_or_with_a_right_and_is_nothing_to_others() {
    let open = Open { site: Bench::new().await, sessions: Sessions::new(Arc::new(Metrics::new())) };
    let scope = |name: &str| format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/{CLUSTERS}/{name}");
    open.site.group("g").await;
    for name in ["c", "d"] {
        assert_eq!(open.site.cluster("g", name).await.status, 201);
        for user in ["ann", "bob"] {
            assert_eq!(open.site.assign(user, CLUSTER_USER, &scope(name), json!({})).await.status, 201);
        }
    }
    assert_eq!(open.site.assign("eve", READER, &scope("c"), json!({})).await.status, 201);
    let (c, d): (ClusterId, ClusterId) = (scope("c").parse().unwrap(), scope("d").parse().unwrap());
    let _ann = open.session("ann", &c, 1).await;
    let bob = open.session("bob", &d, 2).await;
    assert_eq!(open.seen("ann", "").await, ["GET /of/ann"]);
    assert_eq!(open.seen("bob", "").await, ["GET /of/bob"]);
    assert_eq!(open.seen("owner", "").await, ["GET /of/ann", "GET /of/bob"]);
    assert_eq!(open.seen("owner", &format!("?cluster={}", scope("C"))).await, ["GET /of/ann"]);
    let (_, all) = open.call("owner", "GET", PATH).await;
    let name =
        all["value"].as_array().unwrap().iter().find(|row| row["what"] == "GET /of/bob").unwrap()["user"].as_str();
    let name = name.unwrap();
    assert_eq!(open.seen("owner", &format!("?user={name}")).await, ["GET /of/bob"]);
    assert!(
        open.seen("owner", "?user=nobody").await.is_empty()
            && open.seen("ann", &format!("?user={name}")).await.is_empty()
    );
    let told = open.sessions.told(&Wanted { user: Some(name), ..Wanted::default() }, "", "");
    assert_eq!(
        (told.rows.len(), told.rows[0].user.as_str(), told.left_out),
        (1, name, 0),
        "as another replica is told"
    );
    assert_eq!(open.seen("eve", "").await, ["GET /of/ann"], "who may read the one cluster");
    assert!(open.seen("mallory", "").await.is_empty());
    // What one may not see is not there; what one may only see is not ended.
    for user in ["bob", "mallory"] {
        let (status, body) = open.call(user, "DELETE", &one(1)).await;
        assert_eq!((status, &body["error"]["code"]), (404, &json!("SessionNotFound")));
        assert_eq!(open.call(user, "GET", &one(1)).await.0, 404);
    }
    let (status, body) = open.call("eve", "DELETE", &one(1)).await;
    assert_eq!((status, &body["error"]["code"]), (403, &json!("AuthorizationFailed")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("connectedClusters/sessions/delete"));
    assert_eq!(open.call("bob", "DELETE", &one(2)).await.0, 204);
    assert_eq!(bob.ended().await, EndReason::Operator);
    assert_eq!(open.call("owner", "DELETE", &one(1)).await.0, 204);
    assert_eq!(open.call("owner", "POST", &one(1)).await.0, 405);
    assert_eq!(open.call("owner", "GET", &format!("{PATH}/x")).await.0, 404);
}

/// The caller's right was judged before the other replicas were asked, and they may take 5 s to answer: a right that was
/// withdrawn meanwhile still counted.
#[tokio::test]
async fn t12_right_that_is_withdrawn_while_other_replicas_are_asked_shows_and_ends_no_session() {
    let open = Open { site: Bench::new().await, sessions: Sessions::new(Arc::new(Metrics::new())) };
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/{CLUSTERS}/c");
    open.site.group("g").await;
    assert_eq!(open.site.cluster("g", "c").await.status, 201);
    assert_eq!(open.site.assign("ann", CLUSTER_USER, &scope, json!({})).await.status, 201);
    let reads = open.site.assign("eve", READER, &scope, json!({})).await;
    let _ann = open.session("ann", &scope.parse().unwrap(), 1).await;
    let before = open.site.snapshots.load();
    let (_, seen) = open.call_begun_at(Arc::clone(&before), "eve", "GET", PATH).await;
    assert_eq!(seen["total"], 1);
    let taken = format!("{}?api-version=2022-04-01", reads.body["id"].as_str().unwrap());
    assert_eq!(open.site.call("owner", "DELETE", &taken, None).await.status, 200);
    let (status, seen) = open.call_begun_at(Arc::clone(&before), "eve", "GET", PATH).await;
    assert_eq!((status, &seen["total"]), (200, &json!(0)), "{seen}");
    assert_eq!(open.call_begun_at(Arc::clone(&before), "eve", "GET", &one(1)).await.0, 404);
    assert_eq!(open.call_begun_at(Arc::clone(&before), "eve", "DELETE", &one(1)).await.0, 404);
}

#[tokio::test]
async fn s1_service_principals_are_for_owners_of_everything_alone() {
    const ACCESS: &str = "/providers/Microsoft.Authorization/servicePrincipals";
    let site = Bench::new().await;
    let subscription = format!("/subscriptions/{SUBSCRIPTION}");
    site.group("g").await;
    // An owner of one resource group, and a contributor to everything, are not who owns the gateway.
    const OWNER: &str = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635";
    const CONTRIBUTOR: &str = "b24988ac-6180-42a0-ab88-20f7382dd24c";
    let group = format!("{subscription}/resourceGroups/g");
    for (user, role, scope) in [("ann", OWNER, &group), ("bob", CONTRIBUTOR, &subscription)] {
        let made = site.assign(user, role, scope, json!({})).await;
        assert!(matches!(made.status, 201 | 404), "{}", made.body);
    }
    for user in ["ann", "bob", "mallory"] {
        for (method, path) in
            [("POST", ACCESS.to_owned()), ("POST", format!("{ACCESS}/x/rotate")), ("DELETE", format!("{ACCESS}/x"))]
        {
            let body = (method == "POST").then(|| json!({"displayName": "x"}));
            let answer = site.call(user, method, &format!("{path}?api-version=2022-04-01"), body).await;
            assert_eq!((answer.status, &answer.body["error"]["code"]), (403, &json!("AuthorizationFailed")), "{user}");
        }
    }
    // The owner gets as far as that there is no issuer here.
    let answer = site.call("owner", "GET", &format!("{ACCESS}?api-version=2022-04-01"), None).await;
    assert_eq!(answer.body["error"]["code"], "NoBuiltInIssuer", "{}", answer.body);
}
