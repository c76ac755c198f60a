//! The first document of a text, as kubectl reads it: of a key that is there twice the last one counts, documents
//! behind the first are not looked at, and a byte order mark says only how the text is encoded.

use std::{borrow::Cow, collections::HashMap};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, SpannedEventReceiver, Tag};

use super::{Content, Node};

/// Bytes of a text at most.
const BYTES: usize = 16 * 1024 * 1024;
/// Parts of a document at most, repeated ones counted each time: an alias is a copy.
const NODES: usize = 200_000;
/// Lists and maps in each other at most.
const DEPTH: usize = 100;

/// Why a text is no YAML. It does not quote the text, which may hold secrets.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Longer than the largest text that is read.
    #[error("it is longer than {BYTES} bytes")]
    TooLong,
    /// Neither UTF-8 nor, by its byte order mark, UTF-16.
    #[error("it is not text: neither UTF-8 nor UTF-16")]
    Encoding,
    /// The text is not YAML.
    #[error("it is not YAML: line {line} column {column}")]
    Syntax {
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
    },
    /// Too large, or too deep.
    #[error("it has more than {NODES} parts, or more than {DEPTH} in each other")]
    TooLarge,
}

/// A text that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Document {
    /// Its first document; none for an empty one.
    pub root: Option<Node>,
    /// Whether others stand behind it.
    pub has_more: bool,
}

/// Reads the first YAML document of a file, and notes whether others follow.
///
/// # Errors
/// See [`ReadError`].
pub fn read(bytes: &[u8]) -> Result<Document, ReadError> {
    if bytes.len() > BYTES {
        return Err(ReadError::TooLong);
    }
    let text = decode(bytes)?;
    let mut parser = Parser::new_from_str(&text);
    let mut builder = Builder::default();
    let mut has_more = false;
    while let Some(next) = parser.next_event() {
        match next {
            Ok((Event::DocumentStart(_), _)) if builder.is_ended => {
                has_more = true;
                break;
            }
            Ok((event, span)) => builder.on_event(event, span),
            // Behind the first document nobody looks.
            Err(_) if builder.is_ended => {
                has_more = true;
                break;
            }
            Err(error) => {
                let at = error.marker();
                return Err(ReadError::Syntax { line: at.line(), column: at.col() + 1 });
            }
        }
        if builder.is_too_large {
            return Err(ReadError::TooLarge);
        }
    }
    Ok(Document { root: builder.root, has_more })
}

fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, ReadError> {
    let wide = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.chunks_exact(2).map(|two| unit([two[0], two[1]])).collect();
        let text = String::from_utf16(&units).map_err(|_| ReadError::Encoding)?;
        if bytes.len().is_multiple_of(2) { Ok(Cow::Owned(text)) } else { Err(ReadError::Encoding) }
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => wide(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => wide(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] | rest => {
            std::str::from_utf8(rest).map(Cow::Borrowed).map_err(|_| ReadError::Encoding)
        }
    }
}

/// What `!!str` stands for.
const STR: &str = "tag:yaml.org,2002:str";

/// Makes the tree of the first document's events.
#[derive(Default)]
struct Builder {
    root: Option<Node>,
    is_ended: bool,
    is_too_large: bool,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

/// A list or map whose end has not come.
struct Open {
    node: Node,
    anchor: usize,
    key: Option<Node>,
}

impl SpannedEventReceiver<'_> for Builder {
    fn on_event(&mut self, event: Event<'_>, _: Span) {
        match event {
            Event::DocumentEnd => self.is_ended = true,
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1);
                let (text, tag) = (text.into_owned(), uri(tag.as_deref()));
                let node = match (style, tag) {
                    // Said to be a text, whatever it looks like, also where it is empty.
                    (_, Some(tag)) if tag == STR || tag == "!" => Content::Text(text).into(),
                    (ScalarStyle::Plain, tag) => Node { tag, content: Content::Plain(text) },
                    (_, tag) => Node { tag, content: Content::Text(text) },
                };
                self.put(node, anchor);
            }
            Event::Alias(anchor) => {
                // One that is inside of itself has no end, and is refused as one that is too large.
                let parts = self.anchors.get(&anchor).map_or(usize::MAX, size);
                self.count(parts);
                if let Some(node) = self.anchors.get(&anchor).filter(|_| !self.is_too_large).cloned() {
                    self.put(node, 0);
                }
            }
            Event::SequenceStart(anchor, tag) => self.begin(Content::List(Vec::new()), anchor, tag.as_deref()),
            Event::MappingStart(anchor, tag) => self.begin(Content::Map(Vec::new()), anchor, tag.as_deref()),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.put(open.node, open.anchor);
                }
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) => {}
        }
    }
}

impl Builder {
    fn begin(&mut self, content: Content, anchor: usize, tag: Option<&Tag>) {
        self.count(1);
        self.is_too_large |= self.open.len() >= DEPTH;
        self.open.push(Open { node: Node { tag: uri(tag), content }, anchor, key: None });
    }

    fn count(&mut self, parts: usize) {
        self.nodes = self.nodes.saturating_add(parts);
        self.is_too_large |= self.nodes > NODES;
    }

    fn put(&mut self, node: Node, anchor: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.root.get_or_insert(node);
            return;
        };
        match (&mut open.node.content, open.key.take()) {
            (Content::List(items), _) => items.push(node),
            (Content::Map(_), None) => open.key = Some(node),
            (Content::Map(entries), Some(key)) => {
                match entries.iter_mut().find(|(there, _)| there.as_str().is_some() && there.as_str() == key.as_str()) {
                    Some((_, there)) => *there = node,
                    None => entries.push((key, node)),
                }
            }
            (Content::Text(_) | Content::Plain(_), _) => {}
        }
    }
}

fn size(node: &Node) -> usize {
    1 + match &node.content {
        Content::List(items) => items.iter().map(size).sum(),
        Content::Map(entries) => entries.iter().map(|(key, value)| size(key) + size(value)).sum(),
        Content::Text(_) | Content::Plain(_) => 0,
    }
}

fn uri(tag: Option<&Tag>) -> Option<String> {
    tag.map(|tag| format!("{}{}", tag.handle, tag.suffix))
}
