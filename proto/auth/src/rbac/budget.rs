//! The bound on the work of one decision. Roles and names come from tenants and callers, and all tenants share the CPU
//! of a gateway: a decision that would take longer than its budget is a denial.

/// The budget of one decision, in steps. One step compares about one byte; all steps take less than 1 ms, and a request
/// needs four decisions at most (`cargo bench -p bench --bench worst`).
pub const DECISION_STEPS: usize = 400_000;

/// What is left of the work that one decision may do.
#[derive(Debug)]
pub struct Budget {
    left: usize,
}

/// The budget is spent: the decision is a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the roles that apply hold more patterns than one decision may compare")]
pub struct Exhausted;

impl Budget {
    /// The budget of one decision: [`DECISION_STEPS`].
    pub fn decision() -> Self {
        Self { left: DECISION_STEPS }
    }

    /// Takes `steps` out of it, before the work is done.
    ///
    /// # Errors
    /// When fewer are left. Then none are left afterwards either.
    pub fn spend(&mut self, steps: usize) -> Result<(), Exhausted> {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or_default();
        left.map(drop).ok_or(Exhausted)
    }

    /// The steps that were spent.
    pub fn spent(&self) -> usize {
        DECISION_STEPS - self.left
    }
}
