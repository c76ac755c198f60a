#![allow(clippy::unwrap_used, clippy::print_stderr)]

//! A way through the relay, end to end: what it claims is what users see, and what the relay says of itself.

use std::{os::unix::fs::MetadataExt, path::Path, process::Command};

use serde_json::Value;

/// Why it cannot be tried here, if so.
fn cannot() -> Option<&'static str> {
    let root = std::fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0);
    match root {
        false => Some("needs root"),
        true if !Path::new("/dev/net/tun").exists() => Some("needs /dev/net/tun"),
        true => None,
    }
}

/// The records of these scenarios over nothing but the way itself.
fn run(scenarios: &str, more: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run.jsonl");
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["run", "--quick", "--repeat", "1", "--path", "direct", "--scenario", scenarios]).args(more);
    let output = command.arg("--out").arg(&out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(out).unwrap();
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The value that half of the requests did not exceed, in milliseconds.
fn median_ms(record: &Value) -> u64 {
    let steps: Vec<(u64, u64)> = serde_json::from_value(record["outcome"]["latency"].clone()).unwrap();
    let all: u64 = steps.iter().map(|(_, count)| count).sum();
    let mut seen = 0;
    let middle = steps.iter().find(|(_, count)| {
        seen += count;
        seen * 2 >= all
    });
    middle.unwrap().0 / 1000
}

#[test]
fn a_claimed_delay_is_seen_and_a_claimed_loss_tells_on_a_stream() {
    if let Some(why) = cannot() {
        eprintln!("not tried: {why}");
        return;
    }
    let records = run("get-20ms,get-200ms,download-lossy-2", &[]);
    let [near, far, lossy] = &records[..] else { panic!("{records:?}") };
    // Whatever else the machine does, nothing is quicker than the way.
    for (record, least, most) in [(near, 20, 100), (far, 200, 300)] {
        let median = median_ms(record);
        assert!((least..most).contains(&median), "{median} ms: {record}");
        assert_eq!(record["outcome"]["extra"]["link_lost_percent"], 0.0, "{record}");
    }
    let lost = lossy["outcome"]["extra"]["link_lost_percent"].as_f64().unwrap();
    assert!((0.1..6.0).contains(&lost), "{lossy}");
    // What CUBIC makes of such losses; what does not take a loss for a jam would have had ten times as much.
    let bytes = lossy["outcome"]["bytes"].as_u64().unwrap();
    assert!((10_000..2_000_000).contains(&bytes), "{lossy}");
}

#[test]
fn what_has_no_link_has_no_figures_and_says_why() {
    let records = run("get-20ms", &["--loopback"]);
    assert_eq!(records[0]["no"], "loopback has no link", "{records:?}");
}
