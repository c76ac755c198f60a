//! From what is wanted, the catalogue, the cluster and what is there to what helm must do. No IO: a decision, with a
//! sentence where it is no.

use std::{collections::BTreeMap, time::SystemTime};

use catalogue::{
    choice::{Cluster, Unfit, UpgradeMode, newest, upgrade},
    digest::Sha256,
    index::{ExtensionType, Index, Release as Offered, Scope},
    version::Version,
};
use serde::Deserialize;
use serde_json::{Value, json};
use types::{
    agent_api::AGENTS_TYPE,
    window::{self, Window, WindowError},
};

use super::{
    images::Rules,
    locks,
    releases::{Release, Releases, Stage},
    state::{Extension, Fault, Installed, Phase, Problem},
    values::SETTINGS_MAX,
};
use crate::{config::Extensions, roles::objects::namespace};

/// The properties of an extension, as far as the cluster acts by them. Unknown ones are the gateway's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Properties {
    /// A type of the catalogue.
    pub extension_type: String,
    /// `none`, `patch` or `compatible`.
    pub auto_upgrade_mode: Option<String>,
    /// False is `none`, where no mode is given.
    pub auto_upgrade_minor_version: Option<bool>,
    /// The train; `Stable` without it.
    pub release_train: Option<String>,
    /// This version and no other.
    pub version: Option<String>,
    /// Scope that the user asks for; absent for the default scope of the type.
    pub scope: Option<Scopes>,
    /// By dotted key.
    pub configuration_settings: Option<BTreeMap<String, Option<String>>>,
    /// `repair` or `report`.
    pub reconcile: Option<String>,
    /// When automatic upgrades begin; absent: at any time.
    pub auto_upgrade_window: Option<WindowSpec>,
}

/// A maintenance window as the user gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WindowSpec {
    /// Five fields as of cron.
    pub schedule: String,
    /// How long it is open.
    pub duration_hours: u32,
    /// The name of a time zone; UTC without it.
    pub time_zone: Option<String>,
}

impl WindowSpec {
    fn window(&self) -> Result<Window, Problem> {
        let wrong =
            |err: WindowError| Problem::stays("InvalidProperties", format!("autoUpgradeWindow cannot be read: {err}"));
        let zone = window::zone(self.time_zone.as_deref().unwrap_or("UTC")).map_err(wrong)?;
        Ok(Window::new(self.schedule.parse().map_err(wrong)?, self.duration_hours.saturating_mul(60), zone))
    }
}

/// Scope as the user gives it. Both members together are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scopes {
    /// For the whole cluster.
    pub cluster: Option<ClusterScope>,
    /// In one namespace.
    pub namespace: Option<NamespaceScope>,
}

/// For the whole cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterScope {
    /// Where the release is.
    pub release_namespace: Option<String>,
}

/// In one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceScope {
    /// Where the release is, and all that it makes.
    pub target_namespace: Option<String>,
}

impl Properties {
    /// From what a custom resource holds.
    pub fn of(extension: &Extension) -> Result<Self, Problem> {
        serde_json::from_value(extension.wanted.properties.clone()).map_err(|err| {
            Problem::stays("InvalidProperties", format!("the extension's properties cannot be read: {err}"))
        })
    }

    /// Settings that have a value.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let all = self.configuration_settings.iter().flatten();
        all.filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()
    }

    fn mode(&self) -> Result<UpgradeMode, Problem> {
        match self.auto_upgrade_mode.as_deref().map(str::to_ascii_lowercase).as_deref() {
            Some("none") => Ok(UpgradeMode::None),
            Some("patch") => Ok(UpgradeMode::Patch),
            Some("compatible") => Ok(UpgradeMode::Compatible),
            Some(other) => Err(Problem::stays(
                "InvalidProperties",
                format!("autoUpgradeMode is {other:?}; expected none, patch or compatible"),
            )),
            None if self.auto_upgrade_minor_version == Some(false) => Ok(UpgradeMode::None),
            None => Ok(UpgradeMode::Compatible),
        }
    }

    /// Whether what somebody changed is only reported.
    pub fn only_reports(&self) -> bool {
        self.reconcile.as_deref().is_some_and(|word| word.eq_ignore_ascii_case("report"))
    }
}

/// What the cluster is.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// As the apiserver says.
    pub kubernetes: Option<String>,
    /// Kubernetes distribution, such as `k3s`; absent if it is not known.
    pub distribution: Option<String>,
    /// Of its nodes.
    pub platforms: Vec<String>,
    /// What charts with an agent of ours are told ([`super::agents`]), where it could be found out.
    pub agents: Option<Value>,
}

/// What a decision is made by, beside the extension.
pub struct Circumstances<'a> {
    /// The verified index of the catalogue.
    pub index: &'a Index,
    /// What is known about the cluster.
    pub facts: &'a Facts,
    /// Extensions that are there.
    pub others: &'a [Extension],
    /// The agents' namespace.
    pub namespace: &'a str,
    /// What the operator of the cluster allows.
    pub operator: &'a Extensions,
    /// The time of day, milliseconds since 1970.
    pub now_ms: i64,
}

/// What is to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The type, as the catalogue has it.
    pub extension_type: String,
    /// The release's namespace.
    pub namespace: String,
    /// Whether the type is installed for the whole cluster or for one namespace.
    pub scope: Scope,
    /// The version in the catalogue that was chosen, and its chart.
    pub offered: Offered,
    /// The version that it is upgraded to when the maintenance window opens.
    pub later: Option<Version>,
    /// Settings that are not protected, those of the operator among them.
    pub settings: BTreeMap<String, String>,
    /// What the chart is told of the agents, if it wants to know.
    pub agents: Option<Value>,
    /// Where images come from, if not from where the chart says.
    pub images: Option<Rules>,
    /// Names all that the release is made of: another text, another release.
    pub fingerprint: String,
}

impl Target {
    /// Decides what is to be there.
    ///
    /// # Errors
    /// Why nothing can be.
    pub fn of(extension: &Extension, properties: &Properties, here: &Circumstances<'_>) -> Result<Self, Problem> {
        let name = &properties.extension_type;
        // The gateway refuses it as well; but what it says is not trusted with rights of the cluster: with settings of its
        // choice the agents' own chart would run an image of its choice with the right to impersonate everybody.
        if name.eq_ignore_ascii_case(AGENTS_TYPE) {
            let message = format!(
                "the type {name:?} is the agents themselves, which are no extension: `towline upgrade` and their own upgrades install them"
            );
            return Err(Problem::stays("TypeNotAllowed", message));
        }
        if !here.operator.allows(name) {
            return Err(Problem::stays(
                "TypeNotAllowed",
                format!(
                    "the operator of this cluster does not let the type {name:?} be installed (allowed_types in [extensions] of the agents)"
                ),
            ));
        }
        let kind = here.index.extension_type(name).ok_or_else(|| {
            Problem::stays(
                "UnknownType",
                format!("the catalogue has no type {name:?}; see `towline extension types list`"),
            )
        })?;
        let (scope, namespace) = place(kind, properties)?;
        judge_namespace(&namespace, here.namespace)?;
        if let Some(installed) = &extension.status.record.own.installed
            && installed.namespace != namespace
        {
            let message = format!(
                "it is installed in the namespace {}, and cannot move to {namespace}: delete the extension and create it again",
                installed.namespace
            );
            return Err(Problem::stays("ScopeChanged", message));
        }
        only_one(extension, kind, scope, here.others)?;
        let mut settings = properties.settings();
        judge_settings(kind, &settings)?;
        let Choice { offered, later } = version(extension, properties, kind, here)?;
        locks::judge(&kind.name, offered, here.operator, &settings)?;
        locks::fill_in(&kind.name, here.operator, &mut settings);
        let agents = match (offered.agent_values, &here.facts.agents) {
            (true, None) => {
                let message = "the chart brings an agent, and it is not known where the agents of this cluster run: see the log of extension-manager";
                return Err(Problem::of(Fault::Cluster, "AgentsUnknown", message));
            }
            (true, told) => told.clone(),
            (false, _) => None,
        };
        let images = here.operator.local_registry.clone().map(|registry| {
            // The agents' own images come from where the operator said.
            let own = agents.as_ref().and_then(|agents| agents["registry"].as_str()).filter(|own| !own.is_empty());
            Rules { registry, keep: own.map(str::to_owned).into_iter().collect() }
        });
        let fingerprint = fingerprint(extension, offered, scope, &settings, agents.as_ref(), images.as_ref());
        let extension_type = kind.name.clone();
        let offered = offered.clone();
        Ok(Self { extension_type, namespace, scope, offered, later, settings, agents, images, fingerprint })
    }

    /// Names an attempt: the same one is not made again after it failed, until something of it changes.
    pub fn attempt(&self, extension: &Extension, index: &Index) -> String {
        format!("{}/{}/{}", self.fingerprint, extension.wanted.generation, index.revision)
    }
}

/// Where an extension of a type goes.
///
/// # Errors
/// The scope is contradictory, not supported by the type, or names no namespace.
pub fn place(kind: &ExtensionType, properties: &Properties) -> Result<(Scope, String), Problem> {
    let supported = &kind.supported_scopes;
    let wanted = properties.scope.as_ref();
    let scope = match wanted {
        Some(Scopes { cluster: Some(_), namespace: Some(_) }) => {
            return Err(Problem::stays("InvalidScope", "scope has both cluster and namespace; expected one of them"));
        }
        Some(Scopes { cluster: Some(_), .. }) => Scope::Cluster,
        Some(Scopes { namespace: Some(_), .. }) => Scope::Namespace,
        _ => supported.default_scope,
    };
    if !supported.scopes.contains(&scope) {
        let known: Vec<_> = supported.scopes.iter().map(ToString::to_string).collect();
        let message =
            format!("the type {} cannot be installed with scope {scope}; it supports {}", kind.name, known.join(", "));
        return Err(Problem::stays("UnsupportedScope", message));
    }
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let namespace = match scope {
        Scope::Cluster => {
            let given = wanted.and_then(|scopes| given(&scopes.cluster.as_ref()?.release_namespace));
            given.or_else(|| Some(supported.cluster_scope_settings.as_ref()?.default_release_namespace.clone()))
        }
        Scope::Namespace => wanted.and_then(|scopes| given(&scopes.namespace.as_ref()?.target_namespace)),
    };
    let missing =
        || Problem::stays("InvalidScope", format!("scope.{scope} names no namespace, and the type has no default one"));
    Ok((scope, namespace.ok_or_else(missing)?))
}

/// Whether anything may be installed in a namespace.
///
/// # Errors
/// The namespace belongs to the agents or to Kubernetes, or is no valid name.
pub fn judge_namespace(namespace: &str, own: &str) -> Result<(), Problem> {
    let Some(why) = namespace::refusal(namespace, own) else { return Ok(()) };
    Err(Problem::stays("NamespaceNotAllowed", format!("the namespace {namespace:?} {why}; choose another one")))
}

/// Where a type may be there once, the extension that was first has it.
fn only_one(extension: &Extension, kind: &ExtensionType, scope: Scope, others: &[Extension]) -> Result<(), Problem> {
    let several = kind.supported_scopes.cluster_scope_settings.as_ref().is_none_or(|one| one.allow_multiple_instances);
    if scope != Scope::Cluster || several {
        return Ok(());
    }
    let is_other = |other: &&Extension| {
        let named = other.wanted.properties["extensionType"].as_str();
        let first = (&other.created, &other.name) < (&extension.created, &extension.name);
        other.name != extension.name && first && named.is_some_and(|named| named.eq_ignore_ascii_case(&kind.name))
    };
    match others.iter().find(is_other) {
        Some(other) => Err(Problem::passes(
            "AlreadyInstalled",
            format!(
                "a cluster can have one extension of the type {}, and {:?} is one; delete that one first",
                kind.name, other.name
            ),
        )),
        None => Ok(()),
    }
}

/// The catalogue may restrict settings.
pub fn judge_settings(kind: &ExtensionType, settings: &BTreeMap<String, String>) -> Result<(), Problem> {
    if settings.len() > SETTINGS_MAX {
        let message = format!("there are {} settings, at most {SETTINGS_MAX} are read", settings.len());
        return Err(Problem::stays("InvalidSettings", message));
    }
    let refused = settings.iter().find(|(key, value)| !kind.allows(key, &serde_json::Value::String((*value).clone())));
    match refused {
        Some((key, _)) => Err(Problem::stays(
            "SettingNotAllowed",
            format!(
                "the catalogue does not let the setting {key:?} of the type {} be given, or not with this value",
                kind.name
            ),
        )),
        None => Ok(()),
    }
}

/// Which version is to be there, and which one once the maintenance window opens.
struct Choice<'a> {
    offered: &'a Offered,
    later: Option<Version>,
}

impl<'a> From<&'a Offered> for Choice<'a> {
    fn from(offered: &'a Offered) -> Self {
        Self { offered, later: None }
    }
}

fn version<'a>(
    extension: &Extension,
    properties: &Properties,
    kind: &'a ExtensionType,
    here: &Circumstances<'_>,
) -> Result<Choice<'a>, Problem> {
    let facts = here.facts;
    let cluster = Cluster {
        kubernetes: facts.kubernetes.as_deref().and_then(|version| version.parse().ok()),
        distribution: facts.distribution.as_deref(),
        platforms: &facts.platforms,
    };
    let train = properties.release_train.as_deref().filter(|train| !train.is_empty()).unwrap_or("Stable");
    let mode = properties.mode()?;
    let unfit = |version: &Version, why: Unfit| {
        let code = if matches!(why, Unfit::Platform { .. }) { "UnsupportedPlatform" } else { "VersionNotSupported" };
        Problem::passes(code, format!("the version {version} of {} does not work in this cluster: {why}", kind.name))
    };
    if let Some(text) = properties.version.as_deref().filter(|text| !text.is_empty()) {
        let version: Version =
            text.parse().map_err(|err| Problem::stays("InvalidProperties", format!("version: {err}")))?;
        let offered = kind.release(&version).ok_or_else(|| {
            let message = format!(
                "the catalogue has no version {version} of {}; see `towline extension types versions`",
                kind.name
            );
            Problem::stays("UnknownVersion", message)
        })?;
        offered.fits(&cluster).map_err(|why| unfit(&version, why))?;
        return Ok(offered.into());
    }
    let none = |err: String| Problem::passes("NoVersion", format!("no version of {} can be chosen: {err}", kind.name));
    let current = extension.status.current_version.as_deref().and_then(|text| text.parse::<Version>().ok());
    let Some(current) = current else {
        return newest(kind, train, &cluster).map(Choice::from).map_err(|err| none(err.to_string()));
    };
    let window = properties.auto_upgrade_window.as_ref().map(WindowSpec::window).transpose()?;
    // Never the newest of all: that may be another major version.
    let above = upgrade(kind, train, &cluster, &current, mode).map_err(|err| none(err.to_string()))?;
    let present = kind.release(&current);
    if let (Some(above), Some(present), Some(window)) = (above, present, &window)
        && !window.is_open(here.now_ms)
    {
        return Ok(Choice { offered: present, later: Some(above.version.clone()) });
    }
    above.or(present).map(Choice::from).ok_or_else(|| {
        none(format!(
            "{current} is installed, which is no longer in the catalogue, and autoUpgradeMode allows an upgrade to none of the others; give version"
        ))
    })
}

fn fingerprint(
    extension: &Extension,
    offered: &Offered,
    scope: Scope,
    settings: &BTreeMap<String, String>,
    agents: Option<&Value>,
    images: Option<&Rules>,
) -> String {
    // Protected settings by their name: a digest of them could be guessed from.
    let mut all = json!([
        offered.chart.sha256.to_string(),
        scope.to_string(),
        settings,
        extension.wanted.protected,
        extension.name,
    ]);
    if let (Some(agents), Some(all)) = (agents, all.as_array_mut()) {
        all.push(agents.clone());
    }
    if let (Some(images), Some(all)) = (images, all.as_array_mut()) {
        all.push(json!({"registry": images.registry}));
    }
    Sha256::of(all.to_string().as_bytes()).to_string().chars().take(40).collect()
}

/// What comes before an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// A killed helm left an upgrade half done: back to this revision.
    Rollback(u64),
    /// A killed helm left a first installation half done: take it down.
    Uninstall,
}

/// What must be done with a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It is as it is to be, in this revision.
    Settled(u64),
    /// Somebody changed or removed it, which is reported.
    Drifted(Option<u64>),
    /// helm must run.
    Run(Phase, Option<Recovery>),
}

/// Compares what is to be with what is there.
///
/// # Errors
/// When the name is somebody else's, or somebody else works at the release: a revision that was begun after `lately`.
pub fn compare(
    extension: &Extension,
    target: &Target,
    release: Option<&Release>,
    only_reports: bool,
    lately: SystemTime,
) -> Result<Action, Problem> {
    let installed = extension.status.record.own.installed.as_ref();
    let same = installed.filter(|installed| installed.fingerprint == target.fingerprint && installed.revision > 0);
    let phase = match (installed, same) {
        (_, Some(_)) => Phase::Repair,
        _ if extension.status.current_version.is_some() => Phase::Upgrade,
        _ => Phase::Create,
    };
    let Some(release) = release else {
        return Ok(match same {
            Some(_) if only_reports => Action::Drifted(None),
            _ => Action::Run(phase, None),
        });
    };
    if release.owner.as_deref() != Some(&extension.name) {
        let message = format!(
            "the namespace {} has a release {:?} that this extension did not make: give the extension another name, or remove that one (helm uninstall)",
            target.namespace, extension.name
        );
        return Err(Problem::passes("NameInUse", message));
    }
    let last = release.last();
    let made = last.fingerprint.as_deref() == Some(&target.fingerprint);
    if last.stage != Stage::Deployed {
        return Ok(Action::Run(phase, recovery(installed, release, lately)?));
    }
    match same {
        Some(installed) if installed.revision == last.number => Ok(Action::Settled(last.number)),
        Some(_) if only_reports => Ok(Action::Drifted(Some(last.number))),
        // Begun by us, and not written down that it ended.
        None if made && installed.is_some_and(|installed| installed.fingerprint == target.fingerprint) => {
            Ok(Action::Settled(last.number))
        }
        _ => Ok(Action::Run(phase, None)),
    }
}

/// Whether what failed lately is not tried now. While the version from before runs, the extension stays with that; where
/// somebody has removed that release, nothing is left to stay with, and it is put right at once, unless changes by others
/// are only reported.
pub fn is_left_alone(
    extension: &Extension,
    attempt: &str,
    releases: &Releases,
    only_reports: bool,
    now: SystemTime,
) -> bool {
    let ran = extension.status.record.own.installed.as_ref().filter(|installed| installed.revision > 0);
    let is_removed = ran.is_some_and(|one| !releases.contains_key(&(one.namespace.clone(), extension.name.clone())));
    extension.status.is_put_off(attempt, now) && (only_reports || !is_removed)
}

/// What comes before helm can work at a release that is not as helm left it. It goes back only to a revision that this
/// role wrote down itself, and takes down only what never ran.
fn recovery(installed: Option<&Installed>, release: &Release, lately: SystemTime) -> Result<Option<Recovery>, Problem> {
    let last = release.last();
    let is_ours = installed.is_some_and(|installed| installed.revision == 0);
    let is_worked_at = matches!(last.stage, Stage::Pending | Stage::Uninstalling);
    if is_worked_at && !is_ours && last.begun.is_some_and(|begun| begun > lately) {
        let message = format!("another helm works at the release (revision {})", last.number);
        return Err(Problem::of(Fault::Cluster, "ReleaseBusy", message));
    }
    let noted = installed.map_or(0, |installed| installed.good);
    let good = release.revisions.iter().skip(1).find(|revision| revision.number == noted).map(|one| one.number);
    let never_ran = noted == 0 && release.ran().is_none();
    match (last.stage, good) {
        (Stage::Pending | Stage::Uninstalling, Some(good)) => Ok(Some(Recovery::Rollback(good))),
        (Stage::Pending | Stage::Uninstalling | Stage::Failed, None) if never_ran => Ok(Some(Recovery::Uninstall)),
        // Somebody took it down, and that was cut off.
        (Stage::Uninstalling, None) if last.number == noted => Ok(Some(Recovery::Uninstall)),
        (Stage::Pending | Stage::Uninstalling, None) => Err(Problem::passes(
            "ReleasePending",
            format!(
                "revision {} of the release did not come to its end, and no revision is left that this extension installed: put it right by helm (helm history, helm rollback, helm uninstall)",
                last.number
            ),
        )),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use catalogue::testing;

    use super::*;
    use crate::{
        config::LockedSetting,
        roles::extension_manager::{
            releases::Revision,
            state::{Acknowledged, Status, Wanted},
        },
    };

    fn extension(name: &str, properties: Value) -> Extension {
        Extension {
            name: name.to_owned(),
            uid: "u".to_owned(),
            created: "2026-11-27T10:00:00Z".to_owned(),
            wanted: Wanted { generation: 1, properties, ..Wanted::default() },
            status: Status::default(),
            told: Acknowledged::default(),
            bytes: 0,
        }
    }

    /// Friday, 2027-01-15, 12:00 UTC.
    const NOON: i64 = 1_800_014_400_000;

    fn target(extension: &Extension, index: &Index, others: &[Extension]) -> Result<Target, Problem> {
        target_by(extension, index, others, &Facts::default(), &Extensions::default())
    }

    fn target_by(
        extension: &Extension,
        index: &Index,
        others: &[Extension],
        facts: &Facts,
        operator: &Extensions,
    ) -> Result<Target, Problem> {
        let here = Circumstances { index, facts, others, namespace: "towline", operator, now_ms: NOON };
        Target::of(extension, &Properties::of(extension)?, &here)
    }

    /// With settings of its choice a gateway would have the agents' chart run any image with the agents' rights.
    #[test]
    fn u1_the_agents_are_no_extension_whatever_the_gateway_says() {
        let mut index = testing::index(&[("1.0.0", &["Stable"])]);
        index.types[0].name = AGENTS_TYPE.to_owned();
        for name in ["towline.agent", "Towline.Agent"] {
            let asked = extension("web", json!({"extensionType": name}));
            assert_eq!(code(target(&asked, &index, &[])), "TypeNotAllowed", "{name}");
        }
    }

    #[test]
    fn locked_settings_are_refused_and_those_of_the_operator_filled_in() {
        let mut index = testing::index(&[("1.0.0", &["Stable"])]);
        index.types[0].versions[0].locked_settings = vec!["image".to_owned()];
        let lock = |text: &str| text.parse::<LockedSetting>().unwrap();
        let locked = vec![lock("example.web:host=a=b"), lock("*:rbac"), lock("example.db:port=1")];
        let operator = Extensions { locked_settings: locked, ..Extensions::default() };
        let of = |key: &str| {
            let settings = json!({"extensionType": "example.web", "configurationSettings": {key: "x"}});
            target_by(&extension("web", settings), &index, &[], &Facts::default(), &operator)
        };
        for refused in ["image", "image.tag", "host", "rbac.create", "rbac[0]"] {
            assert_eq!(code(of(refused)), "SettingLocked", "{refused}");
        }
        let expected =
            BTreeMap::from([("host", "a=b"), ("port", "x")].map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(of("port").unwrap().settings, expected);
    }

    #[test]
    fn chart_with_an_agent_is_told_of_the_agents_and_nobody_else_tells_it() {
        let mut index = testing::index(&[("1.0.0", &["Stable"])]);
        index.types[0].versions[0].agent_values = true;
        let of = |key: &str, agents: Option<Value>| {
            let settings = json!({"extensionType": "example.web", "configurationSettings": {key: "x"}});
            let facts = Facts { agents, ..Facts::default() };
            target_by(&extension("web", settings), &index, &[], &facts, &Extensions::default())
        };
        assert_eq!(code(of("port", None)), "AgentsUnknown");
        let told = |image: &str| of("port", Some(json!({"agentImage": image}))).unwrap();
        assert_eq!(told("a:1").agents, Some(json!({"agentImage": "a:1"})));
        assert_ne!(told("a:1").fingerprint, told("a:2").fingerprint, "upgraded agents are another release");
        for refused in ["global", "global.towline", "global.towline.agentImage"] {
            assert_eq!(code(of(refused, Some(json!({})))), "SettingLocked", "{refused}");
        }
    }

    #[test]
    fn x5_another_registry_is_another_release_and_leaves_the_agents_images() {
        let mut index = testing::index(&[("1.0.0", &["Stable"])]);
        let of = |index: &Index, registry: Option<&str>, agents: Option<Value>| {
            let operator = Extensions { local_registry: registry.map(str::to_owned), ..Extensions::default() };
            let web = extension("web", json!({"extensionType": "example.web"}));
            target_by(&web, index, &[], &Facts { agents, ..Facts::default() }, &operator).unwrap()
        };
        let (none, some) = (of(&index, None, None), of(&index, Some("r.test/a"), None));
        let images = some.images.clone().unwrap();
        assert_eq!((none.images, images.registry.as_str(), images.keep.len()), (None, "r.test/a", 0));
        let other = of(&index, Some("r.test/b"), None);
        assert!(none.fingerprint != some.fingerprint && some.fingerprint != other.fingerprint);
        index.types[0].versions[0].agent_values = true;
        let told = of(&index, Some("r.test/a"), Some(json!({"registry": "agents.test/own"})));
        assert_eq!(told.images.unwrap().keep, ["agents.test/own"]);
    }

    #[test]
    fn e12_version_for_other_platforms_is_refused_and_not_chosen() {
        let mut index = testing::index(&[("1.0.0", &["Stable"]), ("1.1.0", &["Stable"])]);
        index.types[0].versions.iter_mut().find(|one| one.version.to_string() == "1.1.0").unwrap().platforms =
            vec!["linux/arm64".to_owned()];
        let of = |version: Option<&str>, platforms: &[&str]| {
            let platforms = platforms.iter().map(|one| (*one).to_owned()).collect();
            let web = extension("web", json!({"extensionType": "example.web", "version": version}));
            target_by(&web, &index, &[], &Facts { platforms, ..Facts::default() }, &Extensions::default())
        };
        let chosen = |target: Target| target.offered.version.to_string();
        assert_eq!(chosen(of(None, &["linux/amd64"]).unwrap()), "1.0.0");
        assert_eq!(chosen(of(None, &["linux/amd64", "linux/arm64"]).unwrap()), "1.1.0");
        let refused = of(Some("1.1.0"), &["linux/amd64"]).unwrap_err();
        assert_eq!(refused.code, "UnsupportedPlatform");
        assert!(refused.message.contains("it runs on linux/arm64, and the cluster's nodes are linux/amd64"));
    }

    fn code(result: Result<Target, Problem>) -> &'static str {
        result.unwrap_err().code
    }

    #[test]
    fn version_follows_train_pin_and_mode() {
        let index = testing::index(&[("1.0.0", &["Stable"]), ("1.1.0", &["Stable"]), ("2.0.0", &["Preview"])]);
        let chosen = |properties: Value, current: Option<&str>| {
            let mut extension = extension("web", properties);
            extension.status.current_version = current.map(str::to_owned);
            target(&extension, &index, &[]).map(|target| target.offered.version.to_string())
        };
        let of = |more: Value| {
            let mut all = json!({"extensionType": "Example.Web"});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        assert_eq!(chosen(of(json!({})), None).unwrap(), "1.1.0");
        assert_eq!(chosen(of(json!({"version": "1.0.0"})), Some("1.1.0")).unwrap(), "1.0.0");
        assert_eq!(chosen(of(json!({"releaseTrain": "preview"})), None).unwrap(), "2.0.0");
        assert_eq!(chosen(of(json!({"releaseTrain": "Preview"})), Some("1.1.0")).unwrap(), "1.1.0", "never a major");
        assert_eq!(chosen(of(json!({})), Some("1.0.0")).unwrap(), "1.1.0");
        assert_eq!(chosen(of(json!({"autoUpgradeMode": "patch"})), Some("1.0.0")).unwrap(), "1.0.0");
        assert_eq!(chosen(of(json!({"autoUpgradeMinorVersion": false})), Some("1.0.0")).unwrap(), "1.0.0");
        // What is installed is in the catalogue no more: no other major version instead.
        assert_eq!(chosen(of(json!({})), Some("1.0.5")).unwrap(), "1.1.0");
        assert_eq!(chosen(of(json!({})), Some("0.9.0")).unwrap_err().code, "NoVersion");
        let code = |properties| chosen(properties, None).unwrap_err().code;
        assert_eq!(code(of(json!({"version": "9.0.0"}))), "UnknownVersion");
        assert_eq!(code(of(json!({"version": "x"}))), "InvalidProperties");
        assert_eq!(code(of(json!({"autoUpgradeMode": "x"}))), "InvalidProperties");
        assert_eq!(code(of(json!({"releaseTrain": "x"}))), "NoVersion");
        assert_eq!(code(json!({"extensionType": "x"})), "UnknownType");
        assert_eq!(code(json!({"extensionType": 7})), "InvalidProperties");
    }

    #[test]
    fn e14_automatic_upgrades_wait_for_the_maintenance_window_and_nothing_else_does() {
        let index = testing::index(&[("1.0.0", &["Stable"]), ("1.1.0", &["Stable"])]);
        let of = |schedule: &str, zone: &str, current: Option<&str>, version: Option<&str>| {
            let window = json!({"schedule": schedule, "durationHours": 2, "timeZone": zone});
            let properties = json!({"extensionType": "example.web", "autoUpgradeWindow": window, "version": version});
            let mut extension = extension("web", properties);
            extension.status.current_version = current.map(str::to_owned);
            target(&extension, &index, &[])
                .map(|target| (target.offered.version.to_string(), target.later.map(|version| version.to_string())))
        };
        let (open, closed) = ("30 11 * * fri", "0 13 * * *");
        let is = |now: &str, later: Option<&str>| Ok((now.to_owned(), later.map(str::to_owned)));
        assert_eq!(of(open, "UTC", Some("1.0.0"), None), is("1.1.0", None));
        assert_eq!(of(closed, "UTC", Some("1.0.0"), None), is("1.0.0", Some("1.1.0")));
        assert_eq!(of(closed, "Europe/Berlin", Some("1.0.0"), None), is("1.1.0", None), "one in the afternoon there");
        assert_eq!(of(closed, "UTC", Some("1.1.0"), None), is("1.1.0", None));
        assert_eq!(of(closed, "UTC", None, None), is("1.1.0", None), "the first installation");
        assert_eq!(of(closed, "UTC", Some("1.0.0"), Some("1.1.0")), is("1.1.0", None), "a version that somebody wants");
        // What is installed and withdrawn cannot stay.
        assert_eq!(of(closed, "UTC", Some("1.0.5"), None), is("1.1.0", None));
        for (schedule, zone) in [("x", "UTC"), (open, "Nowhere")] {
            assert_eq!(of(schedule, zone, Some("1.0.0"), None).unwrap_err().code, "InvalidProperties");
        }
    }

    #[test]
    fn scope_and_namespace_are_judged() {
        let index = testing::index(&[("1.0.0", &["Stable"])]);
        let of = |scope: Value| {
            target(&extension("web", json!({"extensionType": "example.web", "scope": scope})), &index, &[])
        };
        assert_eq!(of(Value::Null).unwrap().namespace, "web");
        assert_eq!(of(json!({"cluster": {"releaseNamespace": "shop"}})).unwrap().namespace, "shop");
        for bad in ["towline", "kube-system", "Shop", "a.b", "-a"] {
            assert_eq!(code(of(json!({"cluster": {"releaseNamespace": bad}}))), "NamespaceNotAllowed", "{bad}");
        }
        assert_eq!(code(of(json!({"namespace": {"targetNamespace": "shop"}}))), "UnsupportedScope");
        assert_eq!(code(of(json!({"namespace": {}, "cluster": {}}))), "InvalidScope");
        let mut moved = extension("web", json!({"extensionType": "example.web"}));
        moved.status.record.own.installed = Some(installed("old", "f", 1));
        assert_eq!(code(target(&moved, &index, &[])), "ScopeChanged");
    }

    #[test]
    fn second_extension_of_a_type_is_refused_and_the_first_stays() {
        let index = testing::index(&[("1.0.0", &["Stable"])]);
        let properties = json!({"extensionType": "example.web"});
        let (first, mut second) = (extension("b", properties.clone()), extension("a", properties));
        second.created = "2026-11-27T11:00:00Z".to_owned();
        let all = [first.clone(), second.clone()];
        assert!(target(&first, &index, &all).is_ok());
        assert_eq!(code(target(&second, &index, &all)), "AlreadyInstalled");
    }

    fn installed(namespace: &str, fingerprint: &str, revision: u64) -> Installed {
        Installed {
            namespace: namespace.to_owned(),
            namespaced: false,
            version: "1.0.0".to_owned(),
            fingerprint: fingerprint.to_owned(),
            revision,
            good: revision,
        }
    }

    #[test]
    fn release_is_compared_with_what_is_wanted() {
        let index = testing::index(&[("1.0.0", &["Stable"])]);
        let mut web = extension("web", json!({"extensionType": "example.web"}));
        let target = target(&web, &index, &[]).unwrap();
        let print = target.fingerprint.clone();
        let release = |owner: Option<&str>, revisions: &[(u64, Stage)]| Release {
            namespace: "web".to_owned(),
            owner: owner.map(str::to_owned),
            revisions: revisions
                .iter()
                .map(|(number, stage)| Revision {
                    number: *number,
                    stage: *stage,
                    fingerprint: Some(print.clone()),
                    version: None,
                    begun: Some(SystemTime::UNIX_EPOCH),
                })
                .collect(),
        };
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        let of = |web: &Extension, release: Option<&Release>, reports| {
            compare(web, &target, release, reports, SystemTime::UNIX_EPOCH)
        };
        assert_eq!(of(&web, None, false), Ok(Action::Run(Phase::Create, None)));
        let foreign = release(None, &[(1, Stage::Deployed)]);
        assert_eq!(of(&web, Some(&foreign), false).unwrap_err().code, "NameInUse");
        let killed = release(Some("web"), &[(1, Stage::Pending)]);
        assert_eq!(of(&web, Some(&killed), false), Ok(Action::Run(Phase::Create, Some(Recovery::Uninstall))));
        web.status.record.own.installed = Some(installed("web", &print, 2));
        web.status.current_version = Some("1.0.0".to_owned());
        let good = release(Some("web"), &[(2, Stage::Deployed), (1, Stage::Superseded)]);
        assert_eq!(of(&web, Some(&good), false), Ok(Action::Settled(2)));
        let killed = release(Some("web"), &[(3, Stage::Pending), (2, Stage::Deployed)]);
        assert_eq!(of(&web, Some(&killed), false), Ok(Action::Run(Phase::Repair, Some(Recovery::Rollback(2)))));
        let changed = release(Some("web"), &[(3, Stage::Deployed), (2, Stage::Superseded)]);
        assert_eq!(of(&web, Some(&changed), false), Ok(Action::Run(Phase::Repair, None)));
        assert_eq!(of(&web, Some(&changed), true), Ok(Action::Drifted(Some(3))));
        assert_eq!(of(&web, None, false), Ok(Action::Run(Phase::Repair, None)));
        assert_eq!(of(&web, None, true), Ok(Action::Drifted(None)));
        // Begun, and the agent was killed before it knew the end.
        web.status.record.own.installed = Some(installed("web", &print, 0));
        assert_eq!(of(&web, Some(&changed), false), Ok(Action::Settled(3)));
        let failed = release(Some("web"), &[(3, Stage::Failed), (2, Stage::Deployed)]);
        assert_eq!(of(&web, Some(&failed), false), Ok(Action::Run(Phase::Upgrade, None)));
        // Back to what was written down, and to no revision that only its labels call good.
        let killed = release(Some("web"), &[(7, Stage::Pending), (6, Stage::Deployed), (2, Stage::Superseded)]);
        web.status.record.own.installed = Some(Installed { good: 2, ..installed("web", &print, 0) });
        assert_eq!(of(&web, Some(&killed), false), Ok(Action::Run(Phase::Upgrade, Some(Recovery::Rollback(2)))));
        for good in [0, 5, 7] {
            web.status.record.own.installed = Some(Installed { good, ..installed("web", &print, 0) });
            assert_eq!(of(&web, Some(&killed), false).unwrap_err().code, "ReleasePending", "{good}");
        }
        // Somebody else's helm is given its time.
        web.status.record.own.installed = Some(installed("web", &print, 6));
        let busy = compare(&web, &target, Some(&killed), false, before);
        assert_eq!(busy.unwrap_err().code, "ReleaseBusy");
        assert_eq!(of(&web, Some(&killed), false), Ok(Action::Run(Phase::Repair, Some(Recovery::Rollback(6)))));
        let half = release(Some("web"), &[(6, Stage::Uninstalling), (5, Stage::Superseded)]);
        assert_eq!(of(&web, Some(&half), false), Ok(Action::Run(Phase::Repair, Some(Recovery::Uninstall))));
    }

    /// An upgrade has failed, helm went back to what ran before, and that version is not tried again. Then somebody removes
    /// the release.
    #[test]
    fn e8_release_removed_after_another_version_failed_is_put_right() {
        let index = testing::index(&[("1.0.0", &["Stable"]), ("1.1.0", &["Stable"])]);
        let mut web = extension("web", json!({"extensionType": "example.web"}));
        let target = target(&web, &index, &[]).unwrap();
        assert_eq!(target.offered.version.to_string(), "1.1.0");
        let now = SystemTime::UNIX_EPOCH;
        let attempt = target.attempt(&web, &index);
        web.status.current_version = Some("1.0.0".to_owned());
        web.status.record.own.installed = Some(Installed { good: 3, ..installed("web", "of 1.0.0", 3) });
        web.status.failed(1, &attempt, &Problem::stays("HookFailed", "the hook did not end"), now);
        let runs = Revision {
            number: 3,
            stage: Stage::Deployed,
            fingerprint: Some("of 1.0.0".to_owned()),
            version: None,
            begun: Some(now),
        };
        let release = Release { namespace: "web".to_owned(), owner: Some("web".to_owned()), revisions: vec![runs] };
        let key = ("web".to_owned(), "web".to_owned());
        let there = Releases::from([(key, release)]);
        let alone =
            |web: &Extension, releases: &Releases, reports| is_left_alone(web, &attempt, releases, reports, now);
        assert!(alone(&web, &there, false), "the version from before runs");
        assert!(!alone(&web, &Releases::new(), false), "nothing is left to stay with");
        assert_eq!(compare(&web, &target, None, false, now), Ok(Action::Run(Phase::Upgrade, None)));
        assert!(alone(&web, &Releases::new(), true), "it is only reported");
        // That failed too: not over and over, though there is no release.
        web.status.record.own.installed = Some(installed("web", &target.fingerprint, 0));
        web.status.failed(1, &attempt, &Problem::stays("HookFailed", "the hook did not end"), now);
        assert!(alone(&web, &Releases::new(), false));
    }
}
