//! Role-based access control as in ARM (features Z2 to Z6, Z11): role definitions, assignments of them to principals at
//! a scope, and the one pure decision over both. No IO, no clock: the gateway decides with it about clusters and
//! resources, the agent about Kubernetes calls (Z9).
//!
//! | module | what it holds |
//! |---|---|
//! | [`action`] | names of operations, and patterns with `*` over them |
//! | [`budget`] | the bound on the work of one decision |
//! | [`role`] | what a role definition allows; the built-in roles |
//! | [`scope`] | where it is allowed: subscription, resource group, cluster, namespace |
//! | [`policy`] | who has which role where, and the decision |
//! | [`principal`] | what assignments call somebody |
//! | [`kubernetes`] | the data action that a Kubernetes call needs (Z5) |
//! | [`call`] | the decision about one Kubernetes call (Z9) |
//! | [`snapshot`] | what concerns one cluster, signed, for its agent (Z9) |

pub mod action;
pub mod budget;
pub mod call;
pub mod kubernetes;
pub mod policy;
pub mod principal;
pub mod role;
pub mod scope;
pub mod snapshot;

pub use self::{
    action::{Action, Pattern},
    budget::{Budget, Exhausted},
    policy::{Assignment, Denied, Policy, Window},
    role::{Plane, Role},
    scope::Scope,
};
