//! What options say: spans of time, lists and texts, and secrets from files. No error quotes a secret.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    commands::rest,
    failure::{Failure, Outcome},
    secret::read_secret,
};

/// Seconds of a span at most: what Flux is told is a number of 32 bits.
const LONGEST: u64 = i32::MAX as u64;
/// Units of a span, in the order in which they are written, and their seconds.
const UNITS: [(char, u64); 3] = [('h', 3600), ('m', 60), ('s', 1)];

/// A span of time in seconds: `10m`, `1h30m`, `2h5s`, or a number of seconds.
pub fn span(text: &str) -> Result<u64, String> {
    let wrong = || "expected a span such as 10m, 1h30m or a number of seconds".to_owned();
    let (mut rest, mut total, mut units) = (text, 0_u64, UNITS.iter());
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let behind = &rest[digits..];
        let size = match behind.chars().next() {
            // A number alone is seconds.
            None if digits == text.len() => 1,
            None => return Err(wrong()),
            // Each unit once, the largest first.
            Some(unit) => units.find(|(known, _)| *known == unit).ok_or_else(wrong)?.1,
        };
        total = number.checked_mul(size).and_then(|more| total.checked_add(more)).ok_or_else(wrong)?;
        rest = behind.get(1..).unwrap_or_default();
    }
    match total {
        0 => Err("expected more than 0, such as 10m".to_owned()),
        total if total > LONGEST => Err(format!("expected at most {LONGEST} seconds")),
        total => Ok(total),
    }
}

/// A span as [`span`] reads it: `1h30m`.
pub fn spell(mut seconds: u64) -> String {
    let mut text = String::new();
    for (unit, size) in UNITS {
        if seconds >= size {
            text += &format!("{}{unit}", seconds / size);
            seconds %= size;
        }
    }
    text
}

/// Names between commas, with brackets and quotation marks or without: `a,b`, `["a", "b"]`.
pub fn names(text: &str) -> Vec<String> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let name = |text: &str| text.trim().trim_matches(['"', '\'']).to_owned();
    text.split(',').map(name).filter(|name| !name.is_empty()).collect()
}

/// The two options that take one value.
#[derive(Clone, Copy)]
pub struct Options {
    /// The option that takes it as a text.
    pub typed: &'static str,
    /// The option that takes a file with it.
    pub file: &'static str,
}

/// A text typed as Base64, or of a file.
pub fn encoded(typed: Option<&SecretString>, file: Option<&PathBuf>, options: Options) -> Outcome<Option<String>> {
    match (typed, file) {
        (Some(_), Some(_)) => Err(twice(options)),
        (Some(text), None) => {
            let text = text.expose_secret().trim();
            match BASE64.decode(text) {
                Ok(_) => Ok(Some(text.to_owned())),
                Err(_) => Err(Failure::usage(anyhow!("{} is not Base64", options.typed))
                    .hint(format!("the file as it is: {} FILE", options.file))),
            }
        }
        (None, Some(file)) => {
            let text = rest::read(&file.to_string_lossy()).with_context(|| format!("cannot read {}", file.display()));
            let text = text.context(options.file).map_err(Failure::usage)?;
            if text.trim().is_empty() {
                return Err(Failure::usage(anyhow!("{}: {} is empty", options.file, file.display())));
            }
            Ok(Some(BASE64.encode(text)))
        }
        (None, None) => Ok(None),
    }
}

/// A secret that was typed as it is, or is in a file without its line's end.
pub fn secret(typed: Option<&SecretString>, file: Option<&PathBuf>, options: Options) -> Outcome<Option<SecretString>> {
    match (typed, file) {
        (Some(_), Some(_)) => Err(twice(options)),
        (None, Some(file)) => Ok(Some(read_secret(file).context(options.file).map_err(Failure::usage)?)),
        (typed, None) => Ok(typed.cloned()),
    }
}

fn twice(Options { typed, file }: Options) -> Failure {
    Failure::usage(anyhow!("{typed} and {file} say the same")).hint("give one of the two")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_span_is_read_in_hours_minutes_and_seconds() {
        for (text, seconds) in [("600", 600), ("10m", 600), ("1h30m", 5400), ("1h2m5s", 3725), ("2h5s", 7205)] {
            assert_eq!(span(text), Ok(seconds), "{text}");
        }
        assert_eq!((spell(3725), spell(600), spell(7205)), ("1h2m5s".to_owned(), "10m".to_owned(), "2h5s".to_owned()));
        for bad in
            ["", "0", "0m", "m", "5m1h", "1m1m", "10m5", "-1s", "1.5h", "1d", "10 m", "99999999999h", "2147483648"]
        {
            assert!(span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn g1_list_of_names_is_read_with_brackets_and_without() {
        for text in ["a,b", "[a,b]", r#"["a", "b"]"#, "['a','b']", " a , b ,"] {
            assert_eq!(names(text), ["a", "b"], "{text}");
        }
        assert!(names("[]").is_empty());
    }

    #[test]
    fn g1_secret_of_a_file_is_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "geheim\n").unwrap();
        let read = encoded(None, Some(&file), Options { typed: "--a", file: "--a-file" }).unwrap().unwrap();
        assert_eq!(BASE64.decode(read).unwrap(), b"geheim\n");
        let key = secret(None, Some(&file), Options { typed: "--a", file: "--a-file" }).unwrap().unwrap();
        assert_eq!(key.expose_secret(), "geheim");
        let typed = SecretString::from("geheim!");
        let both = secret(Some(&typed), Some(&file), Options { typed: "--a", file: "--a-file" }).unwrap_err();
        let wrong = encoded(Some(&typed), None, Options { typed: "--a", file: "--a-file" }).unwrap_err();
        for failure in [both, wrong] {
            assert!(!format!("{:#}", failure.error()).contains("geheim"));
        }
    }
}
