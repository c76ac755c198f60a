//! What a path is started in: the way between gateway and site, and the server behind it.

use crate::shape::Shape;

/// What a path is started in. Scenarios of one scene share it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scene {
    /// The way between gateway and site.
    pub shape: Shape,
    /// The server that requests end at.
    pub server: Server,
    /// Whom there must be room for.
    pub crowd: Crowd,
    /// Whether all paths are up together and take turns, instead of one after the other.
    pub together: bool,
}

/// Whom a path has room for; all of that is settings that anybody may make, and no check is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crowd {
    /// As it comes.
    #[default]
    Few,
    /// One user with a number of watches at once.
    Watches(u32),
    /// A number of clusters, each with a tunnel, beside the one that users reach.
    Agents(u32),
    /// As many, each with tunnels to two of three gateways on one database.
    Replicas(u32),
    /// A number of clusters in the gateway's store, of which none is connected.
    Registered(u32),
    /// A second cluster, of the same gateway.
    Two,
    /// The agent is one of ours whose control exchanges can be measured.
    Control,
}

/// What is behind a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Server {
    /// Ours, which answers at line rate.
    #[default]
    Synthetic,
    /// A real kube-apiserver, with a node and a pod.
    Apiserver,
}

impl Scene {
    /// A short way, and an upstream that is not what is measured.
    pub const PLAIN: Self = Self { shape: Shape::PLAIN, server: Server::Synthetic, crowd: Crowd::Few, together: false };
    /// The same, of paths that take turns: what the machine does in a second falls on all of them.
    pub const TOGETHER: Self = Self { together: true, ..Self::PLAIN };
    /// A short way, and a real apiserver.
    pub const APISERVER: Self = Self { server: Server::Apiserver, ..Self::PLAIN };
}
