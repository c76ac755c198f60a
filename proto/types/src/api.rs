//! What the resource API is made of, for the gateway and for its clients: ids, versions, errors. No IO, no clock.

pub mod error;
pub mod id;

pub use self::{
    error::{ErrorBody, ErrorDetail},
    id::{InvalidId, ResourceId},
};
