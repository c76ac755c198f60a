//! What the program says: results, and what goes on meanwhile.

use std::io::{ErrorKind, Write};

/// Results go to standard output. A reader that has read enough and closed the pipe (`bench report | head`) is no error; where they
/// cannot be written for another reason, nothing that follows is worth anything.
pub fn say(text: &str) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        progress(&format!("bench: standard output: {error}"));
        std::process::exit(1);
    }
}

/// What goes on meanwhile goes to standard error. Where nobody reads that, the work and its figures are worth as much.
pub fn progress(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
