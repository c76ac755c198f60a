//! Standard output and standard error that nobody reads.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    process::{Command, Output},
};

use support::towline;

/// With a reader that has gone before the first byte.
fn unread(args: &[&str], is_out: bool) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = towline(args);
    let command = if is_out { command.stdout(writer) } else { command.stderr(writer) };
    command.output().unwrap()
}

/// As kubectl and git, which SIGPIPE ends: `towline completion bash | head -1`.
#[test]
fn output_that_nobody_reads_ends_the_command_without_a_word() {
    for args in [&["completion", "bash"][..], &["completion", "zsh"]] {
        let output = unread(args, true);
        assert_eq!(output.status.code(), Some(141), "{args:?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The one program under another of its names.
fn called(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towline"));
    command.arg0(name).args(args);
    command
}

/// What prints under these names, with its exit code where it is read.
fn printing(agent: &str) -> Vec<(&'static str, Vec<&str>, i32)> {
    vec![
        ("towline-gateway", vec!["config-reference"], 0),
        ("towline-agent", vec!["config-reference"], 0),
        ("towline-agent", vec!["check", "--config", agent], 1),
        ("towline-agent", vec!["check", "--json", "--config", agent], 1),
    ]
}

/// An agent whose gateway nobody is: each of its checks fails at once.
fn agent(dir: &std::path::Path) -> String {
    let ca = certs::Authority::create("test", certs::Validity::days(1)).unwrap();
    std::fs::write(dir.join("ca.crt"), ca.certificate_pem()).unwrap();
    let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
    let config = format!(
        "[gateway]\nurls = [\"https://127.0.0.1:1\"]\nca_file = \"ca.crt\"\n[identity]\ncluster_id = \"{id}\"\n\
         directory = \"identity\"\n[cluster]\nkubeconfig = \"none\"\n"
    );
    let file = dir.join("agent.toml");
    std::fs::write(&file, config).unwrap();
    file.display().to_string()
}

/// `towline-agent check | head -1` ended with a panic and its backtrace.
#[test]
fn agent_and_gateway_end_without_a_word_where_nobody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(dir.path());
    for (name, args, code) in printing(&agent) {
        let read = called(name, &args).output().unwrap();
        assert_eq!(read.status.code(), Some(code), "{name} {args:?}: {read:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = called(name, &args).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{name} {args:?}: {output:?}");
        assert_eq!(output.stderr, read.stderr, "{name} {args:?}");
    }
}

/// `towline-gateway init > FILE` on a full disk ended with 0, and the owner's secret was nowhere.
#[test]
fn what_a_full_disk_does_not_take_is_a_failure_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let agent = agent(dir.path());
    for (name, args, _) in printing(&agent) {
        let output = called(name, &args).stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name} {args:?}: {said}");
        assert!(said.contains("standard output cannot be written"), "{name} {args:?}: {said}");
    }
    let output = towline(&["completion", "bash"]).stdout(full()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("standard output cannot be written"), "{said}");
    let folder = dir.path().join("gateway").display().to_string();
    let init = ["init", "--directory", &folder, "--url", "https://127.0.0.1:8443"];
    let output = called("towline-gateway", &init).stdout(full()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("renew-owner-secret prints another"), "{said}");
}

#[test]
fn errors_that_nobody_reads_change_no_exit_code() {
    assert_eq!(unread(&["group", "list"], false).status.code(), support::run(&["group", "list"]).status.code());
    assert_eq!(unread(&["group", "list", "--no-such"], false).status.code(), Some(2));
}
