//! Ports that stay the same from start to start.
//!
//! A port that is free now must be free at the next start too, also when the gateway was killed and clients and agents
//! dial away at it in between. So port 0 is taken from below the ports that the system gives to outgoing connections,
//! and from below the range of Kubernetes' node ports.

use std::{
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, anyhow};

use crate::failure::{Failure, Outcome};

/// Where port 0 is picked from.
const PICK: std::ops::Range<u16> = 18_000..30_000;
/// Tries to pick one.
const TRIES: u32 = 200;
/// Ports that one process picks: for users and agents, and for the admin listener.
const OF_ONE_PROCESS: u32 = 2;
/// Where users and agents connect if nothing was said and it is free.
pub const PUBLIC: u16 = 8443;

/// Whether both TCP and UDP are free.
fn is_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
}

/// A port that is picked is listened at a moment later. So no two picks of one process are the same, and processes that
/// start at the same moment, whose ids differ, begin at other ports: of two random picks one was taken now and then.
fn pick(ip: IpAddr) -> anyhow::Result<SocketAddr> {
    static PICKED: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(OF_ONE_PROCESS);
    let nth = |_| begin.wrapping_add(PICKED.fetch_add(1, Ordering::Relaxed)) % u32::from(PICK.end - PICK.start);
    (0..TRIES)
        // What is left of the division is below the length of the range.
        .map(|n| SocketAddr::new(ip, PICK.start + nth(n) as u16))
        .find(|address| is_free(*address))
        .with_context(|| format!("no port of {ip} between {} and {} is free for TCP and UDP", PICK.start, PICK.end))
}

/// The address to listen at: `asked`, or as at the last start (`kept`, port 0 for none), or `first` where that is free.
pub fn choose(asked: Option<SocketAddr>, kept: SocketAddr, first: Option<u16>) -> Outcome<SocketAddr> {
    let ip = asked.map_or(kept.ip(), |address| address.ip());
    match asked.map(|address| address.port()) {
        Some(0) | None => {}
        Some(port) => {
            let address = SocketAddr::new(ip, port);
            if is_free(address) {
                return Ok(address);
            }
            let error = anyhow!("cannot listen at {address}: the port is taken or the address is not of this machine");
            return Err(Failure::from(error).hint(format!("another port, or --listen {ip}:0 for one that is free")));
        }
    }
    let before = (kept.ip() == ip && kept.port() != 0).then_some(kept.port());
    for port in before.into_iter().chain(first.filter(|_| asked.is_none())) {
        let address = SocketAddr::new(ip, port);
        if is_free(address) {
            return Ok(address);
        }
        tracing::warn!("{address} is taken; listening elsewhere: agents and kubeconfigs made before point there");
    }
    Ok(pick(ip)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_kept_port_is_used_again_and_a_taken_one_is_not() {
        let zero = SocketAddr::new(HERE, 0);
        let first = choose(Some(zero), zero, None).unwrap();
        assert!(PICK.contains(&first.port()));
        assert_eq!(choose(Some(zero), first, None).unwrap(), first);
        assert_eq!(choose(None, first, Some(1)).unwrap(), first);
        assert_ne!(
            choose(Some(zero), zero, None).unwrap(),
            first,
            "the other one of the process, before either is used"
        );
        let _taken = UdpSocket::bind(first).unwrap();
        assert_ne!(choose(None, first, None).unwrap(), first, "QUIC needs the UDP port too");
        assert!(choose(Some(first), first, None).is_err(), "what was asked for is not replaced");
    }
}
