//! A run in short, as Markdown ready to paste where the project shows what it costs: when, where and by which command,
//! one table of the figures that most will ask for, and one of the targets.

use std::fmt::Write;

use crate::{
    record::{Run, figure},
    report::{FEW, FLOOR, Ratio, compared_with, names, short, why_not},
    statistics::Middle,
    targets::{HOW, Verdict},
};

/// A column: its title, the scenario, the figure, and what that is divided by.
struct Column(&'static str, &'static str, &'static str, f64);

const COLUMNS: &[Column] = &[
    Column("one stream down, MB/s", "download", "mb_per_s", 1.0),
    Column("CPU s/GB, both hops", "download", "cpu_s_per_gb", 1.0),
    Column("small GETs a second, 64 under way", "get-64", "requests_per_s", 1.0),
    Column("CPU s/1,000, both hops", "get-64", "cpu_s_per_1000_requests", 1.0),
    Column("small GET p50, ms", "get-100", "p50_us", 1000.0),
    Column("p99, ms", "get-100", "p99_us", 1000.0),
    Column("`kubectl get` p50, ms", "kubectl-get", "p50_us", 1000.0),
];

/// The text; `verdict` is what the targets say of the run.
pub fn text(run: &Run, verdict: Option<&Verdict>) -> String {
    let facts = &run.facts;
    let day = facts.date.split('T').next().unwrap_or_default();
    let commit = facts.commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
    let reservations = facts.reservations();
    let mut text = format!(
        "Measured on {day} by `bench {}` on {} x {}, {} MiB, Linux {}, link {}{commit}. Medians of the repeats with the ratio to \
         {FLOOR} behind them, `=` where the spreads meet. They hold for this machine on this day, beside these versions of its \
         peers, and promise nothing for another one: `make bench` measures yours.\n",
        facts.command, facts.processors, facts.processor, facts.memory_mib, facts.kernel, facts.link
    );
    if !reservations.is_empty() {
        let _ = writeln!(text, "\n**These figures decide nothing: {}.**", reservations.join(", "));
    }
    let titles: Vec<_> = COLUMNS.iter().map(|Column(title, ..)| *title).collect();
    let _ = write!(text, "\n| path | {} |\n|---|{}\n", titles.join(" | "), "---|".repeat(titles.len()));
    let mut unsure = false;
    for path in names(run, |record| &record.path) {
        let (cells, ratios): (Vec<_>, Vec<_>) = COLUMNS.iter().map(|column| cell(run, path, column)).unzip();
        unsure |= ratios.iter().flatten().any(|ratio| matches!(ratio, Ratio::Unsure(_)));
        if cells.iter().any(|cell| cell != NOTHING) {
            let _ = writeln!(text, "| {path} | {} |", cells.join(" | "));
        }
    }
    if unsure {
        let _ = writeln!(text, "\n{FEW}");
    }
    if let Some(verdict) = verdict {
        let _ = write!(
            text,
            "\nTargets (`bench/targets.toml`): {}. {HOW}\n\n| | target | measured |\n|---|---|---|\n",
            verdict.summary()
        );
        for line in &verdict.lines {
            let _ = writeln!(text, "| {} | {} | {} |", line.judgement.word(), line.name, line.text.replace('|', "\\|"));
        }
    }
    text
}

/// Where there is no figure and nothing was said.
const NOTHING: &str = "–";

/// What is in it, and the ratio that is, if any.
fn cell(run: &Run, path: &str, Column(_, scenario, name, divisor): &Column) -> (String, Option<Ratio>) {
    let Some((middle, ratio)) = figure(name).and_then(|figure| compared_with(run, scenario, path, FLOOR, figure))
    else {
        return (why_not(run, scenario, path).map_or(NOTHING, |_| "no").to_owned(), None);
    };
    let Middle { median, .. } = middle;
    let behind = ratio.as_ref().map(|ratio| format!(" ({})", ratio.text())).unwrap_or_default();
    (format!("{}{behind}", short(median / divisor)), ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Record, tests::run_of},
        targets::{Judgement, Line},
    };

    #[test]
    fn a_ratio_of_too_few_repeats_is_marked_here_too() {
        let mut run = run_of(&[(FLOOR, &[100]), ("towline-h2", &[220])]);
        run.records.iter_mut().for_each(|record| record.scenario = "get-100".into());
        let text = text(&run, None);
        assert!(text.contains("0.220 (2.20x?) |") && text.contains(FEW), "{text}");
    }

    #[test]
    fn it_says_when_where_and_by_what_and_shows_the_figures_and_the_targets() {
        let mut run = run_of(&[(FLOOR, &[100, 120, 110]), ("towline-h2", &[220, 200, 240]), ("other", &[1])]);
        run.records
            .iter_mut()
            .filter(|record| record.path != "other")
            .for_each(|record| record.scenario = "get-100".into());
        run.records.push(Record::without("download", "ssh", 0, "too old"));
        run.facts.date = "2026-11-22T06:45:01Z".to_owned();
        let line = Line {
            judgement: Judgement::Missed,
            name: "x at most 1".to_owned(),
            text: "2.0 [0.5 .. 3.0], within the spread".to_owned(),
        };
        let text = text(&run, Some(&Verdict { lines: vec![line] }));
        for part in [
            "Measured on 2026-11-22 by `bench ",
            "promise nothing",
            "| towline-h2 | – | – | – | – | 0.220 (2.00x) |",
            "| ssh | no |",
            "0 hold, 1 missed (1 of them within the spread), 0 not measured. [least .. most]",
            "| MISSED | x at most 1 | 2.0 [0.5 .. 3.0], within the spread |",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains(FEW), "{text}");
        // get-64 is shown by other columns.
        assert!(text.contains("| other | – | – | 0.500 |"), "{text}");
    }
}
