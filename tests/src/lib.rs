//! What the end-to-end tests run on: real programs, real sockets, the real cluster. Only hostile or broken peers are
//! scripted.
//!
//! | module | what it holds |
//! |---|---|
//! | [`programs`] | child processes with their logs kept, ended on drop |
//! | [`cluster`] | the real Kubernetes cluster of `tests/cluster` |
//! | [`stack`] | `towline dev` and an agent, in front of an apiserver |
//! | [`kubectl`] | clients as users run them |
//! | [`curl`] | many requests at once over one version of HTTP |
//! | [`apiserver`] | a scripted apiserver that records the raw bytes it received |
//! | [`proxy`] | a scripted HTTP proxy, good or bad |
//! | [`git`] | a Git server over TLS with basic authentication, and repositories to push to |
//! | [`replicas`] | several gateways on one PostgreSQL behind one address, and agents on this machine |
//! | [`images`] | variants of our images, given to the node |
//! | [`registry`] | an OCI registry over TLS with basic authentication, and artifacts pushed to it |
//! | [`tls`] | a server's certificate, of an authority of its own |
//! | [`raw`] | raw HTTP/1.1 over TLS, for what client libraries would tidy up |
//! | [`soak`] | several gateways for hours, whose memory, files, tasks and rows may not grow (`tests/soak`) |
//! | [`screen`] | a program on a terminal, its keys and its screen |
//! | [`network`] | network namespaces: firewalls, NAT, black holes |
//! | [`postgres`] | a PostgreSQL server with TLS and passwords |
//! | [`leftovers`] | what a failed test leaves in the cluster, taken away |
//! | [`case`] | one test: name, what it needs, how it runs beside others |

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

pub mod apiserver;
pub mod case;
pub mod cluster;
pub mod curl;
pub mod git;
pub mod images;
pub mod kubectl;
pub mod leftovers;
pub mod network;
pub mod objects;
pub mod postgres;
pub mod programs;
pub mod proxy;
pub mod raw;
pub mod registry;
pub mod replicas;
pub mod screen;
pub mod soak;
pub mod stack;
pub mod tls;
