//! What a hop uses while a load runs. One that is killed and started again has several lives, which count together.

use std::{cell::RefCell, rc::Rc};

use anyhow::Context;

use crate::{
    accounting::{self, Usage},
    program::Program,
    record::Hop,
    statistics::Middle,
};

/// A hop under a load; a clone is the same one.
#[derive(Clone)]
pub struct Ledger(Rc<RefCell<Kept>>);

struct Kept {
    name: String,
    /// Process and what that had used before; `None` between two lives.
    life: Option<(u32, Usage)>,
    /// In lives that ended.
    spent: Usage,
    memory_kib: Vec<f64>,
}

impl Ledger {
    /// Of a hop that runs, from now on.
    ///
    /// # Errors
    /// It has ended.
    pub fn open(hop: &Program) -> anyhow::Result<Self> {
        let ended = || format!("{} has ended already", hop.name);
        let pid = hop.pid().with_context(ended)?;
        accounting::reset_peak(pid);
        let life = Some((pid, accounting::usage(pid).with_context(ended)?));
        let (name, memory_kib) = (hop.name.clone(), Vec::new());
        Ok(Self(Rc::new(RefCell::new(Kept { name, life, spent: Usage::default(), memory_kib }))))
    }

    /// Looks at its memory, if it lives.
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 KiB")]
    pub fn look(&self) {
        let mut kept = self.0.borrow_mut();
        let now = kept.life.and_then(|(pid, _)| accounting::memory_kib(pid));
        kept.memory_kib.extend(now.map(|kib| kib as f64));
    }

    /// Forgets what its memory was until now, while a crowd was still to come.
    pub fn look_anew(&self) {
        self.0.borrow_mut().memory_kib.clear();
    }

    /// What it used until now counts for nothing.
    ///
    /// # Errors
    /// It has ended.
    pub fn begin_anew(&self) -> anyhow::Result<()> {
        let mut kept = self.0.borrow_mut();
        let now = kept.life.and_then(|(pid, _)| Some((pid, accounting::usage(pid)?)));
        let (pid, used) = now.with_context(|| format!("{} has ended already", kept.name))?;
        accounting::reset_peak(pid);
        kept.life = Some((pid, used));
        kept.spent = Usage::default();
        kept.memory_kib.clear();
        Ok(())
    }

    /// It is killed next: what it used until now is kept.
    ///
    /// # Errors
    /// It has ended.
    pub fn ends(&self) -> anyhow::Result<()> {
        let mut kept = self.0.borrow_mut();
        kept.spent = kept.used()?;
        kept.life = None;
        Ok(())
    }

    /// It was started again, and all that it used since counts.
    pub fn begins(&self, hop: &Program) {
        self.0.borrow_mut().life = hop.pid().map(|pid| (pid, Usage::default()));
    }

    /// What it used until now.
    ///
    /// # Errors
    /// It has ended.
    pub fn close(&self) -> anyhow::Result<Hop> {
        let kept = self.0.borrow();
        let mut used = kept.used()?;
        if let Some(steady) = Middle::of(kept.memory_kib.clone()) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it was one of the kernel's numbers"
            )]
            let kib = steady.median as u64;
            used.memory_kib = kib;
        }
        Ok(Hop { name: kept.name.clone(), used })
    }
}

impl Kept {
    fn used(&self) -> anyhow::Result<Usage> {
        let now = self.life.and_then(|(pid, before)| Some(accounting::usage(pid)? - before));
        Ok(self.spent.and(now.with_context(|| format!("{} has ended meanwhile", self.name))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(dir: &tempfile::TempDir) -> (Program, std::process::Command) {
        let work = "n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done; echo done; exec sleep 600";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", work]);
        let mut idle = std::process::Command::new("sleep");
        idle.arg("600");
        (Program::start("hop", idle, &dir.path().join("log")).unwrap(), command)
    }

    #[tokio::test]
    async fn a_hop_that_is_killed_and_started_again_counts_in_both_lives() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, work) = busy(&dir);
        let ledger = Ledger::open(&first).unwrap();
        ledger.look();
        ledger.ends().unwrap();
        first.kill().await;
        ledger.look();
        assert!(ledger.close().is_err(), "nobody lives");
        let (second, _) = Program::start_with_line("hop", work, &dir.path().join("log")).await.unwrap();
        ledger.begins(&second);
        ledger.look();
        let hop = ledger.close().unwrap();
        assert!(hop.name == "hop" && hop.used.cpu_s > 0.0 && hop.used.peak_kib > 0, "{hop:?}");
        // One look in each life, and none between.
        assert_eq!(ledger.0.borrow().memory_kib.len(), 2);
        ledger.look_anew();
        assert!(ledger.0.borrow().memory_kib.is_empty() && ledger.close().unwrap().used.memory_kib > 0);
        let used = ledger.close().unwrap().used.cpu_s;
        ledger.begin_anew().unwrap();
        assert!(ledger.close().unwrap().used.cpu_s < used, "both lives are forgotten");
        second.stop().await;
        assert!(ledger.close().is_err(), "it has ended");
    }
}
