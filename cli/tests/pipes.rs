//! Standard output and standard error that nobody reads.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::process::Output;

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

#[test]
fn errors_that_nobody_reads_change_no_exit_code() {
    assert_eq!(unread(&["group", "list"], false).status.code(), support::run(&["group", "list"]).status.code());
    assert_eq!(unread(&["group", "list", "--no-such"], false).status.code(), Some(2));
}
