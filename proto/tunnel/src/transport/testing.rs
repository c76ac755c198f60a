//! A cable for UDP between an agent and a gateway, in user space, for tests: it can lose datagrams, one way or both.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use daemon::TaskGroup;
use tokio::net::UdpSocket;

const DATAGRAM_BYTES: usize = 64 * 1024;
/// Agents' sockets at once.
const SOCKETS: usize = 64;

/// The cable. Ends when dropped.
pub struct UdpCable {
    address: SocketAddr,
    there: Arc<Way>,
    back: Arc<Way>,
    _tasks: TaskGroup,
}

/// One direction of the cable: which share of the datagrams is lost.
#[derive(Default)]
struct Way {
    percent: AtomicU32,
    state: AtomicU64,
}

impl Way {
    /// Whether the next datagram is lost: always the same in the same run of datagrams.
    fn loses(&self) -> bool {
        let step = |state: u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let state = step(self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |s| Some(step(s))).unwrap_or(0));
        ((state >> 33) % 100) < u64::from(self.percent.load(Ordering::Relaxed))
    }
}

impl UdpCable {
    /// A cable on loopback to `target`.
    pub async fn to(target: SocketAddr) -> io::Result<Self> {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
        let (there, back) = (Arc::<Way>::default(), Arc::<Way>::default());
        let tasks = TaskGroup::new("cable");
        let address = front.local_addr()?;
        let carry = carry_there(front, target, Arc::clone(&there), Arc::clone(&back), tasks.clone());
        tasks.spawn("there", carry);
        Ok(Self { address, there, back, _tasks: tasks })
    }

    /// The address that agents dial.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses `there` percent of what the agents send and `back` percent of what they are sent, from now on.
    pub fn lose(&self, there: u32, back: u32) {
        self.there.percent.store(there, Ordering::Relaxed);
        self.back.percent.store(back, Ordering::Relaxed);
    }
}

impl Drop for UdpCable {
    fn drop(&mut self) {
        self._tasks.abort();
    }
}

async fn carry_there(front: Arc<UdpSocket>, target: SocketAddr, there: Arc<Way>, back: Arc<Way>, tasks: TaskGroup) {
    let mut sockets: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut datagram = vec![0; DATAGRAM_BYTES];
    while let Ok((length, agent)) = front.recv_from(&mut datagram).await {
        if there.loses() || (sockets.len() >= SOCKETS && !sockets.contains_key(&agent)) {
            continue;
        }
        let socket = match sockets.get(&agent) {
            Some(socket) => Arc::clone(socket),
            None => {
                let Ok(socket) = UdpSocket::bind("127.0.0.1:0").await else { return };
                if socket.connect(target).await.is_err() {
                    return;
                }
                let socket = Arc::new(socket);
                sockets.insert(agent, Arc::clone(&socket));
                let way = carry_back(Arc::clone(&socket), Arc::clone(&front), agent, Arc::clone(&back));
                tasks.spawn("back", way);
                socket
            }
        };
        // A full buffer loses a datagram, as networks do.
        let _ = socket.send(&datagram[..length]).await;
    }
}

async fn carry_back(socket: Arc<UdpSocket>, front: Arc<UdpSocket>, agent: SocketAddr, back: Arc<Way>) {
    let mut datagram = vec![0; DATAGRAM_BYTES];
    while let Ok(length) = socket.recv(&mut datagram).await {
        if !back.loses() {
            let _ = front.send_to(&datagram[..length], agent).await;
        }
    }
}
