//! The network that all paths cross: users, gateway and site each in a namespace of its own, joined by a router over
//! veth pairs with an MTU of 1500, so that no path has the 64 KiB packets of loopback.

mod way;

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};
pub use way::Way;

/// Who a process is, which decides the network that it is in and the processor that it is pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// Sends the load, where users are.
    Load,
    /// The hop that users reach: gateway, or the first proxy.
    Outer,
    /// The hop at the site: agent, or the second proxy.
    Inner,
    /// At the site too.
    Upstream,
}

/// Namespaces: users, gateway, site.
const PLACES: [char; 3] = ['u', 'g', 's'];
/// What every route says: the congestion control that kernels come with, whatever this machine's default is. (A
/// namespace's default can only be one that the whole machine allows to everybody; a route's can be any.)
const CUBIC: &str = "congctl cubic";
/// No connection remembers what an earlier one went through.
const FORGET: &str = "echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save";
/// The way to this machine's own network.
const HOST: &str = "10.77.9";
/// Before the process id in names of namespaces.
const PREFIX: &str = "tlbench";

impl Seat {
    /// Index in [`PLACES`].
    fn place(self) -> usize {
        match self {
            Self::Load => 0,
            Self::Outer => 1,
            Self::Inner | Self::Upstream => 2,
        }
    }

    /// The processor of this seat on a machine with `processors`: hops are apart from what measures them.
    fn processor(self, processors: usize) -> &'static str {
        match (self, processors) {
            (_, 0 | 1) | (Self::Load, _) | (Self::Upstream, 2 | 3) => "0",
            (Self::Outer, _) | (Self::Inner, 2 | 3) => "1",
            (Self::Inner, _) => "2",
            (Self::Upstream, _) => "3",
        }
    }
}

/// The network of a run; what was made for it goes when it is dropped.
pub enum Link {
    /// Namespaces and veth pairs, by the prefix of their names.
    Veth(String),
    /// Loopback, where somebody asked for it.
    Loopback,
}

impl Link {
    /// Namespaces of this process; those that ended runs have left behind are removed first.
    ///
    /// # Errors
    /// Without root, or where the kernel has no namespaces or veth pairs.
    pub fn veth() -> anyhow::Result<Self> {
        remove_stale();
        let this = Self::Veth(format!("{PREFIX}{}", std::process::id()));
        this.make().context(
            "a network of namespaces and veth pairs cannot be made; it needs root and iproute2. `--loopback` measures without \
             one, which makes every path look better than it is",
        )?;
        Ok(this)
    }

    /// As in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Veth(_) => "veth, MTU 1500",
            Self::Loopback => "LOOPBACK",
        }
    }

    /// The address of a seat; agent and upstream share one.
    pub fn address(&self, seat: Seat) -> String {
        let first = if matches!(self, Self::Veth(_)) { "10" } else { "127" };
        format!("{first}.77.{}.2", seat.place() + 1)
    }

    /// A command at a seat, pinned, which ends when this process does. Its process id is the program's own.
    pub fn command(&self, seat: Seat, program: &Path) -> Command {
        self.command_in(PLACES[seat.place()], &[], seat, program)
    }

    /// The same for a process that stands for many machines: it gives way to load and upstream where they share a
    /// processor. At once, which being nice does not: who wakes then waits for the scheduler's next tick, 4 ms where
    /// that comes at 250 Hz.
    pub fn crowd_command(&self, seat: Seat, program: &Path) -> Command {
        self.command_in(PLACES[seat.place()], &["chrt", "--idle", "0"], seat, program)
    }

    /// A command beside the network, at the processor of a seat, which may outlive this process.
    pub fn command_of_host(&self, seat: Seat, program: &Path) -> Command {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = Command::new("taskset");
        command.args(["-c", seat.processor(processors)]).arg(program);
        command
    }

    /// Lets all of the network reach what listens at an address of this machine. It goes with the network.
    ///
    /// # Errors
    /// A route of another run that has done so, or whatever keeps it from being made.
    pub fn join_host(&self) -> anyhow::Result<()> {
        let Self::Veth(prefix) = self else { return Ok(()) };
        let (router, here) = (format!("{prefix}r"), format!("tlb{}", std::process::id()));
        sh(&format!(
            "ip link add {here} type veth peer name host netns {router}; \
             ip addr add {HOST}.2/30 dev {here}; ip link set {here} up; \
             ip -n {router} addr add {HOST}.1/30 dev host; ip -n {router} link set host up; \
             ip -n {router} route add default via {HOST}.2; ip route add 10.77.0.0/21 via {HOST}.1 dev {here} {CUBIC}"
        ))
        .context("join this machine's network with that of the run (another run may have it)")
    }

    /// A command where all packets cross, apart from the hops. What is to keep times goes before all else, if it may.
    fn router_command(&self, program: &Path) -> Command {
        let first = ["chrt", "--fifo", "1"];
        let may =
            Command::new(first[0]).args(&first[1..]).arg("true").output().is_ok_and(|tried| tried.status.success());
        self.command_in('r', if may { &first } else { &[] }, Seat::Upstream, program)
    }

    fn command_in(&self, letter: char, before: &[&str], seat: Seat, program: &Path) -> Command {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut words = Vec::new();
        if let Self::Veth(prefix) = self {
            words.extend(["ip".to_owned(), "netns".to_owned(), "exec".to_owned(), format!("{prefix}{letter}")]);
        }
        let pinned = ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", seat.processor(processors)];
        words.extend(before.iter().chain(&pinned).map(|word| (*word).to_owned()));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    fn make(&self) -> anyhow::Result<()> {
        let Self::Veth(prefix) = self else { return Ok(()) };
        let router = format!("{prefix}r");
        sh(&format!(
            "ip netns add {router}; ip netns exec {router} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'; ip -n {router} link set lo up"
        ))?;
        for (place, letter) in PLACES.iter().enumerate() {
            let (ns, n) = (namespace(prefix, place), place + 1);
            sh(&format!(
                "ip netns add {ns}; ip link add r{letter} netns {router} mtu 1500 type veth peer name e{letter} netns {ns} mtu 1500; \
                 ip -n {router} addr add 10.77.{n}.1/24 dev r{letter}; ip -n {router} link set r{letter} up; \
                 ip -n {ns} addr add 10.77.{n}.2/24 dev e{letter}; ip -n {ns} link set e{letter} up; ip -n {ns} link set lo up; \
                 ip -n {ns} route add default via 10.77.{n}.1 {CUBIC}; ip netns exec {ns} sh -c '{FORGET}'; \
                 ip -n {ns} route change local 10.77.{n}.2 dev e{letter} table local proto kernel scope host src 10.77.{n}.2 {CUBIC}"
            ))?;
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Self::Veth(prefix) = self {
            remove(prefix);
        }
    }
}

fn namespace(prefix: &str, place: usize) -> String {
    format!("{prefix}{}", PLACES[place])
}

fn remove(prefix: &str) {
    for letter in PLACES.into_iter().chain(['r']) {
        // What is not there need not be removed.
        let _ = sh(&format!("ip netns del {prefix}{letter}"));
    }
}

/// Those of processes that are no more.
fn remove_stale() {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix('r')?.parse::<u32>().ok());
        if let Some(owner) = owner.filter(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&format!("{PREFIX}{owner}"));
        }
    }
}

fn sh(line: &str) -> anyhow::Result<()> {
    let output = Command::new("sh").args(["-ec", line]).output().with_context(|| line.to_owned())?;
    ensure!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_never_share_a_processor_with_what_measures_them() {
        for processors in 2..9 {
            for (tool, hop) in [
                (Seat::Load, Seat::Outer),
                (Seat::Load, Seat::Inner),
                (Seat::Upstream, Seat::Outer),
                (Seat::Upstream, Seat::Inner),
            ] {
                assert_ne!(tool.processor(processors), hop.processor(processors), "{tool:?} {hop:?} of {processors}");
            }
        }
        assert_eq!(Seat::Inner.processor(1), "0");
    }
}
