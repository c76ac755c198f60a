//! A second opinion on requests a second, by a load generator that is not ours: h2load of nghttp2. It does not check
//! certificates, and its latencies are left alone.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::{
    link::Seat,
    load::Outcome,
    path::{Bench, Running},
    program::output,
};

/// Under way on the one connection, as in `get-64`.
const CONCURRENT: &str = "64";
/// What it asks for, as in `get-64`.
const SMALL: &str = "/bench/small";
/// How many lines of what it said an error shows.
const SHOWN: usize = 5;

/// The program, or why there is none.
fn program() -> Result<PathBuf, &'static str> {
    let places = ["/usr/bin/h2load", "/usr/local/bin/h2load"];
    let found = places.iter().map(Path::new).find(|place| place.exists());
    found.map(Path::to_owned).ok_or("h2load is not installed (apt install nghttp2-client)")
}

/// Why it cannot be run here, if so.
pub fn missing() -> Option<&'static str> {
    program().err()
}

/// Sends requests over a path for `seconds`.
///
/// # Errors
/// A program that is missing or fails, or whose report cannot be read.
pub async fn run(bench: &Bench, path: &Running, seconds: f64) -> anyhow::Result<Outcome> {
    let mut command = bench.link.command(Seat::Load, &program().map_err(anyhow::Error::msg)?);
    arguments(&mut command, path, seconds);
    report(&output(command, b"").await?)
}

fn arguments(command: &mut Command, path: &Running, seconds: f64) {
    command.args(["--clients=1", "--threads=1", "--max-concurrent-streams", CONCURRENT]);
    command.arg(format!("--duration={seconds}"));
    if let Some(token) = &path.token {
        // In the list of processes for all to see: it opens this run's gateway and nothing else.
        command.arg(format!("--header=authorization: Bearer {token}"));
    }
    command.arg(format!("{}{SMALL}", path.url.trim_end_matches('/')));
}

/// Reads what it prints at its end.
fn report(text: &str) -> anyhow::Result<Outcome> {
    let read = || {
        let rate: f64 = numbers(text, "finished in")?.get(1).copied()?;
        let requests = numbers(text, "requests:")?;
        // Total, started, done, succeeded, failed, of these errored, timed out. Of those that were started, the last
        // ones were under way when the time was over.
        let [_, _, done, succeeded, failed, _, _] = requests[..] else { return None };
        Some((rate, done, succeeded, failed))
    };
    let last = || {
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    };
    let (rate, done, succeeded, failed) = read().with_context(|| format!("what h2load said: {}", last()))?;
    ensure!(rate > 0.0 && done > 0.0, "h2load got no answer: {}", last());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts that it printed")]
    let [requests, failed] = [succeeded, failed].map(|count| count as u64);
    Ok(Outcome { requests, failed, seconds: done / rate, ..Outcome::default() })
}

/// The numbers of the line that begins with these words.
fn numbers(text: &str, begin: &str) -> Option<Vec<f64>> {
    let line = text.lines().find_map(|line| line.strip_prefix(begin))?;
    let word = |word: &str| {
        let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
        word[..end].parse().ok()
    };
    Some(line.split_whitespace().filter_map(word).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "starting benchmark...
progress: 100% of clients started
Main benchmark duration is over for thread #0. Stopping all clients.

finished in 2.00s, 8123.50 req/s, 1.21MB/s
requests: 16247 total, 16311 started, 16247 done, 16240 succeeded, 7 failed, 0 errored, 0 timeout
status codes: 16240 2xx, 0 3xx, 7 4xx, 0 5xx
time for request:      523us     41.03ms      7.85ms      1.52ms    78.90%
";

    #[test]
    fn what_it_counted_is_read() {
        let seen = report(SAID).unwrap();
        assert_eq!((seen.requests, seen.failed), (16240, 7));
        assert!((1.999..2.001).contains(&seen.seconds), "{}", seen.seconds);
    }

    #[test]
    fn what_says_nothing_is_an_error_that_shows_it() {
        assert!(format!("{:#}", report("could not connect").unwrap_err()).contains("could not connect"));
        let nothing = SAID.replace("8123.50 req/s", "0.00 req/s").replace("16247 done", "0 done");
        assert!(format!("{:#}", report(&nothing).unwrap_err()).contains("no answer"));
    }
}
