//! A run as a Markdown table: the median of the repeats, its spread, and its ratio to `nginx-chain`.

use std::fmt::Write;

use crate::{
    latency::Latency,
    record::{FIGURES, Figure, Record, Run},
    statistics::Middle,
};

/// What all ratios are to.
pub const FLOOR: &str = "nginx-chain";
/// Fewer requests say nothing of one in a thousand.
const RARE: u64 = 1000;

/// Of one scenario and path.
pub fn middle(run: &Run, scenario: &str, path: &str, figure: &Figure) -> Option<Middle> {
    Middle::of(of(run, scenario, path).filter_map(figure.of).collect())
}

fn of<'a>(run: &'a Run, scenario: &'a str, path: &'a str) -> impl Iterator<Item = &'a Record> {
    run.records.iter().filter(move |record| record.scenario == scenario && record.path == path)
}

/// Why there are no figures of one scenario and path, where something was said.
pub fn why_not<'a>(run: &'a Run, scenario: &str, path: &str) -> Option<&'a str> {
    let mut these = run.records.iter().filter(|record| record.scenario == scenario && record.path == path);
    these.find_map(|record| record.no.as_deref())
}

/// Names in the order in which they were measured.
pub fn names(run: &Run, name: fn(&Record) -> &str) -> Vec<&str> {
    let mut seen = Vec::new();
    for record in &run.records {
        if !seen.contains(&name(record)) {
            seen.push(name(record));
        }
    }
    seen
}

/// The whole table.
pub fn table(run: &Run) -> String {
    let mut text = heading(run);
    for scenario in names(run, |record| &record.scenario) {
        let shown: Vec<_> = FIGURES
            .iter()
            .filter(|figure| run.records.iter().any(|r| r.scenario == scenario && (figure.of)(r).is_some()))
            .collect();
        let columns: Vec<_> = shown.iter().map(|figure| figure.name).chain(["p99.9_us of all"]).collect();
        let _ = write!(
            text,
            "\n### {scenario}\n\n| path | {} |\n|---|{}\n",
            columns.join(" | "),
            "---|".repeat(columns.len())
        );
        for path in names(run, |record| &record.path) {
            let floor = |figure| middle(run, scenario, FLOOR, figure).filter(|_| path != FLOOR);
            let cells = shown.iter().map(|figure| {
                middle(run, scenario, path, figure).map_or_else(|| "no".to_owned(), |this| cell(&this, floor(figure)))
            });
            let mut cells: Vec<_> = cells.chain([rare(run, scenario, path)]).collect();
            if let Some((why, first)) = why_not(run, scenario, path).zip(cells.first_mut()) {
                *first = format!("no ({why})");
            }
            let _ = writeln!(text, "| {path} | {} |", cells.join(" | "));
        }
    }
    text
}

fn heading(run: &Run) -> String {
    let facts = &run.facts;
    let mut text = format!(
        "Measured {} by `bench {}` on {} x {}, {} MiB, Linux {}, link {}, load {} at the start.\n",
        facts.date,
        facts.command,
        facts.processors,
        facts.processor,
        facts.memory_mib,
        facts.kernel,
        facts.link,
        facts.load,
    );
    let reservations = facts.reservations();
    if !reservations.is_empty() {
        let _ = writeln!(text, "**These figures decide nothing: {}.**", reservations.join(", "));
    }
    let _ = writeln!(
        text,
        "Medians of the repeats [least .. most]; the ratio is to {FLOOR}; `=` in its place where the spreads meet, so that there \
         is no difference beyond the spread. Processor time, memory and context switches are those of the hops together."
    );
    text
}

fn cell(this: &Middle, floor: Option<Middle>) -> String {
    let mut text = short(this.median);
    if this.count > 1 {
        let _ = write!(text, " [{} .. {}]", short(this.least), short(this.most));
    }
    if let Some((floor, ratio)) = floor.and_then(|floor| Some((floor, this.ratio(&floor)?))) {
        let _ = if this.meets(&floor) { write!(text, " =") } else { write!(text, " {ratio:.2}x") };
    }
    text
}

/// One in a thousand is read from all repeats together.
fn rare(run: &Run, scenario: &str, path: &str) -> String {
    let mut all = Latency::default();
    of(run, scenario, path).for_each(|record| all.merge(&record.outcome.latency));
    if all.len() < RARE {
        return "too few".to_owned();
    }
    all.at(0.999).map_or_else(String::new, |us| us.to_string())
}

/// A number of about four digits.
pub fn short(value: f64) -> String {
    if value >= 100.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::run_of;

    #[test]
    fn the_median_is_shown_with_its_ratio_and_no_ratio_within_the_spread() {
        let run = run_of(&[(FLOOR, &[100, 120, 110]), ("h2", &[220, 200, 240]), ("quic", &[115, 130, 90])]);
        let text = table(&run);
        assert!(text.contains("220 [200 .. 240] 2.00x"), "{text}");
        assert!(text.contains("115 [90.000 .. 130] ="), "{text}");
        assert!(text.contains("too few") && !text.contains("decide nothing"), "{text}");
    }

    #[test]
    fn what_a_path_cannot_do_is_shown_with_the_reason() {
        let mut run = run_of(&[(FLOOR, &[100])]);
        run.records.push(Record::without("get-64", "ssh", 0, "too old"));
        run.records.push(Record::without("exec", "ssh", 0, "no pods"));
        let text = table(&run);
        assert!(text.contains("| ssh | no (too old) | no |") && text.contains("| ssh | no (no pods) |"), "{text}");
    }

    #[test]
    fn one_in_a_thousand_is_read_from_all_repeats() {
        let mut run = run_of(&[(FLOOR, &[1, 1])]);
        for record in &mut run.records {
            record.outcome.latency = vec![(10, 999), (5000, 2)].into();
        }
        assert!(table(&run).contains("| 5003 |"), "{}", table(&run));
    }

    #[test]
    fn what_speaks_against_figures_stands_above_them() {
        let mut run = run_of(&[(FLOOR, &[100])]);
        run.facts.quick = true;
        assert!(table(&run).contains("**These figures decide nothing: quick.**"));
    }
}
