//! Targets: a figure of one path, alone or as its ratio to that of another, in one run.

use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::{
    record::{self, FAILED, Figure, Run},
    report::{FLOOR, failures, repeats, short, why_not},
    statistics::Middle,
};

/// Behind a figure whose spread has the limit in it.
/// The file of the targets.
pub const TARGETS: &str = "bench/targets.toml";

const UNSURE: &str = ", within the spread";
/// How a figure of a target is to be read.
pub const HOW: &str = "[least .. most] is the spread of the repeats, of a ratio in each of them; `within the spread`: the limit lies \
                       between both, so that another run may decide otherwise.";

/// Medians of fewer repeats are no measurement.
pub const REPEATS: u32 = 5;

/// One target of `bench/targets.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    scenario: String,
    path: String,
    figure: String,
    /// What the ratio is to: a path, the floor if it is not said, or `nothing`, when the limit is of the figure itself.
    #[serde(default = "floor")]
    to: String,
    /// The scenario of what the ratio is to, where it is another one.
    to_scenario: Option<String>,
    /// A path whose figure is taken off both first: what is added over it is compared.
    over: Option<String>,
    at_most: Option<f64>,
    at_least: Option<f64>,
}

fn floor() -> String {
    FLOOR.to_owned()
}

/// A scenario and path that a target needs.
pub struct Need {
    /// The scenario's name.
    pub scenario: String,
    /// The path's name.
    pub path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    target: Vec<Target>,
}

/// What came out.
pub struct Verdict {
    /// One for each target.
    pub lines: Vec<Line>,
}

/// What came out of one target.
pub struct Line {
    /// Whether it holds.
    pub judgement: Judgement,
    /// The target, in words.
    pub name: String,
    /// The figure, or why there is none.
    pub text: String,
}

/// Whether a target holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The figure is within the limit.
    Holds,
    /// It does not.
    Missed,
    /// There are too few figures to decide.
    NotMeasured,
}

impl Judgement {
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Missed => "MISSED",
            Self::NotMeasured => "NOT MEASURED",
        }
    }
}

impl Verdict {
    /// Whether every target was measured and holds.
    pub fn holds(&self) -> bool {
        self.lines.iter().all(|line| line.judgement == Judgement::Holds)
    }

    /// How many of each, and of these how many within the spread.
    pub fn summary(&self) -> String {
        let count = |judgement, word| {
            let these = || self.lines.iter().filter(move |line| line.judgement == judgement);
            let unsure = match these().filter(|line| line.text.ends_with(UNSURE)).count() {
                0 => String::new(),
                unsure => format!(" ({unsure} of them within the spread)"),
            };
            format!("{} {word}{unsure}", these().count())
        };
        let [held, missed, unknown] =
            [(Judgement::Holds, "hold"), (Judgement::Missed, "missed"), (Judgement::NotMeasured, "not measured")]
                .map(|(judgement, word)| count(judgement, word));
        format!("{held}, {missed}, {unknown}")
    }

    /// A line for each, how to read them, then how many.
    pub fn text(&self) -> String {
        let line = |Line { judgement, name, text }: &Line| format!("{:<12}  {name}: {text}", judgement.word());
        self.lines.iter().map(line).chain([HOW.to_owned(), self.summary()]).collect::<Vec<_>>().join("\n")
    }
}

/// Compares a run with the targets of a file.
///
/// # Errors
/// A file that cannot be read or makes no sense.
pub fn check(file: &Path, run: &Run) -> anyhow::Result<Verdict> {
    let line = |target: &Target| {
        let name = target.name()?;
        let (judgement, text) = target.judge(run)?;
        Ok(Line { judgement, name, text })
    };
    Ok(Verdict { lines: read(file)?.iter().map(line).collect::<anyhow::Result<_>>()? })
}

/// What the targets of a file need to be measured, [`REPEATS`] times; some of it is named more than once.
///
/// # Errors
/// A file that cannot be read or makes no sense.
pub fn needs(file: &Path) -> anyhow::Result<Vec<Need>> {
    Ok(read(file)?.iter().flat_map(Target::needs).collect())
}

fn read(file: &Path) -> anyhow::Result<Vec<Target>> {
    let what =
        || format!("{}, the targets (run it at the root of the checkout, or name them by --targets)", file.display());
    let text = std::fs::read_to_string(file).with_context(what)?;
    let targets: Targets = toml::from_str(&text).with_context(|| file.display().to_string())?;
    Ok(targets.target)
}

impl Target {
    fn needs(&self) -> Vec<Need> {
        let mut pairs = vec![(&self.scenario, Some(&self.path)), (&self.scenario, self.over.as_ref())];
        if self.to != "nothing" {
            pairs.push((self.to_scenario(), Some(&self.to)));
            pairs.push((self.to_scenario(), self.over.as_ref()));
        }
        let need = |(scenario, path): (&String, Option<&String>)| {
            Some(Need { scenario: scenario.clone(), path: path?.clone() })
        };
        pairs.into_iter().filter_map(need).collect()
    }

    fn to_scenario(&self) -> &String {
        self.to_scenario.as_ref().unwrap_or(&self.scenario)
    }

    fn name(&self) -> anyhow::Result<String> {
        let Self { scenario, path, figure, to, .. } = self;
        let limit = match (self.at_most, self.at_least) {
            (Some(most), None) => format!("at most {most}"),
            (None, Some(least)) => format!("at least {least}"),
            _ => bail!("{scenario} {path} {figure}: either at_most or at_least"),
        };
        let over = self.over.as_ref().map(|over| format!(" over {over}")).unwrap_or_default();
        let to = if to == "nothing" { String::new() } else { format!(" x {to}") };
        let of = self.to_scenario.as_ref().map(|of| format!(" of {of}")).unwrap_or_default();
        Ok(format!("{scenario} {path} {figure}{over} {limit}{to}{of}"))
    }

    fn judge(&self, run: &Run) -> anyhow::Result<(Judgement, String)> {
        let Some(figure) = record::figure(&self.figure) else {
            bail!("{} {}: there is no figure {:?}", self.scenario, self.path, self.figure)
        };
        let reservations = run.facts.reservations();
        if !reservations.is_empty() {
            let why = format!("these figures decide nothing ({})", reservations.join(", "));
            return Ok((Judgement::NotMeasured, why));
        }
        let failed = |scenario: &str, path: &str| {
            failures(run, scenario, path).map(|(count, times)| format!("{count} failed in {times} of its repeats"))
        };
        if let Some(failed) = failed(&self.scenario, &self.path).filter(|_| figure.name != FAILED) {
            return Ok((Judgement::Missed, failed));
        }
        let other = |need: &Need| (&need.scenario, &need.path) != (&self.scenario, &self.path);
        for Need { scenario, path, .. } in self.needs().into_iter().filter(other) {
            if let Some(failed) = failed(&scenario, &path) {
                return Ok((Judgement::NotMeasured, format!("{scenario} {path} is no measure: {failed}")));
            }
        }
        let measured = match self.measured(run, figure) {
            Ok(measured) => measured,
            Err(why) => return Ok((Judgement::NotMeasured, why)),
        };
        Ok(self.judged(figure, &measured))
    }

    /// Whether what was measured is within the limit: of what failed the most, as what fails once in five repeats does
    /// fail; of all else the median.
    fn judged(&self, figure: &Figure, measured: &Middle) -> (Judgement, String) {
        let met = |value: f64| {
            self.at_most.is_none_or(|most| value <= most) && self.at_least.is_none_or(|least| value >= least)
        };
        let Middle { median, least, most, .. } = *measured;
        let value = if figure.name == FAILED { most } else { median };
        let unsure = figure.name != FAILED && met(least) != met(most);
        let mark = if unsure { UNSURE } else { "" };
        let text = format!("{} [{} .. {}]{mark}", short(value), short(least), short(most));
        (if met(value) { Judgement::Holds } else { Judgement::Missed }, text)
    }

    /// What is compared with the limit; otherwise why there is none. A ratio is taken in each repeat, for what the
    /// machine did meanwhile fell on both alike, and not on all repeats.
    fn measured(&self, run: &Run, figure: &Figure) -> Result<Middle, String> {
        let this = self.added(run, figure, &self.scenario, &self.path)?;
        let compared: Vec<f64> = if self.to == "nothing" {
            this.into_iter().map(|(_, value)| value).collect()
        } else {
            let that = self.added(run, figure, self.to_scenario(), &self.to)?;
            // What adds nothing cannot be a measure.
            if let Some((_, least)) = that.iter().find(|(_, value)| *value <= 0.0) {
                return Err(format!("{} has {} to compare with", self.to, short(*least)));
            }
            this.into_iter().filter_map(|(repeat, value)| Some(value / in_repeat(&that, repeat)?)).collect()
        };
        let count = compared.len();
        Middle::of(compared)
            .filter(|_| count >= REPEATS as usize)
            .ok_or_else(|| format!("only {count} repeats have both {} and {}", self.path, self.to))
    }

    /// The figure of each repeat, less that of the path that it is over in the same repeat: a host that was twice as
    /// quick in one of them was so for both.
    fn added(&self, run: &Run, figure: &Figure, scenario: &str, path: &str) -> Result<Vec<(u32, f64)>, String> {
        let enough = |path: &str| {
            let why = why_not(run, scenario, path);
            match repeats(run, scenario, path, figure) {
                none if none.is_empty() => Err(why.map_or_else(
                    || format!("no {scenario} {path} in this run"),
                    |why| format!("{scenario} {path}: no ({why})"),
                )),
                few if few.len() < REPEATS as usize => {
                    let why = why.map(|why| format!(" (no: {why})")).unwrap_or_default();
                    Err(format!("{} of {REPEATS} repeats of {scenario} {path}{why}", few.len()))
                }
                all => Ok(all),
            }
        };
        let all = enough(path)?;
        let Some(over) = &self.over else { return Ok(all) };
        let less = enough(over)?;
        Ok(all.into_iter().filter_map(|(repeat, value)| Some((repeat, value - in_repeat(&less, repeat)?))).collect())
    }
}

/// The figure of one repeat, if it has one.
fn in_repeat(figures: &[(u32, f64)], repeat: u32) -> Option<f64> {
    figures.iter().find(|(other, _)| *other == repeat).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::run_of;

    fn verdict(run: &Run, targets: &[&str]) -> anyhow::Result<Verdict> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("targets.toml");
        let tables = targets.iter().map(|text| {
            let figure = if text.contains("figure") { "" } else { "figure = \"p99_us\"\n" };
            format!("[[target]]\nscenario = \"get-64\"\n{figure}{text}\n")
        });
        std::fs::write(&file, tables.collect::<String>()).unwrap();
        check(&file, run)
    }

    fn five() -> Run {
        run_of(&[
            ("direct", &[60; 5]),
            (FLOOR, &[100; 5]),
            ("h2", &[130; 5]),
            ("quic", &[400; 5]),
            ("websocket", &[1; 4]),
        ])
    }

    #[test]
    fn a_miss_is_named_and_what_holds_too() {
        let seen = verdict(&five(), &["path = \"h2\"\nat_most = 1.3"]).unwrap();
        assert!(
            seen.holds()
                && seen
                    .text()
                    .contains("holds         get-64 h2 p99_us at most 1.3 x nginx-chain: 1.300 [1.300 .. 1.300]\n"),
            "{}",
            seen.text()
        );
        let seen = verdict(&five(), &["path = \"h2\"\nat_most = 1.3", "path = \"quic\"\nat_most = 1.3"]).unwrap();
        assert!(!seen.holds() && seen.text().contains("MISSED        get-64 quic p99_us"), "{}", seen.text());
        assert!(seen.text().ends_with("1 hold, 1 missed, 0 not measured"), "{}", seen.text());
    }

    #[test]
    fn what_was_not_measured_is_named_and_never_held() {
        for (target, why) in [
            ("path = \"rathole\"\nat_least = 0", "no get-64 rathole in this run"),
            ("path = \"websocket\"\nat_most = 9", "4 of 5 repeats"),
            ("path = \"h2\"\nto = \"rathole\"\nat_most = 9", "no get-64 rathole"),
            ("path = \"h2\"\nover = \"nginx-chain\"\nat_most = 9", "nginx-chain has 0 to compare with"),
        ] {
            let seen = verdict(&five(), &[target]).unwrap();
            assert!(
                !seen.holds() && seen.text().contains("NOT MEASURED") && seen.text().contains(why),
                "{}",
                seen.text()
            );
        }
        let mut told = five();
        told.records.push(record::Record::without("get-64", "rathole", 0, "not installed"));
        let seen = verdict(&told, &["path = \"rathole\"\nat_least = 0"]).unwrap();
        assert!(!seen.holds() && seen.text().contains("get-64 rathole: no (not installed)"), "{}", seen.text());
        let mut quick = five();
        quick.facts.quick = true;
        let seen = verdict(&quick, &["path = \"h2\"\nat_most = 9"]).unwrap();
        assert!(!seen.holds() && seen.text().contains("decide nothing (quick)"), "{}", seen.text());
    }

    #[test]
    fn what_is_added_over_a_path_is_compared_and_a_figure_can_stand_alone() {
        let seen = verdict(&five(), &["path = \"h2\"\nover = \"direct\"\nat_most = 1.75"]).unwrap();
        assert!(
            seen.holds() && seen.text().contains("over direct at most 1.75 x nginx-chain: 1.750"),
            "{}",
            seen.text()
        );
        let seen = verdict(
            &five(),
            &["path = \"h2\"\nto = \"nothing\"\nat_most = 130", "path = \"h2\"\nto = \"nothing\"\nat_most = 129"],
        );
        assert!(seen.unwrap().text().ends_with("1 hold, 1 missed, 0 not measured"));
    }

    #[test]
    fn t11_a_ratio_can_be_to_a_path_in_another_scenario() {
        let mut run = five();
        let mut other = run_of(&[("h2", &[100; 5])]).records;
        other.iter_mut().for_each(|record| "get-1".clone_into(&mut record.scenario));
        run.records.extend(other);
        let target = "path = \"h2\"\nto = \"h2\"\nto_scenario = \"get-1\"\nat_most = 1.3";
        let seen = verdict(&run, &[target]).unwrap();
        let text = "get-64 h2 p99_us at most 1.3 x h2 of get-1: 1.300 [1.300 .. 1.300]\n";
        assert!(seen.holds() && seen.text().contains(text), "{}", seen.text());
        let seen = verdict(&five(), &[target]).unwrap();
        assert!(!seen.holds() && seen.text().contains("no get-1 h2 in this run"), "{}", seen.text());
    }

    #[test]
    fn what_failed_in_any_repeat_is_judged_by_the_most() {
        let mut run = five();
        run.records.iter_mut().filter(|r| r.path == "h2" && r.repeat > 2).for_each(|r| r.outcome.failed = 7);
        for (most, holds) in [(0, false), (6, false), (7, true)] {
            let target = format!("figure = \"failed\"\npath = \"h2\"\nto = \"nothing\"\nat_most = {most}");
            let seen = verdict(&run, &[&target]).unwrap();
            assert_eq!(seen.holds(), holds, "{}", seen.text());
            assert!(seen.text().contains(&format!("failed at most {most}: 7")), "{}", seen.text());
        }
    }

    #[test]
    fn a_target_that_only_some_repeats_are_within_says_so() {
        let run = run_of(&[(FLOOR, &[100; 5]), ("h2", &[110, 120, 127, 150, 160])]);
        for (most, text) in [
            (
                "1.3",
                "holds         get-64 h2 p99_us at most 1.3 x nginx-chain: 1.270 [1.100 .. 1.600], within the spread\n",
            ),
            (
                "1.2",
                "MISSED        get-64 h2 p99_us at most 1.2 x nginx-chain: 1.270 [1.100 .. 1.600], within the spread\n",
            ),
            ("1.6", "at most 1.6 x nginx-chain: 1.270 [1.100 .. 1.600]\n"),
            ("1.0", "at most 1 x nginx-chain: 1.270 [1.100 .. 1.600]\n"),
        ] {
            let seen = verdict(&run, &[&format!("path = \"h2\"\nat_most = {most}")]).unwrap();
            assert!(seen.text().contains(text), "{}", seen.text());
        }
        let limits = ["at_most = 1.3", "at_most = 1.2", "at_least = 1.3", "at_least = 1.0"];
        let targets = limits.map(|limit| format!("path = \"h2\"\n{limit}"));
        let seen = verdict(&run, &targets.each_ref().map(String::as_str)).unwrap();
        let summary = "2 hold (1 of them within the spread), 2 missed (2 of them within the spread), 0 not measured";
        assert_eq!(seen.summary(), summary);
        let added = verdict(&run, &["path = \"h2\"\nto = \"nothing\"\nover = \"nginx-chain\"\nat_most = 50"]).unwrap();
        assert!(added.text().contains(": 27.000 [10.000 .. 60.000], within the spread"), "{}", added.text());
    }

    // Another machine of the same host took the caches in two repeats, of both paths.
    #[test]
    fn a_ratio_is_that_of_each_repeat() {
        let run = run_of(&[(FLOOR, &[100, 250, 100, 250, 105]), ("h2", &[125, 300, 125, 300, 126])]);
        let seen = verdict(&run, &["path = \"h2\"\nat_most = 1.3"]).unwrap();
        assert!(seen.text().contains("1.200 [1.200 .. 1.250]\n"), "{}", seen.text());
        // What is taken off is that of the repeat too: in the second the host was three times as quick.
        let run =
            [("direct", &[60, 20, 60, 60, 60]), (FLOOR, &[100, 40, 100, 100, 100]), ("h2", &[110, 44, 110, 110, 110])];
        let seen = verdict(
            &run_of(&run.map(|(path, all)| (path, &all[..]))),
            &["path = \"h2\"\nover = \"direct\"\nat_most = 1.3"],
        );
        let text = seen.unwrap().text();
        assert!(text.contains("1.250 [1.200 .. 1.250]\n"), "{text}");
        let mut fewer = run_of(&[(FLOOR, &[100; 6]), ("h2", &[125; 6])]);
        fewer.records.retain(|record| record.repeat != if record.path == FLOOR { 5 } else { 0 });
        let seen = verdict(&fewer, &["path = \"h2\"\nat_most = 1.3"]).unwrap();
        let why =
            "NOT MEASURED  get-64 h2 p99_us at most 1.3 x nginx-chain: only 4 repeats have both h2 and nginx-chain";
        assert!(seen.text().contains(why), "{}", seen.text());
    }

    #[test]
    fn a_path_that_fails_requests_holds_nothing_and_one_to_compare_with_is_no_measure() {
        let failing = |path: &str| {
            let mut run = five();
            run.records.iter_mut().filter(|r| r.path == path && r.repeat > 2).for_each(|r| r.outcome.failed = 3);
            run
        };
        let over = "path = \"h2\"\nover = \"direct\"\nat_most = 9";
        let text = verdict(&failing("h2"), &[over]).unwrap().text();
        assert!(text.contains("MISSED") && text.contains("x nginx-chain: 6 failed in 2 of its repeats"), "{text}");
        for path in ["direct", FLOOR] {
            let text = verdict(&failing(path), &[over]).unwrap().text();
            let why = format!("get-64 {path} is no measure: 6 failed in 2 of its repeats");
            assert!(text.contains("NOT MEASURED") && text.contains(&why), "{text}");
        }
        assert!(verdict(&failing("quic"), &[over]).unwrap().holds());
    }

    #[test]
    fn a_target_that_makes_no_sense_is_refused() {
        for target in ["path = \"h2\"", "path = \"h2\"\nat_most = 1\nat_least = 1", "path = \"h2\"\nat_most = 1\nx = 1"]
        {
            assert!(verdict(&five(), &[target]).is_err(), "{target}");
        }
    }

    #[test]
    fn the_kept_targets_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets.toml");
        let seen = check(&file, &run_of(&[])).unwrap();
        assert!(!seen.holds() && seen.text().lines().count() > 20, "{}", seen.text());
    }
}
