//! What controllers in clusters logged of what is wanted there (docs/features.md D5): bounded, and the newest lines kept
//! until what they are about is deleted. What a cluster says of its own objects is kept, and of no others.

use serde_json::{Value, json};
use types::{
    agent_api::{LOG_LINES_AT_ONCE, LOG_MESSAGE_BYTES, LOG_WORD_BYTES, LogLine, LogLines},
    api::ResourceId,
    instants::instant,
};

use super::Control;
use crate::{
    api_error::ApiError,
    store::{
        StoreError,
        logs::{Bound, Line, Part, Room},
    },
};

/// What is kept, of a resource and of all of a cluster.
const ROOM: Room = Room {
    of_resource: Bound { lines: 500, bytes: 256 * 1024 },
    of_cluster: Bound { lines: 5000, bytes: 2 * 1024 * 1024 },
};
/// Bytes of the name of a source: the UID of a pod has 36.
const SOURCE_BYTES: usize = 64;
/// What is said of a resource that is not one of this cluster's: no key of one.
const NOBODYS: &str = "";

impl Control {
    /// Keeps what a cluster (its key) tells of the log lines of its controllers.
    ///
    /// # Errors
    /// More than one message has; or the store cannot be written.
    pub async fn lines_told(&self, cluster: &str, told: LogLines) -> Result<(), ApiError> {
        if told.lines.len() > LOG_LINES_AT_ONCE {
            let message = format!("More than {LOG_LINES_AT_ONCE} log lines in one message, the limit.");
            return Err(ApiError::bad_request("InvalidRequestContent", message));
        }
        let named = |line: &LogLine| (1..=SOURCE_BYTES).contains(&line.source.len()) && !line.source.contains('\0');
        let lines: Vec<Line> =
            told.lines.into_iter().filter(named).map(|line| self.bounded_line(cluster, line)).collect();
        if !self.store.keep_lines(cluster, &lines, ROOM).await? {
            tracing::debug!(cluster, "log lines of a cluster that is not in the store");
        }
        Ok(())
    }

    /// A line as it is kept. One of something else than an object of this cluster is taken note of, and not kept.
    fn bounded_line(&self, cluster: &str, mut line: LogLine) -> Line {
        let id = ResourceId::parse(&line.id).ok();
        let own = id.filter(|id| id.parent_key() == cluster && self.followed(id.kind()).is_some());
        for word in [&mut line.controller, &mut line.kind, &mut line.namespace, &mut line.name] {
            cut(word, LOG_WORD_BYTES);
        }
        cut(&mut line.message, LOG_MESSAGE_BYTES);
        let mut shown = json!({
            "time": instant(line.position.nanos.div_euclid(1_000_000)),
            "level": line.level,
            "controller": line.controller,
            "kind": line.kind,
            "namespace": line.namespace,
            "name": line.name,
            "message": line.message,
        });
        if line.left_out > 0 {
            shown["leftOut"] = line.left_out.into();
        }
        Line {
            key: own.map_or_else(|| NOBODYS.to_owned(), |id| id.key().to_owned()),
            source: line.source,
            position: line.position,
            level: line.level,
            line: shown,
        }
    }

    /// Lines of a resource, the oldest first, each with its number; and the number of its newest line, before which none
    /// comes any more.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn lines_of(&self, key: &str, part: Part) -> Result<(Vec<(i64, Value)>, i64), StoreError> {
        // First, so that none is skipped that comes between the two.
        let newest = self.store.newest_line(key).await?;
        let lines = if newest > part.after { self.store.lines_of(key, part).await? } else { Vec::new() };
        let newest = lines.last().map_or(newest, |(number, _)| newest.max(*number));
        Ok((lines, newest))
    }
}

/// At most so many bytes. Control characters are replaced: no column takes all of them, JSON makes six bytes of each, and
/// nobody needs them to read a line.
fn cut(text: &mut String, bytes: usize) {
    let is_wrong = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if text.contains(is_wrong) {
        *text = text.replace(is_wrong, " ");
    }
    text.truncate(text.floor_char_boundary(bytes));
}
