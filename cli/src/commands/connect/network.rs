//! Whether pods in the cluster reach the gateway: asked by a job, before anything is made at the gateway (as
//! `az connectedk8s connect` does).

use std::collections::BTreeMap;

use anyhow::anyhow;
use serde_json::Value;

use super::wait::hint_of;
use crate::{
    commands::{diagnoser::Diagnoser, known},
    failure::{Failure, Outcome},
};

/// The checks without which no agent gets out; carriers and rights are tried by agents themselves.
const NEEDED: [&str; 2] = ["DNS", "TCP"];
/// What is only told when it fails: agents may know better, of a clock that is off or a proxy that ends the TLS.
const TOLD: [&str; 2] = ["TLS", "clock"];
const SKIP: &str = "--skip-network-check connects all the same";

/// Runs the job, whose pod may take `starting` until it runs, and reads what it says. Tells what is worth knowing where
/// all is well.
///
/// # Errors
/// When the job does not end, or no address of the gateway is reached.
pub async fn check(diagnoser: &Diagnoser, starting: std::time::Duration) -> Outcome<Vec<String>> {
    let asked = diagnoser.ask(starting).await;
    let said = asked.map_err(|error| {
        let why = format!("{error:#}");
        let error = error.context("the network cannot be checked from inside the cluster");
        let hint = hint_of(&why, "see that the agents' image can be pulled there (--image)");
        Failure::from(error).hint(format!("{hint}; or {SKIP}"))
    })?;
    judge(&said)
}

/// One address of the gateway that can be reached is enough; what is wrong with others is told.
fn judge(said: &Value) -> Outcome<Vec<String>> {
    let mut wrong: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    let mut beside = Vec::new();
    for check in said["checks"].as_array().into_iter().flatten() {
        let (address, what) = check["check"].as_str().and_then(|name| name.split_once(' ')).unwrap_or_default();
        let is_of = |names: [&str; 2]| names.iter().any(|name| what.split(' ').next() == Some(*name));
        if is_of(TOLD) && check["verdict"] == "failed" {
            beside.push(check);
        }
        if !is_of(NEEDED) {
            continue;
        }
        let faults = wrong.entry(address).or_default();
        if check["verdict"] == "failed" {
            faults.push(check);
        }
    }
    let text = |check: &Value, name: &str| check[name].as_str().unwrap_or_default().to_owned();
    let faults: Vec<&Value> = wrong.values().flatten().copied().collect();
    let told: Vec<String> = faults
        .iter()
        .chain(&beside)
        .map(|check| format!("{}: {}", text(check, "check"), text(check, "detail")))
        .collect();
    if wrong.is_empty() {
        return Ok(vec!["the job says nothing of the gateway's addresses".to_owned()]);
    }
    if wrong.values().any(Vec::is_empty) {
        return Ok(told);
    }
    let mut remedies: Vec<String> = faults.iter().map(|check| known::as_options(&text(check, "remedy"))).collect();
    remedies.dedup();
    let error = anyhow!("pods in the cluster do not reach the gateway:\n  {}", told.join("\n  "));
    Err(Failure::from(error).hint(format!("{}; {SKIP}", remedies.join("; "))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(name: &str, verdict: &str) -> Value {
        json!({"check": name, "verdict": verdict, "detail": "why", "remedy": "allow it"})
    }

    #[test]
    fn i3_one_address_that_is_reached_is_enough_and_none_is_not() {
        // Without a certificate neither carriers nor rights can be tried.
        let beside = [check("own certificate", "failed"), check("a:443 quic", "failed"), check("RBAC x", "failed")];
        let with = |more: &[Value]| {
            let all = [&beside[..], more].concat();
            json!({"checks": all})
        };
        let good = [check("a:443 DNS", "passed"), check("a:443 TCP", "passed"), check("a:443 TLS", "passed")];
        assert!(judge(&with(&good)).unwrap().is_empty());
        let bad = [check("b:443 DNS", "passed"), check("b:443 TCP through proxy p:1", "failed")];
        assert_eq!(judge(&with(&[&good[..], &bad].concat())).unwrap(), ["b:443 TCP through proxy p:1: why"]);
        let failure = judge(&with(&bad)).unwrap_err().into_error();
        let failure = format!("{failure:#}");
        assert!(failure.contains("do not reach the gateway") && !failure.contains("quic"), "{failure}");
        let clock = [&good[..], &[check("a:443 clock", "failed")]].concat();
        assert_eq!(judge(&with(&clock)).unwrap(), ["a:443 clock: why"]);
        assert_eq!(judge(&json!({})).unwrap().len(), 1);
    }
}
