//! What a program prints to standard output: the whole of it, or why not. A full disk is a failure; a reader that has
//! had enough, such as head(1), ends the program without a word.

use std::io::{self, ErrorKind, Write};

/// Exit code of what nobody reads any more, as shells have it of a program that SIGPIPE ended (128 + 13).
pub const UNREAD: u8 = 141;

/// Prints a text, with a line break at its end.
///
/// # Errors
/// When the text cannot be written to standard output; [`ErrorKind::BrokenPipe`] where its reader has gone.
pub fn print(text: &str) -> io::Result<()> {
    write(&mut io::stdout().lock(), text)
}

fn write(out: &mut impl Write, text: &str) -> io::Result<()> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|error| io::Error::new(error.kind(), format!("standard output cannot be written: {error}")))
}

/// The exit code after [`print`] failed, and what there is to say of it: nothing where the reader has gone.
pub fn failed(error: &io::Error) -> (u8, Option<&io::Error>) {
    match error.kind() {
        ErrorKind::BrokenPipe => (UNREAD, None),
        _ => (1, Some(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Full(ErrorKind);

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_not_printed_is_no_success() {
        let mut out = Vec::new();
        write(&mut out, "a\nb\n").unwrap();
        write(&mut out, "c").unwrap();
        assert_eq!(out, b"a\nb\nc\n");
        let full = write(&mut Full(ErrorKind::StorageFull), "a").unwrap_err();
        assert!(full.to_string().starts_with("standard output cannot be written: "), "{full}");
        assert!(matches!(failed(&full), (1, Some(_))));
        let gone = write(&mut Full(ErrorKind::BrokenPipe), "a").unwrap_err();
        assert!(matches!(failed(&gone), (UNREAD, None)));
    }
}
