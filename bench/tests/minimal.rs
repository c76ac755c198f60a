#![allow(clippy::unwrap_used)]

//! The hops that do nothing but what any must, as `run` starts them: whatever is asked of them gets through, and when
//! one of them is killed the run goes on.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

fn run(words: &[&str], out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["run", "--quick", "--repeat", "1", "--loopback"]).args(words).arg("--out").arg(out);
    command
}

fn records(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out).unwrap();
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The process of a hop that this one has started.
fn hop(parent: u32, word: &str) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let mut pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let is = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains(word);
    pids.find(is).unwrap()
}

// All of these listen at the same addresses: they are one test.
#[test]
fn t11_the_libraries_alone_carry_all_and_a_scenario_that_breaks_takes_no_other_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run.jsonl");
    let paths = "minimal-h2,minimal-h2-all,minimal-websocket,minimal-quic";
    let scenarios = ["--scenario", "get-64,get-100-h1,download,upload-16", "--path", paths];
    let output = run(&scenarios, &out).arg("--strict").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen = records(&out);
    assert_eq!(seen.len(), 16, "{seen:?}");
    for record in seen {
        assert!(record["outcome"]["requests"].as_u64() > Some(0) && record["no"].is_null(), "{record}");
        assert_eq!(record["hops"].as_array().unwrap().len(), 2, "{record}");
    }

    let output = run(&["--scenario", "idle-1000", "--path", "minimal-quic", "--strict"], &out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [idle] = &records(&out)[..] else { panic!("{output:?}") };
    assert!(idle["outcome"]["requests"] == 50 && idle["outcome"]["extra"]["cpu_percent"].is_number(), "{idle}");

    let scenarios = ["--scenario", "get-1,get-64,get-256", "--path", "minimal-h2", "--strict"];
    let mut child = run(&scenarios, &out).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        if line.starts_with("get-1 ") {
            let outer = hop(child.id(), "outer");
            assert!(Command::new("kill").args(["-KILL", &outer.to_string()]).status().unwrap().success());
        }
        said.push(line);
    }
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said:?}");
    let [first, broken, last] = &records(&out)[..] else { panic!("{said:?}") };
    assert!(first["no"].is_null() && last["no"].is_null(), "{said:?}");
    assert!(broken["no"].as_str().unwrap().contains("minimal outer has ended"), "{broken}");
    assert!(last["outcome"]["requests"].as_u64() > Some(0) && last["outcome"]["failed"] == 0, "{last}");
}
