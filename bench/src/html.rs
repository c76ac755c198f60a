//! A run as one page that works without a network: what holds, then for each scenario plots and a table.

use std::fmt::Write;

use crate::{
    plot,
    record::{RARE, Run},
    report::{Cell, Compared, FEW, Row, Table, heading, names, short, tables},
    scenario,
    statistics::Middle,
    targets::{HOW, Judgement, Verdict},
};

/// Figures that are in the table alone: the curves show them, or they say little.
const UNPLOTTED: &[&str] = &[
    "p50_us",
    "p90_us",
    RARE,
    "worst_us",
    "failed",
    "peak_kib",
    "context_switches",
    "users_requests",
    "audit_dropped",
    "link_lost_percent",
    "link_dropped_percent",
    "link_late_us",
];
/// Medians closer than this are not worth bars (the rate of an open loop, which the schedule says).
const APART: f64 = 1.02;

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem auto; max-width: 1440px; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .3rem; border-top: 1px solid #ddd; padding-top: 1rem; }
p { margin: .3rem 0; max-width: 70rem; } code { font-size: .9em; }
nav a { margin-right: .8rem; white-space: nowrap; }
.warning { background: #fff1c4; border-left: 4px solid #d9a400; padding: .4rem .8rem; font-weight: 600; }
.key { display: inline-block; margin-right: 1rem; } .key i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
.plots { display: flex; flex-wrap: wrap; gap: .5rem; margin: .6rem 0; } .plots figure { margin: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #e4e4e4; padding: .25rem .6rem; text-align: right; vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child, .no, .targets td { text-align: left; } .targets td { white-space: normal; }
small { display: block; color: #666; } .holds { color: #17702f; } .missed { color: #b3261e; font-weight: 600; } .unknown { color: #7a6400; }
";

/// The page; `verdict` is what the targets say of it.
///
/// # Errors
/// A plot that cannot be drawn.
pub fn page(run: &Run, verdict: Option<&Verdict>) -> anyhow::Result<String> {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Towline bench {}</title><style>{STYLE}</style></head>\
         <body>\n<h1>Towline beside its peers</h1>\n",
        escaped(&run.facts.date)
    );
    for line in heading(run) {
        let warning = line.starts_with("**");
        let class = if warning { " class=\"warning\"" } else { "" };
        let _ = writeln!(text, "<p{class}>{}</p>", escaped(line.trim_matches('*')).replace('`', ""));
    }
    let tables = tables(run);
    text.push_str("<nav>");
    for table in &tables {
        let name = escaped(table.scenario);
        let _ = write!(text, "<a href=\"#{name}\">{name}</a> ");
    }
    text.push_str("</nav>\n<p>");
    for path in names(run, |record| &record.path) {
        let colour = plot::colour(path);
        let _ = write!(text, "<span class=\"key\"><i style=\"background:{colour}\"></i>{}</span>", escaped(path));
    }
    text.push_str("</p>\n");
    if let Some(verdict) = verdict {
        text.push_str(&targets(verdict));
    }
    for table in &tables {
        text.push_str(&section(table)?);
    }
    text.push_str("</body></html>\n");
    Ok(text)
}

fn targets(verdict: &Verdict) -> String {
    let mut text = format!(
        "<h2 id=\"targets\">Targets</h2>\n<p>{}. {}</p>\n<div class=\"wide\">",
        escaped(&verdict.summary()),
        escaped(HOW).replace('`', "")
    );
    text.push_str("<table class=\"targets\">\n");
    for line in &verdict.lines {
        let class = match line.judgement {
            Judgement::Holds => "holds",
            Judgement::Missed => "missed",
            Judgement::NotMeasured => "unknown",
        };
        let (word, name, what) = (line.judgement.word(), escaped(&line.name), escaped(&line.text));
        let _ = writeln!(text, "<tr><td class=\"{class}\">{word}</td><td>{name}</td><td>{what}</td></tr>");
    }
    text.push_str("</table></div>\n");
    text
}

fn section(scenario: &Table) -> anyhow::Result<String> {
    let name = escaped(scenario.scenario);
    let mut text = format!("<h2 id=\"{name}\">{name}</h2>\n");
    if let Some(what) = scenario::what(scenario.scenario) {
        let _ = writeln!(text, "<p>{}</p>", escaped(what));
    }
    text.push_str("<div class=\"plots\">\n");
    for (what, svg) in plots(scenario)? {
        let _ = writeln!(text, "<figure role=\"img\" aria-label=\"{} of {name}\">{svg}</figure>", escaped(what));
    }
    text.push_str("</div>\n");
    text.push_str(&table(scenario));
    Ok(text)
}

fn plots<'a>(scenario: &'a Table) -> anyhow::Result<Vec<(&'a str, String)>> {
    let mut plots = Vec::new();
    let curves: Vec<_> = scenario.rows.iter().map(|row| of(row, row.latency.clone())).collect();
    if let Some(svg) = plot::latencies("latency that this share stays within", &curves)? {
        plots.push(("latency", svg));
    }
    for (column, figure) in scenario.figures.iter().enumerate() {
        let bars: Vec<plot::Row<Middle>> =
            scenario.rows.iter().filter_map(|row| Some(of(row, compared(row, column)?.this))).collect();
        if !UNPLOTTED.contains(&figure.name) && differ(&bars) {
            plots.push((figure.name, plot::bars(figure.name, &bars)?));
        }
    }
    Ok(plots)
}

fn of<'a, T>(row: &Row<'a>, of: T) -> plot::Row<'a, T> {
    plot::Row { path: row.path, of }
}

fn compared<'a, 'b>(row: &'b Row<'a>, column: usize) -> Option<&'b Compared<'a>> {
    match row.cells.get(column)? {
        Cell::Of(compared) => Some(compared),
        _ => None,
    }
}

/// Whether there is anything to see.
fn differ(bars: &[plot::Row<Middle>]) -> bool {
    let medians = || bars.iter().map(|bar| bar.of.median);
    let (least, most) = (medians().fold(f64::INFINITY, f64::min), medians().fold(0.0, f64::max));
    most > 0.0 && (bars.len() == 1 || most > least * APART)
}

fn table(scenario: &Table) -> String {
    let mut text = "<div class=\"wide\"><table>\n<tr><th>path</th>".to_owned();
    for figure in &scenario.figures {
        let _ = write!(text, "<th>{}</th>", escaped(figure.name));
    }
    text.push_str("</tr>\n");
    for row in &scenario.rows {
        let no = row.no.as_ref().map(|no| escaped(&no.text())).unwrap_or_default();
        let _ = if row.cells.is_empty() {
            let columns = scenario.figures.len().max(1);
            write!(text, "<tr><td>{}</td><td class=\"no\" colspan=\"{columns}\">{no}</td>", escaped(row.path))
        } else {
            write!(text, "<tr><td>{}<small>{no}</small></td>", escaped(row.path))
        };
        row.cells.iter().for_each(|one| text.push_str(&cell(one)));
        text.push_str("</tr>\n");
    }
    text.push_str("</table></div>\n");
    if scenario.is_unsure() {
        let _ = writeln!(text, "<p>{}</p>", escaped(FEW).replace('`', ""));
    }
    text
}

fn cell(cell: &Cell) -> String {
    let Compared { this, floor, peer } = match cell {
        Cell::None => return "<td>–</td>".to_owned(),
        Cell::OfAll(us) => return format!("<td>{us}<small>of all repeats</small></td>"),
        Cell::Of(compared) => compared,
    };
    let mut text = format!("<td>{}", short(this.median));
    if let Some(floor) = floor {
        let _ = write!(text, " <b>{}</b>", floor.text());
    }
    if let Some((name, peer)) = peer {
        let _ = write!(text, "<small>{} {}</small>", peer.text(), escaped(name));
    }
    if this.count > 1 {
        let _ = write!(text, "<small>{} .. {}</small>", short(this.least), short(this.most));
    }
    text.push_str("</td>");
    text
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Record, tests::run_of},
        report::FLOOR,
        targets::Line,
    };

    fn run() -> Run {
        let mut run = run_of(&[(FLOOR, &[100, 120]), ("ssh", &[300, 310]), ("towline-h2", &[400, 420])]);
        run.records.push(Record::without("get-64", "x<y", 0, "no \"<exec>\""));
        run.facts.command = "run <script>alert(1)</script>".to_owned();
        run
    }

    #[test]
    fn one_page_has_all_of_it_and_asks_for_nothing_else() {
        let lines = vec![Line {
            judgement: Judgement::Missed,
            name: "get-64 towline-h2 <p99>".to_owned(),
            text: "4.0 [3.0 .. 5.0]".to_owned(),
        }];
        let text = page(&run(), Some(&Verdict { lines })).unwrap();
        for part in [
            "<h2 id=\"get-64\">",
            "410 <b>",
            "x? ssh</small>",
            "<p>?: fewer than three repeats",
            "no (no &quot;&lt;exec&gt;&quot;)",
            "x&lt;y",
            "<td class=\"missed\">MISSED</td><td>get-64 towline-h2 &lt;p99&gt;</td><td>4.0 [3.0 .. 5.0]</td>",
            "0 hold, 1 missed, 0 not measured. [least .. most]",
            "<svg",
            "run &lt;script&gt;",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The names of SVG's own space is no address that anybody asks.
        let outside = text.replace("http://www.w3.org/2000/svg", "");
        for asks in ["http:", "https:", "src=", "@import", "url(", "<script", "<link"] {
            assert!(!outside.contains(asks), "{asks}");
        }
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
    }

    #[test]
    fn what_is_the_same_for_all_has_no_bars() {
        let run = run_of(&[(FLOOR, &[100]), ("towline-h2", &[400])]);
        let text = page(&run, None).unwrap();
        assert!(text.contains("aria-label=\"p99_us of get-64\""), "{text}");
        assert!(!text.contains("aria-label=\"requests_per_s of get-64\"") && !text.contains("Targets"), "{text}");
    }
}
