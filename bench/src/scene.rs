//! What a path is started in: the way between gateway and site, and the server behind it.

use crate::link::Shape;

/// What a path is started in. Scenarios of one scene share it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scene {
    /// The way between gateway and site.
    pub shape: Shape,
    /// The upstream.
    pub server: Server,
}

/// What is behind a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Server {
    /// Ours, which answers at line rate.
    #[default]
    Synthetic,
}

impl Scene {
    /// A short way, and an upstream that is not what is measured.
    pub const PLAIN: Self = Self { shape: Shape::PLAIN, server: Server::Synthetic };
}
