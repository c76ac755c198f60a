//! What is said to people on standard error, and texts of others on a terminal: what could steer it, or turn text
//! around and so hide what a name is, does not reach it.

use std::{
    fmt::Write as _,
    io::{IsTerminal, Write as _},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use crate::environment::is_dumb;

/// Stands where a character was that could steer a terminal.
const REPLACEMENT: char = '\u{fffd}';

/// Whether a character steers a terminal, ends a line, or turns the direction of text around (C0, DEL, C1, and the
/// marks, embeddings and isolates of the Unicode bidirectional algorithm).
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// On one line: tabs and line breaks become spaces, and what else steers is shown as [`REPLACEMENT`].
pub fn line(text: &str) -> String {
    let shown = |c: char| match c {
        '\t' | '\n' | '\r' => ' ',
        c if steers(c) => REPLACEMENT,
        c => c,
    };
    text.chars().map(shown).collect()
}

/// As [`line`], of at most `length` characters.
pub fn shortened(text: &str, length: usize) -> String {
    let mut short = line(&text.chars().take(length).collect::<String>());
    if text.chars().nth(length).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// As [`line`], but tabs and line breaks stay.
pub fn lines(text: &str) -> String {
    text.chars().map(|c| if steers(c) && !matches!(c, '\n' | '\t') { REPLACEMENT } else { c }).collect()
}

/// The same document with the escapes of JSON for what steers: no such character stands outside of a text.
pub fn escape_json(document: &str) -> String {
    let mut out = String::with_capacity(document.len());
    for c in document.chars() {
        if c != '\n' && steers(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// The last row of the terminal.
static ROW: Row = Row(AtomicBool::new(false));
/// Back to the begin of the line, and nothing on it.
const CLEAR: &str = "\r\x1b[K";

/// A line for people, to standard error.
pub fn say(text: &str) {
    // With standard error closed there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{}{}", ROW.cleared(), lines(text));
}

/// Whether a line that changes stands in a row, which has to go before another one is written.
struct Row(AtomicBool);

impl Row {
    /// What takes the line away, if one stands there.
    fn cleared(&self) -> &'static str {
        if self.0.swap(false, Ordering::Relaxed) { CLEAR } else { "" }
    }

    /// A line in place of the one before. What does not fit is cut off by the terminal (DECAWM): a line that went on in
    /// the next row could not be taken away.
    fn changed(&self, text: &str) -> String {
        self.0.store(true, Ordering::Relaxed);
        format!("{CLEAR}\x1b[?7l{}\x1b[?7h", line(text))
    }
}

/// What is going on, on standard error: one line that changes on a terminal, a line for each change elsewhere.
pub struct Progress {
    what: String,
    begun: Instant,
    terminal: bool,
    last: Mutex<String>,
}

impl Progress {
    /// Begins to show progress of `what` on standard error.
    pub fn new(what: &str) -> Self {
        let terminal = std::io::stderr().is_terminal() && !is_dumb();
        let this = Self { what: what.to_owned(), begun: Instant::now(), terminal, last: Mutex::default() };
        if !terminal {
            say(&format!("{what} ..."));
        }
        this
    }

    /// Says how far it is.
    pub fn note(&self, state: &str) {
        if self.terminal {
            let said = format!("{} ... {state} ({} s)", self.what, self.begun.elapsed().as_secs());
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "{}", ROW.changed(&said));
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != state {
            state.clone_into(&mut last);
            say(&format!("{} ... {state}", self.what));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut err = std::io::stderr().lock();
        let _ = write!(err, "{}", ROW.cleared());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// One of each kind.
    const STEERING: &str = "a\u{1b}[31m\u{7}\u{7f}\u{9b}1m\u{85}\u{202e}x\u{2066}\u{200f}\u{61c}\u{2028}b\u{feff}";

    #[test]
    fn text_that_steers_a_terminal_is_replaced_visibly() {
        let shown = lines(STEERING);
        assert!(!shown.chars().any(steers), "{shown:?}");
        assert_eq!(lines("a\tb"), "a\tb");
        assert_eq!(line("a\u{1b}b\tc\nd"), "a\u{fffd}b c d");
        assert_eq!(lines("a\u{9b}\nb"), "a\u{fffd}\nb");
        assert_eq!((shortened("abc", 3), shortened("abcd", 3)), ("abc".to_owned(), "ab…".to_owned()));
    }

    #[test]
    fn i2_a_line_that_changes_takes_one_row_and_is_gone_before_another_is_written() {
        let row = Row(AtomicBool::new(false));
        assert_eq!(row.cleared(), "");
        assert_eq!(row.changed("making\nit \u{1b}[31m"), "\r\x1b[K\x1b[?7lmaking it \u{fffd}[31m\x1b[?7h");
        assert_eq!((row.cleared(), row.cleared()), (CLEAR, ""));
    }

    #[test]
    fn json_that_steers_a_terminal_is_escaped_and_stays_equal() {
        let value = json!({"name": STEERING, STEERING: [STEERING, 1, null], "plain": "ä €"});
        let shown = escape_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!shown.chars().any(|c| c != '\n' && steers(c)), "{shown:?}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
        assert!(shown.contains("ä €"));
    }
}
