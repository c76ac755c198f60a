//! `--set KEY=VALUE`: one dotted key of a TOML file.

use anyhow::bail;
use toml::{Table, Value};

/// Puts a value at a dotted key. What reads as a TOML value is one; everything else is text, so that `1s` needs no
/// quotes.
pub fn set(table: &mut Table, key: &str, text: &str) -> anyhow::Result<()> {
    let value = match format!("v = {text}").parse::<Table>() {
        Ok(mut parsed) if parsed.len() == 1 => parsed.remove("v"),
        _ => None,
    };
    let value = value.unwrap_or_else(|| Value::String(text.to_owned()));
    let mut place = table;
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match place.entry(part).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => place = inner,
            _ => bail!("{key}: {part} is not a table"),
        }
    }
    place.insert(last.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_toml_or_text() {
        let mut table = Table::new();
        for (key, text) in
            [("sessions.reauthorise_every", "1s"), ("limits.n", "3"), ("a.b.c", "[\"x\"]"), ("t", "\"q\"")]
        {
            set(&mut table, key, text).unwrap();
        }
        let expected = "t = \"q\"\n[sessions]\nreauthorise_every = \"1s\"\n[limits]\nn = 3\n[a.b]\nc = [\"x\"]\n";
        assert_eq!(table, expected.parse::<Table>().unwrap());
        assert!(set(&mut table, "t.x", "1").is_err());
    }
}
