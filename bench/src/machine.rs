//! Facts of the machine that figures belong to: none is worth anything without them.

use serde::{Deserialize, Serialize};

/// The machine and the moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// When the run began, ISO 8601 UTC.
    pub date: String,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Model of the processor.
    pub processor: String,
    /// How many of them.
    pub processors: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Load of the last minute as the run began: above a fraction of one, others were at work.
    pub load: String,
    /// Whether this is an optimised build.
    pub optimised: bool,
    /// Whether the scenarios were cut short.
    pub quick: bool,
    /// Name of the network between the hops, such as `LOOPBACK`.
    pub link: String,
    /// What the run was started with.
    pub command: String,
    /// The commit of the folder that it was started in, where it is one; `+` behind it where files were changed since.
    #[serde(default)]
    pub commit: Option<String>,
}

impl Facts {
    /// Where a run is kept: files sort by their moment.
    pub fn file_name(&self) -> String {
        let digits: String = self.date.chars().filter(char::is_ascii_digit).take(14).collect();
        format!("run-{digits}.jsonl")
    }

    /// Why these figures decide nothing, if so.
    pub fn reservations(&self) -> Vec<&'static str> {
        let all = [
            (!self.optimised, "not optimised"),
            (self.quick, "quick"),
            (self.link.contains("LOOPBACK"), "over loopback"),
        ];
        all.into_iter().filter_map(|(holds, word)| holds.then_some(word)).collect()
    }
}

/// Of this machine, now.
pub fn facts(quick: bool, link: &str) -> Facts {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
        line.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let kib = value(&memory, "MemTotal").split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    let now = time::OffsetDateTime::now_utc();
    Facts {
        date: now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        processor: value(&cpu, "model name"),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        memory_mib: kib / 1024,
        load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
        optimised: !cfg!(debug_assertions),
        quick,
        link: link.to_owned(),
        command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        commit: commit(),
    }
}

/// What was measured, as far as git knows.
fn commit() -> Option<String> {
    let mut git = std::process::Command::new("git");
    let output = git.args(["describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_kept_by_their_moment_and_say_what_speaks_against_them() {
        let facts =
            Facts { date: "2026-11-22T06:45:01.123456789Z".to_owned(), optimised: true, ..facts(false, "veth") };
        assert_eq!(facts.file_name(), "run-20261122064501.jsonl");
        assert!(facts.reservations().is_empty() && facts.processors > 0);
        let facts = Facts { quick: true, link: "LOOPBACK".to_owned(), ..facts };
        assert_eq!(facts.reservations(), ["quick", "over loopback"]);
    }
}
