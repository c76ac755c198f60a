//! `towline-agent check`: tries every hop to the gateway, to the issuers and to the apiserver, and says
//! of each what was found, why it fails, and what to do.

mod cluster;
mod gateway;
mod issuers;

use std::{io::Write as _, sync::Arc};

use daemon::stdout;
use serde_json::json;

use crate::{
    chain,
    config::{Config, IdentitySource, IdentityStore},
    identity::{Identities, Identity, store},
    roles::kubernetes,
    tunnel::connect::Connector,
};

/// Some check failed.
const EXIT_FAILED: u8 = 1;
/// The configuration cannot be used.
const EXIT_CONFIG: u8 = 2;

/// What came of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// The agent works without, perhaps less well.
    Warning,
    Failed,
    /// Not tried, because of an earlier one or of the configuration.
    Skipped,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone)]
struct Finding {
    check: String,
    verdict: Verdict,
    /// What the check found, in a sentence.
    detail: String,
    /// What the reader is to do about it.
    remedy: Option<String>,
}

impl Finding {
    fn new(check: impl Into<String>, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { check: check.into(), verdict, detail: detail.into(), remedy: None }
    }

    fn passed(check: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(check, Verdict::Passed, detail)
    }

    fn failed(check: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(check, Verdict::Failed, detail) }
    }

    fn skipped(check: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(check, Verdict::Skipped, detail)
    }

    fn warning(self) -> Self {
        Self { verdict: Verdict::Warning, ..self }
    }
}

/// Tries every hop and prints what it finds. The exit code: 0 if all that is needed is well, 1 if something failed, 2
/// if the configuration cannot be used.
pub async fn run(config: &Config, as_json: bool) -> u8 {
    let mut findings = Vec::new();
    let identities = Identities::default();
    load(config, &identities, &mut findings).await;
    let connector = match Connector::new(config, &identities) {
        Ok(connector) => Arc::new(connector),
        Err(err) => {
            let remedy = "correct gateway.ca_file, gateway.certificate_file and gateway.key_file";
            findings.push(Finding::failed("certificates", chain(&err), remedy));
            return report(&findings, as_json, EXIT_CONFIG);
        }
    };
    gateway::identity(&connector, &mut findings);
    for (index, endpoint) in config.gateway.endpoints.iter().enumerate() {
        gateway::endpoint(config, &connector, index, endpoint, &mut findings).await;
    }
    issuers::issuers(config, &connector, &mut findings).await;
    cluster::apiserver(config, &mut findings).await;
    let is_failed = findings.iter().any(|finding| finding.verdict == Verdict::Failed);
    report(&findings, as_json, if is_failed { EXIT_FAILED } else { 0 })
}

/// Takes the certificate that the agents look after from where it is kept.
async fn load(config: &Config, identities: &Identities, findings: &mut Vec<Finding>) {
    let IdentitySource::Managed(managed) = &config.gateway.identity else { return };
    let loaded = async {
        let client = match &managed.store {
            IdentityStore::Secret(_) => Some(kubernetes::client(&config.cluster).await.map_err(|err| chain(&err))?),
            IdentityStore::Directory(_) => None,
        };
        let store = store::open(&managed.store, client.as_ref()).map_err(|err| chain(&err))?;
        let Some(stored) = store.load().await.map_err(|err| chain(&err))? else { return Ok(()) };
        identities.publish(Identity::new(stored, &managed.cluster).map_err(|err| chain(&err))?);
        Ok(())
    };
    let loaded: Result<(), String> = loaded.await;
    if let Err(problem) = loaded {
        let remedy = "look at [identity] of the configuration, and at the rights of the service account";
        findings.push(Finding::failed("kept certificate", problem, remedy));
    }
}

/// The exit code of what was found, unless nobody could be told.
fn report(findings: &[Finding], as_json: bool, code: u8) -> u8 {
    let Err(error) = stdout::print(&text(findings, as_json)) else { return code };
    let (code, reason) = stdout::failed(&error);
    if let Some(reason) = reason {
        let _ = writeln!(std::io::stderr(), "towline-agent: {reason}");
    }
    code
}

fn text(findings: &[Finding], as_json: bool) -> String {
    if as_json {
        let checks: Vec<_> = findings
            .iter()
            .map(|finding| {
                let Finding { check, verdict, detail, remedy } = finding;
                json!({ "check": check, "verdict": verdict.as_str(), "detail": detail, "remedy": remedy })
            })
            .collect();
        let ok = findings.iter().all(|finding| finding.verdict != Verdict::Failed);
        return json!({ "ok": ok, "checks": checks }).to_string();
    }
    let mut lines = Vec::new();
    for finding in findings {
        lines.push(format!("{:<8} {}: {}", finding.verdict.as_str(), finding.check, finding.detail));
        lines.extend(finding.remedy.as_ref().map(|remedy| format!("         -> {remedy}")));
    }
    let failed = findings.iter().filter(|finding| finding.verdict == Verdict::Failed).count();
    let warned = findings.iter().filter(|finding| finding.verdict == Verdict::Warning).count();
    lines.push(format!(
        "check: {} of {} passed, {warned} warnings, {failed} failed",
        findings.iter().filter(|finding| finding.verdict == Verdict::Passed).count(),
        findings.len()
    ));
    lines.join("\n")
}
