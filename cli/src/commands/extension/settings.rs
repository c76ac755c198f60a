//! Settings of an extension as typed: dotted keys with texts, as helm's `--set` reads them. A file is a map of YAML or
//! JSON; maps and lists in it become keys such as `a.b[0]`. No error quotes a value, which may be a secret.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Map, Value};

use crate::{
    commands::rest,
    yaml::{self, Content, Node},
};

/// Characters of a key at most.
const KEY: usize = 1024;
/// Settings of one file at most; the gateway has a bound of its own.
const SETTINGS: usize = 10_000;

/// A key of a setting.
pub fn key(text: &str) -> Result<String, String> {
    let fine = (1..=KEY).contains(&text.len()) && !text.contains(char::is_control) && !text.contains('=');
    if fine { Ok(text.to_owned()) } else { Err(format!("a key has 1 to {KEY} characters and no '='")) }
}

/// `KEY=VALUE`; an empty value is one. A refusal does not repeat it.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected KEY=VALUE, such as controller.replicaCount=2")?;
    Ok((key(name)?, value.to_owned()))
}

/// Reads the value of `KEY=FILE`.
pub fn content((name, file): &(String, String)) -> anyhow::Result<(String, String)> {
    let text = rest::read(file).with_context(|| format!("cannot read {file}, the value of {name}"))?;
    Ok((name.clone(), text))
}

/// A map of settings in a file; `-` is standard input.
pub fn file(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let shown = path.display();
    let text = rest::read(&path.to_string_lossy()).with_context(|| format!("cannot read {shown}"))?;
    let document = yaml::read(text.as_bytes()).with_context(|| format!("{shown}"))?;
    if document.has_more {
        bail!("{shown} has more than one YAML document");
    }
    let root = document.root.ok_or_else(|| anyhow!("{shown} is empty"))?;
    let mut found = Map::new();
    if !matches!(root.content, Content::Map(_)) {
        bail!("{shown} is not a map of settings");
    }
    flatten("", &root, &mut found).with_context(|| format!("{shown}"))?;
    Ok(found)
}

/// Puts the values of a node below a key.
fn flatten(at: &str, node: &Node, found: &mut Map<String, Value>) -> anyhow::Result<()> {
    match &node.content {
        Content::Map(entries) => {
            if entries.is_empty() {
                bail!("{} is an empty map, which is not a value of a setting", named(at));
            }
            for (name, value) in entries {
                let name = name.as_str().with_context(|| format!("{} has a key that is not text", named(at)))?;
                // Dots of a name are its own in the file, and separate names in a setting.
                let escaped =
                    if at.is_empty() { name.to_owned() } else { format!("{at}.{}", name.replace('.', "\\.")) };
                flatten(&escaped, value, found)?;
            }
        }
        Content::List(values) => {
            if values.is_empty() {
                bail!("{} is an empty list, which is not a value of a setting", named(at));
            }
            for (number, value) in values.iter().enumerate() {
                flatten(&format!("{at}[{number}]"), value, found)?;
            }
        }
        Content::Text(text) | Content::Plain(text) => {
            let text = if node.is_null() { "null" } else { text };
            let name = key(at).map_err(|why| anyhow!("{}: {why}", named(at)))?;
            found.insert(name, text.into());
            if found.len() > SETTINGS {
                bail!("it has more than {SETTINGS} settings");
            }
        }
    }
    Ok(())
}

fn named(at: &str) -> String {
    let short: String = at.chars().take(80).collect();
    if short.is_empty() { "it".to_owned() } else { short }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> anyhow::Result<Value> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.yaml");
        std::fs::write(&path, text).unwrap();
        file(&path).map(Value::Object)
    }

    #[test]
    fn e5_file_of_settings_becomes_dotted_keys_as_they_were_written() {
        let text = "controller:\n  replicaCount: 2\n  image.tag: 1.10\n  args: [a, 'b']\nplain.key: on\nnone: ~\n";
        let expected = json!({
            "controller.replicaCount": "2", "controller.image\\.tag": "1.10", "controller.args[0]": "a",
            "controller.args[1]": "b", "plain.key": "on", "none": "null",
        });
        assert_eq!(read(text).unwrap(), expected);
        assert_eq!(read(r#"{"a": {"b": "x"}, "c": true}"#).unwrap(), json!({"a.b": "x", "c": "true"}));
    }

    #[test]
    fn e6_file_that_is_no_map_is_refused_without_a_word_of_it() {
        for bad in
            ["", "geheim", "- geheim", "a: {}", "a: []", "a: 'geheim\n", "a: geheim\n---\nb: 1\n", "? [x]\n: geheim"]
        {
            let error = format!("{:#}", read(bad).unwrap_err());
            assert!(!error.contains("geheim"), "{error}");
        }
    }

    #[test]
    fn pair_is_split_at_the_first_equals_sign() {
        assert_eq!(pair("a.b=c=d").unwrap(), ("a.b".to_owned(), "c=d".to_owned()));
        assert_eq!(pair("a=").unwrap(), ("a".to_owned(), String::new()));
        for bad in ["", "a", "=b"] {
            assert!(pair(bad).is_err(), "{bad}");
        }
    }
}
