//! What the gateways and their database hold, looked at again and again: whether any of it grows, and how it looks.

use std::{collections::BTreeMap, fmt::Write as _, fs::File, io::Write as _, path::Path, time::Duration};

use anyhow::Context;

use super::Tally;
use crate::replicas::Replicas;

/// Tables that keep what was, for a time or for ever: they grow with each user who comes and goes, and are shown alone.
const HISTORY: &[&str] = &["events", "tombstones", "deleted_identities", "departed", "operations", "revisions"];
/// Figures of this part of the run are not judged: caches and pools fill.
const WARM: f64 = 0.25;
/// Fewer looks than this say nothing of a slope.
const LOOKS: usize = 12;
/// By how much of its middle a figure may grow in what is judged.
const GROWTH: f64 = 0.1;
/// Growth that is allowed in any case, by the end of a figure's name: allocators and pools grow by steps.
const STEPS: &[(&str, f64)] =
    &[("rss_kib", 16_384.0), ("files", 20.0), ("threads", 4.0), ("tasks", 100.0), ("rows", 60.0)];
/// Size of a picture of one kind of figure.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 150.0;
const COLOURS: [&str; 6] = ["#1f5fd0", "#d62728", "#128a4a", "#7b2da8", "#f0a30a", "#8c4a2f"];

/// All looks so far.
pub struct Figures {
    names: Vec<String>,
    looks: Vec<(f64, Vec<f64>)>,
    file: File,
}

impl Figures {
    /// None yet; they go to this file.
    pub fn new(file: &Path) -> anyhow::Result<Self> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = File::create(file).with_context(|| file.display().to_string())?;
        Ok(Self { names: Vec::new(), looks: Vec::new(), file })
    }

    /// Reads the figures of every replica once, and writes a line.
    pub fn look(&mut self, replicas: &Replicas, after: Duration, told: &Tally) -> anyhow::Result<()> {
        let mut seen = BTreeMap::new();
        for number in 0..replicas.count() {
            let (name, pid) = (replicas.name(number), replicas.pid(number)?);
            for (key, value) in process(pid)? {
                seen.insert(format!("{name} {key}"), value);
            }
            let metrics = replicas.admin_get(number, "/metrics")?;
            for key in ["tasks", "sessions_open", "streams_open", "tunnels_open", "connections_open"] {
                if let Some(value) = metric(&metrics, &format!("gateway_{key}")) {
                    seen.insert(format!("{name} {key}"), value);
                }
            }
        }
        for (table, rows) in rows(replicas)? {
            seen.insert(format!("{table} rows"), rows);
        }
        #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 requests")]
        for (name, value) in [("answered", told.good), ("again", told.again), ("failed", told.failed.len() as u64)] {
            seen.insert(name.to_owned(), value as f64);
        }
        self.add(after.as_secs_f64(), &seen)
    }

    fn add(&mut self, after: f64, seen: &BTreeMap<String, f64>) -> anyhow::Result<()> {
        if self.names.is_empty() {
            self.names = seen.keys().cloned().collect();
            writeln!(self.file, "seconds,{}", self.names.join(","))?;
        }
        let values: Vec<f64> = self.names.iter().map(|name| seen.get(name).copied().unwrap_or_default()).collect();
        let told: Vec<String> = values.iter().map(f64::to_string).collect();
        writeln!(self.file, "{after:.1},{}", told.join(","))?;
        self.looks.push((after, values));
        Ok(())
    }

    /// Figures that grow, each with by how much.
    pub fn slopes(&self) -> Vec<String> {
        let judged = |(index, name): (usize, &String)| {
            let allowed = allowed(name)?;
            let looks = self.judged(index);
            if looks.len() < LOOKS {
                return None;
            }
            let (growth, middle) = (growth(&looks)?, median(looks.iter().map(|(_, value)| *value).collect())?);
            (growth > allowed.max(GROWTH * middle)).then(|| format!("{name}: {growth:+.0}, middle {middle:.0}"))
        };
        self.names.iter().enumerate().filter_map(judged).collect()
    }

    /// Looks at one figure after the first part.
    fn judged(&self, index: usize) -> Vec<(f64, f64)> {
        let end = self.looks.last().map_or(0.0, |(after, _)| *after);
        let late = self.looks.iter().filter(|(after, _)| *after >= WARM * end);
        late.filter_map(|(after, values)| Some((*after, *values.get(index)?))).collect()
    }

    /// Of each figure its first and its last value, and by how much it grows, as Markdown.
    pub fn table(&self) -> String {
        let mut text = "| figure | first | middle | last | growth |\n|---|---|---|---|---|\n".to_owned();
        for (index, name) in self.names.iter().enumerate() {
            let all: Vec<f64> = self.looks.iter().filter_map(|(_, values)| values.get(index).copied()).collect();
            let (Some(first), Some(last), Some(middle)) = (all.first(), all.last(), median(all.clone())) else {
                continue;
            };
            let growth = growth(&self.judged(index)).unwrap_or_default();
            // A String takes whatever is written.
            let _ = writeln!(text, "| {name} | {first:.0} | {middle:.0} | {last:.0} | {growth:+.0} |");
        }
        text
    }

    /// A picture: of each kind of figure one line for each process or table.
    pub fn plot(&self) -> String {
        let kinds = ["rss_kib", "files", "tasks", "sessions_open", "tunnels_open", "rows"];
        let mut parts = String::new();
        let mut shown = 0.0;
        for kind in kinds {
            let of_kind =
                |name: &&String| name.ends_with(&format!(" {kind}")) && (kind != "rows" || allowed(name).is_some());
            let names: Vec<&String> = self.names.iter().filter(of_kind).collect();
            if !names.is_empty() {
                parts += &self.part(kind, &names, shown * (HEIGHT + 40.0));
                shown += 1.0;
            }
        }
        let (width, height) = (WIDTH + 240.0, shown * (HEIGHT + 40.0) + 10.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{parts}</svg>\n"
        )
    }

    fn part(&self, kind: &str, names: &[&String], top: f64) -> String {
        let end = self.looks.last().map_or(1.0, |(after, _)| after.max(1.0));
        let indexes: Vec<usize> =
            self.names.iter().enumerate().filter(|(_, name)| names.contains(name)).map(|(i, _)| i).collect();
        let most =
            self.looks.iter().flat_map(|(_, values)| indexes.iter().map(|index| values[*index])).fold(1.0, f64::max);
        let mut text = format!(
            "<text x=\"10\" y=\"{}\">{kind}, at most {most:.0}, over {:.0} s</text>\n\
             <rect x=\"10\" y=\"{}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#ccc\"/>\n",
            top + 18.0,
            end,
            top + 25.0
        );
        for (number, (index, name)) in indexes.iter().zip(names).enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points: String = self.looks.iter().fold(String::new(), |mut points, (after, values)| {
                let (x, y) = (10.0 + WIDTH * after / end, top + 25.0 + HEIGHT * (1.0 - values[*index] / most));
                let _ = write!(points, "{x:.1},{y:.1} ");
                points
            });
            #[expect(clippy::cast_precision_loss, reason = "a few names")]
            let line = top + 35.0 + 12.0 * number as f64;
            let _ = writeln!(
                text,
                "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{points}\"/>\n<text x=\"{}\" y=\"{line}\" fill=\"{colour}\">{name}</text>",
                WIDTH + 20.0
            );
        }
        text
    }
}

/// What a figure may grow by in any case; `None` where it is not judged.
fn allowed(name: &str) -> Option<f64> {
    if HISTORY.iter().any(|table| name == format!("{table} rows")) {
        return None;
    }
    STEPS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, step)| *step)
}

/// By how much a figure grows from the first to the last look: the median of the slopes between looks that are half of
/// all apart, which no single look can bend.
fn growth(looks: &[(f64, f64)]) -> Option<f64> {
    let half = looks.len() / 2;
    let slopes = looks.iter().zip(looks.get(half..)?).filter(|((a, _), (b, _))| b > a);
    let slope = median(slopes.map(|((a, x), (b, y))| (y - x) / (b - a)).collect())?;
    Some(slope * (looks.last()?.0 - looks.first()?.0))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Memory, open files and threads of a process.
fn process(pid: u32) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("a gateway has ended")?;
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 files")]
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64;
    let of = |name: &'static str| of(name).with_context(|| format!("no {name} of a gateway"));
    Ok(vec![("rss_kib", of("VmRSS")?), ("files", files), ("threads", of("Threads")?)])
}

/// A metric without labels, or the sum of all with some.
fn metric(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix([' ', '{']));
    let values: Vec<f64> = values.filter_map(|rest| rest.rsplit(' ').next()?.parse().ok()).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Rows of every table.
fn rows(replicas: &Replicas) -> anyhow::Result<Vec<(String, f64)>> {
    let query = "SELECT table_name, (xpath('/row/c/text()', query_to_xml(format('SELECT count(*) AS c FROM %I', table_name), \
                 false, true, '')))[1]::text FROM information_schema.tables WHERE table_schema = 'public'";
    let told = replicas.postgres.administer(&format!("psql -Atqc \"{query}\" towline"))?;
    let read = |line: &str| {
        let (table, count) = line.split_once('|')?;
        Some((table.to_owned(), count.parse().ok()?))
    };
    told.lines().map(|line| read(line).with_context(|| format!("rows of a table: {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(of: impl Fn(f64) -> f64, name: &str) -> Figures {
        let looks = (0..100).map(|n| (f64::from(n), vec![of(f64::from(n))])).collect();
        Figures { names: vec![name.to_owned()], looks, file: tempfile::tempfile().unwrap() }
    }

    #[test]
    fn what_grows_is_named_and_what_goes_up_and_down_is_not() {
        assert_eq!(figures(|n| 100.0 + 2.0 * n, "a files").slopes(), ["a files: +148, middle 224"]);
        assert!(figures(|n| 100.0 + 30.0 * (n / 3.0).sin(), "a files").slopes().is_empty());
        // A step while it is warm, and one look that is far off.
        assert!(figures(|n| if n < 20.0 { 10.0 } else { 400.0 }, "a files").slopes().is_empty());
        assert!(figures(|n| if n == 70.0 { 9000.0 } else { 100.0 }, "a files").slopes().is_empty());
        assert!(figures(|n| 1000.0 * n, "events rows").slopes().is_empty());
        assert_eq!(figures(|n| 1000.0 * n, "held rows").slopes().len(), 1);
    }

    #[test]
    fn a_picture_has_a_line_for_each_figure_and_a_table_its_growth() {
        let figures = figures(|n| n, "a rss_kib");
        assert_eq!(figures.plot().matches("<polyline").count(), 1);
        assert!(figures.table().contains("| a rss_kib | 0 | 50 | 99 | +74 |"), "{}", figures.table());
    }

    #[test]
    fn metrics_with_labels_are_added_up() {
        let text =
            "gateway_tasks 7\ngateway_tunnels_open{carrier=\"h2\"} 2\ngateway_tunnels_open{carrier=\"quic\"} 3\n";
        assert_eq!((metric(text, "gateway_tasks"), metric(text, "gateway_tunnels_open")), (Some(7.0), Some(5.0)));
        assert_eq!(metric(text, "gateway"), None);
    }
}
