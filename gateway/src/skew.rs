//! Which versions of agents a gateway serves (docs/features.md U4): its own minor version and the one before, and every
//! newer one. Agents of the minor version before are served and shown as outdated. Older ones are refused in the hello
//! and at enrolment, with a sentence that says what to do, because nobody tests that the two still understand each other.

use std::fmt;

use catalogue::version::Version;
use types::agent_api::MINORS_BEHIND;

/// The version of this gateway.
pub const OWN: &str = env!("CARGO_PKG_VERSION");
/// Characters of a version that a peer named which are repeated to people.
const SHOWN: usize = 40;

/// How the version of an agent relates to that of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Skew {
    /// The same minor version.
    Current,
    /// A newer minor version: it is served, because wire and agent API only grow.
    Newer,
    /// An older minor version that is still served.
    Outdated,
    /// An older minor version than is served.
    TooOld,
    /// Not a version by the rules of Semantic Versioning: it is served, since nothing is known against it.
    Unknown,
}

impl Skew {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Current, Self::Newer, Self::Outdated, Self::TooOld, Self::Unknown];

    /// The word in resources, events and labels of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Current => "Current",
            Self::Newer => "Newer",
            Self::Outdated => "Outdated",
            Self::TooOld => "TooOld",
            Self::Unknown => "Unknown",
        }
    }

    /// The word that events tell: nobody has to do anything about a version that is newer or unknown.
    pub fn event(self) -> &'static str {
        match self {
            Self::Outdated | Self::TooOld => self.as_str(),
            Self::Current | Self::Newer | Self::Unknown => Self::Current.as_str(),
        }
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Judges the version that an agent says it has.
pub fn judge(agent: &str) -> Skew {
    between(agent, OWN)
}

/// Judges the version of an agent by that of a gateway. Patch versions and pre-releases do not count.
pub fn between(agent: &str, gateway: &str) -> Skew {
    let (Ok(agent), Ok(gateway)) = (agent.parse::<Version>(), gateway.parse::<Version>()) else {
        return Skew::Unknown;
    };
    let (agent, gateway) = (agent.number(), gateway.number());
    if (agent.major, agent.minor) == (gateway.major, gateway.minor) {
        return Skew::Current;
    }
    if (agent.major, agent.minor) > (gateway.major, gateway.minor) {
        return Skew::Newer;
    }
    // Which minor version was the last one of the major version before is not known here, so a gateway that begins a
    // major version serves all of them.
    let served = if agent.major == gateway.major {
        gateway.minor - agent.minor <= MINORS_BEHIND
    } else {
        agent.major + 1 == gateway.major && gateway.minor < MINORS_BEHIND
    };
    if served { Skew::Outdated } else { Skew::TooOld }
}

/// Whether agents that have `from` may get `to`: not further back than this gateway serves, seen from `from`.
pub fn may_change(from: &str, to: &str) -> bool {
    // An older version is in relation to the running one what an agent is to its gateway.
    judge(to) != Skew::TooOld && between(to, from) != Skew::TooOld
}

/// The oldest minor version that this gateway serves, such as `0.1`.
pub fn oldest_served() -> String {
    let Ok(own) = OWN.parse::<Version>() else { return OWN.to_owned() };
    let own = own.number();
    match own.minor.checked_sub(MINORS_BEHIND) {
        Some(minor) => format!("{}.{minor}", own.major),
        None => format!("{}.0", own.major.saturating_sub(1)),
    }
}

/// Why agents of a version are refused, and what to do.
pub fn refusal(agent: &str) -> String {
    let agent: String = agent.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    format!(
        "these agents have version {agent}, and this gateway, {OWN}, serves agents from version {} on; give the cluster the agents of version {OWN}: run `towline update --auto-upgrade false --upgrade` of that version for the cluster, or `helm upgrade` with its chart",
        oldest_served()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u4_the_minor_version_before_is_served_and_older_ones_are_not() {
        for (agent, gateway, skew) in [
            ("0.2.0", "0.2.0", Skew::Current),
            ("0.2.9", "0.2.0", Skew::Current),
            ("0.2.0-rc.1", "0.2.0", Skew::Current),
            ("v0.2.0", "0.2.5", Skew::Current),
            ("0.1.9", "0.2.0", Skew::Outdated),
            ("0.1.0", "0.3.0", Skew::TooOld),
            ("0.0.9", "0.2.0", Skew::TooOld),
            ("0.3.0", "0.2.0", Skew::Newer),
            ("1.0.0", "0.2.0", Skew::Newer),
            ("0.9.0", "1.0.0", Skew::Outdated),
            ("0.9.0", "1.1.0", Skew::TooOld),
            ("1.0.0", "1.1.0", Skew::Outdated),
            ("0.9.0", "2.0.0", Skew::TooOld),
            ("1", "0.2.0", Skew::Unknown),
            ("test", "0.2.0", Skew::Unknown),
            ("", "0.2.0", Skew::Unknown),
        ] {
            assert_eq!(between(agent, gateway), skew, "{agent} at {gateway}");
        }
        assert_eq!(judge(OWN), Skew::Current);
        assert_eq!(judge(&format!("{}.0", oldest_served())), Skew::Outdated);
    }

    #[test]
    fn u3_a_downgrade_stays_within_the_versions_that_are_served() {
        assert!(may_change("0.1.0", OWN) && may_change(OWN, "0.1.0") && may_change(OWN, "0.9.0"));
        assert!(!may_change(OWN, "0.0.9") && !may_change("0.9.0", OWN));
        assert!(may_change("by-hand", OWN));
    }

    #[test]
    fn a_refusal_says_both_versions_and_what_to_do_in_one_line() {
        let said = refusal(&format!("0.0.1\n{}", "x".repeat(1000)));
        assert!(
            said.contains("version 0.0.1x")
                && said.contains(OWN)
                && said.contains("towline update --auto-upgrade false --upgrade")
        );
        assert!(!said.contains('\n') && said.len() < 400, "{said}");
    }
}
