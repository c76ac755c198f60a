//! `towline upgrade`: gives the agents of a cluster this program's version, by hand. And, where the program is called
//! `towline-agent`, what the Job of an upgrade runs ([`job`]).

pub mod job;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use agent::roles::upgrader::judge;
use anyhow::anyhow;
use daemon::settings::positive_duration;
use serde_json::{Value, json};
use types::agent_api::upgrade_states;

use super::{
    CommonArgs,
    clusters::{DETAILS, NamedCluster, with_group},
    connect::{Update, has_upgrader, update_agents},
};
use crate::{
    api::{Api, Wait, at, versions},
    context::Context,
    failure::{Failure, Outcome},
    kubernetes::KubeArgs,
    manifests, output,
    terminal::Progress,
};

/// The property of a cluster about its agents, and in it the version that a person wants.
const PROFILE: &str = "arcAgentProfile";
const DESIRED: &str = "desiredAgentVersion";
/// The property of a cluster in which the gateway shows how far an upgrade is.
const MORE: &str = "miscellaneousProperties";
/// Between two looks at what came of it.
const LOOK: Duration = Duration::from_secs(3);
/// How long the new agents may take to connect where nothing else is said, as with `az`.
const CONNECT_MAX: Duration = Duration::from_secs(600);
/// How long agents that upgrade themselves may take where nothing else is said: new pods are watched for some minutes
/// twice, and nodes pull images meanwhile.
const COME_MAX: Duration = Duration::from_secs(1800);
/// How long an upgrade waits before the command ends: some of what it may wait for passes by itself.
const WAITS: Duration = Duration::from_secs(60);

/// Upgrade the agents of a cluster to the version of this command, by hand
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The connected cluster, by name and resource group.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// The version that they get. Another one than this command's comes from the gateway's catalogue, to agents that upgrade
    /// themselves
    #[arg(long, value_name = "VERSION")]
    pub agent_version: Option<String>,
    /// How long the new agents may take to connect; then the old ones come back (default: 600s). Of agents that upgrade
    /// themselves to another version: how long this command waits for what they tell of it (default: 30m)
    #[arg(long, value_name = "DURATION", value_parser = duration_or_seconds)]
    pub upgrade_timeout: Option<Duration>,
    /// Make only what upgrades by themselves may not: definitions, service accounts, roles and new objects. Agents that
    /// wait for rights go on by it
    #[arg(long)]
    pub rights_only: bool,
    /// Where the agents are.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// As `az` takes it, a number of seconds; or with a unit.
fn duration_or_seconds(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = if is_number { format!("{text}s") } else { text.to_owned() };
    positive_duration(&whole).map_err(|error| error.to_string())
}

pub async fn run(args: Args) -> Outcome {
    let own = manifests::version();
    let context = Context::open(&args.common.context).await?;
    let (api, id) = (Api::of(&context)?, context.cluster(&args.cluster.resource_group, &args.cluster.name)?);
    let target = at(&id, versions::CLUSTERS);
    let resource = api.get(&target).await?;
    if !args.rights_only {
        let hint = format!(
            "towline update -g {} -n {} --auto-upgrade false; or --rights-only for agents that wait for rights",
            args.cluster.resource_group, args.cluster.name
        );
        refuse_beside_automatic(&resource, "towline upgrade", &hint)?;
    }
    // Agents tell of `v0.3.0` as 0.3.0.
    let wanted = args.agent_version.as_deref().map(judge::named);
    if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != own) {
        if args.rights_only || !has_upgrader(&args.kube, &context, &id).await? {
            let error = anyhow!(
                "--agent-version {wanted}: this command is version {own}, and gives agents that version alone where they do not upgrade themselves"
            );
            return Err(Failure::usage(error).hint(format!("use towline of version {wanted}")));
        }
        // The gateway refuses what its catalogue does not have, and what is further back than it serves.
        let came = Came::new(wanted, &resource);
        api.patch(&target, &wanting(wanted)).await?;
        await_agents(&api, &target, came, args.upgrade_timeout.unwrap_or(COME_MAX)).await?;
        output::print(&with_group(api.get(&target).await?), &args.common.output, DETAILS)?;
        return Ok(ExitCode::SUCCESS);
    }
    let wait = Wait { limit: args.upgrade_timeout.unwrap_or(CONNECT_MAX), ..Wait::default() };
    update_agents(Update::of_upgrade(&args.kube, args.rights_only, wait), &context, &id).await?;
    // Agents that upgrade themselves would go back to the version that somebody wanted before.
    let wanted = resource["properties"][PROFILE][DESIRED].as_str().filter(|wanted| !wanted.is_empty());
    if !args.rights_only && wanted.is_some_and(|wanted| wanted != own) {
        api.patch(&target, &wanting(own)).await.map_err(|failure| {
            let hint = format!(
                "the agents have version {own}; but the cluster still names {} as {DESIRED}, to which agents go back that upgrade themselves: ask an administrator of the gateway to change it",
                wanted.unwrap_or_default()
            );
            failure.hint(hint)
        })?;
    }
    output::print(&with_group(api.get(&target).await?), &args.common.output, DETAILS)?;
    Ok(ExitCode::SUCCESS)
}

/// Has agents that are not upgraded automatically take a version.
fn wanting(version: &str) -> Value {
    json!({"properties": {PROFILE: {DESIRED: version}}})
}

/// Waits until agents that upgrade themselves have told what came of a version.
async fn await_agents(api: &Api, target: &str, mut came: Came<'_>, limit: Duration) -> Outcome<()> {
    let wanted = came.wanted;
    let what = format!("Upgrading the agents to {wanted}");
    let (progress, begun) = (Progress::new(&what), Instant::now());
    let show = "see how far it is with towline show";
    while begun.elapsed() < limit {
        let resource = api.get(target).await?;
        match came.look(&resource, Instant::now()) {
            Some(Ok(())) => return Ok(()),
            Some(Err(message)) => return Err(Failure::from(anyhow!(message)).hint(show)),
            None => progress.note(resource["properties"][MORE]["upgradeState"].as_str().unwrap_or("not begun")),
        }
        tokio::time::sleep(LOOK).await;
    }
    let error = anyhow!("the agents have not told after {} seconds that they have version {wanted}", limit.as_secs());
    Err(Failure::from(error).hint(format!("it goes on by itself; wait for longer with --upgrade-timeout, or {show}")))
}

/// What agents tell of an upgrade that has not come to a good end: its state, and the error they have of it.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    state: String,
    message: String,
    /// Since when.
    time: String,
}

impl Told {
    /// Of a version; nothing where they tell of none, or of another one.
    fn of(resource: &Value, wanted: &str) -> Option<Self> {
        let properties = &resource["properties"];
        let more = &properties[MORE];
        let state = more["upgradeState"].as_str().filter(|_| more["upgradeVersion"] == wanted)?;
        let errors = properties[PROFILE]["agentErrors"].as_array().into_iter().flatten();
        let text = |error: &Value, name: &str| error[name].as_str().unwrap_or_default().to_owned();
        let begin = format!("upgrade to {wanted}: ");
        let own = { errors }.find(|error| text(error, "message").starts_with(&begin));
        Some(Self {
            state: state.to_owned(),
            message: own.map_or_else(|| format!("the upgrade to {wanted}: {state}"), |own| text(own, "message")),
            time: own.map(|own| text(own, "time")).unwrap_or_default(),
        })
    }
}

/// What comes of a version that somebody wants now.
struct Came<'a> {
    wanted: &'a str,
    /// What agents had told of it before: it says nothing of now.
    before: Option<Told>,
    /// Since when it waits.
    waits: Option<Instant>,
}

impl<'a> Came<'a> {
    fn new(wanted: &'a str, before: &Value) -> Self {
        Self { wanted, before: Told::of(before, wanted), waits: None }
    }

    /// What came of it, as the agents have told it; nothing where they have not.
    fn look(&mut self, resource: &Value, now: Instant) -> Option<Result<(), String>> {
        let is_running = resource["properties"]["agentVersion"] == self.wanted;
        let told = Told::of(resource, self.wanted);
        let state = told.as_ref().map(|told| told.state.as_str());
        if is_running {
            return matches!(state, Some(upgrade_states::SUCCEEDED) | None).then_some(Ok(()));
        }
        let told = told.filter(|told| self.before.as_ref() != Some(told));
        // Told anew once it has told anything else, it is another one.
        if told.is_some() {
            self.before = None;
        }
        let Some(told) = told.filter(|told| told.state != upgrade_states::RUNNING) else {
            self.waits = None;
            return None;
        };
        match told.state.as_str() {
            upgrade_states::ROLLED_BACK | upgrade_states::FAILED => Some(Err(told.message)),
            upgrade_states::WAITING => {
                let since = *self.waits.get_or_insert(now);
                (now.duration_since(since) >= WAITS).then_some(Err(told.message))
            }
            _ => None,
        }
    }
}

/// Refuses to change the version of agents by hand that upgrade themselves (docs/features.md U3).
///
/// # Errors
/// Automatic upgrades of this cluster are on.
pub fn refuse_beside_automatic(resource: &Value, command: &str, hint: &str) -> Outcome<()> {
    // What is not said is on.
    if resource["properties"][PROFILE]["agentAutoUpgrade"] == "Disabled" {
        return Ok(());
    }
    let error = anyhow!("'{command}' to manually upgrade agents is only supported when auto-upgrade is set to false.");
    Err(Failure::from(error).hint(hint.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u3_timeout_is_seconds_as_az_has_it_or_has_a_unit() {
        assert_eq!(duration_or_seconds("600"), Ok(Duration::from_secs(600)));
        assert_eq!(duration_or_seconds("10m"), Ok(Duration::from_secs(600)));
        for wrong in ["", "0", "x", "-1"] {
            assert!(duration_or_seconds(wrong).is_err(), "{wrong}");
        }
    }

    /// A cluster whose agents have the version `running`, and tell of an upgrade.
    fn telling(running: &str, version: &str, state: &str, time: &str) -> Value {
        let error = json!({"message": format!("upgrade to {version}: {state} (Rights): give more"), "time": time});
        json!({"properties": {
            "agentVersion": running, "miscellaneousProperties": {"upgradeVersion": version, "upgradeState": state},
            "arcAgentProfile": {"agentErrors": [{"message": "other"}, error]},
        }})
    }

    #[test]
    fn u3_what_came_of_another_version_is_what_the_agents_tell_of_that_one() {
        let now = Instant::now();
        let came = |running: &str, version: &str, state: &str| {
            let mut came = Came::new("0.3.0", &Value::Null);
            came.look(&telling(running, version, state, "t"), now)
        };
        assert_eq!(came("0.3.0", "0.3.0", "Succeeded"), Some(Ok(())));
        for (running, version, state) in [
            ("0.2.0", "0.3.0", "Running"),
            ("0.3.0", "0.3.0", "Running"),
            ("0.2.0", "0.2.9", "RolledBack"),
            ("0.2.0", "0.3.0", "Succeeded"),
            ("0.2.0", "0.3.0", "Waiting"),
        ] {
            assert_eq!(came(running, version, state), None, "{running} {version} {state}");
        }
        for state in ["RolledBack", "Failed"] {
            let message = format!("upgrade to 0.3.0: {state} (Rights): give more");
            assert_eq!(came("0.2.0", "0.3.0", state), Some(Err(message)));
        }
        let silent = json!({"properties": {"agentVersion": "0.3.0"}});
        let came = |wanted| Came::new(wanted, &Value::Null).look(&silent, now);
        assert_eq!((came("0.3.0"), came("0.3.1")), (Some(Ok(())), None));
    }

    /// After rights were given the command failed at once with what the agents had told before.
    #[test]
    fn u3_what_the_agents_told_before_and_what_passes_does_not_end_the_command() {
        let (begun, waits) = (Instant::now(), |time| telling("0.2.0", "0.3.0", "Waiting", time));
        let mut came = Came::new("0.3.0", &waits("t1"));
        assert_eq!(came.look(&waits("t1"), begun), None);
        assert_eq!(came.look(&waits("t1"), begun + 10 * WAITS), None, "it was told before");
        let later = begun + 20 * WAITS;
        assert_eq!(came.look(&waits("t2"), later), None);
        assert_eq!(came.look(&telling("0.2.0", "0.3.0", "Running", "t3"), later + WAITS), None);
        assert_eq!(came.look(&waits("t4"), later + WAITS), None, "it waits anew");
        let message = "upgrade to 0.3.0: Waiting (Rights): give more".to_owned();
        assert_eq!(came.look(&waits("t4"), later + 2 * WAITS), Some(Err(message)));

        let back = |time| telling("0.2.0", "0.3.0", "RolledBack", time);
        let mut came = Came::new("0.3.0", &back("t1"));
        assert_eq!(came.look(&back("t1"), begun), None);
        assert!(came.look(&back("t2"), begun).unwrap().is_err());
    }

    #[test]
    fn u3_by_hand_is_refused_while_automatic_upgrades_are_on() {
        for (switch, may) in [("Disabled", true), ("Enabled", false)] {
            let resource = serde_json::json!({"properties": {"arcAgentProfile": {"agentAutoUpgrade": switch}}});
            assert_eq!(refuse_beside_automatic(&resource, "towline update --upgrade", "do").is_ok(), may, "{switch}");
        }
        assert!(refuse_beside_automatic(&Value::Null, "towline upgrade", "do").is_err(), "on is the default");
    }
}
