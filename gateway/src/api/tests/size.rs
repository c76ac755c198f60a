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
