//! YAML as every reader takes it. kubectl and helm read YAML 1.1, where `on`, `no`, `1:30` and `1e3` without quotes are
//! no texts; other readers follow YAML 1.2, where `0o7` is a number. So there is one writer ([`write`]), which leaves a
//! text without quotes only if no version can take it for anything else, and one reader ([`read`]), which keeps what it
//! does not understand as it was written.
//!
//! | part | what it does |
//! |---|---|
//! | [`json`] | what a document says, as YAML 1.2 has it |
//! | [`read`] | the first document of a text, as kubectl reads it |
//! | [`write`] | a document as text |

mod json;
mod read;
mod write;

use serde_json::Value;

pub use self::{json::json, read::read};

/// A part of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it is said to be, such as `tag:yaml.org,2002:str`.
    tag: Option<String>,
    /// What it holds.
    pub content: Content,
}

/// What a part of a document holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A text, whatever it looks like.
    Text(String),
    /// As it stood there without quotes: what it is depends on the reader, and stays as it is.
    Plain(String),
    /// Values in their order.
    List(Vec<Node>),
    /// Keys and values, in their order.
    Map(Vec<(Node, Node)>),
}

impl From<Content> for Node {
    fn from(content: Content) -> Self {
        Self { tag: None, content }
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Content::Text(text.to_owned()).into()
    }
}

impl From<&Value> for Node {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Content::Plain("null".to_owned()),
            Value::Bool(value) => Content::Plain(value.to_string()),
            Value::Number(number) => Content::Plain(write::number(number)),
            Value::String(text) => Content::Text(text.clone()),
            Value::Array(list) => Content::List(list.iter().map(Self::from).collect()),
            Value::Object(map) => {
                Content::Map(map.iter().map(|(key, value)| (key.as_str().into(), value.into())).collect())
            }
        }
        .into()
    }
}

impl Node {
    /// A map without entries.
    pub fn map() -> Self {
        Content::Map(Vec::new()).into()
    }

    /// The text, with or without quotes.
    pub fn as_str(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) | Content::Plain(text) => Some(text),
            _ => None,
        }
    }

    /// Whether nothing is there: a key without a value, or `null`.
    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Plain(text) if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The value of a key; none too where this is no map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Content::Map(entries) = &self.content else { return None };
        entries.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// Sets a key where it stands, or at the end. What is no map becomes one.
    pub fn set(&mut self, key: &str, value: impl Into<Self>) {
        let value = value.into();
        match self.entry(key) {
            Some(there) => *there = value,
            None => self.entries().push((key.into(), value)),
        }
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) {
        self.entries().retain(|(name, _)| name.as_str() != Some(key));
    }

    /// The value of a key, to be changed.
    pub fn entry(&mut self, key: &str) -> Option<&mut Self> {
        self.entries().iter_mut().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    fn entries(&mut self) -> &mut Vec<(Self, Self)> {
        if !matches!(self.content, Content::Map(_)) {
            *self = Self::map();
        }
        match &mut self.content {
            Content::Map(entries) => entries,
            _ => unreachable!("it was made a map"),
        }
    }
}

/// A document as text; it ends with a line break.
pub fn write(node: &Node) -> String {
    write::document(node)
}

/// A value as a document; it ends with a line break.
pub fn to_string(value: &Value) -> String {
    write::document(&value.into())
}

/// Values as documents of one text.
pub fn all_to_string<'a>(values: impl IntoIterator<Item = &'a Value>) -> String {
    values.into_iter().map(to_string).collect::<Vec<_>>().join("---\n")
}

#[cfg(test)]
pub mod tests;
