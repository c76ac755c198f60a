//! Tables for people, and tab-separated values for scripts. Texts are others': what could steer a terminal is not
//! printed.

use std::fmt::Write as _;

use serde_json::Value;

use crate::terminal::shortened;

/// Characters of a cell of a table at most.
const CELL: usize = 80;

/// Characters of the last cell of a line: nothing stands behind it that would be moved. It holds ids and reasons.
const LAST: usize = 2000;

/// A column: its title, and where its value is, as a JSON pointer.
pub type Column = (&'static str, &'static str);

/// Columns of members of these names.
pub fn named(order: &[String]) -> Vec<(String, String)> {
    let pointer = |name: &str| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
    order.iter().map(|name| (shortened(name, CELL), pointer(name))).collect()
}

/// One line a row; a single object is one line a member.
pub fn table(value: &Value, columns: Option<&[(&str, &str)]>, colour: bool) -> String {
    match (value, columns) {
        (Value::Null, _) => String::new(),
        (Value::Array(rows), _) if rows.is_empty() => String::new(),
        (Value::Array(rows), columns) => {
            let (titles, lines) = grid(rows, columns);
            aligned(&titles, &lines, colour)
        }
        (Value::Object(_), Some(columns)) => {
            let lines = columns.iter().map(|(title, at)| vec![(*title).to_owned(), cell(value.pointer(at), CELL * 4)]);
            aligned(&[], &lines.collect::<Vec<_>>(), false)
        }
        (Value::Object(members), None) => {
            let lines = members.iter().map(|(name, value)| vec![shortened(name, CELL), cell(Some(value), CELL * 4)]);
            aligned(&[], &lines.collect::<Vec<_>>(), false)
        }
        (other, _) => cell(Some(other), usize::MAX),
    }
}

/// Values between tabs, a line a row, no titles.
pub fn tsv(value: &Value, columns: Option<&[(&str, &str)]>) -> String {
    let line = |row: &Value| match (row, columns) {
        (Value::Object(_), Some(columns)) => joined(columns.iter().map(|(_, at)| row.pointer(at))),
        (Value::Object(members), None) => joined(members.values().map(Some)),
        (Value::Array(cells), _) => joined(cells.iter().map(Some)),
        (other, _) => cell(Some(other), usize::MAX),
    };
    match value {
        Value::Null => String::new(),
        Value::Array(rows) => rows.iter().map(line).collect::<Vec<_>>().join("\n"),
        other => line(other),
    }
}

fn joined<'a>(cells: impl Iterator<Item = Option<&'a Value>>) -> String {
    cells.map(|value| cell(value, usize::MAX)).collect::<Vec<_>>().join("\t")
}

fn grid(rows: &[Value], columns: Option<&[(&str, &str)]>) -> (Vec<String>, Vec<Vec<String>>) {
    if let Some(columns) = columns {
        let titles = columns.iter().map(|(title, _)| title.to_uppercase()).collect();
        let length = |at: usize| if at + 1 == columns.len() { LAST } else { CELL };
        let line = |row: &Value| {
            columns.iter().enumerate().map(|(at, (_, pointer))| cell(row.pointer(pointer), length(at))).collect()
        };
        return (titles, rows.iter().map(line).collect());
    }
    let mut names: Vec<&String> = Vec::new();
    for name in rows.iter().filter_map(Value::as_object).flat_map(|row| row.keys()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let titles = names.iter().map(|name| shortened(name, CELL).to_uppercase()).collect();
    let line = |row: &Value| match row {
        Value::Object(row) => names.iter().map(|name| cell(row.get(*name), CELL)).collect(),
        Value::Array(cells) => cells.iter().map(|value| cell(Some(value), CELL)).collect(),
        other => vec![cell(Some(other), CELL)],
    };
    (titles, rows.iter().map(line).collect())
}

fn aligned(titles: &[String], lines: &[Vec<String>], colour: bool) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default().max(titles.len());
    let mut widths = vec![0; columns];
    for line in lines.iter().map(Vec::as_slice).chain([titles]) {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let row = |line: &[String]| {
        let mut text = String::new();
        for (at, cell) in line.iter().enumerate() {
            if at > 0 {
                text.push_str("  ");
            }
            // The last column is not filled up.
            let width = if at + 1 == line.len() { 0 } else { widths[at] };
            let _ = write!(text, "{cell:<width$}");
        }
        text.trim_end().to_owned()
    };
    let mut out = Vec::new();
    if !titles.is_empty() {
        let title = row(titles);
        out.push(if colour { format!("\x1b[1m{title}\x1b[0m") } else { title });
    }
    out.extend(lines.iter().map(|line| row(line)));
    out.join("\n")
}

fn cell(value: Option<&Value>, length: usize) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => shortened(text, length),
        // As people write them: team=x, env=y.
        Some(Value::Object(map)) if map.values().all(|value| value.is_string()) => {
            let pairs = map.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
            shortened(&pairs.collect::<Vec<_>>().join(", "), length)
        }
        Some(Value::Array(list)) if list.iter().all(Value::is_string) => {
            shortened(&list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "), length)
        }
        Some(other) => shortened(&other.to_string(), length),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COLUMNS: &[Column] = &[("Name", "/name"), ("Tags", "/tags"), ("Nodes", "/properties/nodes")];

    #[test]
    fn i2_a_table_is_aligned_and_steers_no_terminal() {
        let rows = json!([
            {"name": "a\u{1b}[31m", "tags": {"team": "x", "z": "y"}, "properties": {"nodes": 3}},
            {"name": "long-name", "tags": null},
        ]);
        assert_eq!(
            table(&rows, Some(COLUMNS), false),
            "NAME       TAGS         NODES\na\u{fffd}[31m     team=x, z=y  3\nlong-name"
        );
        assert!(table(&rows, Some(COLUMNS), true).starts_with("\x1b[1mNAME"));
        assert_eq!(table(&rows[0], Some(COLUMNS), true), "Name   a\u{fffd}[31m\nTags   team=x, z=y\nNodes  3");
        assert_eq!(tsv(&rows, Some(COLUMNS)), "a\u{fffd}[31m\tteam=x, z=y\t3\nlong-name\t\t");
        assert_eq!(table(&json!([]), Some(COLUMNS), false), "");
    }

    #[test]
    fn last_column_holds_a_whole_reason() {
        let (long, longer) = ("x".repeat(300), "y".repeat(3000));
        let rows =
            json!([{"name": long, "tags": "a", "properties": {"nodes": long}}, {"properties": {"nodes": longer}}]);
        let shown = table(&rows, Some(COLUMNS), false);
        assert_eq!(shown.matches('x').count(), CELL - 1 + 300);
        assert_eq!(shown.matches('y').count(), LAST - 1);
    }

    #[test]
    fn i2_columns_of_a_query_have_its_order_whatever_their_names() {
        let named = named(&["n".to_owned(), "a/b~".to_owned()]);
        let columns: Vec<_> = named.iter().map(|(title, at)| (title.as_str(), at.as_str())).collect();
        let rows = json!([{"a/b~": 1, "n": "x"}, {"a/b~": 2, "n": "y"}]);
        assert_eq!(table(&rows, Some(&columns), false), "N  A/B~\nx  1\ny  2");
        assert_eq!(tsv(&rows, Some(&columns)), "x\t1\ny\t2");
        assert_eq!(table(&rows[0], Some(&columns), false), "n     x\na/b~  1");
    }

    #[test]
    fn i2_what_a_query_made_has_its_own_columns() {
        assert_eq!(table(&json!([{"a": 1}, {"a": 2, "b": [1]}]), None, false), "A  B\n1\n2  [1]");
        assert_eq!(table(&json!(["x", "y"]), None, false), "x\ny");
        assert_eq!(
            (table(&json!("x"), None, true), tsv(&json!([["a", "b"], [1]]), None)),
            ("x".into(), "a\tb\n1".into())
        );
    }
}
