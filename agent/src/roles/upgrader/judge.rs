//! Whether an upgrade is begun. Nothing here asks anybody: what is known is given.

use ::catalogue::version::Version;
use types::agent_api::MINORS_BEHIND;

use crate::config::Deployment;

/// What is known of the agents that run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct There {
    /// Who installed them: `towline` or `Helm`.
    pub managed_by: String,
    /// The version that their objects name.
    pub installed: String,
    /// The image of the agents' Deployments.
    pub agent: String,
    /// That of extension-manager; none where it is not there.
    pub extension_manager: Option<String>,
    /// Versions that were rolled back here.
    pub refused: Vec<String>,
    /// The newest version that ran here.
    pub newest: String,
}

/// Where the images of another version are: without tag and digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// The repository of the agents' image.
    pub agent: String,
    /// The repository of extension-manager's image, where its Deployment is installed.
    pub extension_manager: Option<String>,
}

/// Why an upgrade waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The version that is wanted.
    pub version: String,
    /// The cause as one word for programs.
    pub reason: &'static str,
    /// What the reader is to do about it.
    pub message: String,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judged {
    /// The wanted version runs, none is wanted, or it was rolled back here.
    Nothing,
    /// The upgrade waits until the cause is removed.
    Refused(Refusal),
    /// This version, from these images.
    Begin(String, Images),
}

/// Decides, for a version that the gateway wants.
pub fn judge(wanted: Option<&str>, running: &str, there: &There) -> Judged {
    let Some(wanted) = wanted.map(named).filter(|wanted| wanted != running) else { return Judged::Nothing };
    let wanted = wanted.as_str();
    if there.refused.iter().any(|version| *version == wanted) {
        return Judged::Nothing;
    }
    let refused = |reason: &'static str, message: String| {
        Judged::Refused(Refusal { version: wanted.to_owned(), reason, message })
    };
    // Counted from the newest version that ran here: step by step a gateway would otherwise come to the oldest one of the
    // catalogue, with all the faults that were mended since.
    let newest = if is_newer(&there.newest, running) { &there.newest } else { running };
    if let Err(message) = may_follow(newest, wanted) {
        return refused("Skew", message);
    }
    if there.managed_by == "Helm" {
        return refused(
            "Helm",
            format!(
                "helm installed the agents of this cluster, and upgrades them: helm upgrade with the chart of version {wanted}"
            ),
        );
    }
    let Some(agent) = repository(&there.agent, &there.installed) else {
        return refused("Image", pinned("the agents", &there.agent, wanted));
    };
    let extension_manager = match &there.extension_manager {
        None => None,
        Some(image) => match repository(image, &there.installed) {
            Some(repository) => Some(repository),
            None => return refused("Image", pinned(Deployment::ExtensionManager.name(), image, wanted)),
        },
    };
    Judged::Begin(wanted.to_owned(), Images { agent, extension_manager })
}

/// The name of a version that is wanted: `v0.3.0` is the version 0.3.0, which may be the one that runs, or one that was
/// rolled back.
pub fn named(wanted: &str) -> String {
    wanted.parse().map_or(wanted.to_owned(), |wanted: Version| wanted.number().to_string())
}

fn pinned(what: &str, image: &str, wanted: &str) -> String {
    format!(
        "the image of {what} is {image}, which is not named after its version, so that the one of version {wanted} is not known: towline connect again with --image REPOSITORY, or upgrade by hand (towline upgrade)"
    )
}

/// Whether `one` is a newer version than `other`; what is no version is not.
pub fn is_newer(one: &str, other: &str) -> bool {
    let parsed = |text: &str| text.parse::<Version>().ok();
    parsed(one).zip(parsed(other)).is_some_and(|(one, other)| one.precedence(&other).is_gt())
}

/// Whether agents of one version may become another one.
///
/// # Errors
/// Why not.
pub fn may_follow(running: &str, wanted: &str) -> Result<(), String> {
    let parsed = |text: &str| text.parse::<Version>().map_err(|error| error.to_string());
    let (running, wanted) = (parsed(running)?, parsed(wanted)?);
    let (from, to) = (running.number(), wanted.number());
    let back = from.major != to.major && to < from || from.major == to.major && from.minor > to.minor + MINORS_BEHIND;
    if back {
        return Err(format!(
            "the agents have version {running}, or had it: going back to {wanted} is more than {MINORS_BEHIND} minor version, which is not supported; delete and connect the cluster with that version instead"
        ));
    }
    Ok(())
}

/// An image without the tag that is its version, and without the digest behind it; none where the tag is another.
fn repository(image: &str, version: &str) -> Option<String> {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let repository = name.strip_suffix(version)?.strip_suffix(':')?;
    (!repository.is_empty()).then(|| repository.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there() -> There {
        There {
            managed_by: "towline".to_owned(),
            installed: "0.2.0".to_owned(),
            agent: "r:5000/agent:0.2.0".to_owned(),
            ..There::default()
        }
    }

    fn reason(wanted: &str, there: &There) -> &'static str {
        match judge(Some(wanted), "0.2.0", there) {
            Judged::Refused(refusal) => refusal.reason,
            Judged::Nothing => "nothing",
            Judged::Begin(..) => "begins",
        }
    }

    #[test]
    fn u1_upgrade_begins_or_says_why_it_waits() {
        let digest = There { agent: format!("r/agent:0.2.0@sha256:{}", "a".repeat(64)), ..there() };
        let images = Images { agent: "r/agent".to_owned(), extension_manager: None };
        assert_eq!(judge(Some("0.3.0"), "0.2.0", &digest), Judged::Begin("0.3.0".to_owned(), images));
        assert_eq!((reason("0.3.0", &there()), reason("0.2.0", &there())), ("begins", "nothing"));
        assert_eq!(judge(None, "0.2.0", &there()), Judged::Nothing);
        let rolled_back = There { refused: vec!["0.3.0".to_owned()], ..there() };
        assert_eq!((reason("0.3.0", &rolled_back), reason("0.3.1", &rolled_back)), ("nothing", "begins"));
        assert_eq!(
            (reason("v0.3.0", &rolled_back), reason("v0.2.0", &there())),
            ("nothing", "nothing"),
            "however spelt"
        );
        let Judged::Begin(version, _) = judge(Some("v0.3.0"), "0.2.0", &there()) else { panic!("it begins") };
        assert_eq!(version, "0.3.0");
        assert_eq!(reason("0.3.0", &There { managed_by: "Helm".to_owned(), ..there() }), "Helm");
        for image in ["r/agent:canary", "r/agent", "r/agent@sha256:a", ":0.2.0"] {
            assert_eq!(reason("0.3.0", &There { agent: image.to_owned(), ..there() }), "Image", "{image}");
            let extensions = There { extension_manager: Some(image.to_owned()), ..there() };
            assert_eq!(reason("0.3.0", &extensions), "Image", "{image}");
        }
    }

    #[test]
    fn u3_steps_back_count_from_the_newest_version_that_ran() {
        let there = There { installed: "0.4.0".to_owned(), agent: "r/agent:0.4.0".to_owned(), ..there() };
        let reason = |wanted: &str, newest: &str| match judge(
            Some(wanted),
            "0.4.0",
            &There { newest: newest.to_owned(), ..there.clone() },
        ) {
            Judged::Refused(refusal) => refusal.reason,
            Judged::Nothing => "nothing",
            Judged::Begin(..) => "begins",
        };
        for newest in ["", "0.4.0", "garbage", "0.3.0"] {
            assert_eq!(reason("0.3.0", newest), "begins", "{newest}");
        }
        assert_eq!(reason("0.3.0", "0.5.0"), "Skew", "two minor versions in two steps");
        assert_eq!((reason("0.5.1", "0.5.0"), reason("0.4.1", "0.5.0")), ("begins", "begins"));
    }

    #[test]
    fn u3_downgrade_past_the_supported_skew_is_refused() {
        for (running, wanted) in [("0.5.0", "0.4.9"), ("0.3.1", "0.3.0"), ("0.3.0", "1.0.0"), ("1.0.0", "2.5.0")] {
            assert!(may_follow(running, wanted).is_ok(), "{running} to {wanted}");
        }
        for (running, wanted) in [("0.5.0", "0.3.9"), ("1.0.0", "0.9.0"), ("0.5.0", "latest")] {
            assert!(may_follow(running, wanted).is_err(), "{running} to {wanted}");
        }
    }
}
