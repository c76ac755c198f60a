use std::{
    io::Write,
    process::{Command, Stdio},
};

use proptest::{prelude::*, strategy::ValueTree};
use serde_json::{Map, json};

use super::*;

/// Texts that some reader takes for something else where they stand without quotes, and what makes trouble besides.
pub const TEXTS: &[&str] = &[
    "",
    " ",
    "~",
    "=",
    "<<",
    "-",
    "?",
    ":",
    "!",
    "&a",
    "*a",
    "%",
    "@",
    "`",
    "|",
    ">",
    "#",
    "null",
    "Null",
    "NULL",
    "y",
    "Y",
    "n",
    "N",
    "yes",
    "Yes",
    "YES",
    "no",
    "on",
    "On",
    "off",
    "OFF",
    "true",
    "True",
    "false",
    "FALSE",
    "0",
    "1",
    "-1",
    "+1",
    "007",
    "0o7",
    "0O7",
    "0x1F",
    "0b101",
    "0xg",
    "1_000",
    "1,000",
    "1e3",
    "1E3",
    "1e+3",
    "1.5",
    ".5",
    "1.",
    "1.5e3",
    "1.5e+3",
    "6.8523015e+5",
    ".inf",
    "-.Inf",
    ".NaN",
    "inf",
    "NaN",
    "Infinity",
    "1:30",
    "-1:30",
    "190:20:30",
    "190:20:30.15",
    "2001-12-14",
    "2001-12-14t21:59:43.10-05:00",
    "2001-1-1 1:1:1",
    "12e03",
    "0.",
    "a: b",
    "a:",
    "a #b",
    "a #",
    " a",
    "a ",
    "- a",
    "-a",
    "--- a",
    "---",
    "...",
    "[a",
    "]",
    "{a",
    "}",
    "a, b",
    "'a'",
    "\"a\"",
    "a\\b",
    "a\nb",
    "a\nb\n",
    "a\n\nb\n\n",
    "\na",
    "\n",
    " a\nb",
    "a\n b\n",
    "a\n \nb",
    "a\r\nb",
    "a\tb",
    "\ta",
    "a\n\tb\n",
    "a\u{85}b\nc",
    "a\u{2028}b\nc",
    "\u{feff}a",
    "\u{7f}",
    "\u{1b}[31m",
    "\u{9b}",
    "\u{202e}abc",
    "\u{0}",
    "ä€",
    "😀",
    "\u{fffe}",
    "https://a:8443/b?c=d",
    "team=x",
    "key: |",
    "a\n---\nb\n",
    "a\n...\n",
    "#a\n",
    "- a\nb",
];

fn document(texts: &[&str]) -> Value {
    let mut map = Map::new();
    for text in texts {
        map.insert((*text).to_owned(), json!({"text": text, "list": [text, [text], {"a": text}], *text: [], "e": {}}));
    }
    json!({"all": map, "list": texts, "numbers": [0, -1, u64::MAX, 1.5, 1e300, 1e-7, 0.1, true, false, null]})
}

/// YAML 1.1, as PyYAML reads it; none where the machine has no Python with PyYAML.
fn read_by_python(text: &str) -> Option<Value> {
    let program = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin.buffer.read().decode()), sys.stdout)";
    let python = std::env::var("TOWLINE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut child = Command::new(&python)
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take().unwrap();
    let text = text.to_owned();
    let writer = std::thread::spawn(move || drop(input.write_all(text.as_bytes())));
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    if error.contains("No module named") {
        return None;
    }
    assert!(out.status.success(), "{error}");
    Some(serde_json::from_slice(&out.stdout).unwrap())
}

fn plain(node: &Node) -> Value {
    match &node.content {
        Content::Text(text) => text.as_str().into(),
        Content::Plain(text) if text == "null" => Value::Null,
        // Without quotes there is what our writer leaves without: a text of letters, or a value of JSON.
        Content::Plain(text) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
        Content::List(items) => items.iter().map(plain).collect(),
        Content::Map(entries) => entries
            .iter()
            .map(|(key, value)| (key.as_str().unwrap().to_owned(), plain(value)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn check(value: &Value) {
    let text = to_string(value);
    let read_12: Value = serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(&read_12, value, "{text}");
    let read_own = read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(&plain(&read_own.root.unwrap()), value, "{text}");
}

#[test]
fn text_that_some_reader_takes_for_something_else_is_quoted() {
    for text in TEXTS {
        check(&json!(text));
        check(&json!({*text: text}));
        check(&json!([text, [[text]]]));
    }
    let all = document(TEXTS);
    check(&all);
    if let Some(read) = read_by_python(&to_string(&all)) {
        assert_eq!(read, all);
    }
}

#[test]
fn text_that_no_reader_mistakes_stands_without_quotes() {
    let value = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "server": "https://gw.example.org:8443/0123",
        "args": ["run", "--config", "/etc/towline/agent.toml"],
        "pem": "-----BEGIN\nabc=\n-----END\n",
    });
    assert_eq!(
        to_string(&value),
        "apiVersion: rbac.authorization.k8s.io/v1\nargs:\n- run\n- \"--config\"\n- /etc/towline/agent.toml\n\
         pem: |\n  -----BEGIN\n  abc=\n  -----END\nserver: https://gw.example.org:8443/0123\n"
    );
    assert_eq!(all_to_string([&json!({"a": "on"}), &json!(["x"])]), "a: \"on\"\n---\n- x\n");
}

#[test]
fn yaml_that_steers_a_terminal_is_escaped() {
    let text = to_string(&document(TEXTS));
    assert!(!text.chars().any(|c| c != '\n' && c != '\t' && crate::terminal::steers(c)), "{text:?}");
}

#[test]
fn key_of_any_length_is_read_back() {
    for length in [127, 128, 500, 513, 1023, 1024, 1025, 5000] {
        let value = json!({"a": {"k".repeat(length): {"b": [1]}, "\u{1}".repeat(length / 3): "x"}});
        check(&value);
        if let Some(read) = read_by_python(&to_string(&value)) {
            assert_eq!(read, value);
        }
    }
}

#[test]
fn document_that_is_no_yaml_is_refused_without_being_quoted() {
    let deep = "[".repeat(5000);
    let bomb =
        (0..40).fold("a0: &a0 [x]\n".to_owned(), |text, n| format!("{text}a{}: &a{} [*a{n}, *a{n}]\n", n + 1, n + 1));
    for (bad, why) in [
        ("geheim: [".as_bytes(), "not YAML: line"),
        (deep.as_bytes(), ""),
        ("- ".repeat(5000).as_bytes(), "more than"),
        (bomb.as_bytes(), "more than"),
        (b"a: &a [*a]", ""),
        (b"\xff\xfeg", "not text"),
        (b"geheim: \xc3", "not text"),
    ] {
        let error = read(bad).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains("geheim"), "{error}");
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        proptest::sample::select(TEXTS).prop_map(str::to_owned),
        "[-+.:0-9eEoxb_yYnN~=<> #,\\n\\t]{0,8}",
        "\\PC{0,12}",
        any::<String>(),
    ];
    let leaf = prop_oneof![
        text.clone().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((text.clone(), inner), 0..6).prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_document_is_read_back_by_readers_of_yaml_12(value in any_value()) {
        check(&value);
    }
}

/// One process reads many documents: to start one takes longer than to read them.
#[test]
fn any_document_is_read_back_by_a_reader_of_yaml_11() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut one = || any_value().new_tree(&mut runner).unwrap().current();
    let all: Value = std::iter::repeat_with(&mut one).take(400).collect();
    if let Some(read) = read_by_python(&to_string(&all)) {
        assert_eq!(read, all);
    }
}

/// `!!str` of nothing is an empty text, and became `null` on its way.
#[test]
fn tag_of_an_empty_scalar_keeps_it_what_it_is() {
    let text =
        "a: !!str\nb: !!str 12\nc: !!str null\nd: ! \ne: !!null\nf: !own\ng: [!!str , !!str x]\nh: !own 5\n!!str : k\n";
    let once = write(&read(text.as_bytes()).unwrap().root.unwrap());
    let again = read(once.as_bytes()).unwrap().root.unwrap();
    assert_eq!(write(&again), once, "and stays so");
    for name in ["a", "d"] {
        let node = again.get(name).unwrap();
        assert!(node.as_str() == Some("") && !node.is_null(), "{name}: {once}");
    }
    assert!(once.contains("b: \"12\"\n") && once.contains("c: \"null\"\n"), "{once}");
    assert!(once.contains("f: !<!own> \"\"\n") && once.contains("h: !<!own> 5\n"), "{once}");
    assert!(again.get("e").unwrap().as_str() == Some("null"), "{once}");
    assert_eq!(again.get("").and_then(Node::as_str), Some("k"), "a key too: {once}");
    let plain = text.replace("f: !own\n", "").replace("h: !own 5\n", "");
    let once = write(&read(plain.as_bytes()).unwrap().root.unwrap());
    if let Some(read) = read_by_python(&once) {
        let expected = json!({"a": "", "b": "12", "c": "null", "d": "", "e": null, "g": ["", "x"], "": "k"});
        assert_eq!(read, expected, "{once}");
    }
}
