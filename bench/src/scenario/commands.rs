//! What kubectl does, before a real apiserver.

use super::{Scenario, Size, Work};
use crate::{
    commands::{Task, Upgrade},
    scene::Scene,
};

const fn scenario(name: &'static str, what: &'static str, task: fn(Size) -> Task) -> Scenario {
    Scenario { name, what, scene: Scene::APISERVER, work: Work::Command(task), once: false }
}

/// All of them.
pub const ALL: &[Scenario] = &[
    scenario(
        "kubectl-get",
        "`kubectl get pods` of a real apiserver, a process and a connection each, discovery known: wall time",
        |size| Task::Get { count: size.commands },
    ),
    scenario("exec-echo-spdy", "lines through `kubectl exec -i` into a real pod and back, SPDY: round trip", |size| {
        Task::Echo { upgrade: Upgrade::Spdy, lines: size.lines }
    }),
    scenario(
        "exec-echo-websocket",
        "lines through `kubectl exec -i` into a real pod and back, WebSocket: round trip",
        |size| Task::Echo { upgrade: Upgrade::Websocket, lines: size.lines },
    ),
];
