//! `towline flux deployed-object`: what a configuration made in its cluster, and whether it complies (docs/features.md
//! G9).

use anyhow::anyhow;
use clap::Subcommand;
use serde_json::Value;

use super::{super::CommonArgs, Configuration, NamedConfiguration, message};
use crate::{
    failure::{Failure, Outcome},
    output::{self, Column},
};

const COLUMNS: &[Column] = &[
    ("Kind", "/kind"),
    ("Namespace", "/namespace"),
    ("Name", "/name"),
    ("Compliance", "/complianceState"),
    ("AppliedBy", "/appliedBy/name"),
    ("Message", "/message"),
];
const DETAILS: &[Column] = &[
    ("Kind", "/kind"),
    ("Namespace", "/namespace"),
    ("Name", "/name"),
    ("Compliance", "/complianceState"),
    ("AppliedBy", "/appliedBy"),
    ("Conditions", "/statusConditions"),
    ("HelmRelease", "/helmReleaseProperties"),
];

/// `towline flux deployed-object <action>`.
#[derive(Debug, Subcommand)]
pub enum ObjectAction {
    /// The objects of a configuration
    List {
        /// Of which one.
        #[command(flatten)]
        configuration: NamedConfiguration,
    },
    /// One object
    Show {
        /// Of which configuration.
        #[command(flatten)]
        configuration: NamedConfiguration,
        /// The object's name
        #[arg(long, value_name = "NAME")]
        object_name: String,
        /// Its namespace; none for an object of the whole cluster
        #[arg(long, value_name = "NAMESPACE", default_value = "")]
        object_namespace: String,
        /// Its kind, such as Kustomization or Deployment
        #[arg(long, value_name = "KIND")]
        object_kind: String,
    },
}

/// `towline flux deployed-object <action>`.
pub async fn run(action: ObjectAction, common: &CommonArgs) -> Outcome<()> {
    match action {
        ObjectAction::List { configuration } => {
            let shown = Configuration::open(&configuration, common).await?.get().await?;
            let mut rows: Vec<Value> = statuses(&shown).cloned().collect();
            for row in &mut rows {
                row["message"] = message(row).into();
            }
            output::print_list(rows, &common.output, COLUMNS, "no objects yet")
        }
        ObjectAction::Show { configuration, object_name, object_namespace, object_kind } => {
            let shown = Configuration::open(&configuration, common).await?.get().await?;
            let found = find(&shown, &object_name, &object_namespace, &object_kind).ok_or_else(|| {
                let error = anyhow!(
                    "Error! Deployed object with name '{object_name}', namespace '{object_namespace}', and kind '{object_kind}' does not exist on configuration '{}'.",
                    configuration.name
                );
                let options = configuration.options();
                Failure::from(error).hint(format!("see which there are: towline flux deployed-object list {options}"))
            })?;
            output::print(found, &common.output, DETAILS)
        }
    }
}

fn statuses(configuration: &Value) -> impl Iterator<Item = &Value> {
    configuration["properties"]["statuses"].as_array().into_iter().flatten()
}

fn find<'a>(configuration: &'a Value, name: &str, namespace: &str, kind: &str) -> Option<&'a Value> {
    statuses(configuration).find(|status| {
        status["name"] == name
            && status["namespace"].as_str().unwrap_or_default() == namespace
            && status["kind"] == kind
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn g9_object_is_found_by_name_namespace_and_kind() {
        let statuses = json!([
            {"name": "a", "namespace": "x", "kind": "Deployment"},
            {"name": "a", "namespace": "x", "kind": "Service"},
            {"name": "a", "kind": "Namespace"},
        ]);
        let shown = json!({"properties": {"statuses": statuses}});
        assert_eq!(find(&shown, "a", "x", "Service"), Some(&statuses[1]));
        assert_eq!(find(&shown, "a", "", "Namespace"), Some(&statuses[2]));
        assert_eq!(find(&shown, "a", "", "Service"), None);
        assert_eq!(find(&json!({"properties": {}}), "a", "x", "Service"), None);
    }
}
