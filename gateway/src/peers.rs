//! What other replicas of the gateway ask this one: users' requests to clusters that have a tunnel here, and questions
//! about sessions. The other end is [`crate::hop`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`accept`] | the listener for other replicas, and the owner of each of their connections |
//! | [`questions`] | what another replica asks of sessions here |
//! | [`relay`] | one request from another replica, onto a tunnel of this one |

pub mod accept;
pub mod questions;
pub mod relay;
