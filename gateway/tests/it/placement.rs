//! Several agents of one cluster: which of them gets a request, and how many requests there may be.

use std::time::Duration;

use tunnel::{
    transport::{CarrierKind, session::AgentSide},
    wire::close::CloseCode,
};

use crate::world::{Agent, Answer, Arrived, LONG, User, World, agent_side, at, get};

/// A request that was not answered yet.
struct Waiting {
    user: User,
    arrived: Arrived,
}

impl World {
    /// An agent of the cluster `a` that is a process of its own.
    async fn replica(&self, number: u8) -> Agent {
        let side = AgentSide { instance: [number; 16], ..agent_side() };
        self.agent_at(self.addresses.public, "a", CarrierKind::Http2, side).await
    }

    /// Sends a request as `user`, and says which of the agents got it.
    async fn ask(&self, user: &str, agents: &[&Agent; 2]) -> (usize, Waiting) {
        let mut connection = self.user().await;
        connection.send(get(&at("a", "/x"), &self.token(user, "a"), "")).await;
        let (at, arrived) = tokio::select! {
            arrived = agents[0].next() => (0, arrived),
            arrived = agents[1].next() => (1, arrived),
        };
        (at, Waiting { user: connection, arrived })
    }

    /// So many requests that wait; how many each agent got.
    async fn ask_often(&self, agents: &[&Agent; 2], count: usize, held: &mut Vec<Waiting>) -> [usize; 2] {
        let mut got = [0, 0];
        for _ in 0..count {
            let (at, waiting) = self.ask("ann", agents).await;
            got[at] += 1;
            held.push(waiting);
        }
        got
    }
}

#[tokio::test]
async fn t7_the_agent_with_less_to_do_gets_the_next_request() {
    let world = World::new().await;
    let first = world.replica(1).await;
    let mut held = Vec::new();
    assert_eq!(world.ask_often(&[&first, &first], 6, &mut held).await.iter().sum::<usize>(), 6);
    let second = world.replica(2).await;
    up(&world, 2).await;
    let agents = [&first, &second];
    assert_eq!(world.ask_often(&agents, 6, &mut held).await, [0, 6], "as many as the first one has");
    assert_eq!(world.ask_often(&agents, 4, &mut held).await, [2, 2], "both alike from then on");
    for mut waiting in held {
        waiting.arrived.answer(200, &[], "").await;
        assert_eq!(waiting.user.answer().await.status, 200);
    }
    // One after the other.
    let mut got = [0, 0];
    for _ in 0..6 {
        let (at, mut waiting) = world.ask("ann", &agents).await;
        got[at] += 1;
        waiting.arrived.answer(200, &[], "").await;
        assert_eq!(waiting.user.answer().await.status, 200);
        world.quiet().await;
    }
    assert_eq!(got, [3, 3]);
}

/// As an upgrade of the agents does it, one after the other.
#[tokio::test]
async fn t7_an_agent_that_is_upgraded_finishes_what_it_has_and_gets_nothing_new() {
    let world = World::new().await;
    let old = world.replica(1).await;
    let other = world.replica(2).await;
    up(&world, 2).await;
    let agents = [&old, &other];
    let mut held = Vec::new();
    assert_eq!(world.ask_often(&agents, 2, &mut held).await, [1, 1]);
    old.tunnel.drain(CloseCode::Shutdown, Duration::from_secs(1));
    let known = async {
        while !world.gateway.core().tunnels.all().iter().any(|tunnel| tunnel.is_draining()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, known).await.unwrap();
    assert_eq!(world.ask_often(&agents, 4, &mut held).await, [0, 4]);
    for mut waiting in held {
        waiting.arrived.answer(200, &[], "whole").await;
        assert_eq!(waiting.user.answer().await.text(), "whole");
    }
}

/// Waits until the gateway has so many tunnels.
async fn up(world: &World, count: i64) {
    let all = async {
        while world.gateway.core().metrics.tunnels_open() != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, all).await.unwrap();
}

/// That a request was refused by the limit of this name, and says when to ask again.
fn is_over(answer: &Answer, limit: &str) {
    assert_eq!(answer.status, 429, "{answer:?}");
    let status = answer.json();
    assert_eq!(status["reason"], "TooManyRequests");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(limit), "{message}");
    let after = answer.header("retry-after").expect("a time to ask again");
    assert!(after.parse::<u32>().unwrap() >= 1, "{after}");
}

/// A user of the group `ops`, and one who is none: the cap is of all of them together.
#[tokio::test]
async fn t8_streams_beyond_the_cap_of_a_cluster_are_429_with_a_time_to_ask_again() {
    let world =
        World::with("[limits]\nstreams_per_cluster = 2\n[[grants]]\ncluster = \"*\"\nusers = [\"dev:bob\"]").await;
    let agent = world.replica(1).await;
    let agents = [&agent, &agent];
    let mut held = Vec::new();
    for user in ["ann", "bob"] {
        held.push(world.ask(user, &agents).await.1);
    }
    for user in ["ann", "bob"] {
        let mut connection = world.user().await;
        connection.send(get(&at("a", "/x"), &world.token(user, "a"), "")).await;
        is_over(&connection.answer().await, "streams per cluster of 2");
    }
    // A place that came free is the next one's.
    held.pop();
    let free = async {
        while world.gateway.core().metrics.streams.now() > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, free).await.unwrap();
    let (_, mut waiting) = world.ask("ann", &agents).await;
    waiting.arrived.answer(200, &[], "").await;
    assert_eq!(waiting.user.answer().await.status, 200);
}

#[tokio::test]
async fn t8_streams_beyond_the_cap_of_a_tunnel_go_to_another_one_and_are_429_where_there_is_none() {
    let world = World::with("[limits]\nstreams_per_tunnel = 2").await;
    let first = world.replica(1).await;
    let mut held = Vec::new();
    world.ask_often(&[&first, &first], 2, &mut held).await;
    let mut user = world.user().await;
    user.send(get(&at("a", "/x"), &world.token("ann", "a"), "")).await;
    is_over(&user.answer().await, "streams per tunnel of 2");
    // Nothing of it is left: another agent's tunnel has room, though the full one comes first.
    let second = world.replica(2).await;
    up(&world, 2).await;
    let tunnels = world.gateway.core().tunnels.all();
    tunnels.iter().find(|tunnel| tunnel.handle.open_streams() == 0).expect("the second one's").set_draining();
    assert_eq!(world.ask_often(&[&first, &second], 2, &mut held).await, [0, 2]);
}
