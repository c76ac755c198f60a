//! The tunnels of one agent: a seat for each, and no two to the same replica of the gateway (docs/replicas.md).
//!
//! How many seats are used follows from what gateways say in their welcome. A single gateway says nothing: one seat.
//! Several replicas share one address, so the agent cannot choose which of them it reaches. It says which it has, and
//! these refuse it, until another one answers.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tunnel::{transport::TunnelHandle, wire::hello::HELD_MAX};

use super::api::CurrentTunnel;

/// Seats by number, and what is known of the replicas.
pub(super) struct Seats {
    state: watch::Sender<State>,
    /// The tunnel of the agent's own exchanges.
    current: watch::Sender<Option<TunnelHandle>>,
}

#[derive(Default)]
struct State {
    /// Most tunnels that the agent keeps.
    most: usize,
    /// Replicas that are alive, as a gateway said last. One where it said nothing.
    replicas: usize,
    held: Vec<Option<Held>>,
}

struct Held {
    tunnel: TunnelHandle,
    replica: Option<Bytes>,
    /// Another tunnel is about to take its place.
    leaving: bool,
}

impl State {
    fn wanted(&self) -> usize {
        self.most.min(self.replicas).max(1)
    }

    fn others(&self, seat: usize) -> impl Iterator<Item = &Held> {
        self.held.iter().enumerate().filter(move |(at, _)| *at != seat).filter_map(|(_, held)| held.as_ref())
    }

    /// A seat with a tunnel may dial its successor. One without may dial while fewer tunnels are up than are wanted; if
    /// none is, the first seat alone.
    fn may_dial(&self, seat: usize) -> bool {
        let others = self.others(seat).count();
        self.held[seat].is_some() || (others < self.wanted() && (others > 0 || seat == 0))
    }
}

impl Seats {
    /// Seats for at most `most` tunnels.
    pub(super) fn new(most: usize) -> Self {
        let most = most.clamp(1, HELD_MAX);
        let held = (0..most).map(|_| None).collect();
        Self { state: watch::Sender::new(State { most, replicas: 1, held }), current: watch::Sender::new(None) }
    }

    /// The tunnel of the agent's own exchanges.
    pub(super) fn current(&self) -> CurrentTunnel {
        self.current.subscribe()
    }

    /// How many tunnels should be up.
    pub(super) fn wanted(&self) -> usize {
        self.state.borrow().wanted()
    }

    /// Completes once another number of tunnels should be up than `known`.
    pub(super) async fn other_than(&self, known: usize) {
        self.until(|state| state.wanted() != known).await;
    }

    /// Waits until the seat may dial.
    pub(super) async fn turn(&self, seat: usize) {
        self.until(|state| state.may_dial(seat)).await;
    }

    /// Whether the seat may dial.
    pub(super) fn may_dial(&self, seat: usize) -> bool {
        self.state.borrow().may_dial(seat)
    }

    /// Whether another seat has a tunnel.
    pub(super) fn others_up(&self, seat: usize) -> bool {
        self.state.borrow().others(seat).next().is_some()
    }

    /// Waits until another seat has lost or changed its tunnel, or another number of replicas was told, from now on.
    pub(super) async fn changed(&self) {
        // The sender is ours.
        let _ = self.state.subscribe().changed().await;
    }

    /// The replicas that the other seats have tunnels to.
    pub(super) fn held_by_others(&self, seat: usize) -> Vec<Bytes> {
        self.state.borrow().others(seat).filter_map(|held| held.replica.clone()).collect()
    }

    /// A gateway said how many replicas are alive.
    pub(super) fn told(&self, replicas: u32) {
        let replicas = usize::try_from(replicas).unwrap_or(usize::MAX).max(1);
        self.state.send_if_modified(|state| std::mem::replace(&mut state.replicas, replicas) != replicas);
    }

    /// Gives a tunnel to a seat, instead of the one it had. False, and nothing changes, for a tunnel to a replica that
    /// another seat has, and beside another seat's for one to a gateway that has no replicas.
    pub(super) fn take(&self, seat: usize, tunnel: &TunnelHandle) -> bool {
        let place = tunnel.info().replica.as_deref();
        self.told(place.map_or(1, |place| place.of));
        let replica = place.map(|place| place.name.clone());
        let taken = self.state.send_if_modified(|state| {
            if state.others(seat).any(|other| replica.is_none() || other.replica == replica) {
                return false;
            }
            state.held[seat] = Some(Held { tunnel: tunnel.clone(), replica, leaving: false });
            true
        });
        self.settle();
        taken
    }

    /// The seat's tunnel is about to be replaced: exchanges begin on another one, if there is one.
    pub(super) fn leaving(&self, seat: usize) {
        self.state.send_modify(|state| {
            if let Some(held) = &mut state.held[seat] {
                held.leaving = true;
            }
        });
        self.settle();
    }

    /// The seat's tunnel is no longer there.
    pub(super) fn leave(&self, seat: usize) {
        self.state.send_modify(|state| state.held[seat] = None);
        self.settle();
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        // The sender is ours.
        let _ = self.state.subscribe().wait_for(holds).await;
    }

    /// The agent's own exchanges stay where they are for as long as that tunnel does.
    fn settle(&self) {
        let state = self.state.borrow();
        let all = || state.held.iter().flatten();
        let staying = || all().filter(|held| !held.leaving);
        self.current.send_if_modified(|current| {
            let stays = |held: &&Held| current.as_ref().is_some_and(|now| Arc::ptr_eq(now, &held.tunnel));
            let best = staying().find(stays).or_else(|| staying().next()).or_else(|| all().find(stays));
            let best = best.or_else(|| all().next()).map(|held| held.tunnel.clone());
            let same = match (&best, current.as_ref()) {
                (Some(best), Some(now)) => Arc::ptr_eq(best, now),
                (None, None) => true,
                _ => false,
            };
            if !same {
                *current = best;
            }
            !same
        });
    }
}
