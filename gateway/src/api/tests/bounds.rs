//! What lists hold while they are put together and read (docs/threats.md): clusters whose bodies are as large as may be,
//! and readers who take nothing.

use super::{connectivity::key_of, *};
use crate::store::{
    batch::{Batch, Expect},
    resources::{Below, Beside, PAGE_BYTES, PAGE_ROWS, Stored},
};

const LARGE: usize = 200_000;
const MANY: usize = 24;

async fn large_clusters(site: &Bench) {
    site.group("g").await;
    assert_eq!(site.with_agents("pattern").await.status, 201);
    let pattern = site.control.store.get(&key_of("pattern")).await.unwrap().unwrap();
    let puts = (0..MANY).map(|n| {
        let id = cluster_id("g", &format!("c{n:02}"));
        let mut body = pattern.body.clone();
        body["identity"]["principalId"] = crate::random::guid().into();
        body["tags"] = json!({"much": "x".repeat(LARGE)});
        (Stored { key: id.to_ascii_lowercase(), id, body, ..pattern.clone() }, Expect::Absent)
    });
    let revision = site.control.write(&Batch { puts: puts.collect(), ..Batch::default() }).await.unwrap().unwrap();
    site.control.caught_up(revision).await;
}

fn listed(query: &str) -> Request<Full<Bytes>> {
    Request::builder().method("GET").uri(query).body(Full::default()).unwrap()
}

fn as_user(site: &Bench, user: &str, path: &str) -> Request<Full<Bytes>> {
    let token = site.issuer.token(user, &["team"], URL, SystemTime::now());
    let mut request = listed(path);
    let value = format!("Bearer {token}").try_into().unwrap();
    request.headers_mut().insert("authorization", value);
    request
}

/// Each list read up to 1,000 rows of 256 KiB at once, whatever its answer had room for.
#[tokio::test]
async fn a_page_of_the_store_is_bounded_in_bytes_and_lists_are_whole() {
    let site = Bench::new().await;
    large_clusters(&site).await;
    let (store, kind) = (&site.control.store, CLUSTERS.to_ascii_lowercase());
    let (mut found, mut after) = (0, String::new());
    loop {
        let window = store.window(&kind, Below::Anywhere(""), Beside::Told, &after, PAGE_ROWS).await.unwrap();
        assert!(window.bytes <= PAGE_BYTES, "{}", window.bytes);
        let page = store.read_with_agents(window).await.unwrap();
        assert!((1..=PAGE_BYTES as usize / LARGE + 1).contains(&page.len()));
        found += page.len();
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(found, MANY + 1);
    let names: Vec<String> = (0..MANY).map(|n| format!("c{n:02}")).chain(["pattern".to_owned()]).collect();
    for what in [format!("/providers/{CLUSTERS}?{VERSION}"), "/resources?api-version=2021-04-01".to_owned()] {
        let mut path = format!("/subscriptions/{SUBSCRIPTION}{what}&$top=1000");
        let mut found = Vec::new();
        loop {
            let page = site.call("owner", "GET", &path, None).await;
            assert_eq!(page.status, 200, "{}", page.body);
            found.extend(
                page.body["value"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()),
            );
            let Some(next) = page.body["nextLink"].as_str() else { break };
            path = next.strip_prefix(URL).unwrap().to_owned();
        }
        assert_eq!(found, names, "{what}");
    }
}

/// 120 lists of one caller who opened no window took 4 GB, and everybody else waited for them.
#[tokio::test]
async fn lists_that_nobody_reads_hold_a_share_and_others_go_on() {
    let site = Bench::new().await;
    large_clusters(&site).await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}");
    assert_eq!(site.assign("bob", READER, &scope, json!({})).await.status, 201);
    let path = format!("{scope}/providers/{CLUSTERS}?{VERSION}");
    let (mut held, mut bytes, mut refused) = (Vec::new(), 0, 0);
    for _ in 0..12 {
        let answer = site.respond(as_user(&site, "owner", &path)).await;
        match answer.status().as_u16() {
            200 => {
                bytes += http_body::Body::size_hint(answer.body()).lower();
                held.push(answer);
            }
            429 => {
                assert_eq!(answer.headers()["retry-after"], "1");
                refused += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert!((1..=8 * 1024 * 1024).contains(&bytes) && refused > 8, "{bytes} bytes, {refused} refused");
    assert_eq!(site.call("owner", "GET", &group("g"), None).await.status, 200, "what is short is answered");
    assert_eq!(site.call("bob", "GET", &path, None).await.status, 200, "and others go on");
    drop(held);
    assert_eq!(site.call("owner", "GET", &path, None).await.status, 200);
}
