//! Network namespaces: a private world for an agent or a gateway, with firewalls, NAT and black holes.

use std::{
    process::Command,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use anyhow::Context;

use crate::programs::run;

/// Whether namespaces can be made here (root, `ip`, `nft`).
pub fn available() -> bool {
    static AVAILABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let name = format!("tl-probe-{}", std::process::id());
        let made = sh(&format!("ip netns add {name} && ip netns exec {name} nft list tables")).is_ok();
        let _ = sh(&format!("ip netns del {name}"));
        made
    })
}

/// Runs a line of shell; its failure is an error with what it printed.
pub fn sh(line: &str) -> anyhow::Result<String> {
    run(Command::new("sh").args(["-ec", line]), Duration::from_secs(30))?.ok().with_context(|| line.to_owned())
}

/// A namespace joined to the host by a veth pair. The host end is where the gateway is, the inner end where the agent
/// is.
pub struct Namespace {
    /// Name of the namespace, as `ip netns` knows it.
    pub name: String,
    /// Address of the host's end.
    pub outside: String,
    /// Address of the inner end.
    pub inside: String,
    number: u8,
}

impl Namespace {
    /// Makes a namespace and its veth pair, with addresses and a route; needs root.
    pub fn new() -> anyhow::Result<Self> {
        static NUMBER: AtomicU8 = AtomicU8::new(1);
        // Another run on this machine may have some of them.
        let number = std::iter::repeat_with(|| NUMBER.fetch_add(1, Ordering::Relaxed))
            .take(usize::from(u8::MAX))
            .find(|number| *number > 0 && !std::path::Path::new(&format!("/sys/class/net/tla{number}")).exists())
            .context("no free name for a link")?;
        let name = format!("tl{}n{number}", std::process::id());
        let this = Self { outside: format!("10.213.{number}.1"), inside: format!("10.213.{number}.2"), name, number };
        let (n, host, inner) = (&this.name, this.host_link(), format!("tlb{number}"));
        sh(&format!(
            "ip netns add {n}; ip link add {host} type veth peer name {inner}; ip link set {inner} netns {n}; \
             ip addr add {}/30 dev {host}; ip link set {host} up; \
             ip -n {n} addr add {}/30 dev {inner}; ip -n {n} link set {inner} up; ip -n {n} link set lo up; \
             ip -n {n} route add default via {}",
            this.outside, this.inside, this.outside
        ))?;
        Ok(this)
    }

    /// The host's end of the veth pair.
    pub fn host_link(&self) -> String {
        format!("tla{}", self.number)
    }

    /// Gives the inner end another address that the host reaches too, for a NAT to change to; returns it.
    pub fn second_address(&self) -> anyhow::Result<String> {
        let (address, n, number) = (format!("10.214.{}.2", self.number), &self.name, self.number);
        sh(&format!(
            "ip -n {n} addr add {address}/32 dev tlb{number}; ip route add {address}/32 dev {}",
            self.host_link()
        ))?;
        Ok(address)
    }

    /// A command that runs inside.
    pub fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Replaces the namespace's own firewall rules by `rules`, lines for an input and an output chain, such as
    /// `output meta l4proto udp drop`.
    pub fn firewall(&self, rules: &[&str]) -> anyhow::Result<()> {
        let mut script = String::from("add table inet towline; delete table inet towline; table inet towline {\n");
        for hook in ["input", "output"] {
            script += &format!(" chain {hook} {{ type filter hook {hook} priority 0; policy accept;\n");
            for rule in rules.iter().filter_map(|rule| rule.strip_prefix(hook)) {
                script += &format!("  {rule}\n");
            }
            script += " }\n";
        }
        script += "}\n";
        crate::programs::run_with_input(
            Command::new("ip").args(["netns", "exec", &self.name, "nft", "-f", "-"]),
            Some(script.as_bytes()),
            Duration::from_secs(20),
        )?
        .ok()
        .context(script)?;
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = sh(&format!("ip link del {}", self.host_link()));
        let _ = sh(&format!("ip netns del {}", self.name));
    }
}
