//! What a run measures: which scenario over which path, and how often. Where neither is named that is what targets
//! need, as often as they need it, and once what is shown beside.

use std::path::Path;

use anyhow::ensure;
use clap::ValueEnum;

use crate::{
    path::Kind,
    scenario::{self, Scenario, Size, fleets},
    scene::{Crowd, Scene, Server},
    targets::{self, Need},
};

/// What shows whether a target can be reached at all, measured beside it, and how often. No target is held against it,
/// so that three repeats do.
const EVIDENCE: &[(&str, Kind, u32)] = &[
    ("get-64", Kind::MinimalH2, targets::REPEATS),
    ("get-100", Kind::MinimalH2, 3),
    ("get-100", Kind::MinimalWebsocket, 3),
    ("get-100", Kind::MinimalQuic, 3),
    ("download", Kind::MinimalH2, 3),
    ("download", Kind::MinimalQuic, 3),
];
/// Estimates of what comes before a path is measured, in seconds: programs that start; a gateway and its agent; a
/// gateway of many clusters, once more; a database and three gateways on it; connections and packets that go around
/// before a long way is warm; a real cluster.
const PROGRAMS_S: f64 = 0.4;
const TOWLINE_S: f64 = 1.0;
const FLEET_S: f64 = 1.5;
const REPLICAS_S: f64 = 6.0;
const LONG_WAY_S: f64 = 1.0;
const CLUSTER_S: f64 = 10.0;
/// What comes before each scenario: requests that warm all up, in a process of their own.
const WARM_S: f64 = 0.2;

/// How many turns each of the paths has that are up together.
pub const TURNS: u32 = 5;
/// Seconds of a turn that are in no latency: hops of others have used the caches meanwhile.
pub const TURN_WARM_S: f64 = 0.15;

/// What is wanted, by name.
pub struct Wanted<'a> {
    /// Names of scenarios.
    pub scenarios: &'a [String],
    /// Paths to measure.
    pub paths: &'a [Kind],
    /// Repeats, at most.
    pub repeat: u32,
    /// Where targets are.
    pub targets: &'a Path,
}

/// One scenario over one path.
#[derive(Clone, Copy)]
pub struct Part {
    /// The scenario that is measured.
    pub scenario: &'static Scenario,
    /// Over which path; `None` where it goes over none.
    pub kind: Option<Kind>,
    /// Number of repeats.
    pub repeats: u32,
}

/// All of a run, in order: interleaved repeats, in each of them scenes, in each of them paths, of which another one is
/// the first in each repeat, and the way round alternates.
pub struct Plan {
    parts: Vec<Part>,
    repeats: u32,
}

/// What one path does in one scene, in one repeat; or several, one after the other in turns.
pub struct Stop {
    /// Which repeat, from 0.
    pub repeat: u32,
    /// What the path is started in.
    pub scene: Scene,
    /// Which; none where there is none, more than one where they are up together.
    pub kinds: Vec<Kind>,
    /// What is measured.
    pub scenarios: Vec<&'static Scenario>,
}

impl Plan {
    /// By names: every scenario over every path, each as often. Without names of scenarios: what targets need and what
    /// is shown, over these paths.
    ///
    /// # Errors
    /// An unknown name; targets that cannot be read, where they are needed.
    pub fn new(wanted: &Wanted) -> anyhow::Result<Self> {
        let Wanted { scenarios, paths, repeat, .. } = *wanted;
        let mut parts = Vec::new();
        if scenarios.is_empty() {
            for part in whole(wanted.targets)? {
                let part = Part { repeats: part.repeats.min(repeat), ..part };
                if paths.is_empty() {
                    add(&mut parts, part);
                } else {
                    let kinds = if part.scenario.work.is_alone() { &[][..] } else { paths };
                    kinds.iter().for_each(|kind| add(&mut parts, Part { kind: Some(*kind), ..part }));
                }
            }
        } else {
            for name in scenarios {
                let scenario = scenario::of(name)?;
                let paths = if paths.is_empty() { Kind::value_variants() } else { paths };
                let alone = scenario.work.is_alone();
                let kinds: Vec<_> = if alone { vec![None] } else { paths.iter().map(|kind| Some(*kind)).collect() };
                kinds.into_iter().for_each(|kind| add(&mut parts, Part { scenario, kind, repeats: repeat }));
            }
        }
        let repeats = parts.iter().map(|part| part.repeats).max().unwrap_or(0);
        Ok(Self { parts, repeats })
    }

    /// All of it, in order.
    pub fn stops(&self) -> Vec<Stop> {
        (0..self.repeats).flat_map(|repeat| self.of_repeat(repeat)).collect()
    }

    fn of_repeat(&self, repeat: u32) -> Vec<Stop> {
        let mut stops: Vec<Stop> = Vec::new();
        let due = || self.parts.iter().filter(|part| part.repeats > repeat);
        let mut scenes: Vec<Scene> = Vec::new();
        for part in due() {
            if !scenes.contains(&part.scenario.scene) {
                scenes.push(part.scenario.scene);
            }
        }
        for scene in scenes {
            let of = |kind| due().filter(move |part| part.scenario.scene == scene && part.kind == kind);
            let mut kinds = Kind::value_variants().to_vec();
            kinds.retain(|kind| of(Some(*kind)).next().is_some());
            begin_with_another(&mut kinds, repeat);
            let mut stop = |kinds: Vec<Kind>, scenarios: Vec<_>| {
                if !scenarios.is_empty() {
                    stops.push(Stop { repeat, scene, kinds, scenarios });
                }
            };
            if scene.together {
                let mut scenarios: Vec<_> = due().map(|part| part.scenario).filter(|one| one.scene == scene).collect();
                scenarios.dedup_by_key(|scenario| scenario.name);
                for scenario in scenarios {
                    let has = |kind: &Kind| of(Some(*kind)).any(|part| part.scenario.name == scenario.name);
                    stop(kinds.iter().copied().filter(has).collect(), vec![scenario]);
                }
            } else {
                stop(Vec::new(), of(None).map(|part| part.scenario).collect());
                for kind in kinds {
                    stop(vec![kind], of(Some(kind)).map(|part| part.scenario).collect());
                }
            }
        }
        stops
    }

    /// The paths of it.
    pub fn paths(&self) -> Vec<Kind> {
        let has = |kind: &Kind| self.parts.iter().any(|part| part.kind == Some(*kind));
        Kind::value_variants().iter().copied().filter(has).collect()
    }
}

impl Stop {
    /// About how long it takes, in seconds.
    pub fn seconds(&self, size: Size) -> f64 {
        let crowd = fleets::fewer(self.scene.crowd, size);
        let start = |kind: &Kind| match kind {
            kind if kind.is_towline() && matches!(crowd, Crowd::Agents(_)) => TOWLINE_S + FLEET_S,
            kind if kind.is_towline() && matches!(crowd, Crowd::Replicas(_)) => TOWLINE_S + REPLICAS_S,
            kind if kind.is_towline() => TOWLINE_S,
            _ => PROGRAMS_S,
        };
        let way = if self.scene.shape == Scene::PLAIN.shape { 0.0 } else { LONG_WAY_S };
        let turns = if self.scene.together { TURN_WARM_S * f64::from(TURNS) } else { 0.0 };
        let each = |scenario: &&Scenario| scenario.work.seconds(size, crowd) + WARM_S + turns;
        let works = self.scenarios.iter().map(each).sum::<f64>();
        #[expect(clippy::cast_precision_loss, reason = "a few paths")]
        let times = self.kinds.len().max(1) as f64;
        self.kinds.iter().map(start).sum::<f64>() + way + works * times
    }
}

/// The order of a round. What one leaves behind on the machine, the next one finds: each is first in its turn, and in
/// odd rounds, which go backwards from there, comes after another one than in even ones.
pub fn begin_with_another<T>(order: &mut [T], round: u32) {
    let first = round as usize % order.len().max(1);
    order.rotate_left(first);
    if let [_, rest @ ..] = order
        && round % 2 == 1
    {
        rest.reverse();
    }
}

/// About how long all of these take, in seconds. The programs of a cluster that are not built yet are not in it.
pub fn seconds(stops: &[Stop], size: Size) -> f64 {
    let cluster = stops.iter().any(|stop| stop.scene.server == Server::Apiserver);
    stops.iter().map(|stop| stop.seconds(size)).sum::<f64>() + if cluster { CLUSTER_S } else { 0.0 }
}

/// What a run measures without names.
fn whole(file: &Path) -> anyhow::Result<Vec<Part>> {
    let mut parts = Vec::new();
    for Need { scenario, path } in targets::needs(file)? {
        let (scenario, kind) = (scenario::of(&scenario)?, Kind::from_str(&path, false).ok());
        ensure!(
            kind.is_some() || scenario.work.is_alone(),
            "no path {path:?}, which a target is about; see `bench list`"
        );
        add(&mut parts, Part { scenario, kind, repeats: targets::REPEATS });
    }
    for &(name, kind, repeats) in EVIDENCE {
        add(&mut parts, Part { scenario: scenario::of(name)?, kind: Some(kind), repeats });
    }
    for scenario in scenario::all() {
        scenario.shown.iter().for_each(|kind| add(&mut parts, Part { scenario, kind: Some(*kind), repeats: 1 }));
    }
    // As they are listed, whatever the order of targets is.
    let place = |part: &Part| scenario::all().position(|scenario| scenario.name == part.scenario.name);
    parts.sort_by_key(place);
    Ok(parts)
}

fn add(parts: &mut Vec<Part>, part: Part) {
    let same = |other: &&mut Part| other.scenario.name == part.scenario.name && other.kind == part.kind;
    match parts.iter_mut().find(same) {
        Some(other) => other.repeats = other.repeats.max(part.repeats),
        None => parts.push(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scenarios: &[&str], paths: &[Kind], repeat: u32) -> anyhow::Result<Plan> {
        let scenarios: Vec<_> = scenarios.iter().map(|name| (*name).to_owned()).collect();
        let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets.toml");
        Plan::new(&Wanted { scenarios: &scenarios, paths, repeat, targets: &targets })
    }

    fn repeats(plan: &Plan, name: &str, kind: Kind) -> u32 {
        let found = plan.parts.iter().find(|part| part.scenario.name == name && part.kind == Some(kind));
        found.map_or(0, |part| part.repeats)
    }

    #[test]
    fn without_names_targets_have_what_they_need_and_the_rest_is_shown_once() {
        let plan = plan(&[], &[], 5).unwrap();
        for (name, kind, often) in [
            ("get-100", Kind::Direct, 5),
            ("get-100", Kind::NginxChain, 5),
            ("download", Kind::Rathole, 5),
            ("get-64", Kind::MinimalH2, 5),
            ("download", Kind::MinimalQuic, 3),
            ("download-lossy", Kind::Direct, 5),
            ("watch-10000", Kind::TowlineH2, 5),
            ("idle-10000", Kind::TowlineH2, 5),
            ("get-256", Kind::TowlineH2, 1),
            ("get-256", Kind::Direct, 0),
            ("get-20ms", Kind::TowlineH2, 0),
        ] {
            assert_eq!(repeats(&plan, name, kind), often, "{name} {kind:?}");
        }
        assert!(plan.parts.iter().any(|part| part.scenario.name == "tokens" && part.kind.is_none()));
    }

    #[test]
    fn a_whole_run_is_meant_to_take_less_than_45_minutes_and_a_quick_one_less_than_six() {
        for (repeat, quick, minutes) in [(5, false, 45.0), (1, true, 5.6)] {
            let stops = plan(&[], &[], repeat).unwrap().stops();
            let all = seconds(&stops, Size::new(quick)) / 60.0;
            assert!(all < minutes, "{all} minutes");
        }
    }

    #[test]
    fn a_target_of_a_scenario_or_path_that_there_is_not_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("targets.toml");
        for (scenario, path, why) in
            [("get-63", "ssh", "no scenario \"get-63\""), ("get-64", "sssh", "no path \"sssh\"")]
        {
            let target =
                format!("[[target]]\nscenario = \"{scenario}\"\npath = \"{path}\"\nfigure = \"p50_us\"\nat_most = 1\n");
            std::fs::write(&file, target).unwrap();
            let wanted = Wanted { scenarios: &[], paths: &[], repeat: 5, targets: &file };
            let error = Plan::new(&wanted).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_named_is_measured_as_often_as_is_said() {
        let named = plan(&["get-20ms", "tokens"], &[Kind::Ssh, Kind::Direct], 2).unwrap();
        assert_eq!((named.parts.len(), repeats(&named, "get-20ms", Kind::Ssh)), (3, 2));
        assert_eq!(plan(&["get-1"], &[], 1).unwrap().parts.len(), Kind::value_variants().len());
        let path = plan(&[], &[Kind::Ssh], 5).unwrap();
        assert_eq!((repeats(&path, "get-100", Kind::Ssh), path.paths()), (5, vec![Kind::Ssh]));
        assert!(plan(&["nothing"], &[], 1).is_err());
    }

    #[test]
    fn repeats_are_interleaved_and_a_path_starts_once_for_all_of_a_scene() {
        let stops = plan(&["get-1", "get-20ms", "get-64"], &[Kind::Direct, Kind::Ssh], 2).unwrap().stops();
        let seen: Vec<_> =
            stops.iter().map(|stop| (stop.repeat, stop.kinds.first().copied(), stop.scenarios.len())).collect();
        let once = |a, b| [(Some(a), 2), (Some(b), 2), (Some(a), 1), (Some(b), 1)];
        let (direct, ssh) = (Kind::Direct, Kind::Ssh);
        let rounds = [once(direct, ssh), once(ssh, direct)];
        let wanted = rounds.into_iter().zip(0..).flat_map(|(round, n)| round.map(|(kind, count)| (n, kind, count)));
        assert_eq!(seen, wanted.collect::<Vec<_>>());
    }

    #[test]
    fn paths_that_take_turns_are_in_one_place_and_another_one_begins_in_each_repeat() {
        let kinds = [Kind::Direct, Kind::NginxChain, Kind::TowlineQuic];
        let stops = plan(&["get-100", "get-1"], &kinds, 2).unwrap().stops();
        let [a, b, c] = kinds;
        let seen: Vec<_> = stops.iter().map(|stop| (stop.scene.together, stop.kinds.clone())).collect();
        let one = |together, kind: Kind| (together, vec![kind]);
        let wanted = [
            (true, vec![a, b, c]),
            one(false, a),
            one(false, b),
            one(false, c),
            (true, vec![b, a, c]),
            one(false, b),
            one(false, a),
            one(false, c),
        ];
        assert_eq!(seen, wanted);
        let whole = plan(&[], &[], 5).unwrap().stops();
        let turns = |repeat| whole.iter().find(|stop| stop.repeat == repeat && stop.scene.together).unwrap();
        assert!(turns(0).kinds.contains(&Kind::MinimalH2) && !turns(4).kinds.contains(&Kind::MinimalH2));
    }

    #[test]
    fn each_path_is_first_in_its_turn_and_comes_not_always_after_the_same_one() {
        let kinds = [Kind::Direct, Kind::NginxChain, Kind::Ssh, Kind::TowlineQuic];
        let stops = plan(&["tokens", "get-1"], &kinds, 5).unwrap().stops();
        let orders: Vec<Vec<_>> =
            stops.chunks(5).map(|round| round.iter().map(|stop| stop.kinds.first().copied()).collect()).collect();
        let [a, b, c, d] = kinds.map(Some);
        let wanted = [[a, b, c, d], [b, a, d, c], [c, d, a, b], [d, c, b, a], [a, b, c, d]];
        assert_eq!(orders, wanted.map(|[first, second, third, last]| [None, first, second, third, last]));
    }
}
