//! What is measured by other means than our load.

use super::{SHOWN, Scenario, Work};
use crate::scene::Scene;

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "h2load-64",
        what: "get-64 by h2load, which is not ours: a second opinion on requests a second",
        scene: Scene::PLAIN,
        work: Work::H2load(|size| size.seconds),
        shown: SHOWN,
    },
    Scenario {
        name: "tokens",
        what: "the checks of tokens and certificates by themselves: kept decisions and new ones, 1 KB and 300 groups",
        scene: Scene::PLAIN,
        work: Work::Tokens(|size| size.tokens),
        shown: &[],
    },
];
