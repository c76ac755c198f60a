//! Rights that go while a request is under way, and what two requests at once must not both get.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::future::join_all;
use http_body::Frame;
use tokio::sync::oneshot;

use super::*;

const OWNER: &str = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635";
const ROLES: &str = "Microsoft.Authorization/roleDefinitions";

/// A body whose last byte comes when the test says so.
struct Slow {
    first: Option<Bytes>,
    last: Bytes,
    /// Told when the first part was taken.
    taken: Option<oneshot::Sender<()>>,
    go_on: oneshot::Receiver<()>,
}

impl http_body::Body for Slow {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Some(taken) = self.taken.take() {
            let _ = taken.send(());
        }
        if self.last.is_empty() {
            return Poll::Ready(None);
        }
        std::task::ready!(Pin::new(&mut self.go_on).poll(cx)).unwrap();
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.last)))))
    }
}

impl Bench {
    /// What a request is answered whose body was under way while `meanwhile` was done.
    async fn slowly(&self, user: &str, method: &str, path: &str, body: Value, meanwhile: impl Future) -> (u16, Value) {
        let mut first = Bytes::from(body.to_string());
        let last = first.split_off(first.len() - 1);
        let ((tell, taken), (go, go_on)) = (oneshot::channel(), oneshot::channel());
        let body = Slow { first: Some(first), last, taken: Some(tell), go_on };
        let token = self.issuer.token(user, &["team"], URL, SystemTime::now());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json");
        let answered = self.respond(request.body(body).unwrap());
        let between = async {
            taken.await.unwrap();
            meanwhile.await;
            go.send(()).unwrap();
        };
        let (answer, ()) = tokio::join!(answered, between);
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn take_away(&self, assignment: &Answer) {
        let path = format!("{}?api-version=2022-04-01", assignment.body["id"].as_str().unwrap());
        assert_eq!(self.call("owner", "DELETE", &path, None).await.status, 200);
    }

    async fn assignment(&self, to: &str, role: &str) -> Value {
        json!({"properties": {
            "roleDefinitionId": format!("/providers/{ROLES}/{role}"),
            "principalId": self.object_id(to).await,
            "principalType": "User",
        }})
    }
}

fn scope() -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g")
}

fn assignment_at(scope: &str) -> String {
    format!("{scope}/providers/{ASSIGNMENTS}/{}?api-version=2022-04-01", crate::random::guid())
}

fn cluster_at(name: &str) -> String {
    format!("{}/providers/{CLUSTERS}/{name}?{VERSION}", scope())
}

/// Who was owner made another owner, or themselves one again, with a body whose last byte came after the right was gone.
#[tokio::test]
async fn a_right_that_goes_while_the_body_comes_is_gone() {
    let site = Bench::new().await;
    site.group("g").await;
    let again = site.assignment("bob", OWNER).await;
    for (method, path, body) in [
        ("PUT", assignment_at(&scope()), again),
        ("PUT", cluster_at("new"), new_cluster()),
        ("PATCH", cluster_at("c"), json!({"tags": {"a": "b"}})),
        ("DELETE", cluster_at("c"), json!({})),
        ("DELETE", format!("{}?api-version=2024-03-01", scope()), json!({})),
        (
            "POST",
            format!("{}/providers/{CLUSTERS}/c/listClusterUserCredential?{VERSION}", scope()),
            json!({"authenticationMethod": "AAD", "clientProxy": false}),
        ),
    ] {
        site.cluster("g", "c").await;
        let right = site.assign("eve", OWNER, &scope(), json!({})).await;
        assert_eq!(right.status, 201, "{}", right.body);
        let (status, said) = site.slowly("eve", method, &path, body.clone(), site.take_away(&right)).await;
        assert_eq!((status, &said["error"]["code"]), (403, &json!("AuthorizationFailed")), "{method} {path}: {said}");
        // With a right that stays it does what was asked.
        let right = site.assign("eve", OWNER, &scope(), json!({})).await;
        let (status, said) = site.slowly("eve", method, &path, body, async {}).await;
        // Agents that are not connected give no credentials, which is said to who may ask for them.
        assert!(matches!(status, 200..=204) || (method == "POST" && status == 409), "{method} {path}: {status} {said}");
        if method == "DELETE" {
            // The group goes with all that is in it, and is made again.
            site.gone(&path).await;
            site.group("g").await;
        }
        let kept = format!("{}?api-version=2022-04-01", right.body["id"].as_str().unwrap());
        if site.call("owner", "GET", &kept, None).await.status == 200 {
            site.take_away(&right).await;
        }
    }
}

impl Bench {
    async fn gone(&self, path: &str) {
        loop {
            match self.call("owner", "GET", path, None).await.status {
                404 => return,
                _ => tokio::task::yield_now().await,
            }
        }
    }
}

/// Five of twelve were made: whoever took the one away that a refusal names left the right to its holder.
#[tokio::test]
async fn of_equal_assignments_that_are_made_at_once_one_is() {
    let site = Bench::new().await;
    site.group("g").await;
    let (scope, body) = (scope(), site.assignment("eve", READER).await);
    let paths: Vec<String> = (0..12).map(|_| assignment_at(&scope)).collect();
    let all = join_all(paths.iter().map(|path| site.call("owner", "PUT", path, Some(body.clone())))).await;
    let mut statuses: Vec<u16> = all.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!((statuses[0], &statuses[1..]), (201, &[409; 11][..]), "{statuses:?}");
}

/// One role at two scopes was made twice, and then gave nothing to anybody; one that was assigned at that moment was
/// deleted.
#[tokio::test]
async fn of_one_role_there_is_one_and_it_stays_while_somebody_gets_it() {
    let site = Bench::new().await;
    let groups = ["g", "h"].map(|name| format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{name}"));
    for name in ["g", "h"] {
        site.group(name).await;
    }
    let guid = crate::random::guid();
    let role = |group: &String| {
        let body = json!({"properties": {
            "roleName": format!("of {group}"), "assignableScopes": [group],
            "permissions": [{"actions": ["Microsoft.Kubernetes/connectedClusters/read"]}],
        }});
        (format!("{group}/providers/{ROLES}/{guid}?api-version=2022-04-01"), body)
    };
    let made = join_all(groups.iter().map(role).map(|(path, body)| {
        let site = &site;
        async move { site.call("owner", "PUT", &path, Some(body)).await.status }
    }))
    .await;
    assert_eq!(made.iter().filter(|status| **status == 201).count(), 1, "{made:?}");
    let group = &groups[made.iter().position(|status| *status == 201).unwrap()];
    let body = json!({"properties": {
        "roleDefinitionId": format!("{group}/providers/{ROLES}/{guid}"), "principalId": site.object_id("eve").await,
    }});
    let (path, at) = (role(group).0, assignment_at(group));
    let (deleted, assigned) =
        tokio::join!(site.call("owner", "DELETE", &path, None), site.call("owner", "PUT", &at, Some(body)));
    let both = (deleted.status, assigned.status);
    assert!(!matches!(both, (200, 201)), "{both:?}");
    assert!(deleted.status == 200 || assigned.status == 201, "{both:?} {} {}", deleted.body, assigned.body);
}
