//! Three gateways on one PostgreSQL for hours: clusters that come and go, users who come and go, tokens and certificates
//! on a fast clock. What each process holds is looked at all the time; at the end none of it may have a slope, and no
//! request may have failed that should not have.

mod figures;
mod fleet;
mod users;

use std::{
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use self::{
    figures::Figures,
    fleet::Fleet,
    users::{Load, Tally},
};
use crate::{
    apiserver::{Apiserver, answer},
    programs::scratch,
    replicas::Replicas,
};

/// What is run.
pub struct Plan {
    /// How long the load lasts.
    pub length: Duration,
    /// Clusters of the fleet that stay; a quarter as many come and go.
    pub agents: u32,
    /// Requests of users in a second, in all.
    pub rate: u32,
    /// Where the figures go, a line for each look.
    pub csv: PathBuf,
    /// A picture of them, if wanted.
    pub plot: Option<PathBuf>,
}

/// Number of gateways.
const COUNT: usize = 3;
/// How long tokens live, and how often users get new ones.
const TOKENS: &str = "1m";
const NEW_TOKENS: Duration = Duration::from_secs(25);
/// How often something else happens.
const LOOKS: Duration = Duration::from_secs(5);
const FLAPS: Duration = Duration::from_secs(20);
const COMES: Duration = Duration::from_secs(5);
const CERTIFICATES: Duration = Duration::from_secs(60);
const KEYS: Duration = Duration::from_secs(150);
/// Threads of users; each has one request at a time.
const USERS: u32 = 4;
/// Of what the users did last, this is shown when something failed.
const SHOWN: usize = 20;

/// Does it, and says what came of it.
///
/// # Errors
/// A program that does not start, a request that failed, a figure with a slope.
pub fn run(plan: &Plan) -> anyhow::Result<()> {
    let apiserver = Apiserver::start(
        &scratch("soak-apiserver"),
        false,
        std::sync::Arc::new(|_, connection| answer(connection, "200 OK", b"{}")),
    )?;
    let comes_and_goes = plan.agents.div_ceil(4);
    let more = fleet::settings(plan.agents + comes_and_goes);
    let replicas = Replicas::start_with("soak", COUNT, &more, |config| {
        config.replace("state_dir = \"issuer\"", &format!("state_dir = \"issuer\"\ntoken_lifetime = \"{TOKENS}\""))
    })?;
    let stays = replicas.connect("stays", &apiserver.kubeconfig, "h2", "")?;
    let flaps = replicas.connect("flaps", &apiserver.kubeconfig, "websocket", "")?;
    let fleet = Fleet::start(&replicas, 0..plan.agents, "h2")?;
    println!("{} agents are up; it goes on for {:?}", plan.agents, plan.length);

    let (stop, told, rotated) = (AtomicBool::new(false), Mutex::new(Tally::default()), AtomicU32::new(0));
    let load = Load { replicas: &replicas, site: &stays, stop: &stop, told: &told };
    let every = |each: Duration, mut act: Box<dyn FnMut() -> anyhow::Result<()> + Send + '_>| {
        let mut next = Instant::now() + each;
        while load.waits_until(next) {
            if let Err(error) = act() {
                load.failed(&format!("{error:#}"));
            }
            next = (next + each).max(Instant::now());
        }
    };
    let begun = Instant::now();
    let mut figures = Figures::new(&plan.csv)?;
    let outcome = std::thread::scope(|scope| {
        for number in 0..USERS {
            let load = &load;
            scope.spawn(move || load.requests(number, f64::from(plan.rate) / f64::from(USERS), NEW_TOKENS));
        }
        scope.spawn(|| every(COMES, Box::new(|| load.comes_and_goes())));
        scope.spawn(|| every(FLAPS, Box::new(|| replicas.restart_agent(&flaps))));
        scope.spawn(|| {
            let mut there = None;
            every(
                FLAPS,
                Box::new(|| {
                    there = match there.take() {
                        None => Some(Fleet::start(&replicas, plan.agents..plan.agents + comes_and_goes, "h2")?),
                        Some(_) => None,
                    };
                    Ok(())
                }),
            );
        });
        scope.spawn(|| {
            let mut number = 0;
            every(
                CERTIFICATES,
                Box::new(|| {
                    number = (number + 1) % COUNT;
                    rotated.fetch_add(1, Ordering::Relaxed);
                    replicas.command(number, &["renew-certificate"]).map(drop)
                }),
            );
        });
        scope.spawn(|| every(KEYS, Box::new(|| replicas.command(0, &["issuer", "rotate-key"]).map(drop))));
        let looked = (|| {
            let mut next = Instant::now();
            while begun.elapsed() < plan.length && load.waits_until(next) {
                figures.look(&replicas, begun.elapsed(), &told.lock().unwrap())?;
                // What it has received is not looked at.
                apiserver.forget();
                next += LOOKS;
            }
            anyhow::Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        looked
    });
    outcome.with_context(|| replicas.tails())?;
    let lost = fleet.without_tunnel()?;
    if let Some(file) = &plan.plot {
        std::fs::write(file, figures.plot())?;
    }
    let told = told.into_inner().unwrap();
    println!(
        "{} requests answered, {} of them tried again, {} failed; {} users came and went; {} certificates of gateways; \
         figures in {}",
        told.good,
        told.again,
        told.failed.len(),
        told.came,
        rotated.into_inner(),
        plan.csv.display()
    );
    println!("{}", figures.table());
    ensure!(lost == 0, "{lost} agents of the fleet have no tunnel");
    let last = told.failed.len().saturating_sub(SHOWN);
    ensure!(told.failed.is_empty(), "{} failed: {:#?}", told.failed.len(), &told.failed[last..]);
    let slopes = figures.slopes();
    ensure!(slopes.is_empty(), "with a slope: {}", slopes.join("; "));
    Ok(())
}
