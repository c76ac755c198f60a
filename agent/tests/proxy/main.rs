#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]
//! The agent's proxy between a gateway that may be hostile and an apiserver that records raw bytes.

mod apiserver;
mod connections;
mod exchanges;
mod frames;
mod harness;
mod identity;
mod issuer_keys;
mod kubeconfig;
mod unprocessed;
mod upgrades;
