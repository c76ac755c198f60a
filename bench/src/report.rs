//! A run as tables, one for each scenario: the median of the repeats, its spread, its ratio to `nginx-chain` and, for
//! our own paths, to the best peer.

use std::fmt::Write;

use crate::{
    latency::Latency,
    record::{Better, FAILED, FIGURES, Figure, RARE, Record, Run, figure},
    statistics::Middle,
};

/// What all ratios are to.
pub const FLOOR: &str = "nginx-chain";
/// What our own paths begin with.
const OURS: &str = "towline";
/// What the paths begin with that show what the libraries cost: nobody would run them.
const MINIMAL: &str = "minimal";
/// What has nothing between user and upstream, and is nobody's peer.
const DIRECT: &str = "direct";

/// Of one scenario and path.
pub fn middle(run: &Run, scenario: &str, path: &str, figure: &Figure) -> Option<Middle> {
    Middle::of(repeats(run, scenario, path, figure).into_iter().map(|(_, value)| value).collect())
}

/// The same of each repeat, by its number.
pub fn repeats(run: &Run, scenario: &str, path: &str, figure: &Figure) -> Vec<(u32, f64)> {
    of(run, scenario, path).filter_map(|record| Some((record.repeat, (figure.of)(record)?))).collect()
}

fn of<'a>(run: &'a Run, scenario: &'a str, path: &'a str) -> impl Iterator<Item = &'a Record> {
    run.records.iter().filter(move |record| record.scenario == scenario && record.path == path)
}

/// Why there are no figures of one scenario and path, where something was said.
pub fn why_not<'a>(run: &'a Run, scenario: &str, path: &str) -> Option<&'a str> {
    let mut these = run.records.iter().filter(|record| record.scenario == scenario && record.path == path);
    these.find_map(|record| record.no.as_deref())
}

/// How many requests failed in one scenario and path, and in how many repeats; `None` where none did.
pub fn failures(run: &Run, scenario: &str, path: &str) -> Option<(u64, usize)> {
    let failed = of(run, scenario, path).map(|record| record.outcome.all_failed()).filter(|failed| *failed > 0);
    let failed: Vec<_> = failed.collect();
    (!failed.is_empty()).then(|| (failed.iter().sum(), failed.len()))
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

/// The figures of one scenario: a row for each path.
pub struct Table<'a> {
    /// Name of the scenario.
    pub scenario: &'a str,
    /// Those of which any path has one.
    pub figures: Vec<&'static Figure>,
    /// In the order of the run.
    pub rows: Vec<Row<'a>>,
}

/// One path in a scenario.
pub struct Row<'a> {
    /// Name of the path.
    pub path: &'a str,
    /// One for each figure; nothing where no repeat has any.
    pub cells: Vec<Cell<'a>>,
    /// Repeats without figures, if there are.
    pub no: Option<No<'a>>,
    /// Latencies of all repeats.
    pub latency: Latency,
}

/// Repeats of one path in a scenario that have no figures.
pub struct No<'a> {
    /// What was said of the first of them.
    pub why: &'a str,
    /// Number of repeats without figures.
    pub times: usize,
    /// Of how many.
    pub of: usize,
}

impl No<'_> {
    /// As in tables.
    pub fn text(&self) -> String {
        let Self { why, times, of } = self;
        if times == of { format!("no ({why})") } else { format!("{times} of {of} no ({why})") }
    }
}

/// One figure of one path.
pub enum Cell<'a> {
    /// The path has none of it.
    None,
    /// The rarest latencies, read from all repeats together where each alone has too few requests.
    OfAll(u64),
    /// The figure, compared with that of other paths.
    Of(Compared<'a>),
}

/// A figure beside those of other paths.
pub struct Compared<'a> {
    /// The median of the repeats with its spread.
    pub this: Middle,
    /// To the floor.
    pub floor: Option<Ratio>,
    /// To the best peer, with its name.
    pub peer: Option<(&'a str, Ratio)>,
}

/// How two medians compare.
pub enum Ratio {
    /// One over the other.
    Times(f64),
    /// The same, but of repeats that are too few to have a spread.
    Unsure(f64),
    /// The spreads meet: no difference that this run can show.
    Same,
}

/// What `?` means, under a table that has one.
pub const FEW: &str = "`?`: fewer than three repeats, so that nobody knows how far they spread.";

impl Table<'_> {
    /// Whether a ratio in it is of too few repeats.
    pub fn is_unsure(&self) -> bool {
        let unsure = |ratio: &Ratio| matches!(ratio, Ratio::Unsure(_));
        let cells = self.rows.iter().flat_map(|row| &row.cells);
        cells.into_iter().any(|cell| match cell {
            Cell::Of(Compared { floor, peer, .. }) => {
                floor.as_ref().is_some_and(unsure) || peer.as_ref().is_some_and(|(_, ratio)| unsure(ratio))
            }
            Cell::None | Cell::OfAll(_) => false,
        })
    }
}

/// All scenarios of a run.
pub fn tables(run: &Run) -> Vec<Table<'_>> {
    let paths = names(run, |record| &record.path);
    let table = |scenario| {
        let figures: Vec<_> = FIGURES
            .iter()
            .filter(|figure| run.records.iter().any(|r| r.scenario == scenario && (figure.of)(r).is_some()))
            .collect();
        let measured = paths.iter().filter(|path| of(run, scenario, path).next().is_some());
        let rows = measured.map(|path| row(run, scenario, path, &figures, &paths)).collect();
        Table { scenario, figures, rows }
    };
    names(run, |record| &record.scenario).into_iter().map(table).collect()
}

fn row<'a>(run: &'a Run, scenario: &'a str, path: &'a str, figures: &[&'static Figure], paths: &[&'a str]) -> Row<'a> {
    let mut latency = Latency::default();
    of(run, scenario, path).for_each(|record| latency.merge(&record.outcome.latency));
    let cell = |figure: &&'static Figure| match middle(run, scenario, path, figure) {
        None if figure.name == RARE && latency.len() >= Latency::RARE => {
            latency.at(0.999).map_or(Cell::None, Cell::OfAll)
        }
        None => Cell::None,
        Some(this) => Cell::Of(compared(run, scenario, path, this, figure, paths)),
    };
    let times = of(run, scenario, path).filter(|record| record.no.is_some()).count();
    let all = of(run, scenario, path).count();
    let no = why_not(run, scenario, path).map(|why| No { why, times, of: all });
    let cells = if times < all { figures.iter().map(cell).collect() } else { Vec::new() };
    Row { path, cells, no, latency }
}

fn compared<'a>(
    run: &Run,
    scenario: &str,
    path: &str,
    this: Middle,
    figure: &Figure,
    paths: &[&'a str],
) -> Compared<'a> {
    let floor = compared_with(run, scenario, path, FLOOR, figure).and_then(|(_, ratio)| ratio);
    let peer = best_peer(run, scenario, figure, paths).filter(|_| path.starts_with(OURS));
    Compared { this, floor, peer: peer.and_then(|(name, best)| Some((name, ratio(&this, &best)?))) }
}

/// The best of those that a user would pick instead, the floor aside. One that lost requests is no measure.
fn best_peer<'a>(run: &Run, scenario: &str, of: &Figure, paths: &[&'a str]) -> Option<(&'a str, Middle)> {
    let failed = figure(FAILED)?;
    let peer =
        |path: &&str| ![OURS, MINIMAL].iter().any(|one| path.starts_with(one)) && ![DIRECT, FLOOR].contains(path);
    let sound = |path: &&str| middle(run, scenario, path, failed).is_some_and(|failed| failed.most == 0.0);
    let peers = paths.iter().copied().filter(|path| peer(path) && sound(path));
    let measured = peers.filter_map(|path| Some((path, middle(run, scenario, path, of)?)));
    let order = |(_, one): &(&str, Middle), (_, other): &(&str, Middle)| one.median.total_cmp(&other.median);
    match of.better {
        Better::Less => measured.min_by(order),
        // Of equal ones the first, too.
        Better::More => measured.min_by(|one, other| order(other, one)),
        Better::Neither => None,
    }
}

/// The figure of a path, and how it compares with another path; `None` where it has none.
pub fn compared_with(
    run: &Run,
    scenario: &str,
    path: &str,
    other: &str,
    figure: &Figure,
) -> Option<(Middle, Option<Ratio>)> {
    let this = middle(run, scenario, path, figure)?;
    let other = middle(run, scenario, other, figure).filter(|_| path != other);
    Some((this, other.and_then(|other| ratio(&this, &other))))
}

fn ratio(this: &Middle, other: &Middle) -> Option<Ratio> {
    let times = this.ratio(other)?;
    Some(if this.meets(other) {
        Ratio::Same
    } else if this.is_spread() && other.is_spread() {
        Ratio::Times(times)
    } else {
        Ratio::Unsure(times)
    })
}

impl Ratio {
    /// As in tables.
    pub fn text(&self) -> String {
        match self {
            Self::Times(times) => format!("{times:.2}x"),
            Self::Unsure(times) => format!("{times:.2}x?"),
            Self::Same => "=".to_owned(),
        }
    }
}

/// All tables as Markdown.
pub fn markdown(run: &Run) -> String {
    let mut text = heading(run).join("\n") + "\n";
    for table in tables(run) {
        let columns: Vec<_> = table.figures.iter().map(|figure| figure.name).collect();
        let lines = "---|".repeat(columns.len().max(1));
        let _ = write!(text, "\n### {}\n\n| path | {} |\n|---|{lines}\n", table.scenario, columns.join(" | "));
        for Row { path, cells, no, .. } in &table.rows {
            let no = no.as_ref().map(No::text).unwrap_or_default();
            let _ = if cells.is_empty() {
                writeln!(text, "| {path} | {no}{} |", " | ".repeat(columns.len().saturating_sub(1)))
            } else {
                let sign = if no.is_empty() { "" } else { ": " };
                let cells: Vec<_> = cells.iter().map(cell).collect();
                writeln!(text, "| {path}{sign}{no} | {} |", cells.join(" | "))
            };
        }
        if table.is_unsure() {
            let _ = writeln!(text, "\n{FEW}");
        }
    }
    text
}

/// The machine and how to read the tables, in lines.
pub fn heading(run: &Run) -> Vec<String> {
    let facts = &run.facts;
    let mut lines = vec![format!(
        "Measured {} by `bench {}` on {} x {}, {} MiB, Linux {}, link {}, load {} at the start{}.",
        facts.date,
        facts.command,
        facts.processors,
        facts.processor,
        facts.memory_mib,
        facts.kernel,
        facts.link,
        facts.load,
        facts.commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default(),
    )];
    let reservations = facts.reservations();
    if !reservations.is_empty() {
        lines.push(format!("**These figures decide nothing: {}.**", reservations.join(", ")));
    }
    lines.push(format!(
        "Medians of the repeats [least .. most]; the ratio is to {FLOOR}, and behind it, with its name, to the best of the other \
         peers; `=` in place of a ratio where the spreads meet, so that there is no difference beyond the spread. Processor \
         time, memory and context switches are those of the hops together."
    ));
    lines
}

fn cell(cell: &Cell) -> String {
    let Compared { this, floor, peer } = match cell {
        Cell::None => return "–".to_owned(),
        Cell::OfAll(us) => return format!("{us} (of all)"),
        Cell::Of(compared) => compared,
    };
    let mut text = short(this.median);
    if this.count > 1 {
        let _ = write!(text, " [{} .. {}]", short(this.least), short(this.most));
    }
    if let Some(floor) = floor {
        let _ = write!(text, " {}", floor.text());
    }
    if let Some((name, peer)) = peer {
        let _ = write!(text, " ({} {name})", peer.text());
    }
    text
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
        let text = markdown(&run);
        assert!(text.contains("220 [200 .. 240] 2.00x"), "{text}");
        assert!(text.contains("115 [90.000 .. 130] ="), "{text}");
        assert!(!text.contains("decide nothing"), "{text}");
    }

    #[test]
    fn a_ratio_of_fewer_than_three_repeats_says_so() {
        let run = run_of(&[(FLOOR, &[100, 101, 102]), ("ssh", &[300, 301]), ("towline-h2", &[200, 200, 200])]);
        let text = markdown(&run);
        assert!(text.contains("300 [300 .. 301] 2.98x? |"), "{text}");
        assert!(text.contains("200 [200 .. 200] 1.98x (0.67x? ssh) |") && text.trim_end().ends_with(FEW), "{text}");
        assert!(!markdown(&run_of(&[(FLOOR, &[1, 1, 1]), ("ssh", &[2, 2, 2])])).contains('?'));
    }

    #[test]
    fn our_paths_are_compared_with_the_best_peer_by_its_name() {
        let mut run = run_of(&[
            (DIRECT, &[1]),
            (FLOOR, &[100]),
            ("ssh", &[300]),
            ("haproxy-chain", &[50]),
            ("rathole", &[200]),
            ("towline-h2", &[400]),
        ]);
        let text = markdown(&run);
        assert!(text.contains("| 400 4.00x? (8.00x? haproxy-chain) |"), "{text}");
        assert!(text.contains("| 50.000 0.50x? |") && text.contains("| 1.000 0.01x? |"), "{text}");
        // More is better of requests per second, and what failed is no measure.
        run.records[3].outcome.failed = 1;
        run.records[2].outcome.requests = 40;
        run.records[5].outcome.requests = 20;
        let text = markdown(&run);
        assert!(text.contains("| 400 4.00x? (2.00x? rathole) |") && text.contains("20.00x? (0.50x? ssh) |"), "{text}");
    }

    #[test]
    fn what_a_path_cannot_do_is_shown_with_the_reason_and_what_was_not_run_is_not() {
        let mut run = run_of(&[(FLOOR, &[100])]);
        run.records.push(Record::without("get-64", "ssh", 0, "too old"));
        run.records.push(Record::without("exec", "ssh", 0, "no pods"));
        let text = markdown(&run);
        assert!(text.contains("| ssh | no (too old) | ") && text.contains("| ssh | no (no pods) |"), "{text}");
        let exec = text.split("### exec").nth(1).unwrap();
        assert!(!exec.contains(FLOOR), "{text}");
        // What went wrong once takes nothing from the repeats that went well.
        run.records.push(Record::without("get-64", FLOOR, 1, "it has ended"));
        let some = markdown(&run);
        assert!(some.contains("| nginx-chain: 1 of 2 no (it has ended) |") && some.contains("| 100 |"), "{some}");
        // Every row has as many cells as there are columns.
        for lines in text.split("### ").skip(1) {
            let bars: Vec<_> = lines.lines().filter(|l| l.starts_with('|')).map(|l| l.matches('|').count()).collect();
            assert!(bars.windows(2).all(|pair| pair[0] == pair[1]), "{lines}");
        }
    }

    #[test]
    fn one_in_a_thousand_is_read_from_all_repeats_where_each_has_too_few() {
        let mut run = run_of(&[(FLOOR, &[1, 1]), ("h2", &[1, 1]), ("quic", &[1, 1])]);
        for record in &mut run.records {
            record.outcome.latency = match record.path.as_str() {
                FLOOR => vec![(10, 499), (5000, 2)],
                "h2" => vec![(10, 2000), (7000, 4)],
                _ => vec![(10, 50)],
            }
            .into();
        }
        let text = markdown(&run);
        assert!(text.contains("| 5003 (of all) |"), "{text}");
        assert!(text.contains("| 7003 [7003 .. 7003] |"), "{text}");
        let quic = text.lines().find(|line| line.starts_with("| quic")).unwrap();
        assert!(quic.contains('–') && !quic.contains("of all"), "{text}");
    }

    #[test]
    fn what_speaks_against_figures_stands_above_them() {
        let mut run = run_of(&[(FLOOR, &[100])]);
        run.facts.quick = true;
        assert!(markdown(&run).contains("**These figures decide nothing: quick.**"));
    }
}
