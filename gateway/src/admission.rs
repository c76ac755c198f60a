//! Who comes in, and when: bounds on connections and handshakes, turns of handshakes, records of who was refused. For
//! users' connections and agents' tunnels alike.
//!
//! | module | what it holds |
//! |---|---|
//! | [`accept`] | the loop of a listener |
//! | [`limit`] | places, in all and by address |
//! | [`pace`] | turns of handshakes, so that requests do not wait behind thousands of them |
//! | [`refused`] | counts and records of connections without a request |
//! | [`unproven`] | turns and bounds of requests of which nobody knows yet whose they are |

pub mod accept;
pub mod limit;
pub mod pace;
pub mod refused;
pub mod unproven;
