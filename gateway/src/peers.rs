//! What other replicas of the gateway ask this one: users' requests to clusters that have a tunnel here. The other end
//! is [`crate::hop`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`accept`] | the listener for other replicas, and the owner of each of their connections |
//! | [`relay`] | one request from another replica, onto a tunnel of this one |

pub mod accept;
pub mod relay;
