//! Resource groups, clusters, and what is done with them by name.

use clap::{Args as ClapArgs, Subcommand};

use super::{AgentProxyArgs, CommonArgs, KubeArgs, WaitArgs, names};

/// `KEY=VALUE` of tags; an empty value is one.
fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as team=web".to_owned()),
    }
}

/// Tags of a resource.
#[derive(Debug, ClapArgs, Clone, Default)]
pub struct TagArgs {
    /// Tags, KEY=VALUE each, instead of those that there are; "" for none
    #[arg(long, value_name = "KEY=VALUE", num_args = 0.., value_parser = tag_or_none)]
    pub tags: Option<Vec<Option<(String, String)>>>,
}

fn tag_or_none(text: &str) -> Result<Option<(String, String)>, String> {
    if text.is_empty() { Ok(None) } else { tag(text).map(Some) }
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

/// A cluster by its name.
#[derive(Debug, ClapArgs, Clone)]
pub struct NamedCluster {
    /// The cluster
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster)]
    pub name: String,
    /// Its resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: String,
}

/// `towline group`.
#[derive(Debug, ClapArgs)]
pub struct GroupArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: GroupAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// The name of a resource group.
#[derive(Debug, ClapArgs)]
pub struct GroupName {
    /// The resource group
    #[arg(short = 'g', short_alias = 'n', long = "name", visible_alias = "resource-group", value_name = "GROUP", value_parser = names::group)]
    pub name: String,
}

/// `towline group <action>`.
#[derive(Debug, Subcommand)]
pub enum GroupAction {
    /// Make a resource group, or give one other tags
    Create {
        /// Which one.
        #[command(flatten)]
        group: GroupName,
        /// Where it is said to be
        #[arg(short = 'l', long, value_name = "LOCATION", value_parser = names::location)]
        location: String,
        /// Its tags.
        #[command(flatten)]
        tags: TagArgs,
    },
    /// The resource groups of the subscription
    List,
    /// One resource group
    Show {
        /// Which one.
        #[command(flatten)]
        group: GroupName,
    },
    /// Delete a resource group and all that is in it
    Delete {
        /// Which one.
        #[command(flatten)]
        group: GroupName,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// How long to wait.
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Print true or false
    Exists {
        /// Which one.
        #[command(flatten)]
        group: GroupName,
    },
}

/// `towline list`.
#[derive(Debug, ClapArgs)]
pub struct ListArgs {
    /// Only of this resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: Option<String>,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline show`.
#[derive(Debug, ClapArgs)]
pub struct ShowArgs {
    /// Which one.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline update`.
#[derive(Debug, ClapArgs)]
pub struct UpdateArgs {
    /// Which one.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// Its tags.
    #[command(flatten)]
    pub tags: TagArgs,
    /// The distribution, such as k3s
    #[arg(long, value_name = "NAME")]
    pub distribution: Option<String>,
    /// Its version
    #[arg(long, value_name = "VERSION")]
    pub distribution_version: Option<String>,
    /// Whether agents may be upgraded by themselves
    #[arg(long, value_name = "true|false")]
    pub auto_upgrade: Option<bool>,
    /// How its agents get to the gateway.
    #[command(flatten)]
    pub proxy: AgentProxyArgs,
    /// Give its agents this program's version
    #[arg(long)]
    pub upgrade: bool,
    /// Where the agents are, for changes of their proxy and version.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// How long to wait for agents that change.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A feature of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Feature {
    /// People reach the cluster through the gateway.
    ClusterConnect,
    /// Roles of the gateway decide each call.
    AzureRbac,
}

/// `towline enable-features` and `disable-features`.
#[derive(Debug, ClapArgs)]
pub struct FeaturesArgs {
    /// Which one.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// Which features
    #[arg(long, value_enum, required = true, num_args = 1.., value_delimiter = ',', value_name = "FEATURE")]
    pub features: Vec<Feature>,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}
