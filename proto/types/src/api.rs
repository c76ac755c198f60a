//! What the resource API is made of, for the gateway and for its clients: ids, versions, errors. No IO, no clock.

pub mod error;
pub mod id;

/// Header of an answer to a write: names of the gateways that had not confirmed it in time, with commas between. What the
/// write takes away may still be allowed there for a moment.
pub const UNCONFIRMED_BY: &str = "x-towline-unconfirmed-by";

pub use self::{
    error::{ErrorBody, ErrorDetail},
    id::{InvalidId, ResourceId},
};
