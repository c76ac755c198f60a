//! Ten thousand clusters (docs/features.md C9). The figures of the ignored test are in docs/measurements/2026-11-22.md:
//! `cargo test --workspace --lib -- --ignored --nocapture c9_ten_thousand`.

#![allow(clippy::print_stdout)]

use std::time::Instant;

use super::{connectivity::key_of, *};
use crate::store::{
    batch::{Batch, Expect},
    resources::Stored,
};

const CLUSTERS_IN_ALL: usize = 10_000;
const GROUPS: usize = 10;
const ROUNDS: usize = 100;
/// Of questions that write.
const WRITES: usize = 50;

/// Of lists that are asked for by POST, which are counted as writes are.
const PAGES_EACH: usize = 15;

/// Names sort as their numbers do.
fn name(n: usize) -> String {
    format!("c{n:05}")
}

fn group_of(n: usize) -> String {
    if n.is_multiple_of(GROUPS) { "g".to_owned() } else { format!("g{}", n % GROUPS) }
}

/// Puts them where the API would, without asking it ten thousand times.
async fn fill(site: &Bench, clusters: usize) {
    for n in 0..GROUPS {
        site.group(&group_of(n)).await;
    }
    let made = site.with_agents("pattern").await;
    let pattern = site.control.store.get(&key_of("pattern")).await.unwrap().unwrap();
    assert_eq!(made.status, 201);
    let numbers: Vec<usize> = (0..clusters).collect();
    for some in numbers.chunks(1000) {
        let puts = some.iter().map(|n| {
            let id = cluster_id(&group_of(*n), &name(*n));
            let key = id.to_ascii_lowercase();
            let parent = key.split("/providers/").next().unwrap().to_owned();
            let mut body = pattern.body.clone();
            body["identity"]["principalId"] = crate::random::guid().into();
            (Stored { key, parent, id, body, ..pattern.clone() }, Expect::Absent)
        });
        let batch = Batch { puts: puts.collect(), ..Batch::default() };
        let revision = site.control.write(&batch).await.unwrap().unwrap();
        site.control.caught_up(revision).await;
    }
    let seen: Vec<String> =
        (0..clusters).step_by(2).map(|n| cluster_id(&group_of(n), &name(n)).to_ascii_lowercase()).collect();
    site.control.store.seen(&seen, site.now()).await.unwrap();
}

/// Resident memory in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

/// What this process has used of processors so far, in milliseconds: other programs on the machine do not count.
fn used_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks * 10
}

#[tokio::test]
async fn c9_lists_of_many_are_whole_and_know_each_status() {
    let site = Bench::new().await;
    fill(&site, 400).await;
    let mut path = format!("/subscriptions/{SUBSCRIPTION}/providers/{CLUSTERS}?{VERSION}&$top=150");
    let mut found = Vec::new();
    loop {
        let page = site.call("owner", "GET", &path, None).await;
        assert_eq!(page.status, 200, "{}", page.body);
        for shown in page.body["value"].as_array().unwrap() {
            let (name, status) = (shown["name"].clone(), shown["properties"]["connectivityStatus"].clone());
            found.push((name.as_str().unwrap().to_owned(), status.as_str().unwrap().to_owned()));
        }
        let Some(next) = page.body["nextLink"].as_str() else { break };
        path = next.strip_prefix(URL).unwrap().to_owned();
    }
    found.sort();
    let expected = (0..400).map(|n| (name(n), if n % 2 == 0 { "Connected" } else { "Connecting" }.to_owned()));
    let pattern = ("pattern".to_owned(), "Connecting".to_owned());
    assert_eq!(found, expected.chain([pattern]).collect::<Vec<_>>());
}

/// A page of the clusters of a fleet assignment costs the same, however many clusters there are and whatever else is in
/// them: it has `$top` clusters, and 500 are looked at for a page with fewer.
#[tokio::test]
async fn g13_clusters_of_an_assignment_are_listed_by_pages_of_a_bounded_cost() {
    const MANY: usize = 1100;
    let site = Bench::new().await;
    fill(&site, MANY).await;
    for n in [3, 700, 1050] {
        let key = cluster_id(&group_of(n), &name(n)).to_ascii_lowercase();
        let mut stored = site.control.store.get(&key).await.unwrap().unwrap();
        stored.body["tags"] = json!({"ring": "one"});
        site.control.store.put(&stored, Expect::Any).await.unwrap().unwrap();
    }
    let at = |name: &str| {
        format!("/subscriptions/{SUBSCRIPTION}/providers/Towline.Fleet/assignments/{name}?api-version=2026-11-01")
    };
    let template = json!({"type": "Microsoft.KubernetesConfiguration/fluxConfigurations", "name": "shop", "properties": {
        "sourceKind": "GitRepository", "gitRepository": {"url": "https://example.com/shop.git"},
    }});
    for (assignment, tags) in [("all", json!({})), ("ring", json!({"ring": "one"}))] {
        let body = json!({"properties": {"selector": {"tags": tags}, "template": template}});
        let made = site.call("owner", "PUT", &at(assignment), Some(body)).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let pages = async |assignment: &str, query: &str, asked: Value| {
        let (mut sizes, mut names) = (Vec::new(), Vec::new());
        let mut next = Some(at(assignment).replace('?', &format!("/listClusters?{query}")));
        while let Some(path) = next {
            let page = site.call("owner", "POST", &path, Some(asked.clone())).await;
            assert_eq!(page.status, 200, "{}", page.body);
            let some = page.body["value"].as_array().unwrap();
            sizes.push(some.len());
            names.extend(some.iter().map(|one| one["id"].as_str().unwrap().to_ascii_lowercase()));
            next = page.body["nextLink"].as_str().map(|link| link.strip_prefix(URL).unwrap().to_owned());
        }
        (sizes, names)
    };
    let mut all: Vec<String> = (0..MANY).map(|n| cluster_id(&group_of(n), &name(n)).to_ascii_lowercase()).collect();
    all.push(key_of("pattern"));
    all.sort();
    let (sizes, found) = pages("all", "$top=400&", json!({})).await;
    assert_eq!((sizes, &found), (vec![250, 250, 250, 250, 101], &all), "each once, in the order of their ids");
    let (sizes, found) = pages("all", "$top=1000&", json!({"state": "waiting"})).await;
    assert_eq!((sizes, &found), (vec![250, 250, 250, 250, 101], &all));
    assert_eq!(pages("all", "", json!({})).await.0[0], 100, "without a number");
    // Those that few of the clusters belong to, or that are in no such state.
    let (sizes, found) = pages("ring", "$top=10&", json!({})).await;
    assert_eq!((sizes.len(), found.len()), (5, 3), "{sizes:?}");
    assert_eq!(pages("all", "", json!({"state": "Failed"})).await.0, [0; 5]);
    for wrong in ["$top=0&", "$top=x&", "$skipToken=x&"] {
        let path = at("all").replace('?', &format!("/listClusters?{wrong}"));
        let refused = site.call("owner", "POST", &path, Some(json!({}))).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidQueryParameterValue"), "{wrong}: {}", refused.body);
    }
}

/// Figures of extensions; those of 2026 are in docs/measurements/2026-11-28.md.
#[tokio::test]
#[ignore = "a measurement"]
async fn e1_ten_thousand_clusters_with_five_extensions_each() {
    const EACH: usize = 5;
    const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
    const EXTENSIONS_VERSION: &str = "api-version=2025-03-01";
    let before = memory();
    let site = Bench::new().await;
    fill(&site, CLUSTERS_IN_ALL).await;
    println!("memory: {before} MiB before, {} MiB with {CLUSTERS_IN_ALL} clusters", memory());
    let of = |n: usize| format!("{}/providers/{EXTENSIONS}", cluster_id(&group_of(n), &name(n)));
    let numbers: Vec<usize> = (0..CLUSTERS_IN_ALL).collect();
    for some in numbers.chunks(1000) {
        let mut batch = Batch::default();
        for n in some {
            for e in 0..EACH {
                let id = format!("{}/e{e}", of(*n));
                let stored = Stored {
                    key: id.to_ascii_lowercase(),
                    kind: EXTENSIONS.to_ascii_lowercase(),
                    parent: cluster_id(&group_of(*n), &name(*n)).to_ascii_lowercase(),
                    id,
                    revision: 0,
                    body: json!({
                        "object": {"generation": 1},
                        "properties": {"extensionType": "example.web", "configurationSettings": {"replicas": "2"}},
                    }),
                    protected: None,
                };
                batch.puts.push((stored, Expect::Absent));
            }
        }
        let revision = site.control.write(&batch).await.unwrap().unwrap();
        site.control.caught_up(revision).await;
    }
    println!("memory: {} MiB with {} extensions", memory(), CLUSTERS_IN_ALL * EACH);
    for what in ["list", "show"] {
        let (mut times, used) = (Vec::new(), used_ms());
        for n in 0..10 * ROUNDS {
            let n = n * 37 % CLUSTERS_IN_ALL;
            let one = if what == "show" { format!("/e{}", n % EACH) } else { String::new() };
            let began = Instant::now();
            let answer = site.call("owner", "GET", &format!("{}{one}?{EXTENSIONS_VERSION}", of(n)), None).await;
            times.push(began.elapsed());
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
        times.sort();
        let each = (used_ms() - used) as f64 / (10 * ROUNDS) as f64;
        println!("{what}: p50 {:?}, p99 {:?}, {each} ms of CPU", times[5 * ROUNDS], times[10 * ROUNDS * 99 / 100]);
    }
    // All have upgraded one of theirs to a version that the catalogue got.
    let (mut times, used) = (Vec::new(), used_ms());
    for n in 0..CLUSTERS_IN_ALL {
        let told = json!({
            "id": format!("{}/e1", of(n)), "generation": 1, "state": "Succeeded", "currentVersion": "1.1.0",
            "statuses": [], "events": [{"number": 1, "phase": "Upgrade", "level": "Normal", "reason": "Succeeded",
                "message": "the upgrade to the chart web 1.1.0 is done", "first": "2027-01-15T12:00:00Z",
                "last": "2027-01-15T12:00:00Z", "count": 1}],
        });
        let told = serde_json::from_value(json!({"objects": [told]})).unwrap();
        let key = cluster_id(&group_of(n), &name(n)).to_ascii_lowercase();
        let began = Instant::now();
        assert!(site.control.objects_told(&key, told).await.unwrap().unknown.is_empty());
        times.push(began.elapsed());
    }
    times.sort();
    let each = (used_ms() - used) as f64 / CLUSTERS_IN_ALL as f64;
    let (half, most) = (times[CLUSTERS_IN_ALL / 2], times[CLUSTERS_IN_ALL * 99 / 100]);
    println!("each cluster tells of an upgrade: p50 {half:?}, p99 {most:?}, {each} ms of CPU");
    // A rollout's list of them: the first pages.
    let path = format!("/subscriptions/{SUBSCRIPTION}/providers/Towline.Fleet/assignments/web?api-version=2026-11-01");
    let template = json!({"type": EXTENSIONS, "name": "e1", "existing": true,
        "properties": {"extensionType": "example.web", "version": "1.1.0"}});
    let body = json!({"properties": {"selector": {"tags": {}}, "template": template,
        "rollout": {"maxConcurrentPercent": 1, "paused": true}}});
    let made = site.call("owner", "PUT", &path, Some(body)).await;
    assert_eq!(made.status, 201, "{}", made.body);
    for (what, top, state) in [("a page", 100, None), ("a large page", 250, None), ("one state", 100, Some("Failed"))] {
        let (mut times, mut found, used) = (Vec::new(), 0, used_ms());
        let asked = state.map_or_else(|| json!({}), |state| json!({"state": state}));
        let mut next = Some(path.replace('?', &format!("/listClusters?$top={top}&")));
        while let Some(at) = next.filter(|_| times.len() < PAGES_EACH) {
            let began = Instant::now();
            let page = site.call("owner", "POST", &at, Some(asked.clone())).await;
            times.push(began.elapsed());
            assert_eq!(page.status, 200, "{}", page.body);
            found += page.body["value"].as_array().unwrap().len();
            next = page.body["nextLink"].as_str().map(|link| link.strip_prefix(URL).unwrap().to_owned());
        }
        times.sort();
        let (pages, each) = (times.len(), (used_ms() - used) as f64 / times.len() as f64);
        let (half, most) = (times[pages / 2], times[pages * 99 / 100]);
        println!(
            "{what} of a rollout's {found} clusters, {pages} of them: p50 {half:?}, p99 {most:?}, {each} ms of CPU"
        );
    }
    println!("memory at the end: {} MiB", memory());
}

#[tokio::test]
#[ignore = "a measurement"]
async fn c9_ten_thousand_clusters() {
    let before = memory();
    let site = Bench::new().await;
    fill(&site, CLUSTERS_IN_ALL).await;
    println!("memory: {before} MiB before, {} MiB with {CLUSTERS_IN_ALL} clusters", memory());
    let began = Instant::now();
    site.control.tell_once().await;
    println!("{} events told in {:?}", site.control.store.newest_event().await.unwrap(), began.elapsed());
    let began = Instant::now();
    site.control.tell_once().await;
    println!("nothing to tell: {:?}", began.elapsed());
    let everywhere = format!("/subscriptions/{SUBSCRIPTION}/providers/{CLUSTERS}?{VERSION}");
    let in_group = |n: usize| {
        format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{}/providers/{CLUSTERS}?{VERSION}", group_of(n))
    };
    let at = |n: usize| cluster(&group_of(n), &name(n));
    type Ask<'a> = Box<dyn Fn(usize) -> (&'static str, String, Option<Value>) + 'a>;
    let questions: Vec<(&str, Ask<'_>)> = vec![
        ("list, a page of 100", Box::new(|_| ("GET", everywhere.clone(), None))),
        ("list, a page of 1000", Box::new(|_| ("GET", format!("{everywhere}&$top=1000"), None))),
        ("list by resource group, 100", Box::new(|n| ("GET", in_group(n), None))),
        ("show with status", Box::new(|n| ("GET", at(n * 37 % CLUSTERS_IN_ALL), None))),
        (
            "change of tags",
            Box::new(|n| ("PATCH", at(n * 37 % CLUSTERS_IN_ALL), Some(json!({"tags": {"n": n.to_string()}})))),
        ),
    ];
    for (what, ask) in questions {
        let mut times = Vec::new();
        let used = used_ms();
        // A caller may write so often in a minute here, and that is not what is measured.
        let rounds = if ask(0).0 == "PATCH" { WRITES } else { ROUNDS };
        for n in 0..rounds {
            let (method, path, body) = ask(n);
            let began = Instant::now();
            let answer = site.call("owner", method, &path, body).await;
            times.push(began.elapsed());
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
        times.sort();
        let each = (used_ms() - used) as f64 / rounds as f64;
        println!("{what}: p50 {:?}, p99 {:?}, {each} ms of CPU", times[rounds / 2], times[rounds * 99 / 100]);
    }
    let keys: Vec<String> =
        (0..CLUSTERS_IN_ALL).map(|n| cluster_id(&group_of(n), &name(n)).to_ascii_lowercase()).collect();
    let began = Instant::now();
    site.control.store.seen(&keys, site.now() + 1).await.unwrap();
    println!("all seen in one write: {:?}", began.elapsed());
    println!("memory at the end: {} MiB", memory());
}
