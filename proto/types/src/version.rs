//! Versions and features that two ends agree on in hello. A peer offers a range of versions and a set of features; the
//! gateway chooses the highest common version and the intersection of the features.

/// A version of the wire format. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Version(pub u16);

impl Version {
    /// The first version.
    pub const V1: Self = Self(1);
    /// The oldest version that this build speaks.
    pub const OLDEST: Self = Self::V1;
    /// The newest version that this build speaks.
    pub const NEWEST: Self = Self::V1;
}

/// Optional abilities, a bit each; unknown bits are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Features(pub u64);

impl Features {
    /// A stream can outlive the carrier that bore it (reserved; not offered yet).
    pub const RESUME: Self = Self(1);
    /// The agent only looks whether a tunnel comes up: no stream is opened on it, and it is closed soon.
    pub const CHECK: Self = Self(2);
    /// The tunnel carries the agent's own exchanges only: no user's stream is opened on it.
    pub const NO_USERS: Self = Self(4);
    /// What this build offers on each tunnel.
    pub const OFFERED: Self = Self(0);
    /// What a gateway of this build takes from agents that offer it.
    pub const TAKEN: Self = Self(Self::OFFERED.0 | Self::CHECK.0 | Self::NO_USERS.0);

    /// The features of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The features of both.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}
