//! What happens to clusters, as the API and webhooks tell it (docs/features.md C8).

use std::collections::BTreeMap;

use http_body::Body as _;
use tokio::net::TcpListener;

use super::{connectivity::key_of, *};
use crate::{
    config, events,
    store::events::{KEPT_OF_GROUP, Kind},
    webhooks,
};

const READ_VERSION: &str = "api-version=2026-05-01";
const MINUTE: i64 = 60_000;

fn events_at(scope: &str, more: &str) -> String {
    format!("{scope}/providers/Microsoft.Kubernetes/events?{READ_VERSION}{more}")
}

fn subscription() -> String {
    format!("/subscriptions/{SUBSCRIPTION}")
}

fn in_short(answer: &Answer) -> Vec<(String, String)> {
    let short = |event: &Value| {
        let kind = event["type"].as_str().unwrap().strip_prefix("io.towline.cluster.").unwrap().to_owned();
        let name = event["subject"].as_str().unwrap().rsplit('/').next().unwrap();
        (format!("{name} {kind}"), event["data"]["status"].as_str().unwrap_or("-").to_owned())
    };
    answer.body["value"].as_array().unwrap_or_else(|| panic!("{}", answer.body)).iter().map(short).collect()
}

fn short(kind: &str, status: &str) -> (String, String) {
    (kind.to_owned(), status.to_owned())
}

impl Bench {
    /// A stream of events that has begun.
    async fn listen(&self, user: &str, path: &str, last: Option<&str>) -> Result<Body, Answer> {
        let token = self.issuer.token(user, &["team"], URL, SystemTime::now());
        let request = Request::builder().uri(path).header("authorization", format!("Bearer {token}"));
        let request = request.header("accept", "text/event-stream");
        let request = last.into_iter().fold(request, |request, last| request.header("last-event-id", last));
        let response = self.respond(request.body(Full::default()).unwrap()).await;
        let (head, body) = response.into_parts();
        if head.status == 200 {
            assert_eq!(head.headers["content-type"], "text/event-stream");
            return Ok(body);
        }
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap();
        Err(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }
}

/// The next lines of a stream; `None` at its end.
async fn heard(body: &mut Body) -> Option<String> {
    let frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *body).poll_frame(cx)).await?;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn c8_what_happens_is_listed_to_those_who_may_read_it() {
    let site = Bench::new().await;
    site.group("g").await;
    site.group("other").await;
    site.with_agents("a").await;
    site.cluster("other", "b").await;
    site.control.tell_once().await;
    site.seen("a").await;
    site.control.tell_once().await;
    site.at(site.now() + 15 * MINUTE);
    site.control.tell_once().await;
    let deleted = site.call("owner", "DELETE", &cluster("g", "a"), None).await;
    site.ended("owner", deleted.header("azure-asyncoperation")).await;
    site.control.tell_once().await;
    let all = site.call("owner", "GET", &events_at(&subscription(), ""), None).await;
    let expected = [
        short("a created", "Connecting"),
        short("b created", "AgentNotInstalled"),
        short("a connectivity", "Connected"),
        short("a connectivity", "Offline"),
        short("a deleted", "-"),
    ];
    assert_eq!(in_short(&all), expected);
    assert_eq!(all.body["value"][3]["data"]["previousStatus"], "Connected");
    assert_eq!(all.body["value"][3]["time"], "2027-01-15T08:15:00Z");
    let of_other = events_at(&format!("{}/resourceGroups/other", subscription()), "");
    assert_eq!(in_short(&site.call("owner", "GET", &of_other, None).await), [short("b created", "AgentNotInstalled")]);
    assert_eq!(in_short(&site.call("owner", "GET", &events_at(&cluster_id("g", "a"), ""), None).await).len(), 4);

    // Pages, and behind one that is known.
    let first = site.call("owner", "GET", &events_at(&subscription(), "&$top=2"), None).await;
    assert_eq!(in_short(&first), expected[..2]);
    let next = first.body["nextLink"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned();
    assert_eq!(in_short(&site.call("owner", "GET", &next, None).await), expected[2..4]);
    assert_eq!(
        in_short(&site.call("owner", "GET", &events_at(&subscription(), "&after=4"), None).await),
        expected[4..]
    );

    // Somebody with a right at one group hears of that alone; a stranger of nothing.
    let scope = format!("{}/resourceGroups/other", subscription());
    site.assign("ann", READER, &scope, json!({})).await;
    let seen = site.call("ann", "GET", &events_at(&subscription(), ""), None).await;
    assert_eq!(in_short(&seen), [short("b created", "AgentNotInstalled")]);
    for (scope, user) in [(subscription(), "stranger"), (format!("{}/resourceGroups/g", subscription()), "ann")] {
        let refused = site.call(user, "GET", &events_at(&scope, ""), None).await;
        assert_eq!((refused.status, refused.code()), (403, "AuthorizationFailed"));
    }
    for bad in ["&after=x", "&after=-1", "&$top=0", "&$top=x"] {
        let refused = site.call("owner", "GET", &events_at(&subscription(), bad), None).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidQueryParameterValue"), "{bad}");
    }
}

/// It was told of as deleted alone.
#[tokio::test]
async fn c8_a_cluster_that_comes_and_goes_between_two_looks_is_told_of_as_both() {
    let site = Bench::new().await;
    site.group("g").await;
    for again in 1..=2 {
        site.with_agents("a").await;
        let deleted = site.call("owner", "DELETE", &cluster("g", "a"), None).await;
        site.ended("owner", deleted.header("azure-asyncoperation")).await;
        site.control.tell_once().await;
        let all = site.call("owner", "GET", &events_at(&subscription(), ""), None).await;
        let told = in_short(&all);
        assert_eq!(told.len(), 2 * again);
        assert_eq!(told[2 * again - 2..], [short("a created", "-"), short("a deleted", "-")]);
    }
}

#[tokio::test]
async fn c8_a_stream_tells_what_happens_and_goes_on_where_it_was() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    site.control.tell_once().await;
    let mut live = site.listen("owner", &events_at(&subscription(), ""), None).await.unwrap_or_else(|_| panic!());
    assert_eq!(
        heard(&mut live).await.unwrap(),
        "id: 1\nretry: 3000\n\n",
        "behind which it goes on, whenever it breaks off"
    );
    site.seen("a").await;
    site.control.tell_once().await;
    let line = heard(&mut live).await.unwrap();
    assert!(line.starts_with("id: 2\nevent: io.towline.cluster.connectivity\ndata: {"), "{line}");
    assert!(line.contains("\"status\":\"Connected\"") && line.ends_with("}\n\n"), "{line}");
    let mut again = site.listen("owner", &events_at(&subscription(), ""), Some("0")).await.unwrap_or_else(|_| panic!());
    let lines = [heard(&mut again).await, heard(&mut again).await, heard(&mut again).await].map(Option::unwrap);
    assert!(lines[1].starts_with("id: 1\nevent: io.towline.cluster.created"), "{lines:?}");
    assert_eq!(lines[2], line);
    let refused = site.listen("owner", &events_at(&subscription(), ""), Some("x")).await.err().unwrap();
    assert_eq!((refused.status, refused.code()), (400, "InvalidHeaderValue"));
}

#[tokio::test]
async fn c8_who_names_an_event_that_is_not_known_is_told_of_the_gap() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    site.control.tell_once().await;
    let path = events_at(&subscription(), "&after=9");
    let list = site.call("owner", "GET", &path, None).await;
    let told = &list.body["value"][0];
    assert_eq!((&told["type"], &told["id"], list.body.get("nextLink")), (&json!(events::GAP), &json!("1"), None));
    assert!(told["data"]["reason"].as_str().unwrap().contains("Event 9 is not known here"), "{told}");
    let one = site.call("owner", "GET", &format!("{path}&$top=1"), None).await;
    let next = one.body["nextLink"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned();
    assert_eq!(site.call("owner", "GET", &next, None).await.body["value"], json!([]));
    let path = events_at(&subscription(), "");
    let mut live = site.listen("owner", &path, Some("9")).await.unwrap_or_else(|_| panic!());
    let lines = [heard(&mut live).await, heard(&mut live).await].map(Option::unwrap);
    assert!(lines[1].starts_with("id: 1\nevent: io.towline.events.gap\ndata: {"), "{lines:?}");
    // It goes on with what happens next.
    site.seen("a").await;
    site.control.tell_once().await;
    assert!(heard(&mut live).await.unwrap().starts_with("id: 2\nevent: io.towline.cluster.connectivity"));
}

/// A group that has lost events by its share; its followers read its clusters anew, and nobody else does.
#[tokio::test]
async fn c8_who_follows_a_group_over_its_share_is_told_of_the_gap_and_others_are_not() {
    use sqlx::Connection as _;
    let site = Bench::new().await;
    site.group("g").await;
    site.group("other").await;
    site.cluster("other", "b").await;
    site.control.tell_once().await;
    let (key, group) = (key_of("a"), format!("{}/resourcegroups/g", subscription()));
    let last = 1 + KEPT_OF_GROUP;
    let sql = format!(
        "INSERT INTO events (number, resource_key, id, kind, at_ms, group_key) \
         WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {last}) \
         SELECT i, '{key}', '{key}', 'deleted', 1, '{group}' FROM n; UPDATE event_numbers SET newest = {last}"
    );
    let mut connection = sqlx::AnyConnection::connect(&site.control.settings.store.url()).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    site.cluster("g", "a").await;
    site.control.tell_once().await;
    let of = |name: &str| format!("{}/resourceGroups/{name}", subscription());
    // What the first events behind the first one are.
    let first = async |scope: &str| {
        let list = site.call("owner", "GET", &events_at(scope, "&after=1&$top=2"), None).await;
        let all = list.body["value"].as_array().unwrap().iter();
        all.map(|event| (event["type"].clone(), event["id"].clone())).collect::<Vec<_>>()
    };
    let gap = (json!(events::GAP), json!("2"));
    let next = (json!("io.towline.cluster.deleted"), json!("3"));
    assert_eq!(first(&of("g")).await, [gap.clone(), next.clone()]);
    assert_eq!(first(&subscription()).await, [gap, next]);
    assert_eq!(first(&of("other")).await, []);
    let listen = async |scope: &str| {
        let mut live = site.listen("owner", &events_at(scope, ""), Some("1")).await.unwrap_or_else(|_| panic!());
        heard(&mut live).await.unwrap();
        live
    };
    let told = heard(&mut listen(&of("g")).await).await.unwrap();
    assert!(told.starts_with("id: 2\nevent: io.towline.events.gap"), "{told}");
    let mut other = listen(&of("other")).await;
    site.cluster("other", "c").await;
    site.control.tell_once().await;
    let told = heard(&mut other).await.unwrap();
    assert!(told.starts_with(&format!("id: {}\nevent: io.towline.cluster.created", last + 2)), "{told}");
}

#[tokio::test]
async fn c8_a_stream_ends_when_the_right_is_withdrawn_and_when_the_gateway_drains() {
    let site = Bench::new().await;
    site.group("g").await;
    let made = site.assign("ann", READER, &subscription(), json!({})).await;
    let mut live = site.listen("ann", &events_at(&subscription(), ""), None).await.unwrap_or_else(|_| panic!());
    heard(&mut live).await.unwrap();
    let assignment = made.body["id"].as_str().unwrap();
    let gone = site.call("owner", "DELETE", &format!("{assignment}?api-version=2022-04-01"), None).await;
    assert_eq!(gone.status, 200, "{}", gone.body);
    site.with_agents("a").await;
    site.control.tell_once().await;
    assert_eq!(heard(&mut live).await, None, "the right was withdrawn");

    let mut live = site.listen("owner", &events_at(&subscription(), ""), None).await.unwrap_or_else(|_| panic!());
    heard(&mut live).await.unwrap();
    let shutdown = Shutdown::new();
    let teller = tokio::spawn(Arc::clone(&site.control).tell(shutdown.clone()));
    shutdown.drain();
    teller.await.unwrap();
    assert_eq!(heard(&mut live).await, None, "the gateway drains");
}

#[tokio::test]
async fn c8_streams_are_bounded_and_give_their_places_back() {
    let site = Bench::new().await;
    site.group("g").await;
    let path = events_at(&subscription(), "");
    let mut streams = Vec::new();
    let refused = loop {
        match site.listen("owner", &path, None).await {
            Ok(stream) => streams.push(stream),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused.status, refused.code(), streams.len()), (429, "TooManyRequests", 16));
    assert!(!refused.header("retry-after").is_empty());
    streams.pop();
    assert!(site.listen("owner", &path, None).await.is_ok());
}

#[tokio::test]
async fn c8_a_webhook_is_told_in_order_again_after_a_failure_and_goes_on_after_a_restart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = config::webhook::address(&format!("http://{}/hook?x=1", listener.local_addr().unwrap())).unwrap();
    let key = config::webhook::secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let webhook = config::webhook::Webhook::new(url, &key, vec![Kind::Connectivity, Kind::Deleted], None).unwrap();
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    // So that it is known before anything happens.
    site.control.store.webhook(&webhook.name()).await.unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn(webhooks::run(Arc::clone(&site.control), webhook.clone(), shutdown.clone()));
    site.control.tell_once().await;
    site.seen("a").await;
    site.control.tell_once().await;
    // The creation is none of its types. What is refused comes again, the same event with the same id.
    let (head, body) = webhooks::tests::receive(&listener, "503 Busy").await;
    let (again, same) = webhooks::tests::receive(&listener, "204 No Content").await;
    assert_eq!(body, same);
    let headers = |head: &str| -> BTreeMap<String, String> {
        let lines = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect()
    };
    let (first, second) = (headers(&head), headers(&again));
    assert!(head.starts_with("POST /hook?x=1 HTTP/1.1\r\n"), "{head}");
    assert_eq!((&first["webhook-id"], &second["webhook-id"]), (&"2".to_owned(), &"2".to_owned()));
    assert_eq!(first["content-type"], "application/cloudevents+json; charset=utf-8");
    let text = format!("{}.{}.{body}", second["webhook-id"], second["webhook-timestamp"]);
    let tag = BASE64.decode(second["webhook-signature"].strip_prefix("v1,").unwrap()).unwrap();
    let verifier = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key);
    aws_lc_rs::hmac::verify(&verifier, text.as_bytes(), &tag).unwrap();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["data"]["status"], &body["subject"]), (&json!("Connected"), &json!(cluster_id("g", "a"))));
    while site.control.store.webhook(&webhook.name()).await.unwrap() < 2 {
        tokio::task::yield_now().await;
    }
    shutdown.drain();
    running.await.unwrap();

    // While nobody tells, things go on; after a restart it is told of them, and of nothing twice.
    site.at(site.now() + 15 * MINUTE);
    site.control.tell_once().await;
    let site = site.restart().await;
    let running = tokio::spawn(webhooks::run(Arc::clone(&site.control), webhook, site.shutdown.clone()));
    let (head, _) = webhooks::tests::receive(&listener, "200 OK").await;
    assert_eq!(headers(&head)["webhook-id"], "3");
    assert_eq!(site.control.store.events(crate::store::events::Of::All, 0, 10).await.unwrap()[2].key, key_of("a"));
    site.shutdown.drain();
    running.await.unwrap();
}
