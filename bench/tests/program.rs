//! The program as it is called: what it prints, and its exit codes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

const MACHINE: &str = r#"{"date":"2026-11-22T06:45:01Z","kernel":"6.1","processor":"x","processors":2,"memory_mib":1,"load":"0","optimised":true,"quick":false,"link":"veth","command":"run"}"#;
const TARGET: &str =
    "[[target]]\nscenario = \"get-64\"\npath = \"towline-h2\"\nfigure = \"p50_us\"\nto = \"nothing\"\nat_most = ";

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench")).args(words).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap() + &String::from_utf8_lossy(&output.stderr)
}

/// A run of five repeats of `get-64` over two paths, as an older program kept it.
fn kept(dir: &Path) -> String {
    let record = |path: &str, repeat: u32, us: u32| {
        format!(
            r#"{{"scenario":"get-64","path":"{path}","repeat":{repeat},"hops":[],"outcome":{{"requests":1,"failed":0,"beside":null,"errors":{{}},"bytes":0,"seconds":1.0,"latency":[[{us},1]]}}}}"#
        )
    };
    let records = (0..5).flat_map(|n| [record("nginx-chain", n, 100 + n), record("towline-h2", n, 200 + n)]);
    let lines: Vec<_> = std::iter::once(MACHINE.to_owned()).chain(records).collect();
    let file = dir.join("run-1.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    file.display().to_string()
}

#[test]
fn it_tells_what_there_is() {
    let seen = bench(&["list"]);
    assert!(seen.status.success());
    for name in ["scenario  get-64 ", "scenario  tokens ", "path      towline-quic ", "path      nginx-chain "] {
        assert!(text(&seen).contains(name), "{name}: {}", text(&seen));
    }
}

#[test]
fn a_kept_run_becomes_tables_and_a_page_and_is_compared_with_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (file, page) = (kept(dir.path()), dir.path().join("page.html"));
    let seen = bench(&["report", &file]);
    assert!(seen.status.success() && text(&seen).contains("202 [200 .. 204] 1.98x"), "{}", text(&seen));
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets.toml");
    let seen =
        bench(&["report", &file, "--html", &page.display().to_string(), "--targets", &targets.display().to_string()]);
    assert!(seen.status.success(), "{}", text(&seen));
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("NOT MEASURED"), "{html}");
    assert!(text(&bench(&["compare", &file, &file])).contains("no difference beyond the spread"));
}

#[test]
fn a_missed_target_is_named_and_is_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let (file, targets) = (kept(dir.path()), dir.path().join("targets.toml"));
    for (most, success) in [("210", true), ("190", false)] {
        std::fs::write(&targets, format!("{TARGET}{most}\n")).unwrap();
        let seen = bench(&["check", &file, "--targets", &targets.display().to_string()]);
        assert_eq!(seen.status.success(), success, "{}", text(&seen));
        assert_eq!(text(&seen).contains("MISSED"), !success, "{}", text(&seen));
    }
}

#[test]
fn a_reader_that_has_enough_is_left_in_peace() {
    let dir = tempfile::tempdir().unwrap();
    let file = kept(dir.path());
    for words in [&["report", &file][..], &["list"], &["compare", &file, &file]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
        let seen = bench.args(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert!(seen.status.success() && seen.stderr.is_empty(), "{words:?} {}", text(&seen));
    }
}

#[test]
fn what_cannot_be_done_is_said_and_is_exit_code_1() {
    for words in [&["run", "--scenario", "nothing"][..], &["report", "/nowhere"], &["check", "/nowhere"]] {
        let seen = bench(words);
        assert_eq!(seen.status.code(), Some(1), "{}", text(&seen));
        assert!(seen.stdout.is_empty() && text(&seen).starts_with("bench: "), "{}", text(&seen));
    }
}
