//! Accepts the streams of a tunnel and hands each to its role: one task per stream, bounded, and none waits for
//! another.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use daemon::TaskGroup;
use futures_util::future::BoxFuture;
use http::StatusCode;
use tokio::sync::Semaphore;
use tunnel::{
    transport::{Closed, Incoming, TunnelHandle},
    wire::{close::StreamCode, head::RequestHead},
};

use super::{
    Named, Roles, Serves, Visit,
    config_agent::Wanted,
    kube_aad_proxy::{Refusal, refuse},
};
use crate::{metrics, tunnel::Serve};

/// What users are told where cluster connect is off.
const SHUT_OUT: &str = "cluster connect is disabled for this cluster; its owner may enable it again with `towline enable-features cluster-connect`";

/// What an exchange is counted with: its connection to the apiserver, what that holds while nobody reads, and what an
/// allocator does not give back.
const EXCHANGE_BYTES: u64 = 128 * 1024;

/// How many exchanges are served at once of `wanted`, where the process may have `memory` bytes.
pub fn at_once(wanted: usize, memory: Option<u64>) -> usize {
    let room = memory.map(|bytes| usize::try_from(bytes / EXCHANGE_BYTES).unwrap_or(usize::MAX).max(1));
    room.map_or(wanted, |room| wanted.min(room))
}

/// Serves streams by the roles.
#[derive(Clone)]
pub struct Server {
    /// Set once: roles are built after the tunnel that they use, and the tunnel after this.
    roles: Arc<OnceLock<Roles>>,
    slots: Arc<Semaphore>,
    slots_max: usize,
    tasks: TaskGroup,
    wanted: Wanted,
}

impl Server {
    /// At most `streams_max` at once, over all tunnels.
    pub fn new(roles: Roles, streams_max: usize) -> Self {
        let server = Self::idle(streams_max);
        server.begin(roles);
        server
    }

    /// The same with no roles yet: until [`Self::begin`] streams are refused.
    pub fn idle(streams_max: usize) -> Self {
        Self {
            roles: Arc::default(),
            slots: Arc::new(Semaphore::new(streams_max)),
            slots_max: streams_max,
            tasks: TaskGroup::new("streams"),
            wanted: Wanted::default(),
        }
    }

    /// Serves by `roles` from now on. The first call counts.
    pub fn begin(&self, roles: Roles) {
        let _ = self.roles.set(roles);
    }

    fn role(&self, name: &str) -> Option<&Named> {
        self.roles.get()?.find(name)
    }

    /// Whether users are let through; see [`super::config_agent`].
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Streams being served.
    pub fn running(&self) -> usize {
        self.tasks.running()
    }

    /// Ends all streams.
    pub fn abort(&self) {
        self.tasks.abort();
    }

    /// Serves a tunnel until it is closed.
    pub async fn serve(&self, tunnel: &TunnelHandle) -> Closed {
        loop {
            match tunnel.accept().await {
                Ok(incoming) => self.start(incoming),
                Err(closed) => return closed,
            }
        }
    }

    fn start(&self, incoming: Incoming) {
        let received = Instant::now();
        let Incoming { head, mut stream } = incoming;
        let head = match RequestHead::decode(head) {
            Ok(head) => head,
            Err(err) => {
                tracing::debug!(error = %err, "a stream's head cannot be read");
                metrics::stream_refused("bad_head");
                stream.send.reset(StreamCode::BadHead);
                return;
            }
        };
        let Some(Named { name, role }) = self.role(&head.role).cloned() else {
            metrics::stream_refused("unknown_role");
            stream.send.reset(StreamCode::UnknownRole);
            return;
        };
        let for_users = role.serves() == Serves::Users;
        if for_users && !self.wanted.lets_users_through() {
            metrics::stream_refused("cluster_connect_off");
            let refusal = Refusal::forbidden("serve", SHUT_OUT);
            let request_id = head.request_id;
            self.tasks.spawn("refusal", async move { refuse(stream.send, &refusal, request_id).await });
            return;
        }
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            metrics::stream_refused("limit");
            let message = format!("the agent serves {} exchanges at once, its limit (limits.streams)", self.slots_max);
            let refusal = Refusal {
                retry_after: Some(1),
                ..Refusal::new("serve", StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
            };
            let request_id = head.request_id;
            self.tasks.spawn("refusal", async move { refuse(stream.send, &refusal, request_id).await });
            return;
        };
        let wanted = self.wanted.clone();
        let serving = role.serve(Visit { head, stream, received });
        self.tasks.spawn(name, async move {
            let _open = metrics::stream_opened();
            let serving = metrics::timed(name, serving);
            tokio::select! {
                biased;
                // What is open ends too: its stream is reset, which is never taken for a clean end.
                () = wanted.users_shut_out(), if for_users => metrics::stream_refused("cluster_connect_off"),
                () = serving => {}
            }
            drop(slot);
        });
    }
}

impl Serve for Server {
    fn serve<'a>(&'a self, tunnel: &'a TunnelHandle) -> BoxFuture<'a, Closed> {
        Box::pin(Self::serve(self, tunnel))
    }

    fn running(&self) -> usize {
        Self::running(self)
    }

    fn abort(&self) {
        Self::abort(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_are_as_many_as_the_memory_has_room_for() {
        assert_eq!(at_once(8192, None), 8192);
        assert_eq!(at_once(8192, Some(512 << 20)), 4096);
        assert_eq!(at_once(100, Some(512 << 20)), 100);
        assert_eq!(at_once(8192, Some(1)), 1);
    }
}
