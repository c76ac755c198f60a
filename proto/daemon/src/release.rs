//! The version of this program: that of the workspace, which is also that of the chart and of the images.
//!
//! Tests of upgrades need programs of several versions. In builds with the feature `testing`, which nothing that ships
//! has, two environment variables make one program pass for another version:
//!
//! | variable | what it does |
//! |---|---|
//! | `TOWLINE_TEST_VERSION` | the version that the program says it has |
//! | `TOWLINE_TEST_FAULT` | how that version is broken, one word that the code which breaks asks for ([`has_fault`]) |

/// Such as `0.2.0`.
pub fn version() -> &'static str {
    #[cfg(feature = "testing")]
    if let Some(version) = pretended() {
        return version;
    }
    env!("CARGO_PKG_VERSION")
}

/// Whether this program is to be broken in this way; never in what ships.
pub fn has_fault(fault: &str) -> bool {
    #[cfg(feature = "testing")]
    if std::env::var("TOWLINE_TEST_FAULT").is_ok_and(|word| word == fault) {
        return true;
    }
    let _ = fault;
    false
}

#[cfg(feature = "testing")]
fn pretended() -> Option<&'static str> {
    static VERSION: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    VERSION.get_or_init(|| std::env::var("TOWLINE_TEST_VERSION").ok().filter(|text| !text.is_empty())).as_deref()
}
