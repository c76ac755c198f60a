//! `tests/soak`: several gateways for hours. See `tests::soak`.

#![allow(clippy::print_stderr, clippy::disallowed_methods)]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use tests::soak::{Plan, run};

const USAGE: &str = "usage: tests/soak [--hours N] [--agents N] [--rate N] [--csv FILE] [--plot FILE.svg]";

fn main() -> ExitCode {
    let outcome = plan(std::env::args().skip(1)).and_then(|plan| run(&plan));
    tests::programs::end_all();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error:?}");
            ExitCode::FAILURE
        }
    }
}

/// As the command line says; hours may have a fraction.
fn plan(mut words: impl Iterator<Item = String>) -> anyhow::Result<Plan> {
    let mut plan = Plan {
        length: Duration::from_secs(2 * 3600),
        agents: 200,
        rate: 100,
        csv: PathBuf::from("target/soak/soak.csv"),
        plot: None,
    };
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word}: a value is missing; {USAGE}"))?;
        let number = || value.parse().with_context(|| format!("{word}: expected a number, not {value:?}"));
        match word.as_str() {
            "--hours" => {
                let hours: f64 = value.parse().with_context(|| format!("{word}: expected a number, not {value:?}"))?;
                plan.length =
                    Duration::try_from_secs_f64(hours * 3600.0).with_context(|| format!("--hours {value}"))?;
            }
            "--agents" => plan.agents = number()?,
            "--rate" => plan.rate = number()?,
            "--csv" => plan.csv = value.into(),
            "--plot" => plan.plot = Some(value.into()),
            _ => bail!("{word}: unknown; {USAGE}"),
        }
    }
    Ok(plan)
}
