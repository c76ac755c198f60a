//! Which versions of agents a gateway serves (docs/features.md U4): its own minor version, the one before and the next
//! one. Agents of the minor version before are served and shown as outdated. Older ones, and newer ones than the next
//! minor version, are refused in the hello and at enrolment, with a sentence that says what to do, because nobody tests
//! that the two still understand each other.

use std::fmt;

use catalogue::version::Version;
use types::agent_api::{MINORS_AHEAD, MINORS_BEHIND, codes};

/// The version of this gateway.
pub const OWN: &str = env!("CARGO_PKG_VERSION");
/// Characters of a version that a peer named which are repeated to people.
const SHOWN: usize = 40;

/// How the version of an agent relates to that of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Skew {
    /// The same minor version.
    Current,
    /// The next minor version: it is served, because wire and agent API only grow.
    Newer,
    /// A newer minor version than is served.
    TooNew,
    /// An older minor version that is still served.
    Outdated,
    /// An older minor version than is served.
    TooOld,
    /// Not a version by the rules of Semantic Versioning: it is served, since nothing is known against it.
    Unknown,
}

impl Skew {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Current, Self::Newer, Self::TooNew, Self::Outdated, Self::TooOld, Self::Unknown];

    /// The word in resources, events and labels of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Current => "Current",
            Self::Newer => "Newer",
            Self::TooNew => "TooNew",
            Self::Outdated => "Outdated",
            Self::TooOld => "TooOld",
            Self::Unknown => "Unknown",
        }
    }

    /// The code of the refusal of agents of such a version; none where they are served.
    pub fn refused(self) -> Option<&'static str> {
        match self {
            Self::TooOld => Some(codes::AGENT_TOO_OLD),
            Self::TooNew => Some(codes::AGENT_TOO_NEW),
            Self::Current | Self::Newer | Self::Outdated | Self::Unknown => None,
        }
    }

    /// The word that events tell: nobody has to do anything about the next version or an unknown one.
    pub fn event(self) -> &'static str {
        match self {
            Self::Outdated | Self::TooOld | Self::TooNew => self.as_str(),
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
        // Whether this minor version is the last one of its major version is not known here either.
        let served = if agent.major == gateway.major {
            agent.minor - gateway.minor <= MINORS_AHEAD
        } else {
            agent.major == gateway.major + 1 && agent.minor < MINORS_AHEAD
        };
        return if served { Skew::Newer } else { Skew::TooNew };
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

/// Whether agents that have `from` may get `to`: a version that this gateway serves, and not further back than that seen
/// from `from`.
pub fn may_change(from: &str, to: &str) -> bool {
    // An older version is in relation to the running one what an agent is to its gateway.
    judge(to).refused().is_none() && between(to, from) != Skew::TooOld
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

/// The newest minor version that this gateway serves, such as `0.3`.
pub fn newest_served() -> String {
    let Ok(own) = OWN.parse::<Version>() else { return OWN.to_owned() };
    let own = own.number();
    format!("{}.{}", own.major, own.minor + MINORS_AHEAD)
}

/// Which versions this gateway serves, for a sentence about one that it does not.
pub fn served() -> String {
    format!("this gateway, {OWN}, serves agents from version {} to {}", oldest_served(), newest_served())
}

/// Why agents of a version are refused, and what to do.
pub fn refusal(agent: &str) -> String {
    let is_new = judge(agent) == Skew::TooNew;
    let agent: String = agent.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    if is_new {
        return format!(
            "these agents have version {agent}, and {}; upgrade the gateway first, or give the cluster the agents of version {OWN}: run `helm upgrade` with the chart of that version",
            served()
        );
    }
    format!(
        "these agents have version {agent}, and this gateway, {OWN}, serves agents from version {} on; give the cluster the agents of version {OWN}: run `towline update --auto-upgrade false --upgrade` of that version for the cluster, or `helm upgrade` with its chart",
        oldest_served()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u4_the_minor_versions_before_and_after_are_served_and_no_others() {
        for (agent, gateway, skew) in [
            ("0.2.0", "0.2.0", Skew::Current),
            ("0.2.9", "0.2.0", Skew::Current),
            ("0.2.0-rc.1", "0.2.0", Skew::Current),
            ("v0.2.0", "0.2.5", Skew::Current),
            ("0.1.9", "0.2.0", Skew::Outdated),
            ("0.1.0", "0.3.0", Skew::TooOld),
            ("0.0.9", "0.2.0", Skew::TooOld),
            ("0.3.9", "0.2.0", Skew::Newer),
            ("0.4.0-rc.1", "0.2.9", Skew::TooNew),
            ("1.0.0", "0.2.0", Skew::Newer),
            ("1.1.0", "0.2.0", Skew::TooNew),
            ("2.0.0", "0.2.0", Skew::TooNew),
            ("1.2.0", "1.1.0", Skew::Newer),
            ("18446744073709551615.0.0", "18446744073709551614.0.0", Skew::Newer),
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
        assert_eq!(judge(&format!("{}.0", newest_served())), Skew::Newer);
    }

    #[test]
    fn u3_a_downgrade_stays_within_the_versions_that_are_served() {
        assert!(may_change("0.1.0", OWN) && may_change(OWN, "0.1.0"));
        assert!(may_change(OWN, &format!("{}.7", newest_served())) && !may_change(OWN, "0.9.0"));
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
        let said = refusal("9.0.0");
        let versions = format!("9.0.0, and this gateway, {OWN}, serves agents from version {} to", oldest_served());
        assert!(said.contains(&versions) && said.contains("upgrade the gateway first"), "{said}");
    }
}
