//! The way between gateway and site while a path is measured: the wire alone, or the relay in its place.

use std::path::Path;

use anyhow::Context;

use super::{CUBIC, Link, sh};
use crate::{
    program::Dialogue,
    relay::{BothWays, FAR, NEAR},
    shape::Shape,
};

/// Kept while a path is up; the wire alone is there again when it is dropped.
pub struct Way(Option<Dialogue>);

impl Link {
    /// Why there is no way of this shape here, if so.
    pub fn cannot(&self, shape: Shape) -> Option<&'static str> {
        match self {
            _ if shape == Shape::PLAIN => None,
            Self::Loopback => Some("loopback has no link"),
            Self::Veth(_) if !Path::new("/dev/net/tun").exists() => Some("no /dev/net/tun"),
            Self::Veth(_) => None,
        }
    }
}

impl Way {
    /// Lays it: all that crosses between the site and the rest goes through it, as long as it is there. The same seed
    /// throws the same dice.
    ///
    /// # Errors
    /// A relay that does not start, routes that cannot be set.
    pub async fn start(link: &Link, shape: Shape, seed: u32) -> anyhow::Result<Self> {
        let Link::Veth(prefix) = link else { return Ok(Self(None)) };
        if shape == Shape::PLAIN {
            return Ok(Self(None));
        }
        let (router, site) = (format!("{prefix}r"), format!("{prefix}s"));
        let mut command = link.router_command(&std::env::current_exe()?);
        command.args(["relay", "--shape", &serde_json::to_string(&shape)?, "--seed", &seed.to_string()]);
        let mut relay = Dialogue::start("relay", command)?;
        relay.line().await?;
        // Both devices are of the relay's namespace until one is moved. Their routes are longer than those over veth,
        // and go with them.
        sh(&format!(
            "ip -n {router} link set {FAR} netns {site}; \
             ip -n {router} link set {NEAR} mtu {mtu} up; ip -n {site} link set {FAR} mtu {mtu} up; \
             ip -n {router} route add {address}/32 dev {NEAR}; \
             ip -n {site} route add 10.77.0.0/16 dev {FAR} src {address} {CUBIC}",
            mtu = shape.mtu,
            address = link.address(super::Seat::Inner),
        ))
        .context("lay the way through the relay")?;
        let mut this = Self(Some(relay));
        this.told().await?;
        Ok(this)
    }

    /// What the relay has seen since the last time; `None` of the wire alone.
    ///
    /// # Errors
    /// A relay that has ended.
    pub async fn told(&mut self) -> anyhow::Result<Option<BothWays>> {
        let Some(relay) = &mut self.0 else { return Ok(None) };
        relay.tell("\n").await?;
        let line = relay.line().await?;
        Ok(Some(serde_json::from_str(&line).with_context(|| format!("what the relay tells: {line:?}"))?))
    }

    /// Ends it, so that the next one can be laid.
    pub async fn stop(self) {
        if let Some(relay) = self.0 {
            relay.stop().await;
        }
    }
}
