//! Service principals, enrolment tokens, sessions and events.

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use daemon::settings::positive_duration;

use super::{CommonArgs, ScopeArgs, names};

/// `towline sp`.
#[derive(Debug, ClapArgs)]
pub struct SpArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: SpAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline sp <action>`.
#[derive(Debug, Subcommand)]
pub enum SpAction {
    /// Make a service principal; its secret is shown this once
    Create {
        /// How it is called
        #[arg(value_name = "NAME")]
        name: String,
        /// Give it this role, by name or id
        #[arg(long, value_name = "ROLE")]
        role: Option<String>,
        /// Where.
        #[command(flatten)]
        scope: ScopeArgs,
        /// How long the secret is good for, such as 720h; a year without this
        #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
        ttl: Option<Duration>,
        /// Write the secret to this new file (0600) instead of showing it
        #[arg(long, value_name = "FILE")]
        secret_file: Option<std::path::PathBuf>,
    },
    /// The service principals of the gateway
    List,
    /// One service principal
    Show {
        /// Name, object id or client id
        #[arg(value_name = "NAME|ID")]
        name: String,
    },
    /// Give a service principal a new secret, instead of those that it has
    Rotate {
        /// Name, object id or client id
        #[arg(value_name = "NAME|ID")]
        name: String,
        /// Leave the present secrets good as well; a further rotation without this ends them
        #[arg(long)]
        append: bool,
        /// How long the secret is good for, such as 720h; a year without this
        #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
        ttl: Option<Duration>,
        /// Write the secret to this new file (0600) instead of showing it
        #[arg(long, value_name = "FILE")]
        secret_file: Option<std::path::PathBuf>,
    },
    /// Delete a service principal: no tokens any more, and its sessions end
    Delete {
        /// Name, object id or client id
        #[arg(value_name = "NAME|ID")]
        name: String,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
    },
}

/// `towline enrolment-token`.
#[derive(Debug, ClapArgs)]
pub struct EnrolmentTokenArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: EnrolmentTokenAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline enrolment-token <action>`.
#[derive(Debug, Subcommand)]
pub enum EnrolmentTokenAction {
    /// Make a token that connects one cluster in a resource group; it is shown this once
    Create {
        /// The resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
        resource_group: String,
        /// The only name that the cluster may have
        #[arg(short = 'n', long, value_name = "NAME", value_parser = names::new_cluster)]
        name: Option<String>,
        /// How long it is good for, such as 30m or 3d; an hour without this
        #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
        ttl: Option<Duration>,
        /// Write the token to this new file (0600) instead of showing it
        #[arg(long, value_name = "FILE")]
        secret_file: Option<std::path::PathBuf>,
    },
    /// The tokens of a resource group that are good, without their secrets
    List {
        /// The resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
        resource_group: String,
    },
    /// End a token before its time
    Withdraw {
        /// The resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
        resource_group: String,
        /// Its id, as `create` and `list` say it
        #[arg(value_name = "ID", required = true, num_args = 1..)]
        ids: Vec<String>,
    },
}

/// `towline sessions`.
#[derive(Debug, ClapArgs)]
pub struct SessionsArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: SessionsAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline sessions <action>`.
#[derive(Debug, Subcommand)]
pub enum SessionsAction {
    /// Open sessions: your own, and those at clusters where you may see others'
    List {
        /// Only at this cluster
        #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster, requires = "resource_group")]
        name: Option<String>,
        /// Its resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, requires = "name")]
        resource_group: Option<String>,
    },
    /// End a session
    End {
        /// Its id, as `list` says it
        #[arg(value_name = "ID", required = true, num_args = 1..)]
        ids: Vec<String>,
    },
}

/// `towline events`.
#[derive(Debug, ClapArgs)]
pub struct EventsArgs {
    /// Only of this resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: Option<String>,
    /// Only of this cluster
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster, requires = "resource_group")]
    pub name: Option<String>,
    /// Begin behind the event of this id
    #[arg(long, value_name = "ID")]
    pub after: Option<u64>,
    /// Go on with what happens, until Ctrl+C
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}
