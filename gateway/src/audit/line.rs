//! What is known of a request, and the line that is made of it. It is gathered as it comes, with one piece of memory
//! for all texts, and nothing is spelled out: the writer's thread does that, where no request waits for it.

use std::{
    borrow::Cow,
    net::SocketAddr,
    ops::Range,
    time::{Duration, SystemTime},
};

use serde::Serialize;
use tunnel::transport::CarrierKind;
use types::{
    ids::{ClusterKey, RequestId, hex},
    instants::rfc3339,
};

use super::{Outcome, TEXT_BYTES, waiting::Slot};
use crate::metrics::labels::Stage;

/// What the texts of most records take, in bytes.
const TEXTS_BYTES: usize = 512;
/// Behind a text that was cut.
const CUT: &str = "...";

/// The texts of a record.
#[derive(Clone, Copy)]
pub(super) enum Text {
    CorrelationId,
    User,
    Issuer,
    ImpersonatedUser,
    Method,
    Path,
    Verb,
    ApiGroup,
    Resource,
    Namespace,
    Name,
    Upgrade,
    Cluster,
    HandedTo,
    Reason,
}

/// How many [`Text`]s there are.
const TEXTS: usize = Text::Reason as usize + 1;

/// The texts that are known, one behind the other, each cut to [`TEXT_BYTES`].
struct Texts {
    all: String,
    at: [Option<Range<u32>>; TEXTS],
}

impl Texts {
    fn set(&mut self, which: Text, text: &str) {
        let at = &mut self.at[which as usize];
        // What is set again takes the place of what it was, if nothing came behind it.
        if let Some(old) = at.take_if(|old| old.start < old.end && old.end as usize == self.all.len()) {
            self.all.truncate(old.start as usize);
        }
        // At the front: one at the end would be cut off with what stands before it and is set again.
        if text.is_empty() {
            *at = Some(0..0);
            return;
        }
        let start = self.all.len();
        let (kept, mark) = cut(text);
        self.all.push_str(kept);
        self.all.push_str(mark);
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        *at = Some(place(start)..place(self.all.len()));
    }

    fn get(&self, which: Text) -> Option<&str> {
        let Range { start, end } = self.at[which as usize].clone()?;
        self.all.get(start as usize..end as usize)
    }
}

/// What is known of a request.
pub(super) struct Known {
    time: SystemTime,
    pub(super) id: RequestId,
    pub(super) user_address: SocketAddr,
    /// Others of its network, refused before it was known whose they are, of which there is no record.
    pub(super) unrecorded: u64,
    /// Whose share of the queue it takes a place of.
    pub(super) of: Option<Slot>,
    texts: Texts,
    /// The trace that it belongs to (W3C).
    pub(super) trace: Option<[u8; 16]>,
    /// The cluster that the address names; [`Text::Cluster`] is the one that it is.
    pub(super) key: Option<ClusterKey>,
    /// What the gateway decided, in one word.
    pub(super) decision: &'static str,
    pub(super) outcome: Outcome,
    pub(super) carrier: Option<CarrierKind>,
    /// The last one that it reached.
    pub(super) stage: Stage,
    pub(super) status: u16,
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
    pub(super) took: Duration,
}

impl Known {
    /// Of a request that comes now.
    pub(super) fn begin(id: RequestId, user_address: SocketAddr) -> Self {
        Self {
            time: SystemTime::now(),
            id,
            user_address,
            unrecorded: 0,
            of: None,
            texts: Texts { all: String::with_capacity(TEXTS_BYTES), at: [const { None }; TEXTS] },
            trace: None,
            key: None,
            decision: "none",
            outcome: Outcome::Cancelled,
            carrier: None,
            stage: Stage::Address,
            status: 0,
            bytes_up: 0,
            bytes_down: 0,
            took: Duration::ZERO,
        }
    }

    /// Sets a text, cut to [`TEXT_BYTES`].
    pub(super) fn set(&mut self, which: Text, text: &str) {
        self.texts.set(which, text);
    }

    /// A text, if it is known.
    pub(super) fn get(&self, which: Text) -> Option<&str> {
        self.texts.get(which)
    }

    /// Whether a credential of its user was accepted.
    pub(super) fn is_named(&self) -> bool {
        self.get(Text::User).is_some()
    }

    /// Whether it was refused, or went away, before anybody knew whose it is.
    pub(super) fn is_nobodys(&self) -> bool {
        // 101 is an agent's tunnel in a WebSocket.
        !self.is_named() && (!(100..400).contains(&self.status) || self.stage == Stage::Authenticate)
    }

    /// The cluster that it is, or the one that the address names.
    pub(super) fn cluster(&self) -> Option<Cow<'_, str>> {
        self.get(Text::Cluster).map(Cow::Borrowed).or_else(|| self.key.map(|key| Cow::Owned(key.hex())))
    }

    /// Appends the line, with its line feed, and with the name of the replica that it is of.
    pub(super) fn write_to(&self, replica: Option<&str>, lines: &mut Vec<u8>) {
        let text = |which| self.get(which);
        let (always, filled) =
            (|which| text(which).unwrap_or_default(), |which| text(which).filter(|text| !text.is_empty()));
        let line = Line {
            time: rfc3339(self.time),
            replica,
            request_id: self.id.to_string(),
            trace_id: self.trace.map(|id| hex(&id)),
            correlation_id: text(Text::CorrelationId),
            user_address: self.user_address,
            user: text(Text::User),
            issuer: text(Text::Issuer),
            impersonated_user: text(Text::ImpersonatedUser),
            method: always(Text::Method),
            path: always(Text::Path),
            verb: always(Text::Verb),
            api_group: filled(Text::ApiGroup),
            resource: filled(Text::Resource),
            namespace: filled(Text::Namespace),
            name: filled(Text::Name),
            upgrade: text(Text::Upgrade),
            cluster: self.cluster(),
            decision: self.decision,
            reason: text(Text::Reason),
            stage: self.stage.as_str(),
            status: self.status,
            outcome: self.outcome,
            bytes_up: self.bytes_up,
            bytes_down: self.bytes_down,
            duration_ms: u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
            carrier: self.carrier.map(CarrierKind::as_str),
            handed_to: filled(Text::HandedTo),
            unrecorded: self.unrecorded,
        };
        let begun = lines.len();
        match serde_json::to_writer(&mut *lines, &line) {
            Ok(()) => lines.push(b'\n'),
            // A vector takes all, and texts and numbers can all be written.
            Err(_) => lines.truncate(begun),
        }
    }
}

/// What is kept of a text, and what stands behind it if that is not all.
pub(super) fn cut(text: &str) -> (&str, &'static str) {
    if text.len() <= TEXT_BYTES { (text, "") } else { (&text[..text.floor_char_boundary(TEXT_BYTES)], CUT) }
}

/// What is written, one JSON object a line.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    replica: Option<&'a str>,
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
    user_address: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<&'a str>,
    method: &'a str,
    path: &'a str,
    verb: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Cow<'a, str>>,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    stage: &'static str,
    status: u16,
    outcome: Outcome,
    bytes_up: u64,
    bytes_down: u64,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    carrier: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handed_to: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    unrecorded: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        Known::begin(RequestId([7; 16]), ([192, 0, 2, 1], 5).into())
    }

    fn line(known: &Known) -> serde_json::Value {
        let mut lines = Vec::new();
        known.write_to(None, &mut lines);
        assert_eq!(lines.pop(), Some(b'\n'));
        serde_json::from_slice(&lines).unwrap()
    }

    #[test]
    fn a_line_has_what_was_set_last() {
        let mut known = known();
        known.set(Text::Path, "/all?");
        known.set(Text::Path, "/");
        known.set(Text::User, "ann\n\"");
        known.set(Text::Reason, "first");
        known.set(Text::User, "");
        known.key = Some(ClusterKey::from_hex("ab".repeat(32).as_bytes()).unwrap());
        let before = line(&known);
        known.set(Text::Cluster, "/subscriptions/s");
        let after = line(&known);
        assert_eq!((&before["path"], &before["user"], &before["reason"]), (&"/".into(), &"".into(), &"first".into()));
        assert_eq!((&before["cluster"], &after["cluster"]), (&"ab".repeat(32).into(), &"/subscriptions/s".into()));
        assert_eq!((&after["verb"], after.get("name"), after.get("trace_id")), (&"".into(), None, None));
        assert_eq!(after["user_address"], "192.0.2.1:5");
    }

    #[test]
    fn an_empty_text_outlives_the_one_before_it() {
        let mut known = known();
        known.set(Text::User, "ann");
        known.set(Text::Verb, "");
        known.set(Text::User, "b");
        known.set(Text::Verb, "get");
        known.set(Text::Verb, "");
        known.set(Text::Path, "/");
        let line = line(&known);
        assert_eq!((&line["verb"], &line["user"], &line["path"]), (&"".into(), &"b".into(), &"/".into()));
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let mut known = known();
        known.set(Text::User, &format!("x{}", "é".repeat(TEXT_BYTES)));
        known.set(Text::Path, &"p".repeat(TEXT_BYTES));
        let line = line(&known);
        let user = line["user"].as_str().unwrap();
        assert!(user.ends_with("é...") && user.len() == TEXT_BYTES - 1 + CUT.len(), "{} bytes", user.len());
        assert_eq!(line["path"].as_str().unwrap().len(), TEXT_BYTES);
    }
}
