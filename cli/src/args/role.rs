//! Roles, and requests as they are.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::{CommonArgs, names};

/// `towline role`.
#[derive(Debug, ClapArgs)]
pub struct RoleArgs {
    /// Assignments or definitions.
    #[command(subcommand)]
    pub what: RoleNoun,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline role <noun>`.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it, which was typed")]
pub enum RoleNoun {
    /// Who has which role where
    Assignment {
        /// What to do.
        #[command(subcommand)]
        action: AssignmentAction,
    },
    /// What a role allows
    Definition {
        /// What to do.
        #[command(subcommand)]
        action: DefinitionAction,
    },
}

/// Where something holds; the subscription if nothing is said.
#[derive(Debug, ClapArgs, Clone, Default)]
pub struct ScopeArgs {
    /// The whole id of a subscription, resource group, cluster or namespace
    #[arg(long, value_name = "ID", conflicts_with_all = ["resource_group", "cluster", "namespace"])]
    pub scope: Option<String>,
    /// A resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: Option<String>,
    /// A cluster in it
    #[arg(
        short = 'n',
        long = "name",
        visible_alias = "cluster",
        value_name = "NAME",
        value_parser = names::cluster,
        requires = "resource_group",
        id = "cluster"
    )]
    pub cluster: Option<String>,
    /// A namespace of that cluster
    #[arg(long, value_name = "NAMESPACE", value_parser = names::namespace, requires = "cluster")]
    pub namespace: Option<String>,
}

/// `towline role assignment <action>`.
#[derive(Debug, Subcommand)]
pub enum AssignmentAction {
    /// Give somebody a role
    Create {
        /// A user or service principal by name, or anybody by object id
        #[arg(long, value_name = "NAME|ID")]
        assignee: String,
        /// What that id is of
        #[arg(long, value_name = "TYPE", value_parser = ["User", "Group", "ServicePrincipal"])]
        assignee_type: Option<String>,
        /// The role, by name or id
        #[arg(long, value_name = "ROLE")]
        role: String,
        /// Where.
        #[command(flatten)]
        scope: ScopeArgs,
        /// From when on, such as 2030-01-31T12:00:00Z
        #[arg(long, value_name = "TIME")]
        start: Option<String>,
        /// Until when
        #[arg(long, value_name = "TIME")]
        end: Option<String>,
        /// For people
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
    },
    /// Assignments at a scope and below
    List {
        /// Only those of this user or service principal by name, or of an object id
        #[arg(long, value_name = "NAME|ID")]
        assignee: Option<String>,
        /// Only those of this role
        #[arg(long, value_name = "ROLE")]
        role: Option<String>,
        /// Where.
        #[command(flatten)]
        scope: ScopeArgs,
    },
    /// Take roles back
    Delete {
        /// Whole ids of assignments
        #[arg(long, value_name = "ID", num_args = 1.., conflicts_with_all = ["assignee", "role"], required_unless_present = "assignee")]
        ids: Vec<String>,
        /// Those of this user or service principal by name, or of an object id, at the scope itself
        #[arg(long, value_name = "NAME|ID")]
        assignee: Option<String>,
        /// Of these, those of this role
        #[arg(long, value_name = "ROLE", requires = "assignee")]
        role: Option<String>,
        /// Where.
        #[command(flatten)]
        scope: ScopeArgs,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
    },
}

/// `towline role definition <action>`.
#[derive(Debug, Subcommand)]
pub enum DefinitionAction {
    /// The roles that can be assigned
    List {
        /// Only those that were made here
        #[arg(long)]
        custom_role_only: bool,
    },
    /// One role
    Show {
        /// Its name, or its id
        #[arg(long, value_name = "ROLE")]
        name: String,
    },
    /// Make a role, or replace one of the same name that was made here
    Create {
        /// JSON as `show -o json` has it, or with Name, Actions, AssignableScopes; a file, or - for standard input
        #[arg(long, value_name = "FILE")]
        role_definition: PathBuf,
    },
    /// Delete a role that was made here
    Delete {
        /// Its name, or its id
        #[arg(long, value_name = "ROLE")]
        name: String,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
    },
}

/// `towline rest`.
#[derive(Debug, ClapArgs)]
pub struct RestArgs {
    /// The method
    #[arg(short = 'm', long, value_name = "METHOD", default_value = "GET", ignore_case = true,
        value_parser = ["GET", "HEAD", "PUT", "PATCH", "POST", "DELETE"])]
    pub method: String,
    /// Path and query, or a URL of the gateway; {subscription} stands for the subscription's id
    #[arg(short = 'u', long, value_name = "PATH")]
    pub url: String,
    /// JSON; @FILE reads it from a file, @- from standard input
    #[arg(short = 'b', long, value_name = "JSON")]
    pub body: Option<String>,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline completion`.
#[derive(Debug, ClapArgs)]
pub struct CompletionArgs {
    /// Which shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    pub shell: String,
}
