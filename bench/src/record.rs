//! The figures of a run, kept as lines of JSON: the first tells the machine, each other one load over one path.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use self::Better::{Less, More, Neither};
use crate::{accounting::Usage, latency::Latency, load::Outcome, machine::Facts};

/// The folder that runs are kept in.
pub const KEPT: &str = "target/bench";

/// One load over one path, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The scenario's name.
    pub scenario: String,
    /// The path's name.
    pub path: String,
    /// Which repeat, from 0.
    pub repeat: u32,
    /// Why there are no figures, where the path cannot do this or the machine cannot measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no: Option<String>,
    /// What the load saw.
    pub outcome: Outcome,
    /// What each hop used for it.
    pub hops: Vec<Hop>,
}

/// One hop of a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hop {
    /// Name of the hop's program.
    pub name: String,
    /// What it used.
    pub used: Usage,
}

/// One figure of a record.
pub struct Figure {
    /// As in tables and targets; its unit is the end of it.
    pub name: &'static str,
    /// What is better.
    pub better: Better,
    /// `None` where the scenario has none of it.
    pub of: fn(&Record) -> Option<f64>,
}

/// Which of two values of a figure is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The smaller value.
    Less,
    /// The larger value.
    More,
    /// None: it says what the others are of.
    Neither,
}

/// The rarest latencies: a repeat of few requests alone says nothing of them.
pub const RARE: &str = "p99.9_us";

/// Requests that failed.
pub const FAILED: &str = "failed";

/// All of them; a scenario's own (`Outcome::extra`) are `|r| extra(r, "name")`.
pub const FIGURES: &[Figure] = &[
    Figure { name: "requests_per_s", better: More, of: |r| per(count(r.outcome.requests), r.outcome.seconds) },
    Figure { name: "mb_per_s", better: More, of: |r| per(moved_mb(r)?, r.outcome.seconds) },
    Figure {
        name: "beside_mb_per_s",
        better: More,
        of: |r| {
            let beside = r.outcome.beside?;
            let seconds = if beside.seconds > 0.0 { beside.seconds } else { r.outcome.seconds };
            per(count(beside.bytes) / 1e6, seconds).filter(|rate| *rate > 0.0)
        },
    },
    Figure { name: "p50_us", better: Less, of: |r| quantile(r, 0.5) },
    Figure { name: "p90_us", better: Less, of: |r| quantile(r, 0.9) },
    Figure { name: "p99_us", better: Less, of: |r| quantile(r, 0.99) },
    Figure {
        name: RARE,
        better: Less,
        of: |r| quantile(r, 0.999).filter(|_| r.outcome.latency.len() >= Latency::RARE),
    },
    Figure { name: "worst_us", better: Less, of: |r| quantile(r, 1.0) },
    Figure { name: FAILED, better: Less, of: |r| r.no.is_none().then(|| count(r.outcome.all_failed())) },
    Figure { name: "cpu_s_per_gb", better: Less, of: |r| per(hops(r, |used| used.cpu_s)?, moved_mb(r)? / 1000.0) },
    Figure {
        name: "cpu_s_per_1000_requests",
        better: Less,
        of: |r| match moved_mb(r) {
            // What went on beside cost too.
            None if r.outcome.beside.is_some() => None,
            None => per(hops(r, |used| used.cpu_s)?, count(r.outcome.requests) / 1000.0),
            Some(_) => None,
        },
    },
    Figure { name: "steady_kib", better: Less, of: |r| hops(r, |used| count(used.memory_kib)) },
    Figure { name: "peak_kib", better: Less, of: |r| hops(r, |used| count(used.peak_kib)) },
    Figure { name: "context_switches", better: Less, of: |r| hops(r, |used| count(used.switches)) },
    Figure { name: "cached_1kb_us", better: Less, of: |r| extra(r, "cached_1kb_us") },
    Figure { name: "cold_rs256_us", better: Less, of: |r| extra(r, "cold_rs256_us") },
    Figure { name: "cached_300_groups_us", better: Less, of: |r| extra(r, "cached_300_groups_us") },
    Figure { name: "cold_300_groups_us", better: Less, of: |r| extra(r, "cold_300_groups_us") },
    Figure { name: "cold_agent_certificate_us", better: Less, of: |r| extra(r, "cold_agent_certificate_us") },
    Figure { name: "cold_access_certificate_us", better: Less, of: |r| extra(r, "cold_access_certificate_us") },
    Figure { name: "kept_access_certificate_us", better: Less, of: |r| extra(r, "kept_access_certificate_us") },
    Figure { name: "kib_per_watch", better: Less, of: |r| extra(r, "kib_per_watch") },
    Figure { name: "open_p99_us", better: Less, of: |r| extra(r, "open_p99_us") },
    Figure { name: "kib_per_tunnel", better: Less, of: |r| extra(r, "kib_per_tunnel") },
    Figure { name: "gateway_kib", better: Less, of: |r| extra(r, "gateway_kib") },
    Figure { name: "cpu_percent", better: Less, of: |r| extra(r, "cpu_percent") },
    Figure { name: "cpu_us_per_tunnel_s", better: Less, of: |r| extra(r, "cpu_us_per_tunnel_s") },
    Figure { name: "users_away_s", better: Less, of: |r| extra(r, "users_away_s") },
    Figure { name: "users_connect_us", better: Less, of: |r| extra(r, "users_connect_us") },
    Figure { name: "users_requests", better: Neither, of: |r| extra(r, "users_requests") },
    Figure { name: "users_p99_us_before", better: Less, of: |r| extra(r, "users_p99_us_before") },
    Figure { name: "users_p99_us", better: Less, of: |r| extra(r, "users_p99_us") },
    Figure { name: "users_p99_ratio", better: Less, of: |r| extra(r, "users_p99_ratio") },
    Figure { name: "asked_again", better: Less, of: |r| extra(r, "asked_again") },
    Figure { name: "two_tunnels_s", better: Less, of: |r| extra(r, "two_tunnels_s") },
    Figure { name: "at_100_p50_us", better: Less, of: |r| extra(r, "at_100_p50_us") },
    Figure { name: "at_100_p99_us", better: Less, of: |r| extra(r, "at_100_p99_us") },
    Figure { name: "alone_p99_us", better: Less, of: |r| extra(r, "alone_p99_us") },
    Figure { name: "beside_p99_ratio", better: Less, of: |r| extra(r, "beside_p99_ratio") },
    Figure { name: "probe_us", better: Less, of: |r| extra(r, "probe_us") },
    Figure { name: "audit_dropped", better: Less, of: |r| extra(r, "audit_dropped") },
    Figure { name: "link_lost_percent", better: Neither, of: |r| extra(r, "link_lost_percent") },
    Figure { name: "link_dropped_percent", better: Neither, of: |r| extra(r, "link_dropped_percent") },
    Figure { name: "link_late_us", better: Neither, of: |r| extra(r, "link_late_us") },
];

/// A figure that only some scenarios have.
fn extra(record: &Record, name: &str) -> Option<f64> {
    record.outcome.extra.get(name).copied()
}

/// The figure of a name.
pub fn figure(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

#[expect(clippy::cast_precision_loss, reason = "nothing here reaches 2^52")]
fn count(value: u64) -> f64 {
    value as f64
}

fn per(what: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| what / of)
}

fn quantile(record: &Record, quantile: f64) -> Option<f64> {
    record.outcome.latency.at(quantile).map(count)
}

/// The sum over all hops; `None` where there is none.
fn hops(record: &Record, of: fn(&Usage) -> f64) -> Option<f64> {
    (!record.hops.is_empty()).then(|| record.hops.iter().map(|hop| of(&hop.used)).sum())
}

/// Megabytes, where bodies are what it is about: more than 20 KB in each (a stream over a bad way may get no further).
fn moved_mb(record: &Record) -> Option<f64> {
    let (bytes, requests) = (record.outcome.bytes, record.outcome.requests);
    (requests > 0 && bytes / requests > 20_000).then(|| count(bytes) / 1e6)
}

impl Record {
    /// Of what there are no figures of, and why.
    pub fn without(scenario: &str, path: &str, repeat: u32, why: &str) -> Self {
        Self {
            scenario: scenario.to_owned(),
            path: path.to_owned(),
            repeat,
            no: Some(why.to_owned()),
            outcome: Outcome::default(),
            hops: Vec::new(),
        }
    }

    /// One line for whoever waits.
    pub fn line(&self) -> String {
        if let Some(why) = &self.no {
            return format!("{:<18} {:<18} #{}  no ({why})", self.scenario, self.path, self.repeat);
        }
        let shown = |name: &str| Some(format!("  {name} {:.4}", (figure(name)?.of)(self)?));
        let names = [
            "requests_per_s",
            "mb_per_s",
            "beside_mb_per_s",
            "p50_us",
            "p99_us",
            "cpu_s_per_gb",
            "cpu_s_per_1000_requests",
        ];
        let own: String = self.outcome.extra.iter().map(|(name, value)| format!("  {name} {value:.4}")).collect();
        let figures: String = names.into_iter().filter_map(shown).chain([own]).collect();
        let failed = match self.outcome.all_failed() {
            0 => String::new(),
            failed => format!("  FAILED {failed}: {:?}", self.outcome.errors),
        };
        format!("{:<18} {:<18} #{}{figures}{failed}", self.scenario, self.path, self.repeat)
    }
}

/// A run as it was kept.
pub struct Run {
    /// Where and when.
    pub facts: Facts,
    /// In the order in which they were measured.
    pub records: Vec<Record>,
}

/// Writes a run.
pub struct Writer(File);

impl Writer {
    /// Creates the file, and the folders above it, and writes the facts as its first line.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn create(path: &Path, facts: &Facts) -> anyhow::Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut file = File::create(path).with_context(|| path.display().to_string())?;
        writeln!(file, "{}", serde_json::to_string(facts)?)?;
        Ok(Self(file))
    }

    /// Appends a record as one line of JSON.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&mut self, record: &Record) -> anyhow::Result<()> {
        Ok(writeln!(self.0, "{}", serde_json::to_string(record)?)?)
    }
}

/// Reads a run.
///
/// # Errors
/// What is none, with the line.
pub fn read(path: &Path) -> anyhow::Result<Run> {
    let file = File::open(path).with_context(|| format!("{}; `bench run` writes one", path.display()))?;
    let mut lines = BufReader::new(file).lines();
    let at = |number: usize, what: &str| {
        format!("{} line {number}: {what}; is it a file that `bench run` wrote?", path.display())
    };
    let first = lines.next().with_context(|| format!("{} is empty; `bench run` writes one", path.display()))?;
    let first = first.with_context(|| at(1, "no text"))?;
    let facts = serde_json::from_str(&first).with_context(|| at(1, "not the facts of a machine"))?;
    let records = lines
        .enumerate()
        .map(|(number, line)| {
            let line = line.with_context(|| at(number + 2, "no text"))?;
            serde_json::from_str(&line).with_context(|| {
                at(number + 2, "no figures (of a run that was killed the last line may be half of one: delete it)")
            })
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(Run { facts, records })
}

/// The newest run that is kept in a folder.
///
/// # Errors
/// Where there is none.
pub fn newest(dir: &Path) -> anyhow::Result<PathBuf> {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run-"));
    files.filter(name).max().with_context(|| format!("no run is kept in {}; `bench run` makes one", dir.display()))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::{load::Beside, machine};

    /// A run of optimised programs with one scenario `get-64`: at each path one request of these microseconds a repeat.
    pub fn run_of(figures: &[(&str, &[u64])]) -> Run {
        let record = |path: &str, repeat: usize, us: u64| Record {
            scenario: "get-64".to_owned(),
            path: path.to_owned(),
            repeat: u32::try_from(repeat).unwrap(),
            no: None,
            outcome: Outcome { requests: 1, seconds: 2.0, latency: vec![(us, 1)].into(), ..Outcome::default() },
            hops: Vec::new(),
        };
        let all = |(path, values): &(&str, &[u64])| {
            values.iter().enumerate().map(|(repeat, value)| record(path, repeat, *value)).collect::<Vec<_>>()
        };
        let facts = Facts { optimised: true, ..machine::facts(false, "veth") };
        Run { facts, records: figures.iter().flat_map(all).collect() }
    }

    fn value(record: &Record, name: &str) -> Option<f64> {
        (figure(name).unwrap().of)(record)
    }

    #[test]
    fn processor_time_is_that_of_all_hops_per_gb_or_per_thousand_requests() {
        let mut record = run_of(&[("x", &[10])]).records.remove(0);
        assert_eq!((value(&record, "cpu_s_per_gb"), value(&record, "cpu_s_per_1000_requests")), (None, None));
        record.hops =
            [0.5, 1.5].map(|cpu_s| Hop { name: String::new(), used: Usage { cpu_s, ..Usage::default() } }).into();
        record.outcome.requests = 4000;
        assert_eq!((value(&record, "cpu_s_per_gb"), value(&record, "cpu_s_per_1000_requests")), (None, Some(0.5)));
        (record.outcome.requests, record.outcome.bytes) = (2, 500_000_000);
        assert_eq!((value(&record, "cpu_s_per_gb"), value(&record, "cpu_s_per_1000_requests")), (Some(4.0), None));
        assert_eq!(value(&record, "mb_per_s"), Some(250.0));
    }

    #[test]
    fn failures_are_those_beside_too() {
        let mut record = run_of(&[("x", &[10])]).records.remove(0);
        record.outcome.failed = 2;
        record.outcome.beside = Some(Beside { failed: 3, bytes: 8_000_000, seconds: 0.0 });
        assert_eq!(value(&record, "failed"), Some(5.0));
        assert_eq!(value(&record, "beside_mb_per_s"), Some(4.0));
        record.outcome.beside = Some(Beside { failed: 3, bytes: 8_000_000, seconds: 4.0 });
        assert_eq!(value(&record, "beside_mb_per_s"), Some(2.0));
        assert!(record.line().contains("FAILED 5"), "{}", record.line());
    }

    #[test]
    fn what_cannot_be_measured_has_no_figures_and_says_why() {
        let record = Record::without("exec", "x", 1, "no upgrades");
        assert!(FIGURES.iter().all(|figure| (figure.of)(&record).is_none()));
        assert!(record.line().ends_with("#1  no (no upgrades)"), "{}", record.line());
    }

    #[test]
    fn a_line_of_an_older_run_reads_back() {
        let old = r#"{"scenario":"s","path":"p","repeat":0,"hops":[],"outcome":{"requests":1,"failed":0,"beside":null,"errors":{},"bytes":0,"seconds":1.0,"latency":[[5,1]]}}"#;
        let record: Record = serde_json::from_str(old).unwrap();
        assert_eq!((record.no.as_ref(), record.outcome.extra.len(), value(&record, "p50_us")), (None, 0, Some(5.0)));
        assert!(!serde_json::to_string(&record).unwrap().contains("extra"));
    }

    #[test]
    fn a_kept_run_reads_back_and_the_newest_is_found() {
        let (dir, run) = (tempfile::tempdir().unwrap(), run_of(&[("x", &[10, 20])]));
        assert!(newest(dir.path()).is_err());
        for name in ["run-2.jsonl", "run-1.jsonl", "x.jsonl"] {
            let mut writer = Writer::create(&dir.path().join(name), &run.facts).unwrap();
            run.records.iter().for_each(|record| writer.write(record).unwrap());
        }
        let file = newest(dir.path()).unwrap();
        assert!(file.ends_with("run-2.jsonl"), "{file:?}");
        let again = read(&file).unwrap();
        assert_eq!((again.records.len(), value(&again.records[1], "p50_us")), (2, Some(20.0)));
    }

    #[test]
    fn what_is_no_whole_run_says_which_line_and_what_to_do() {
        let (dir, run) = (tempfile::tempdir().unwrap(), run_of(&[("x", &[10, 20])]));
        let file = dir.path().join("run.jsonl");
        let error = || format!("{:#}", read(&file).err().unwrap());
        let name = file.display();
        assert!(error().starts_with(&format!("{name}; `bench run` writes one: ")), "{}", error());
        std::fs::write(&file, "").unwrap();
        assert_eq!(error(), format!("{name} is empty; `bench run` writes one"));
        let mut writer = Writer::create(&file, &run.facts).unwrap();
        run.records.iter().for_each(|record| writer.write(record).unwrap());
        let text = std::fs::read_to_string(&file).unwrap();
        // Killed in the middle of a line, be it the first one or the last.
        for (kept, line, what) in [(9, 1, "not the facts of a machine"), (text.len() - 9, 3, "half of one: delete it")]
        {
            std::fs::write(&file, &text[..kept]).unwrap();
            assert!(error().starts_with(&format!("{name} line {line}: ")) && error().contains(what), "{}", error());
        }
    }
}
