//! Logs: text for people, JSON for machines, a level that can change while the program runs, and a last guard that
//! keeps credentials out whatever a library prints.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter, layer::SubscriberExt, reload, util::SubscriberInitExt};
use types::bearer::is_token_byte;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people, in colours on a terminal only.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("log filter {filter:?} is not understood; expected a level or target=level,...")]
    Filter {
        /// The filter as it was given.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Something else in this process has set up logs.
    #[error("logs are set up already")]
    Twice,
    /// The subscriber is gone.
    #[error("the log filter can no longer be changed")]
    Gone,
}

/// Changes the filter while the program runs; the admin listener holds one.
#[derive(Clone)]
pub struct LogLevel {
    handle: reload::Handle<EnvFilter, tracing_subscriber::Registry>,
}

impl LogLevel {
    /// Replaces the filter, such as `info` or `info,tunnel=debug`.
    pub fn set(&self, filter: &str) -> Result<(), TelemetryError> {
        self.handle.reload(parse(filter)?).map_err(|_| TelemetryError::Gone)
    }

    /// The filter in force.
    pub fn current(&self) -> String {
        self.handle.with_current(ToString::to_string).unwrap_or_default()
    }
}

/// Sends the log of the whole process to standard error. `filter` is a level or a list such as `info,tunnel=debug`.
pub fn init(format: LogFormat, filter: &str) -> Result<LogLevel, TelemetryError> {
    init_with_copy::<fn() -> io::Sink>(format, filter, None)
}

/// As [`init`]; `copy` gets each line too, as JSON whatever the format.
pub fn init_with_copy<M>(format: LogFormat, filter: &str, copy: Option<M>) -> Result<LogLevel, TelemetryError>
where
    M: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse(filter)?);
    let copy = copy.map(|copy| {
        let layer = tracing_subscriber::fmt::layer().json().flatten_event(true);
        layer.with_current_span(false).with_span_list(false).with_writer(Scrubbed(copy))
    });
    let registry = tracing_subscriber::registry().with(filter).with(copy);
    let layer = tracing_subscriber::fmt::layer().with_writer(Scrubbed(io::stderr));
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(io::stderr().is_terminal())).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_current_span(false)).try_init(),
    }
    .map_err(|_| TelemetryError::Twice)?;
    Ok(LogLevel { handle })
}

/// Whether `filter` is one.
pub fn check(filter: &str) -> Result<(), TelemetryError> {
    parse(filter).map(|_| ())
}

/// The target of log lines that other programs sent. No level alone shows them, as they are as many as those programs
/// like
///: a filter has to name it.
pub const RELAYED: &str = "agent_logs";

fn parse(filter: &str) -> Result<EnvFilter, TelemetryError> {
    let named = filter.split(',').any(|part| part.split(['=', '[']).next() == Some(RELAYED));
    let parsed = EnvFilter::builder().parse(filter).and_then(|parsed| {
        if named { Ok(parsed) } else { Ok(parsed.add_directive(format!("{RELAYED}=off").parse()?)) }
    });
    parsed.map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })
}

/// A writer of log lines that takes out what looks like a credential. Nothing of ours logs one; this is for a library
/// at TRACE and for a mistake to come.
struct Scrubbed<M>(M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Scrubbed<M> {
    type Writer = Scrubber<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Scrubber(self.0.make_writer())
    }
}

struct Scrubber<W>(W);

impl<W: Write> Write for Scrubber<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The formatter hands over a whole line at a time. With standard error closed there is nobody to tell, and to
        // say so there would end the program.
        let _ = self.0.write_all(&scrub(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What stands in a line instead of a credential.
const REDACTED: &[u8] = b"<redacted>";

/// Replaces JWTs (`eyJ....`), the values of authorization schemes, and private keys.
fn scrub(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    while !rest.is_empty() {
        let (keep, secret) = secret_at(rest);
        if secret > 0 {
            out.extend_from_slice(&rest[..keep]);
            out.extend_from_slice(REDACTED);
            rest = &rest[keep + secret..];
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
    out
}

/// If a secret begins at the front of `rest`: how many bytes of it to keep and how many to take out.
fn secret_at(rest: &[u8]) -> (usize, usize) {
    let word = |from: usize| rest[from..].iter().take_while(|b| is_token_byte(**b)).count();
    if rest.starts_with(b"eyJ") {
        let length = word(0);
        // A JWT's first segment alone is some 20 bytes; shorter words are no secret.
        return if length >= 20 { (0, length) } else { (0, 0) };
    }
    if rest.starts_with(b"-----BEGIN") {
        let end = rest.windows(8).position(|w| w == b"-----END").unwrap_or(rest.len());
        let private = rest[..end].windows(11).any(|w| w == b"PRIVATE KEY");
        return if private { (0, end) } else { (0, 0) };
    }
    for scheme in [b"bearer ".as_slice(), b"basic ", b"pop "] {
        if rest.len() > scheme.len() && rest[..scheme.len()].eq_ignore_ascii_case(scheme) {
            let length = word(scheme.len());
            // "bearer token" in a sentence is no secret.
            return if length >= 8 { (scheme.len(), length) } else { (0, 0) };
        }
    }
    (0, 0)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn scrubbed(text: &str) -> String {
        String::from_utf8(scrub(text.as_bytes())).unwrap()
    }

    #[test]
    fn credentials_are_taken_out_and_the_rest_is_kept() {
        let jwt = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln-_";
        assert_eq!(scrubbed(&format!("token={jwt}, next")), "token=<redacted>, next");
        assert_eq!(scrubbed("Authorization: Bearer abcdefghij\""), "Authorization: Bearer <redacted>\"");
        assert_eq!(scrubbed("basic dXNlcjpwYXNz"), "basic <redacted>");
        assert_eq!(
            scrubbed("a -----BEGIN EC PRIVATE KEY-----\\nxyz\\n-----END EC PRIVATE KEY-----"),
            "a <redacted>-----END EC PRIVATE KEY-----"
        );
        for harmless in ["no bearer token was shown", "eyJ", "-----BEGIN CERTIFICATE-----x-----END", "", "grüße"] {
            assert_eq!(scrubbed(harmless), harmless);
        }
    }

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_reaches_the_writer_scrubbed_and_the_level_can_change() {
        let captured = Captured::default();
        let writer = captured.clone();
        let (filter, handle) = reload::Layer::new(parse("warn").unwrap());
        let level = LogLevel { handle };
        let subscriber = tracing_subscriber::registry()
            .with(filter)
            .with(tracing_subscriber::fmt::layer().json().with_writer(Scrubbed(move || writer.clone())));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("unseen");
            assert_eq!(level.current(), "agent_logs=off,warn");
            level.set("info").unwrap();
            tracing::info!(header = "Bearer 0123456789abcdef", "seen");
        });
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("seen") && text.contains("Bearer <redacted>") && !text.contains("unseen"), "{text}");
        assert!(matches!(level.set("a=b=c"), Err(TelemetryError::Filter { .. })));
    }

    #[test]
    fn lines_of_other_programs_are_shown_to_who_asks_for_them_only() {
        let captured = Captured::default();
        let writer = captured.clone();
        let (filter, handle) = reload::Layer::new(parse("debug").unwrap());
        let level = LogLevel { handle };
        let subscriber = tracing_subscriber::registry()
            .with(filter)
            .with(tracing_subscriber::fmt::layer().with_writer(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            for (filter, line) in
                [("debug", "a1"), ("trace", "a2"), ("debug,not_agent_logs=off", "a4"), ("info,agent_logs=debug", "a3")]
            {
                level.set(filter).unwrap();
                tracing::debug!(target: RELAYED, line, "theirs");
                tracing::error!(line, "ours");
            }
        });
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        let theirs: Vec<_> = text.lines().filter(|line| line.contains("theirs")).collect();
        assert!(theirs.len() == 1 && theirs[0].contains("a3") && text.matches("ours").count() == 4, "{text}");
    }
}
