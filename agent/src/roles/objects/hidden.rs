//! Protected settings are in no text that is kept, told or logged: what helm, Flux and the cluster say may repeat them.

use std::collections::BTreeMap;

use types::agent_api::encode;

/// Shorter values are not looked for: they are in every text.
const CHARS_MIN: usize = 4;
/// Lines of values with several.
const LINE_CHARS_MIN: usize = 8;
/// The end of a text, in which they are looked for: more of it is not told.
const TEXT_BYTES: usize = 64 * 1024;
/// What stands in the place of each.
const INSTEAD: &str = "[protected]";

/// Texts that are not told.
#[derive(Default)]
pub struct Hidden(Vec<String>);

impl Hidden {
    /// The values of these settings.
    pub fn of(settings: &BTreeMap<String, String>) -> Self {
        let mut all = Vec::new();
        for value in settings.values() {
            let quoted = serde_json::to_string(value).unwrap_or_default();
            all.push(quoted.trim_matches('"').to_owned());
            all.extend([value.clone(), value.trim().to_owned(), encode(value.as_bytes())]);
            let lines = value.lines().map(str::trim).filter(|line| line.chars().count() >= LINE_CHARS_MIN);
            all.extend(lines.map(str::to_owned));
        }
        all.retain(|one| one.chars().count() >= CHARS_MIN);
        // The longest first: one may be a part of another.
        all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        all.dedup();
        Self(all)
    }

    /// The end of a text without them.
    pub fn hide(&self, text: &str) -> String {
        let from = text.ceil_char_boundary(text.len().saturating_sub(TEXT_BYTES));
        let mut text = text[from..].to_owned();
        for one in &self.0 {
            if text.contains(one) {
                text = text.replace(one, INSTEAD);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e6_values_are_hidden_in_every_form() {
        let settings = [("a", "hunter22"), ("b", "hunter22-and-more"), ("c", "x"), ("d", "line one\n\"line two\"\n")];
        let hidden = Hidden::of(&settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        let said = format!(
            "bad value \"hunter22-and-more\", {}, hunter22; \"line one\\n\\\"line two\\\"\\n\" x line one",
            encode(b"hunter22")
        );
        let shown = hidden.hide(&said);
        assert_eq!(shown.matches(INSTEAD).count(), 5, "{shown}");
        for part in ["hunter", "line", &encode(b"hunter22")] {
            assert!(!shown.contains(part), "{part} in {shown}");
        }
        assert!(shown.contains(" x "));
        assert_eq!(Hidden::default().hide("ä"), "ä");
    }
}
