//! `[api.quotas]`: how much of the store the resources of one resource group, or of one subscription, may take, and
//! their long-running operations.

use daemon::settings::{Faults, Section};

/// Bytes of a mebibyte.
const MIB: u64 = 1024 * 1024;

/// Bounds of resource groups and of subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quotas {
    /// Of each resource group.
    pub group: Quota,
    /// Of each subscription, with all of its resource groups.
    pub subscription: Quota,
}

/// What the resources of one place may take together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Number of resources of all kinds.
    pub resources: u32,
    /// Mebibytes of what is kept of them, sealed settings included.
    pub mib: u32,
    /// Operations that begin within 24 hours: each is kept for a day after its end.
    pub operations: u32,
}

impl Quota {
    /// The same in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.mib) * MIB
    }
}

/// Ten thousand clusters with four extensions, configurations or assignments each; 5 KiB for each of these. Each may be
/// written twice a day.
const GROUP: Quota = Quota { resources: 50_000, mib: 256, operations: 100_000 };
/// Four such groups.
const SUBSCRIPTION: Quota = Quota { resources: 200_000, mib: 1024, operations: 400_000 };

impl Default for Quotas {
    fn default() -> Self {
        Self { group: GROUP, subscription: SUBSCRIPTION }
    }
}

impl Quotas {
    /// Reads the table `[api.quotas]`.
    pub fn read(mut section: Section, faults: &mut Faults) -> Self {
        let default = Self::default();
        let mut number = |name, default| section.number(name, 1..=u32::MAX, faults).unwrap_or(default);
        let group = Quota {
            resources: number("group_resources", default.group.resources),
            mib: number("group_mib", default.group.mib),
            operations: number("group_operations", default.group.operations),
        };
        let subscription = Quota {
            resources: number("subscription_resources", default.subscription.resources),
            mib: number("subscription_mib", default.subscription.mib),
            operations: number("subscription_operations", default.subscription.operations),
        };
        section.end(faults);
        Self { group, subscription }
    }
}
