//! What a process used, from the kernel's accounting: it holds on a noisy machine, where times on the clock do not.

use std::{ops::Sub, path::PathBuf};

use serde::{Deserialize, Serialize};

/// What a process used up to a moment, or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds of processor time, user and system.
    pub cpu_s: f64,
    /// Resident memory in KiB: now, or the median while a load was running.
    pub memory_kib: u64,
    /// The most that was resident, in KiB, since [`reset_peak`].
    pub peak_kib: u64,
    /// Context switches, voluntary and not, of the threads that there are.
    pub switches: u64,
}

impl Sub for Usage {
    type Output = Self;

    /// What was used since; memory is that of the later moment.
    fn sub(self, before: Self) -> Self {
        Self {
            cpu_s: (self.cpu_s - before.cpu_s).max(0.0),
            // Threads that ended in between took their count along.
            switches: self.switches.saturating_sub(before.switches),
            ..self
        }
    }
}

impl Usage {
    /// With what was used in a later life of the same hop: memory is that of the later one, the peak the higher of
    /// both.
    pub fn and(self, later: Self) -> Self {
        Self {
            cpu_s: self.cpu_s + later.cpu_s,
            peak_kib: self.peak_kib.max(later.peak_kib),
            switches: self.switches + later.switches,
            ..later
        }
    }
}

/// Of all threads of a process and of those that it started and that run; `None` where there is no such process.
pub fn usage(pid: u32) -> Option<Usage> {
    let own = one(pid)?;
    Some(descendants(pid).into_iter().filter_map(one).fold(own, |sum, child| Usage {
        cpu_s: sum.cpu_s + child.cpu_s,
        memory_kib: sum.memory_kib + child.memory_kib,
        peak_kib: sum.peak_kib + child.peak_kib,
        switches: sum.switches + child.switches,
    }))
}

fn one(pid: u32) -> Option<Usage> {
    let file = |name: &str| std::fs::read_to_string(of(pid, name)).ok();
    let (cpu_s, status) = (processor_seconds(&file("stat")?)?, file("status")?);
    let tasks = std::fs::read_dir(of(pid, "task")).ok()?.flatten();
    let switches = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    Some(Usage {
        cpu_s,
        memory_kib: field(&status, "VmRSS").unwrap_or(0),
        peak_kib: field(&status, "VmHWM").unwrap_or(0),
        switches: switches.map(|text| context_switches(&text)).sum(),
    })
}

/// Resident memory now, in KiB, as [`usage`] counts it.
pub fn memory_kib(pid: u32) -> Option<u64> {
    let one = |pid| field(&std::fs::read_to_string(of(pid, "status")).ok()?, "VmRSS");
    Some(one(pid)? + descendants(pid).into_iter().filter_map(one).sum::<u64>())
}

/// Lets the peak of resident memory begin again from what is resident now. Without the right to, the peak is that of
/// the process's whole life.
pub fn reset_peak(pid: u32) {
    for pid in descendants(pid).into_iter().chain([pid]) {
        let _ = std::fs::write(of(pid, "clear_refs"), "5");
    }
}

/// The processes that a process started, and those that they did: sshd has one for each connection.
fn descendants(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(of(pid, "task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> =
        lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
    let below: Vec<u32> = children.iter().flat_map(|pid| descendants(*pid)).collect();
    children.into_iter().chain(below).collect()
}

fn of(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// Seconds of user and system time of a `stat` file: all threads, those that have ended too.
fn processor_seconds(stat: &str) -> Option<f64> {
    // USER_HZ, which is 100 wherever Linux runs.
    const TICKS: f64 = 100.0;
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |number: usize| fields.get(number)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

fn context_switches(status: &str) -> u64 {
    let of = |name| field(status, name).unwrap_or(0);
    of("voluntary_ctxt_switches") + of("nonvoluntary_ctxt_switches")
}

fn field(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_a_name_that_looks_like_fields() {
        let stat = "7 (a) S 1 (b c) R 1 7 7 0 -1 4194304 100 0 0 0 1234 66 0 0 20 0 4 0 5 6 7";
        assert_eq!(processor_seconds(stat), Some(13.0));
        assert_eq!(processor_seconds("7 (cut) R 1 7"), None);
        assert_eq!(processor_seconds(""), None);
    }

    #[test]
    fn two_lives_are_added_but_for_their_memory() {
        let life = |cpu_s, memory_kib, peak_kib, switches| Usage { cpu_s, memory_kib, peak_kib, switches };
        assert_eq!(life(1.0, 900, 950, 3).and(life(0.5, 100, 200, 4)), life(1.5, 100, 950, 7));
    }

    #[test]
    fn fields_are_told_apart_by_their_whole_name() {
        let status = "Name:\tx\nVmHWM:\t    900 kB\nVmRSS:\t  800 kB\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!((field(status, "VmRSS"), field(status, "Vm"), field(status, "VmSwap")), (Some(800), None, None));
        assert_eq!(context_switches(status), 12);
    }

    #[test]
    fn what_a_process_started_counts_as_its_own() {
        use std::io::Read;
        let work = "n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done; echo done; exec sleep 600";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("sh -c '{work}' & exec sleep 600")]).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        // From here on, the one that was started has worked, and the other has not.
        child.stdout.take().unwrap().read_exact(&mut [0; 4]).unwrap();
        let (all, own) = (usage(child.id()).unwrap(), one(child.id()).unwrap());
        for pid in descendants(child.id()) {
            std::process::Command::new("kill").arg(pid.to_string()).status().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(all.cpu_s > own.cpu_s && all.memory_kib > own.memory_kib, "{all:?} {own:?}");
    }

    #[test]
    fn a_process_that_works_uses_its_time_and_memory() {
        let me = std::process::id();
        let before = usage(me).unwrap();
        let mut kept = vec![1_u8; 32 << 20];
        while usage(me).unwrap().cpu_s < before.cpu_s + 0.05 {
            kept.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3));
        }
        let used = usage(me).unwrap() - before;
        assert!(used.cpu_s >= 0.04 && used.memory_kib >= 32 << 10, "{used:?} {}", kept[7]);
        assert!(usage(u32::MAX).is_none());
    }
}
