//! Tags of a resource, as typed.

/// Tags of a resource.
#[derive(Debug, clap::Args, Clone, Default)]
pub struct TagArgs {
    /// Tags, KEY=VALUE each, instead of those that there are; "" for none
    #[arg(long, value_name = "KEY=VALUE", num_args = 0.., value_parser = tag_or_none)]
    pub tags: Option<Vec<Option<(String, String)>>>,
}

impl TagArgs {
    /// As the API has them; none if they were not given.
    pub fn json(&self) -> Option<serde_json::Value> {
        let tags = self.tags.as_ref()?;
        Some(
            tags.iter()
                .flatten()
                .map(|(key, value)| (key.clone(), value.as_str().into()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        )
    }
}

fn tag_or_none(text: &str) -> Result<Option<(String, String)>, String> {
    if text.is_empty() { Ok(None) } else { tag(text).map(Some) }
}

/// `KEY=VALUE` of tags; an empty value is one.
pub(super) fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as team=web".to_owned()),
    }
}
