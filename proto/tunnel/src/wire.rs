//! The bytes on the wire. No IO, no clock, no random source: bytes come in as arguments.
//!
//! A **message** is `u32` length (big endian, of what follows), `u8` wire version, `u8` kind, then fields. Integers in
//! fields are varints ([`varint`]), byte strings are a varint length and the bytes. After the known fields come
//! extensions until the end of the message: varint tag, byte string, tags going up. An unknown extension with an even
//! tag is skipped, one with an odd tag must be understood and fails the message. Kind numbers are never reused.
//! `testdata` holds golden bytes of every kind.
//!
//! A **stream** begins, in the opener's direction, with its [`StreamId`](types::ids::StreamId) as a varint and a
//! [`head::RequestHead`] message; the acceptor's direction begins with a [`head::ResponseHead`] message. Raw body bytes
//! follow until the direction ends ([`close`]). Between two replicas of the gateway a [`hop::Hop`] message, which names
//! the cluster, has the request's message within it.
//!
//! The **control stream** is the first stream of a tunnel, opened by the gateway: [`hello::Challenge`] from the
//! gateway, [`hello::Hello`] from the agent, [`hello::Welcome`] or [`hello::Refuse`] from the gateway, then
//! [`control::Control`] messages both ways.

pub mod close;
pub mod control;
pub mod error;
pub mod head;
pub mod hello;
pub mod hop;
pub mod message;
pub mod roles;
pub mod varint;

#[cfg(test)]
mod tests;
