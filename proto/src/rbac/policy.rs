//! Who has which role where, and the decision. Immutable when shared: a change makes another one, which shares what did
//! not change.

use std::{collections::HashMap, ops::Deref, sync::Arc};

use super::{Action, Plane, Role, Scope};

/// When an assignment holds: from `starts` on and before `ends`, in Unix seconds; `None` is without that bound
/// (feature Z11).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Window {
    /// The first second.
    pub starts: Option<i64>,
    /// The second behind the last.
    pub ends: Option<i64>,
}

impl Window {
    /// Whether it holds at this instant.
    pub fn contains(&self, now: i64) -> bool {
        self.starts.is_none_or(|starts| starts <= now) && self.ends.is_none_or(|ends| now < ends)
    }
}

/// A role, given to a principal at a scope.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// Its id.
    pub id: Arc<str>,
    /// The object id of a user, a group or a service principal.
    pub principal: Arc<str>,
    /// Where it holds, and everywhere below.
    pub scope: Scope,
    /// What it gives.
    pub role: Arc<Role>,
    /// When it holds.
    pub window: Window,
}

/// No assignment allows it. Nothing says more: what exists and is forbidden looks like what does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no role assignment allows it")]
pub struct Denied;

/// What one principal has, by scope.
type Held = HashMap<Scope, Vec<Assignment>>;

/// A principal who has something.
#[derive(Debug, Clone)]
struct Principal {
    /// Never given twice.
    number: u64,
    held: Arc<Held>,
}

impl Deref for Principal {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// All assignments. Cloning it is cheap beside making it: what principals have is shared.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    held: HashMap<Arc<str>, Principal>,
    /// The numbers of those who have something at a scope, in order: of somebody with 300 groups the few that matter are
    /// found without asking 300 times at each scope.
    holders: HashMap<Scope, Arc<Vec<u64>>>,
    /// The number of the next principal.
    next: u64,
}

impl Policy {
    /// Whether one of the principals (a user and their groups) may do this there and then; the assignment that says so.
    ///
    /// Pure; under 20 microseconds with 100,000 assignments (`cargo bench -p bench --bench policy`).
    pub fn decide<'a, P: AsRef<str>>(
        &'a self,
        principals: &[P],
        plane: Plane,
        action: &Action,
        scope: &Scope,
        now: i64,
    ) -> Result<&'a Assignment, Denied> {
        let allows = |assignment: &Assignment| assignment.window.contains(now) && assignment.role.allows(plane, action);
        self.find(principals, scope, allows).ok_or(Denied)
    }

    /// How many assignments a decision looks at that none of them allows: those of the principals at the scope and above it,
    /// however many there are elsewhere and of others.
    pub fn examined<P: AsRef<str>>(&self, principals: &[P], scope: &Scope) -> usize {
        let mut examined = 0;
        self.find(principals, scope, |_| {
            examined += 1;
            false
        });
        examined
    }

    /// The first assignment of these principals that is wanted, from the scope upwards.
    fn find<'a, P: AsRef<str>>(
        &'a self,
        principals: &[P],
        scope: &Scope,
        mut wanted: impl FnMut(&Assignment) -> bool,
    ) -> Option<&'a Assignment> {
        let known = principals.iter().filter_map(|principal| self.held.get(principal.as_ref()));
        let mut known: Vec<&Principal> = known.collect();
        if known.is_empty() {
            return None;
        }
        known.sort_unstable_by_key(|principal| principal.number);
        for at in scope.with_parents() {
            let Some(holders) = self.holders.get(at) else { continue };
            let mut here = in_both(&known, holders).filter_map(|principal| principal.held.get(at)).flatten();
            if let Some(found) = here.find(|assignment| wanted(assignment)) {
                return Some(found);
            }
        }
        None
    }

    /// Whether one of the principals may do this at some place below `scope`: who may so finds something in a list.
    pub fn decide_below<P: AsRef<str>>(
        &self,
        principals: &[P],
        plane: Plane,
        action: &Action,
        scope: &Scope,
        now: i64,
    ) -> bool {
        let holds = |assignment: &Assignment| assignment.window.contains(now) && assignment.role.allows(plane, action);
        let held = principals.iter().filter_map(|principal| self.held.get(principal.as_ref()));
        held.flat_map(|held| held.iter()).any(|(at, assignments)| {
            at.with_parents().any(|parent| parent == scope.as_str()) && assignments.iter().any(holds)
        })
    }

    /// What a principal has at exactly this scope.
    pub fn at(&self, principal: &str, scope: &Scope) -> &[Assignment] {
        self.held.get(principal).and_then(|held| held.get(scope)).map_or(&[], Vec::as_slice)
    }

    /// Adds an assignment, in place of one with the same id for the same principal and scope.
    pub fn insert(&mut self, assignment: Assignment) {
        let next = &mut self.next;
        let principal = self.held.entry(Arc::clone(&assignment.principal)).or_insert_with(|| {
            *next += 1;
            Principal { number: *next, held: Arc::default() }
        });
        let holders = Arc::make_mut(self.holders.entry(assignment.scope.clone()).or_default());
        if let Err(place) = holders.binary_search(&principal.number) {
            holders.insert(place, principal.number);
        }
        let at = Arc::make_mut(&mut principal.held).entry(assignment.scope.clone()).or_default();
        at.retain(|other| other.id != assignment.id);
        at.push(assignment);
    }

    /// Takes an assignment out. What is not there stays not there.
    pub fn remove(&mut self, principal: &str, scope: &Scope, id: &str) {
        let Some(Principal { number, held }) = self.held.get_mut(principal) else { return };
        let held = Arc::make_mut(held);
        if let Some(at) = held.get_mut(scope) {
            at.retain(|assignment| &*assignment.id != id);
            if at.is_empty() {
                held.remove(scope);
                leave(&mut self.holders, scope, *number);
            }
        }
        if held.is_empty() {
            self.held.remove(principal);
        }
    }

    /// All assignments, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Assignment> {
        self.held.values().flat_map(|principal| principal.held.values()).flatten()
    }

    /// How many assignments there are.
    pub fn len(&self) -> usize {
        self.held.values().flat_map(|principal| principal.held.values()).map(Vec::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

/// Those whose number is in the list; both are in order.
fn in_both<'a, 'b>(
    known: &'b [&'a Principal],
    holders: &'b [u64],
) -> impl Iterator<Item = &'a Principal> + use<'a, 'b> {
    // The longer one is searched, from where the last one was found.
    let (short, mut rest_of_known, mut rest_of_holders) = (known.len() <= holders.len(), known, holders);
    std::iter::from_fn(move || {
        loop {
            let (principal, number) = (*rest_of_known.first()?, *rest_of_holders.first()?);
            if principal.number == number {
                (rest_of_known, rest_of_holders) = (&rest_of_known[1..], &rest_of_holders[1..]);
                return Some(principal);
            }
            if principal.number < number {
                let behind = if short { 1 } else { rest_of_known.partition_point(|other| other.number < number) };
                rest_of_known = &rest_of_known[behind..];
            } else {
                let behind = if short { rest_of_holders.partition_point(|other| *other < principal.number) } else { 1 };
                rest_of_holders = &rest_of_holders[behind..];
            }
        }
    })
}

fn leave(holders: &mut HashMap<Scope, Arc<Vec<u64>>>, scope: &Scope, number: u64) {
    let Some(numbers) = holders.get_mut(scope) else { return };
    let left = Arc::make_mut(numbers);
    left.retain(|other| *other != number);
    if left.is_empty() {
        holders.remove(scope);
    }
}

impl FromIterator<Assignment> for Policy {
    fn from_iter<I: IntoIterator<Item = Assignment>>(assignments: I) -> Self {
        let mut policy = Self::default();
        assignments.into_iter().for_each(|assignment| policy.insert(assignment));
        policy
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rbac::{action::Pattern, role::RawPermission};

    /// A decision is as cheap with a hundred times as many assignments: what it looks at is counted, not timed. (The bench
    /// `policy` shows the time.)
    #[test]
    fn z2_a_decision_looks_at_no_more_however_many_assignments_there_are() {
        let reader = crate::rbac::role::built_in()[0].role.clone();
        let cluster = |n: usize| {
            format!("/subscriptions/s/resourceGroups/g{}/providers/Microsoft.Kubernetes/connectedClusters/c{n}", n % 50)
        };
        let of = |assignments: usize| -> Policy {
            let one = |n: usize| Assignment {
                id: n.to_string().into(),
                principal: format!("{}-{}", if n.is_multiple_of(2) { "group" } else { "user" }, n % 1000).into(),
                scope: cluster(n % 10_000).parse().unwrap(),
                role: reader.clone(),
                window: Window::default(),
            };
            let everywhere = |(n, scope): (usize, &str)| Assignment {
                id: format!("wide {n}").into(),
                principal: "group-0".into(),
                scope: scope.parse().unwrap(),
                ..one(0)
            };
            let wide = ["/", "/subscriptions/s", "/subscriptions/s/resourceGroups/g0"].into_iter().enumerate();
            (0..assignments).map(one).chain(wide.map(everywhere)).collect()
        };
        // 200 groups, one of which has something above, and somebody who has nothing.
        let principals: Vec<String> = (0..200).map(|n| format!("group-{}", 2 * n)).collect();
        let at: Scope = format!("{}/namespaces/dev", cluster(0)).parse().unwrap();
        let (few, many) = (of(1_000), of(100_000));
        assert_eq!((few.len(), many.len()), (1_003, 100_003));
        // Of group-0: three above, and at the cluster one and, of 100,000, ten.
        assert_eq!((few.examined(&principals, &at), many.examined(&principals, &at)), (4, 13));
        assert_eq!(many.examined(&["nobody"], &at), 0);
        for n in 1..50 {
            let elsewhere: Scope = cluster(n).parse().unwrap();
            assert!(many.examined(&principals, &elsewhere) <= 13, "{n}");
        }
    }

    const SCOPES: [&str; 8] = [
        "/",
        "/subscriptions/s",
        "/subscriptions/t",
        "/subscriptions/s/resourceGroups/g",
        "/subscriptions/s/resourceGroups/gg",
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c",
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c/namespaces/dev",
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/cc",
    ];
    const ACTIONS: [&str; 5] = ["K/c/read", "K/c/write", "K/c/pods/read", "A/r/write", "A/r/read"];
    const PATTERNS: [&str; 6] = ["*", "*/read", "K/*", "K/c/read", "A/*", "k/*/READ"];
    const PRINCIPALS: [&str; 3] = ["ann", "ops", "dev"];

    /// An assignment as plain data.
    #[derive(Debug, Clone)]
    struct Plain {
        principal: usize,
        scope: usize,
        listed: Vec<usize>,
        excepted: Vec<usize>,
        data: bool,
        window: Window,
    }

    fn plain() -> impl Strategy<Value = Plain> {
        let patterns = || prop::collection::vec(0..PATTERNS.len(), 0..3);
        let instant = || prop::option::of(0i64..4);
        let window = (instant(), instant()).prop_map(|(starts, ends)| Window { starts, ends });
        (0..PRINCIPALS.len(), 0..SCOPES.len(), patterns(), patterns(), any::<bool>(), window).prop_map(
            |(principal, scope, listed, excepted, data, window)| Plain {
                principal,
                scope,
                listed,
                excepted,
                data,
                window,
            },
        )
    }

    fn assignment(id: usize, plain: &Plain) -> Assignment {
        let texts = |of: &[usize]| of.iter().map(|at| PATTERNS[*at].to_owned()).collect::<Vec<_>>();
        let (listed, excepted) = (texts(&plain.listed), texts(&plain.excepted));
        let raw = if plain.data {
            RawPermission { data_actions: listed, not_data_actions: excepted, ..RawPermission::default() }
        } else {
            RawPermission { actions: listed, not_actions: excepted, ..RawPermission::default() }
        };
        Assignment {
            id: id.to_string().into(),
            principal: PRINCIPALS[plain.principal].into(),
            scope: SCOPES[plain.scope].parse().unwrap(),
            role: Arc::new(Role::new("r", &[raw]).unwrap()),
            window: plain.window,
        }
    }

    /// The slow, obvious one: every assignment is looked at, a scope holds for what begins with it and a slash.
    fn model(all: &[Plain], principals: &[&str], data: bool, action: &str, scope: &str, now: i64) -> bool {
        let matches = |at: &usize| Pattern::parse(PATTERNS[*at]).unwrap().matches(&Action::new(action));
        let below = |above: &str| above == "/" || scope == above || scope.starts_with(&format!("{above}/"));
        all.iter().any(|plain| {
            principals.contains(&PRINCIPALS[plain.principal])
                && below(SCOPES[plain.scope])
                && plain.data == data
                && plain.listed.iter().any(matches)
                && !plain.excepted.iter().any(matches)
                && plain.window.starts.unwrap_or(i64::MIN) <= now
                && now < plain.window.ends.unwrap_or(i64::MAX)
        })
    }

    proptest! {
        #[test]
        fn z2_the_decision_equals_the_model(
            all in prop::collection::vec(plain(), 0..12),
            removed in prop::collection::vec(any::<bool>(), 12),
            principals in prop::sample::subsequence(PRINCIPALS.to_vec(), 0..=3),
            data in any::<bool>(),
            action in prop::sample::select(ACTIONS.to_vec()),
            scope in prop::sample::select(SCOPES.to_vec()),
            now in 0i64..4,
        ) {
            let mut policy: Policy = all.iter().enumerate().map(|(id, plain)| assignment(id, plain)).collect();
            let before = policy.clone();
            let mut left = Vec::new();
            for (id, plain) in all.iter().enumerate() {
                if removed[id] {
                    let gone = assignment(id, plain);
                    policy.remove(&gone.principal, &gone.scope, &gone.id);
                } else {
                    left.push(plain.clone());
                }
            }
            prop_assert_eq!((policy.len(), before.len()), (left.len(), all.len()));
            let of: std::collections::BTreeSet<_> = left.iter().map(|plain| (plain.principal, plain.scope)).collect();
            prop_assert_eq!(policy.holders.values().map(|at| at.len()).sum::<usize>(), of.len(), "nobody is left over");
            let plane = if data { Plane::Data } else { Plane::Control };
            let (asked, at) = (Action::new(action), scope.parse().unwrap());
            for (policy, plains) in [(&policy, &left), (&before, &all)] {
                let decided = policy.decide(&principals, plane, &asked, &at, now).is_ok();
                prop_assert_eq!(decided, model(plains, &principals, data, action, scope, now));
            }
        }
    }

    #[test]
    fn z11_an_assignment_holds_within_its_window() {
        let window = Window { starts: Some(10), ends: Some(20) };
        assert_eq!([9, 10, 19, 20].map(|now| window.contains(now)), [false, true, true, false]);
        assert!(Window::default().contains(i64::MIN));
    }
}
