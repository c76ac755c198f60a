//! The gateway's chart.

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tests::{
    case::{Needs, case},
    programs::root,
};

pub fn tests() -> Vec<Trial> {
    vec![case("gateway_chart::every_section_of_the_reference_can_be_given", Needs::Nothing, sections)]
}

/// Sections that the chart writes whole.
const NOT_FOR_VALUES: &[&str] = &["tls"];

/// `config` of the values takes each section of the gateway's reference.
fn sections() -> anyhow::Result<()> {
    let schema = std::fs::read_to_string(root().join("docker/chart/towline-gateway/values.schema.json"))?;
    let schema: Value = serde_json::from_str(&schema)?;
    let known = schema["properties"]["config"]["properties"].as_object().context("no sections")?;
    let reference = std::fs::read_to_string(root().join("gateway/reference.toml"))?;
    let named = reference.lines().map(|line| line.trim_start_matches('#')).filter(|line| line.starts_with('['));
    // Tables below a section are within it.
    let mut named: Vec<&str> =
        named.map(|line| line.trim_matches(['[', ']']).split('.').next().unwrap_or_default()).collect();
    named.sort_unstable();
    named.dedup();
    ensure!(named.len() > 10, "{named:?}");
    for section in &named {
        let excused = NOT_FOR_VALUES.contains(section);
        ensure!(known.contains_key(*section) != excused, "{section}: in the schema {}, excused {excused}", !excused);
    }
    let unknown: Vec<_> = known.keys().filter(|section| !named.contains(&section.as_str())).collect();
    ensure!(unknown.is_empty(), "the gateway has no section {unknown:?}");
    Ok(())
}
