//! Two runs of one machine beside each other: only what differs by more than both spreads.

use std::fmt::Write;

use crate::{
    record::{FIGURES, Run},
    report::{middle, names, short},
};

/// A line for each scenario and path that changed.
pub fn compare(old: &Run, new: &Run) -> String {
    let mut text = String::new();
    for (what, before, now) in differing_facts(old, new) {
        let _ = writeln!(text, "not the same {what}: {before} and {now}; what differs may come from that");
    }
    let (mut changes, mut compared) = (0, 0);
    for scenario in names(new, |record| &record.scenario) {
        for path in names(new, |record| &record.path) {
            for figure in FIGURES {
                let both = middle(new, scenario, path, figure).zip(middle(old, scenario, path, figure));
                let Some((this, before)) = both else { continue };
                compared += 1;
                if this.meets(&before) {
                    continue;
                }
                changes += 1;
                let word = if (this.median < before.median) == figure.less { "better" } else { "WORSE" };
                let ratio = this.ratio(&before).map(|ratio| format!("{ratio:.2}x, ")).unwrap_or_default();
                let (name, before, now) = (figure.name, short(before.median), short(this.median));
                let _ = writeln!(text, "{scenario} {path} {name}: {before} -> {now} ({ratio}{word})");
            }
        }
    }
    let _ = match (compared, changes) {
        (0, _) => write!(text, "the two runs have no scenario and path in common"),
        (_, 0) => write!(text, "no difference beyond the spread in {compared} figures"),
        _ => write!(text, "{changes} of {compared} figures differ by more than the spread"),
    };
    text
}

fn differing_facts<'a>(old: &'a Run, new: &'a Run) -> Vec<(&'static str, String, String)> {
    let facts = |run: &'a Run| {
        let facts = &run.facts;
        [
            ("processor", format!("{} x {}", facts.processors, facts.processor)),
            ("kernel", facts.kernel.clone()),
            ("link", facts.link.clone()),
            ("kind of run", format!("{:?}", facts.reservations())),
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
        let (old, mut new) = (run_of(&[("h2", &[100, 110])]), run_of(&[("h2", &[200, 210])]));
        assert!(compare(&old, &new).contains("get-64 h2 p99_us: 105 -> 205 (1.95x, WORSE)"), "{}", compare(&old, &new));
        assert!(compare(&new, &old).contains("(0.51x, better)"), "{}", compare(&new, &old));
        assert!(compare(&old, &old).starts_with("no difference beyond the spread"), "{}", compare(&old, &old));
        new.facts.link = "LOOPBACK".to_owned();
        assert!(compare(&old, &new).starts_with("not the same link"), "{}", compare(&old, &new));
        assert!(
            compare(&old, &run_of(&[("quic", &[1])])).contains("nothing in common")
                || compare(&old, &run_of(&[("quic", &[1])])).contains("in common")
        );
    }
}
