//! Two runs of one machine beside each other: what differs by more than both spreads, and what differs and has none.

use std::fmt::Write;

use crate::{
    record::{Better, FIGURES, Figure, Run},
    report::{middle, names, short},
    statistics::Middle,
};

/// What is not the same about the two runs, then a line for each scenario, path and figure that changed.
pub fn compare(old: &Run, new: &Run) -> String {
    let mut text = String::new();
    for (what, before, now) in differing_facts(old, new) {
        let _ = writeln!(text, "not the same {what}: {before} and {now}; what differs may come from that");
    }
    for (run, other, word) in [(old, new, "old"), (new, old, "new")] {
        let alone = measured(run).into_iter().filter(|pair| !measured(other).contains(pair));
        let alone: Vec<_> = alone.map(|(scenario, path)| format!("{scenario} {path}")).collect();
        if !alone.is_empty() {
            let _ = writeln!(text, "only in the {word} run: {}", alone.join(", "));
        }
    }
    let (mut changes, mut unsure, mut compared) = (0, 0, 0);
    for (scenario, path) in measured(new) {
        for figure in FIGURES {
            let both = middle(new, scenario, path, figure).zip(middle(old, scenario, path, figure));
            let Some((this, before)) = both else { continue };
            compared += 1;
            if this.meets(&before) {
                continue;
            }
            let few = if this.is_spread() && before.is_spread() {
                changes += 1;
                ""
            } else {
                unsure += 1;
                "?"
            };
            let _ = writeln!(text, "{scenario} {path} {}{few}", change(figure, &before, &this));
        }
    }
    let _ = match (compared, changes) {
        (0, _) => write!(text, "the two runs have no scenario and path in common"),
        (_, 0) if unsure == 0 => write!(text, "no difference beyond the spread in {compared} figures"),
        _ => write!(text, "{changes} of {compared} figures differ by more than the spread"),
    };
    if unsure > 0 {
        let _ =
            write!(text, "; {unsure} differ of which there are fewer than three repeats (`?`), which show no spread");
    }
    text
}

fn change(figure: &Figure, before: &Middle, now: &Middle) -> String {
    let word = match (figure.better, now.median < before.median) {
        (Better::Less, true) | (Better::More, false) => "better",
        (Better::Less, false) | (Better::More, true) => "WORSE",
        (Better::Neither, _) => "neither better nor worse",
    };
    let ratio = now.ratio(before).map(|ratio| format!("{ratio:.2}x, ")).unwrap_or_default();
    format!("{}: {} -> {} ({ratio}{word})", figure.name, short(before.median), short(now.median))
}

/// Scenarios and paths that have figures.
fn measured(run: &Run) -> Vec<(&str, &str)> {
    let paths = names(run, |record| &record.path);
    let has = |scenario: &str, path: &str| FIGURES.iter().any(|figure| middle(run, scenario, path, figure).is_some());
    let pairs = names(run, |record| &record.scenario)
        .into_iter()
        .flat_map(|scenario| paths.iter().map(move |path| (scenario, *path)));
    pairs.filter(|(scenario, path)| has(scenario, path)).collect()
}

fn differing_facts<'a>(old: &'a Run, new: &'a Run) -> Vec<(&'static str, String, String)> {
    let facts = |run: &'a Run| {
        let facts = &run.facts;
        [
            ("processor", format!("{} x {}", facts.processors, facts.processor)),
            ("memory", format!("{} MiB", facts.memory_mib)),
            ("kernel", facts.kernel.clone()),
            ("link", facts.link.clone()),
            ("kind of run", format!("{:?}", facts.reservations())),
            ("commit", facts.commit.clone().unwrap_or_else(|| "unknown".to_owned())),
        ]
    };
    let pairs = facts(old).into_iter().zip(facts(new));
    pairs.filter(|(old, new)| old != new).map(|((what, old), (_, new))| (what, old, new)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::run_of;

    #[test]
    fn two_runs_differ_where_their_spreads_do_not_meet() {
        let (old, mut new) = (run_of(&[("h2", &[100, 105, 110])]), run_of(&[("h2", &[200, 205, 210])]));
        assert!(compare(&old, &new).contains("get-64 h2 p99_us: 105 -> 205 (1.95x, WORSE)"), "{}", compare(&old, &new));
        assert!(compare(&new, &old).contains("(0.51x, better)"), "{}", compare(&new, &old));
        assert!(
            compare(&old, &new).ends_with("4 of 6 figures differ by more than the spread"),
            "{}",
            compare(&old, &new)
        );
        assert!(compare(&old, &old).starts_with("no difference beyond the spread"), "{}", compare(&old, &old));
        new.facts.link = "LOOPBACK".to_owned();
        assert!(compare(&old, &new).starts_with("not the same link"), "{}", compare(&old, &new));
        let other = compare(&old, &run_of(&[("quic", &[1])]));
        for part in
            ["only in the old run: get-64 h2\n", "only in the new run: get-64 quic\n", "no scenario and path in common"]
        {
            assert!(other.contains(part), "{other}");
        }
    }

    /// A shorter storm has fewer requests within it, and is none the worse for that.
    #[test]
    fn what_is_neither_good_nor_bad_is_called_neither() {
        let of = |requests: f64| {
            let mut run = run_of(&[("h2", &[1; 3])]);
            run.records.iter_mut().for_each(|r| r.outcome.extra.extend([("users_requests".to_owned(), requests)]));
            run
        };
        let text = compare(&of(800.0), &of(400.0));
        assert!(text.contains("users_requests: 800 -> 400 (0.50x, neither better nor worse)"), "{text}");
    }

    #[test]
    fn a_difference_of_fewer_than_three_repeats_is_none_beyond_the_spread() {
        for (old, new) in [(&[100][..], &[200][..]), (&[100, 101, 102], &[200, 201]), (&[100, 101], &[200, 201, 202])] {
            let text = compare(&run_of(&[("h2", old)]), &run_of(&[("h2", new)]));
            assert!(text.contains("x, WORSE)?\n"), "{text}");
            assert!(text.contains("\n0 of ") && text.ends_with("(`?`), which show no spread"), "{text}");
        }
    }
}
