//! `towline role`: who may do what (docs/features.md Z2-Z4, Z6, Z11).

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use gateway::{
    guid,
    resources::{role_assignment::NAME as ASSIGNMENTS, role_definition::NAME as DEFINITIONS},
};
use serde_json::{Map, Value, json};
use types::api::{ResourceId, id::is_same};

use super::{CommonArgs, confirm, names, rest};
use crate::{
    api::{Api, at, encoded, versions},
    context::Context,
    failure::{Failure, Hint, Outcome},
    output::{self, Column, OutputArgs},
    terminal::say,
};

const ASSIGNMENT_COLUMNS: &[Column] = &[
    ("Principal", "/principalName"),
    ("Type", "/properties/principalType"),
    ("Role", "/roleDefinitionName"),
    ("Scope", "/properties/scope"),
    ("Until", "/properties/endDateTime"),
    ("PrincipalId", "/properties/principalId"),
];
const DEFINITION_COLUMNS: &[Column] = &[
    ("Name", "/properties/roleName"),
    ("Type", "/properties/type"),
    ("Id", "/name"),
    ("Description", "/properties/description"),
];

/// Who may do what: role definitions and assignments
#[derive(Debug, clap::Args)]
pub struct Args {
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
#[derive(Debug, clap::Args, Clone, Default)]
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
        /// Where the role is given.
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
        /// Where assignments are listed.
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
        /// Where roles are taken back.
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

pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let roles = Roles { api: Api::of(&context)?, context, output: args.common.output };
    match args.what {
        RoleNoun::Assignment { action } => roles.assignment(action).await?,
        RoleNoun::Definition { action } => roles.definition(action).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives somebody a role, for a command that made them.
pub async fn assign(context: &Context, object_id: &str, role: &str, scope: &ScopeArgs) -> Outcome<()> {
    let roles = Roles { api: Api::of(context)?, context: context.clone(), output: OutputArgs::default() };
    let scope = scope_of(context, scope)?;
    let role = roles.role(&scope, role).await?;
    let properties =
        json!({"roleDefinitionId": role["id"], "principalId": object_id, "principalType": "ServicePrincipal"});
    let id = format!("{scope}/providers/{ASSIGNMENTS}/{}", guid::random()?);
    roles.api.put(&at(id, versions::AUTHORIZATION), &json!({"properties": properties})).await?;
    Ok(())
}

/// The scope that was given, in full.
fn scope_of(context: &Context, args: &ScopeArgs) -> Outcome<String> {
    if let Some(scope) = &args.scope {
        // A namespace of a cluster is a scope, too.
        let id = ResourceId::parse(scope).context("--scope").map_err(Failure::usage);
        let id = id.hint(|| {
            "towline show prints a cluster's Id; or -g GROUP, with --cluster NAME for one of its clusters".to_owned()
        })?;
        return Ok(id.as_str().to_owned());
    }
    let Some(group) = &args.resource_group else { return Ok(context.subscription()?.as_str().to_owned()) };
    let scope = match &args.cluster {
        Some(cluster) => context.cluster(group, cluster)?,
        None => context.group(group)?,
    };
    match &args.namespace {
        Some(name) => {
            Ok(scope.child("namespaces", name).context("--namespace").map_err(Failure::usage)?.as_str().to_owned())
        }
        None => Ok(scope.as_str().to_owned()),
    }
}

struct Roles {
    context: Context,
    api: Api,
    output: OutputArgs,
}

/// Somebody who may have a role.
struct Assignee {
    id: String,
    kind: Option<&'static str>,
}

impl Roles {
    async fn assignment(&self, action: AssignmentAction) -> Outcome<()> {
        match action {
            AssignmentAction::Create { assignee, assignee_type, role, scope, start, end, description } => {
                let scope = scope_of(&self.context, &scope)?;
                let role = self.role(&scope, &role).await?;
                let assignee = match assignee_type.as_deref() {
                    // Of groups the gateway knows the name alone, which is what tokens have.
                    Some("Group") => Assignee { id: assignee, kind: None },
                    Some(_) => {
                        let found = self.assignee(&assignee, true).await?;
                        // Nobody here is called so: a slip of the pen gives the role to nobody.
                        if found.kind.is_none()
                            && !guid::is_guid(&assignee)
                            && found.id != self.context.account().object_id
                        {
                            say(&format!(
                                "note: the gateway's issuer has no account called {assignee:?}; it is taken as another issuer's id"
                            ));
                        }
                        found
                    }
                    None => self.assignee(&assignee, false).await?,
                };
                let mut properties = json!({"roleDefinitionId": role["id"], "principalId": assignee.id});
                let kind = assignee_type.as_deref().or(assignee.kind);
                let more = [
                    ("principalType", kind),
                    ("startDateTime", start.as_deref()),
                    ("endDateTime", end.as_deref()),
                    ("description", description.as_deref()),
                ];
                for (name, value) in more {
                    if let Some(value) = value {
                        properties[name] = value.into();
                    }
                }
                let id = format!("{scope}/providers/{ASSIGNMENTS}/{}", guid::random()?);
                let made = self.api.put(&at(id, versions::AUTHORIZATION), &json!({"properties": properties})).await?;
                let named = self.named(vec![made.body]).await?.pop().unwrap_or_default();
                output::print(&named, &self.output, ASSIGNMENT_COLUMNS)
            }
            AssignmentAction::List { assignee, role, scope } => {
                let scope = scope_of(&self.context, &scope)?;
                let rows = self.assignments(&scope, assignee.as_deref(), role.as_deref()).await?;
                output::print_list(self.named(rows).await?, &self.output, ASSIGNMENT_COLUMNS, "no role assignments")
            }
            AssignmentAction::Delete { ids, assignee, role, scope, yes } => {
                let mut doomed = Vec::new();
                for id in &ids {
                    doomed.push(ResourceId::parse(id).context("--ids").map_err(Failure::usage)?.as_str().to_owned());
                }
                if let Some(assignee) = assignee {
                    let scope = scope_of(&self.context, &scope)?;
                    let rows = self.assignments(&scope, Some(&assignee), role.as_deref()).await?;
                    // Only at this very scope: what is inherited or below is somebody else's decision.
                    let here = |row: &&Value| row["properties"]["scope"].as_str().is_some_and(|is| is_same(is, &scope));
                    doomed.extend(rows.iter().filter(here).filter_map(|row| row["id"].as_str().map(str::to_owned)));
                    if doomed.is_empty() {
                        return Err(Failure::from(anyhow!("{assignee} has no such role at {scope}"))
                            .hint(format!("towline role assignment list --assignee {assignee}")));
                    }
                }
                let question = match doomed.as_slice() {
                    [one] => format!("Delete the role assignment {one}?"),
                    all => format!("Delete {} role assignments: {}?", all.len(), all.join(", ")),
                };
                confirm(&question, yes).await?;
                for id in doomed {
                    self.api.delete(&at(&id, versions::AUTHORIZATION)).await?;
                    say(&format!("deleted {id}"));
                }
                Ok(())
            }
        }
    }

    async fn assignments(&self, scope: &str, assignee: Option<&str>, role: Option<&str>) -> Outcome<Vec<Value>> {
        let mut target = at(format!("{scope}/providers/{ASSIGNMENTS}"), versions::AUTHORIZATION);
        if let Some(assignee) = assignee {
            let id = self.assignee(assignee, true).await?.id;
            target = format!("{target}&$filter={}", encoded(&format!("principalId eq '{}'", id.replace('\'', "''"))));
        }
        let mut rows = self.api.list(&target).await?;
        if let Some(role) = role {
            let role = self.role(scope, role).await?;
            rows.retain(|row| guid_of(&row["properties"]["roleDefinitionId"]) == guid_of(&role["id"]));
        }
        Ok(rows)
    }

    /// With the names of roles and principals beside their ids, where they can be had.
    async fn named(&self, mut rows: Vec<Value>) -> Outcome<Vec<Value>> {
        let roles = self.definitions(self.context.subscription()?.as_str()).await.unwrap_or_default();
        let mut ids: Vec<&str> = rows.iter().filter_map(|row| row["properties"]["principalId"].as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut names = Map::new();
        for ids in ids.chunks(1000) {
            let found = self.api.post("/v1.0/directoryObjects/getByIds", &json!({"ids": ids})).await;
            // Nobody of these is known to the gateway's own issuer.
            let Ok(found) = found else { continue };
            for one in found.body["value"].as_array().into_iter().flatten() {
                if let Some(id) = one["id"].as_str() {
                    names.insert(id.to_ascii_lowercase(), one["displayName"].clone());
                }
            }
        }
        for row in &mut rows {
            let role =
                roles.iter().find(|role| guid_of(&role["id"]) == guid_of(&row["properties"]["roleDefinitionId"]));
            let role = role.map_or(Value::Null, |role| role["properties"]["roleName"].clone());
            let id = row["properties"]["principalId"].as_str().unwrap_or_default().to_owned();
            let name = names.get(&id.to_ascii_lowercase()).cloned().unwrap_or_else(|| id.into());
            if let Some(row) = row.as_object_mut() {
                row.insert("roleDefinitionName".to_owned(), role);
                row.insert("principalName".to_owned(), name);
            }
        }
        Ok(rows)
    }

    /// Who is meant: a GUID is an object id already, and so is whatever nobody here is called by, if it
    /// `may_be_foreign`.
    async fn assignee(&self, text: &str, may_be_foreign: bool) -> Outcome<Assignee> {
        let ask = async |list: &str, field: &str| {
            let filter = encoded(&format!("{field} eq '{}'", text.replace('\'', "''")));
            let rows = self.api.list(&format!("/v1.0/{list}?$filter={filter}")).await?;
            let found = rows.iter().find_map(|row| row["id"].as_str().map(str::to_owned));
            Ok::<_, Failure>(found)
        };
        for (list, field, kind) in
            [("servicePrincipals", "displayName", "ServicePrincipal"), ("users", "userPrincipalName", "User")]
        {
            if let Some(id) = ask(list, field).await? {
                return Ok(Assignee { id, kind: Some(kind) });
            }
        }
        if may_be_foreign || guid::is_guid(text) || text == self.context.account().object_id {
            return Ok(Assignee { id: text.to_owned(), kind: None });
        }
        Err(Failure::from(anyhow!("the gateway's issuer has no account called {text:?}"))
            .hint("a group, or a user of another issuer: say which, --assignee ID --assignee-type Group|User"))
    }

    async fn definitions(&self, scope: &str) -> Outcome<Vec<Value>> {
        self.api.list(&at(format!("{scope}/providers/{DEFINITIONS}"), versions::AUTHORIZATION)).await
    }

    /// A role by its name, GUID or id.
    async fn role(&self, scope: &str, text: &str) -> Outcome<Value> {
        let roles = self.definitions(scope).await?;
        let guid = text.rsplit('/').next().unwrap_or_default();
        let is = |role: &&Value| {
            let name = role["properties"]["roleName"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(text));
            name || role["name"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(guid))
        };
        roles.iter().find(is).cloned().ok_or_else(|| {
            Failure::from(anyhow!("there is no role {text:?} at {scope}")).hint("towline role definition list")
        })
    }

    async fn definition(&self, action: DefinitionAction) -> Outcome<()> {
        let scope = self.context.subscription()?.as_str().to_owned();
        match action {
            DefinitionAction::List { custom_role_only } => {
                let mut rows = self.definitions(&scope).await?;
                rows.retain(|row| !custom_role_only || row["properties"]["type"] == "CustomRole");
                output::print_list(rows, &self.output, DEFINITION_COLUMNS, "no such role definitions")
            }
            DefinitionAction::Show { name } => {
                let columns = &[
                    DEFINITION_COLUMNS,
                    &[("Permissions", "/properties/permissions"), ("AssignableScopes", "/properties/assignableScopes")],
                ]
                .concat();
                output::print(&self.role(&scope, &name).await?, &self.output, columns)
            }
            DefinitionAction::Create { role_definition } => {
                let properties = read_definition(&role_definition, &scope)?;
                let known = self.definitions(&scope).await?;
                let same = |row: &&Value| row["properties"]["roleName"].as_str() == properties["roleName"].as_str();
                let name = match known.iter().find(same).and_then(|row| row["name"].as_str()) {
                    Some(name) => name.to_owned(),
                    None => guid::random()?,
                };
                let id = format!("{scope}/providers/{DEFINITIONS}/{name}");
                let made = self.api.put(&at(id, versions::AUTHORIZATION), &json!({"properties": properties})).await?;
                output::print(&made.body, &self.output, DEFINITION_COLUMNS)
            }
            DefinitionAction::Delete { name, yes } => {
                let role = self.role(&scope, &name).await?;
                confirm(&format!("Delete the role {name}?"), yes).await?;
                let id = role["id"].as_str().context("the gateway answered with a role that has no id")?;
                self.api.delete(&at(id, versions::AUTHORIZATION)).await?;
                say(&format!("deleted role {name}"));
                Ok(())
            }
        }
    }
}

fn guid_of(id: &Value) -> Option<String> {
    Some(id.as_str()?.rsplit('/').next()?.to_ascii_lowercase())
}

/// As `show` prints it, or in the short form that `az role definition create` takes.
fn read_definition(file: &Path, scope: &str) -> Outcome<Value> {
    let what = || format!("--role-definition {}", file.display());
    let text = rest::read(&file.display().to_string()).with_context(what).map_err(Failure::usage)?;
    let value: Value = serde_json::from_str(&text).with_context(what).map_err(Failure::usage)?;
    if value["properties"].is_object() {
        return Ok(value["properties"].clone());
    }
    let member = |name: &str| {
        let members = value.as_object();
        members
            .and_then(|all| all.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)))
            .map(|(_, value)| value.clone())
    };
    let name = member("roleName").or_else(|| member("name"));
    let name = name.with_context(|| format!("{}: there is no Name", what())).map_err(Failure::usage)?;
    let list = |name: &str| member(name).unwrap_or_else(|| json!([]));
    Ok(json!({
        "roleName": name,
        "description": member("description").unwrap_or_else(|| "".into()),
        "assignableScopes": member("assignableScopes").unwrap_or_else(|| json!([scope])),
        "permissions": member("permissions").unwrap_or_else(|| json!([{
            "actions": list("actions"), "notActions": list("notActions"),
            "dataActions": list("dataActions"), "notDataActions": list("notDataActions"),
        }])),
    }))
}
