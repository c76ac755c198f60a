//! Bytes of a log into lines, and a line into what it says. Flux's controllers log JSON, one object a line; the kubelet
//! puts the instant before each.

use serde_json::Value;
use types::{
    agent_api::{LOG_WORD_BYTES, LogLevel},
    instants,
};

/// Bytes of one line; the rest of a longer one is not read, so that it is no JSON.
pub const LINE_BYTES: usize = 64 * 1024;

/// Joins the pieces of a log stream into whole lines; it holds one unfinished line at most.
#[derive(Default)]
pub struct Splitter {
    part: Vec<u8>,
}

impl Splitter {
    /// Hands over every line that ends in `bytes`, without its end.
    pub fn push(&mut self, mut bytes: &[u8], mut take: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.keep(&bytes[..end]);
            take(&self.part);
            self.part.clear();
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LINE_BYTES - self.part.len();
        self.part.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The instant before a line, in nanoseconds since 1970, and the line.
pub fn timed(line: &[u8]) -> Option<(i64, &[u8])> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    let instant = instants::parse(std::str::from_utf8(&line[..end]).ok()?).ok()?;
    Some((i64::try_from(instant.unix_timestamp_nanos()).ok()?, &line[end + 1..]))
}

/// What a line of a controller says, and of which object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// How bad it is.
    pub level: LogLevel,
    /// The object's kind.
    pub kind: String,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The message with the error.
    pub message: String,
}

/// The kind of the objects of one of Flux's controllers by the controller's name, which is that of the kind in small letters.
fn kind_of(controller: &str) -> Option<String> {
    const KINDS: [&str; 7] =
        ["Kustomization", "GitRepository", "OCIRepository", "Bucket", "HelmRelease", "HelmChart", "HelmRepository"];
    KINDS.into_iter().find(|kind| kind.eq_ignore_ascii_case(controller)).map(str::to_owned)
}

impl Said {
    /// Reads a line; `None` if it is not about an object.
    pub fn read(line: &[u8]) -> Option<Self> {
        let line: Value = serde_json::from_slice(line).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let word = |value: &Value| text(value).filter(|word| (1..=LOG_WORD_BYTES).contains(&word.len()));
        let level = match line["level"].as_str()? {
            "error" | "dpanic" | "panic" | "fatal" => LogLevel::Error,
            "debug" | "trace" => LogLevel::Debug,
            _ => LogLevel::Info,
        };
        // kustomize-controller leaves it out where a new commit may end its health checks.
        let kind = word(&line["controllerKind"]).or_else(|| kind_of(line["controller"].as_str()?))?;
        let object = &line[kind.as_str()];
        let name = word(&object["name"]).or_else(|| word(&line["name"]))?;
        let namespace = word(&object["namespace"]).or_else(|| word(&line["namespace"]))?;
        let mut message = text(&line["msg"]).unwrap_or_default();
        if let Some(error) = text(&line["error"]).filter(|error| !error.is_empty()) {
            message = if message.is_empty() { error } else { format!("{message}: {error}") };
        }
        Some(Self { level, kind, namespace, name, message })
    }
}
