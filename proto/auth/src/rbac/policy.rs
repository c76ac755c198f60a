//! Who has which role where, and the decision. Immutable when shared: a change makes another one, which shares what did
//! not change.

use std::{
    collections::{BTreeMap, HashMap},
    ops::{Bound, Deref},
    sync::Arc,
};

use super::{Action, Budget, Exhausted, Plane, Role, Scope};

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
    /// Whether it holds from this instant on without an end.
    pub fn contains_always(&self, now: i64) -> bool {
        self.ends.is_none() && self.contains(now)
    }

    /// Whether it holds at this instant.
    pub fn contains(&self, now: i64) -> bool {
        self.starts.is_none_or(|starts| starts <= now) && self.ends.is_none_or(|ends| now < ends)
    }
}

/// A role, given to a principal at a scope.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// Identifies the assignment within a policy.
    pub id: Arc<str>,
    /// The object id of a user, a group or a service principal.
    pub principal: Arc<str>,
    /// Where it holds, and everywhere below.
    pub scope: Scope,
    /// The role that it gives.
    pub role: Arc<Role>,
    /// The time in which it holds.
    pub window: Window,
}

/// No assignment allows it. Nothing says more: what exists and is forbidden looks like what does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// None of those that hold.
    #[error("no role assignment allows it")]
    NotAllowed,
    /// None of those that were looked at until the budget of a decision was spent.
    #[error("no role assignment allows it: {0}")]
    Exhausted(#[from] Exhausted),
}

/// What one principal has, by scope: what is below a scope stands together.
type Held = BTreeMap<Scope, Vec<Assignment>>;

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

/// Steps of a [`Budget`] to look at one assignment.
const ASSIGNMENT_STEPS: usize = 16;

/// All assignments. Cloning it is cheap beside making it: what principals have is shared.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    held: HashMap<Arc<str>, Principal>,
    /// The numbers of those who have something at a scope, in order: of somebody with 300 groups the few that matter
    /// are found without asking 300 times at each scope.
    holders: HashMap<Scope, Arc<Vec<u64>>>,
    /// The number of the next principal.
    next: u64,
}

impl Policy {
    /// Whether one of the principals (a user and their groups) may do this there and then; the assignment that says so.
    ///
    /// Scopes are looked at from above: whoever assigns roles at a scope can use up the budget of decisions at it and
    /// below it, and takes nothing from those who have a right from above.
    ///
    /// Pure; under 20 microseconds with 100,000 assignments (`cargo bench -p bench --bench policy`), and bounded by
    /// [`Budget`] whatever there is.
    ///
    /// # Errors
    /// When it is denied.
    pub fn decide<'a, P: AsRef<str>>(
        &'a self,
        principals: &[P],
        plane: Plane,
        action: &Action,
        scope: &Scope,
        now: i64,
    ) -> Result<&'a Assignment, Denied> {
        let mut budget = Budget::decision();
        let allows = |assignment: &Assignment| {
            budget.spend(ASSIGNMENT_STEPS)?;
            if assignment.window.contains(now) {
                assignment.role.allows_within(plane, action, &mut budget)
            } else {
                Ok(false)
            }
        };
        self.find(principals, scope, allows)?.ok_or(Denied::NotAllowed)
    }

    /// Whether one of the principals has a role there that allows everything that can be done in the cluster.
    pub fn decide_everything<P: AsRef<str>>(&self, principals: &[P], scope: &Scope, now: i64) -> bool {
        let mut budget = Budget::decision();
        let allows = |assignment: &Assignment| {
            budget.spend(ASSIGNMENT_STEPS)?;
            Ok(assignment.window.contains(now) && assignment.role.allows_everything())
        };
        self.find(principals, scope, allows).is_ok_and(|found| found.is_some())
    }

    /// How many assignments a decision looks at that none of them allows: those of the principals at the scope and
    /// above it, however many there are elsewhere and of others.
    pub fn examined<P: AsRef<str>>(&self, principals: &[P], scope: &Scope) -> usize {
        let mut examined = 0;
        let count = |_: &Assignment| {
            examined += 1;
            Ok(false)
        };
        self.find(principals, scope, count).map_or(0, |_| examined)
    }

    /// The first assignment of these principals that is wanted, from `/` downwards.
    fn find<'a, P: AsRef<str>>(
        &'a self,
        principals: &[P],
        scope: &Scope,
        wanted: impl FnMut(&Assignment) -> Result<bool, Exhausted>,
    ) -> Result<Option<&'a Assignment>, Exhausted> {
        let known = principals.iter().filter_map(|principal| self.held.get(principal.as_ref()));
        let mut known: Vec<&Principal> = known.collect();
        known.sort_unstable_by_key(|principal| principal.number);
        self.find_of(&known, scope, wanted)
    }

    /// The same of known principals, in the order of their numbers.
    fn find_of<'a>(
        &'a self,
        known: &[&'a Principal],
        scope: &Scope,
        mut wanted: impl FnMut(&Assignment) -> Result<bool, Exhausted>,
    ) -> Result<Option<&'a Assignment>, Exhausted> {
        if known.is_empty() {
            return Ok(None);
        }
        let scopes: Vec<&str> = scope.with_parents().collect();
        for at in scopes.into_iter().rev() {
            let Some(holders) = self.holders.get(at) else { continue };
            let here = in_both(known, holders).filter_map(|principal| principal.held.get(at)).flatten();
            for assignment in here {
                if wanted(assignment)? {
                    return Ok(Some(assignment));
                }
            }
        }
        Ok(None)
    }

    /// Whether one of the principals may do this at some place below `scope`: who may so finds something in a list.
    ///
    /// Each role is asked once, those first that take the fewest steps: roles that somebody else made large use up a
    /// budget, and take nothing from those who have others.
    pub fn decide_below<P: AsRef<str>>(
        &self,
        principals: &[P],
        plane: Plane,
        action: &Action,
        scope: &Scope,
        now: i64,
    ) -> bool {
        let mut collecting = Budget::decision();
        // By the place in memory: assignments of one role share it.
        let mut roles: HashMap<*const Role, &Role> = HashMap::new();
        for held in principals.iter().filter_map(|principal| self.held.get(principal.as_ref())) {
            let mut last = std::ptr::null();
            for assignment in held.get(scope).into_iter().chain(below(held, scope)).flatten() {
                // Most assignments are of a few roles; beyond the budget those that were found until then are asked.
                if collecting.spend(ASSIGNMENT_STEPS).is_err() {
                    break;
                }
                let role = Arc::as_ptr(&assignment.role);
                if role != last && assignment.window.contains(now) {
                    roles.insert(role, &assignment.role);
                    last = role;
                }
            }
        }
        let mut roles: Vec<&Role> = roles.into_values().collect();
        roles.sort_unstable_by_key(|role| role.steps());
        let mut budget = Budget::decision();
        roles.into_iter().any(|role| role.allows_within(plane, action, &mut budget).unwrap_or(false))
    }

    /// One question about many scopes, of these principals.
    pub fn asker<P: AsRef<str>>(&self, principals: &[P], plane: Plane, action: Action, now: i64) -> Asker<'_> {
        let mut known: Vec<&Principal> =
            principals.iter().filter_map(|principal| self.held.get(principal.as_ref())).collect();
        known.sort_unstable_by_key(|principal| principal.number);
        Asker { policy: self, known, plane, action, now, answers: HashMap::new(), spent: 0 }
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

/// One question about many scopes, such as the rows of a list. Each role is asked once.
pub struct Asker<'a> {
    policy: &'a Policy,
    known: Vec<&'a Principal>,
    plane: Plane,
    action: Action,
    now: i64,
    /// What a role said, by its place in memory.
    answers: HashMap<usize, bool>,
    spent: usize,
}

impl Asker<'_> {
    /// Whether it is allowed there. A role that takes more than a [`Budget`] allows nothing, nor does what is behind
    /// it.
    pub fn may(&mut self, scope: &Scope) -> bool {
        let Self { policy, known, plane, action, now, answers, spent } = self;
        let mut looking = Budget::decision();
        let allows = |assignment: &Assignment| {
            looking.spend(ASSIGNMENT_STEPS)?;
            if !assignment.window.contains(*now) {
                return Ok(false);
            }
            Ok(*answers.entry(Arc::as_ptr(&assignment.role).addr()).or_insert_with(|| {
                let mut budget = Budget::decision();
                let allowed = assignment.role.allows_within(*plane, action, &mut budget).unwrap_or(false);
                *spent += budget.spent();
                allowed
            }))
        };
        let allowed = policy.find_of(known, scope, allows);
        *spent += looking.spent();
        matches!(allowed, Ok(Some(_)))
    }

    /// The steps of a [`Budget`] that were spent on all scopes so far.
    pub fn spent(&self) -> usize {
        self.spent
    }
}

/// What is held below a scope.
fn below<'a>(held: &'a Held, scope: &Scope) -> impl Iterator<Item = &'a Vec<Assignment>> + use<'a> {
    let mut prefix = scope.as_str().to_owned();
    if !prefix.ends_with('/') {
        prefix.push('/');
    }
    let behind = held.range::<str, _>((Bound::Excluded(prefix.as_str()), Bound::Unbounded));
    behind.take_while(move |(at, _)| at.as_str().starts_with(&prefix)).map(|(_, assignments)| assignments)
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

    /// A decision is as cheap with a hundred times as many assignments: what it looks at is counted, not timed. (The
    /// bench `policy` shows the time.)
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

    fn wild_role(id: usize, patterns: usize) -> Arc<Role> {
        let data_actions = (0..patterns).map(|n| format!("*a/{}*b{n}", "a*a".repeat(100))).collect();
        let raw = RawPermission { data_actions, ..RawPermission::default() };
        Arc::new(Role::new(&id.to_string(), &[raw]).unwrap())
    }

    fn of_role(id: usize, role: &Arc<Role>, scope: &str) -> Assignment {
        Assignment {
            id: id.to_string().into(),
            principal: "ann".into(),
            scope: scope.parse().unwrap(),
            role: Arc::clone(role),
            window: Window::default(),
        }
    }

    /// One request with a long name took seconds against the roles of whoever administers a namespace.
    #[test]
    fn a_decision_beyond_its_budget_is_denied() {
        let (action, at) = (Action::new(&format!("a/{}", "a".repeat(500))), SCOPES[6].parse().unwrap());
        let last = Role::new("l", &[RawPermission { data_actions: vec!["*".to_owned()], ..RawPermission::default() }]);
        let last = Arc::new(last.unwrap());
        let ask = |roles: usize| {
            let mut policy: Policy = (0..roles).map(|n| of_role(n, &wild_role(n, 480), SCOPES[6])).collect();
            policy.insert(of_role(roles, &last, SCOPES[6]));
            let decided = policy.decide(&["ann"], Plane::Data, &action, &at, 0).map(|_| ());
            (decided, policy.decide_below(&["ann"], Plane::Data, &action, &"/".parse().unwrap(), 0))
        };
        assert_eq!(ask(0), (Ok(()), true));
        // In a list the role that is asked fastest is asked first.
        assert_eq!(ask(50), (Err(Denied::Exhausted(Exhausted)), true));
    }

    /// Whoever assigns roles at a namespace takes nothing from those who have a right from above.
    #[test]
    fn roles_at_a_scope_take_no_budget_from_rights_above_it() {
        let action = Action::new(&format!("a/{}", "a".repeat(500)));
        let all = RawPermission { data_actions: vec!["*".to_owned()], ..RawPermission::default() };
        let admin = Arc::new(Role::new("admin", &[all]).unwrap());
        let mut policy: Policy = (0..50).map(|n| of_role(n, &wild_role(n, 480), SCOPES[6])).collect();
        policy.insert(of_role(100, &admin, SCOPES[5]));
        let decide = |at: &str| policy.decide(&["ann"], Plane::Data, &action, &at.parse().unwrap(), 0).is_ok();
        assert!(decide(SCOPES[6]) && decide(SCOPES[5]));
        assert!(!decide(SCOPES[7]));
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
                let mut asker = policy.asker(&principals, plane, Action::new(action), now);
                let below = |other: &&str| **other == *scope || scope == "/" || other.starts_with(&format!("{scope}/"));
                let mut anywhere = false;
                for other in SCOPES {
                    let expected = model(plains, &principals, data, action, other, now);
                    prop_assert_eq!(asker.may(&other.parse().unwrap()), expected, "{}", other);
                    let held = plains.iter().filter(|plain| SCOPES[plain.scope] == other).cloned().collect::<Vec<_>>();
                    anywhere |= below(&other) && model(&held, &principals, data, action, other, now);
                }
                prop_assert_eq!(policy.decide_below(&principals, plane, &asked, &at, now), anywhere);
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
