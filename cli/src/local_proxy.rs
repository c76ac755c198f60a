//! What `towline proxy` serves: `https://127.0.0.1:<port>/<key>`, carried on to the gateway with a token that stays
//! fresh.
//!
//! [`listen`] local TLS, HTTP/1.1 and HTTP/2 · [`places`] who may stay · [`forward`] one request: who asks, where to,
//! with which token · [`upstream`] connections to the gateway · [`keeper`] the token.
//!
//! Other users of this machine can reach the port too. So a request must show a random token that stands in the
//! kubeconfig which this proxy wrote, and nowhere else; it is taken off before the user's own is put on.

mod body;
mod forward;
mod keeper;
mod listen;
mod places;
mod slot;
mod upstream;

pub use self::{
    forward::Forward,
    keeper::Keeper,
    listen::{Listener, bind},
    upstream::Upstream,
};
