#![allow(clippy::unwrap_used)]

//! The hops that do nothing but what any must, as `run` starts them: whatever is asked of them gets through.

use std::process::Command;

use serde_json::Value;

#[test]
fn the_libraries_alone_carry_requests_and_bodies_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run.jsonl");
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["run", "--quick", "--repeat", "1", "--loopback", "--strict", "--path", "minimal-h2,minimal-h2-all"]);
    command.args(["--scenario", "get-64,get-100-h1,download,upload-16"]).arg("--out").arg(&out);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(out).unwrap();
    let records: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 8, "{text}");
    for record in records {
        assert!(record["outcome"]["requests"].as_u64() > Some(0) && record["no"].is_null(), "{record}");
        assert_eq!(record["hops"].as_array().unwrap().len(), 2, "{record}");
    }
}
