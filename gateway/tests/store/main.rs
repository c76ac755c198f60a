#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr, missing_docs)]
//! The store, the same tests on SQLite and on a real PostgreSQL of the machine, whose collation is that of a language.
//! What only one of the two can do is named for it alone. Where PostgreSQL is missing and cannot be installed its tests
//! are reported as ignored, each by name.

mod agents;
mod backup;
mod batch;
mod changes;
mod crash;
mod events;
mod held;
mod issuers;
mod logs;
mod moving;
mod operations;
mod parts;
mod place;
mod postgres;
mod races;
mod replicas;
mod resources;
mod schema;
mod server;
mod size;
mod strings;

use std::{pin::Pin, process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Trial};

use self::{place::Place, postgres::Postgres};

/// A test on an empty database.
pub type Test = Box<dyn Fn(Place) -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync>;

/// Names of async functions with the functions.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        vec![$((stringify!($name), crate::test($name))),*]
    };
}
pub(crate) use tests;

pub fn test<F: Future<Output = ()> + 'static>(test: fn(Place) -> F) -> Test {
    Box::new(move |place| Box::pin(test(place)))
}

fn main() -> ExitCode {
    if let Some(asked) = crash::asked() {
        return crash::write(&asked);
    }
    let arguments = Arguments::from_args();
    let on_both: Vec<(&str, Arc<Test>)> = [
        agents::tests(),
        resources::tests(),
        batch::tests(),
        changes::tests(),
        events::tests(),
        held::tests(),
        issuers::tests(),
        logs::tests(),
        operations::tests(),
        parts::tests(),
        races::tests(),
        schema::tests(),
        size::tests(),
        strings::tests(),
    ]
    .into_iter()
    .flatten()
    .map(|(name, test)| (name, Arc::new(test)))
    .collect();
    let on_sqlite = [backup::tests(), crash::tests()].into_iter().flatten().map(|(name, test)| (name, Arc::new(test)));
    let mut trials: Vec<Trial> = on_both
        .iter()
        .cloned()
        .chain(on_sqlite)
        .map(|(name, test)| {
            Trial::test(format!("sqlite::{name}"), move || {
                run(&test, Place::sqlite());
                Ok(())
            })
        })
        .collect();
    let of_servers =
        [server::tests(), moving::tests(), replicas::tests(), issuers::server_tests()].into_iter().flatten();
    let of_servers = of_servers.map(|(name, test)| (name, Arc::new(test), false));
    let figures = replicas::figures().into_iter().map(|(name, test)| (name, Arc::new(test), true));
    let on_both = on_both.into_iter().map(|(name, test)| (name, test, false));
    let on_postgres: Vec<(&str, Arc<Test>, bool)> = on_both.chain(of_servers).chain(figures).collect();
    let wanted = |name: &str, is_slow: bool| {
        let trial = Trial::test(format!("postgres::{name}"), || Ok(())).with_ignored_flag(is_slow);
        !arguments.is_filtered_out(&trial)
    };
    let needed = !arguments.list && on_postgres.iter().any(|(name, _, is_slow)| wanted(name, *is_slow));
    let server = if needed && Postgres::is_possible() { Some(Arc::new(Postgres::start())) } else { None };
    trials.extend(on_postgres.into_iter().map(|(name, test, is_slow)| {
        let on = server.clone();
        Trial::test(format!("postgres::{name}"), move || {
            let server = on.as_ref().ok_or("PostgreSQL is not installed")?;
            run(&test, Place::postgres(server));
            Ok(())
        })
        .with_ignored_flag(server.is_none() || is_slow)
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(server);
    conclusion.exit_code()
}

fn run(test: &Test, place: Place) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(place));
}
