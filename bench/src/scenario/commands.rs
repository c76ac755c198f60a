//! What kubectl does, before a real apiserver.

use super::{Scenario, Size, Work};
use crate::{
    commands::{Task, Upgrade},
    path::Kind,
    scene::Scene,
};

/// Where a session is shown, which no target is about.
const SESSIONS: &[Kind] = &[Kind::Direct, Kind::TowlineH2, Kind::TowlineQuic];

const fn scenario(name: &'static str, what: &'static str, shown: &'static [Kind], task: fn(Size) -> Task) -> Scenario {
    Scenario { name, what, scene: Scene::APISERVER, work: Work::Command(task), shown }
}

/// All of them.
pub const ALL: &[Scenario] = &[
    scenario(
        "kubectl-get",
        "`kubectl get pods` of a real apiserver, a process and a connection each, discovery known: wall time",
        &[],
        |size| Task::Get { count: size.commands },
    ),
    scenario(
        "exec-echo-spdy",
        "lines through `kubectl exec -i` into a real pod and back, SPDY: round trip",
        SESSIONS,
        |size| Task::Echo { upgrade: Upgrade::Spdy, lines: size.lines },
    ),
    scenario(
        "exec-echo-websocket",
        "lines through `kubectl exec -i` into a real pod and back, WebSocket: round trip",
        SESSIONS,
        |size| Task::Echo { upgrade: Upgrade::Websocket, lines: size.lines },
    ),
];
