//! End-to-end tests: one binary, one behaviour a file. `make test` covers each client, each protocol and each carrier
//! at least once; `TOWLINE_TEST_FULL=1` (`make test-full`) every client by every protocol by every carrier.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

mod agents;
mod arm;
mod attacks;
mod chart;
mod clients;
mod connect;
mod errors;
mod extension_clients;
mod extensions;
mod gateway_chart;
mod gitops;
mod gitops_attacks;
mod gitops_figures;
mod gitops_foreign;
mod gitops_guide;
mod gitops_sources;
mod gitops_stores;
mod guard;
mod guard_pods;
mod impersonation;
mod issuer;
mod k9s;
mod kubectl;
mod load;
mod local_proxy;
mod networks;
mod oidc;
mod onboarding;
mod operating;
mod pop;
mod proxies;
mod recovery;
mod released;
mod replicas;
mod resent;
mod restarts;
mod secrets;
mod sessions;
mod tokens;
mod upgrades;

use libtest_mimic::{Arguments, Trial};
use tests::case::{BEGUN, Lane};

fn main() {
    let mut arguments = Arguments::from_args();
    let lane = Lane::chosen();
    // How many run at once is decided by what each needs of the machine.
    arguments.test_threads = arguments.test_threads.or(Some(BEGUN));
    let mut trials: Vec<Trial> = Vec::new();
    for tests in [
        // Of those that install, each of which takes one of a few clusters, the longest come first: none is left to be
        // waited for when all others have ended.
        upgrades::tests,
        guard_pods::tests,
        gitops_attacks::tests,
        gitops_sources::tests,
        errors::tests,
        attacks::tests,
        kubectl::tests,
        impersonation::tests,
        sessions::tests,
        local_proxy::tests,
        clients::tests,
        k9s::tests,
        chart::tests,
        gateway_chart::tests,
        connect::tests,
        onboarding::tests,
        agents::tests,
        extensions::tests,
        gitops::tests,
        gitops_figures::tests,
        gitops_foreign::tests,
        gitops_guide::tests,
        gitops_stores::tests,
        guard::tests,
        tokens::tests,
        arm::tests,
        extension_clients::tests,
        issuer::tests,
        oidc::tests,
        operating::tests,
        pop::tests,
        load::tests,
        networks::tests,
        proxies::tests,
        recovery::tests,
        released::tests,
        replicas::tests,
        restarts::tests,
        resent::tests,
    ] {
        trials.extend(tests());
    }
    let conclusion = libtest_mimic::run(&arguments, lane.of(trials));
    // Last, over the logs of everything above.
    let sweep = if lane.sweeps() { vec![secrets::sweep()] } else { Vec::new() };
    let sweep = libtest_mimic::run(&arguments, sweep);
    tests::stack::keep_all_metrics();
    tests::programs::end_all();
    if conclusion.has_failed() || sweep.has_failed() {
        std::process::exit(101);
    }
}
