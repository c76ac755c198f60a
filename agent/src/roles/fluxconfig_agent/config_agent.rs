//! Source control configurations, which Arc's config-agent followed while Flux 1 was its operator (docs/features.md G10):
//! each is translated into the properties of a flux configuration. From there on both are one: rendered, placed, judged and
//! bounded by the cluster's owner by the same code.

use catalogue::digest::Sha256;
use serde::Deserialize;
use serde_json::{Value, json};
use types::{agent_api::ObjectState, api::id::SOURCE_CONTROL_CONFIGURATIONS, operator_params::OperatorParams};

use super::{
    Configurations, NAME, Own, Shown,
    comply::Compliance,
    render::SOURCE_CONTROL,
    spec::{Git, GitRef, Kustomization, Properties, Pull, Secrets},
};
use crate::roles::objects::{
    Kind,
    state::{Problem, Status, Wanted},
};

/// What Flux 1 took where it was not told.
const BRANCH: &str = "master";
const INTERVAL: u64 = 300;
const GIT_TIMEOUT: u64 = 20;
const SYNC_TIMEOUT: u64 = 60;

/// The kind of source control configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitConfigs;

impl Kind for GitConfigs {
    const TYPE: &'static str = SOURCE_CONTROL_CONFIGURATIONS;
    const RESOURCE: (&'static str, &'static str) = ("GitConfig", "gitconfigs");
    const NOUN: &'static str = "source control configuration";
    const NOUNS: &'static str = "source control configurations";
    const MANAGER: &'static str = NAME;
    const SECRET: &'static str = "gitconfig";
    const MAX: usize = 200;
    const TOO_MANY: &'static str = "TooManySourceControlConfigurations";
    /// The gateway has the same bound: with the prefix and the name of a kustomization it is the value of a label.
    const NAME_CHARS: usize = 50;
    const UNNAMEABLE: &'static str = "has a name that no object of Flux can have";

    type Shown = Shown;
    type Own = Own;

    fn is_there(status: &Status<Self>) -> bool {
        status.record.own.applied.is_some()
    }

    fn details(status: &Status<Self>) -> Option<Value> {
        let mut details = json!({ "complianceStatus": compliance(status) });
        if let Some(key) = &status.shown.repository_public_key {
            details["repositoryPublicKey"] = json!(key);
        }
        Some(details)
    }
}

/// `complianceStatus`, in the words of Flux 1's operator.
fn compliance(status: &Status<GitConfigs>) -> Value {
    let shown = &status.shown;
    let is = |compliance: Compliance| shown.compliance_state.as_deref() == Some(compliance.as_str());
    let error = status.error_info.as_ref().map(|error| error.message.clone());
    let line = status.statuses.first().map(|line| line.message.clone());
    let remark = shown.error_message.clone();
    let level = if remark.is_some() { "Warning" } else { "Information" };
    let (state, level, message) = if status.state == Some(ObjectState::Failed) {
        ("Failed", "Error", error.or(remark))
    } else if is(Compliance::NonCompliant) {
        ("Noncompliant", "Error", remark)
    } else if is(Compliance::Compliant) {
        let commit = shown.source_synced_commit_id.as_deref().unwrap_or("the repository");
        ("Compliant", level, remark.or_else(|| Some(format!("{commit} is applied"))))
    } else if status.record.own.applied == Some(status.observed_generation) {
        let message = "Flux's objects are made; what the repository has is not applied yet";
        ("Installed", level, remark.or_else(|| Some(message.to_owned())))
    } else {
        ("Pending", level, line)
    };
    let mut all = json!({ "complianceState": state, "messageLevel": level });
    if let Some(message) = message {
        all["message"] = message.into();
    }
    if let Some(at) = &status.record.own.applied_at {
        all["lastConfigApplied"] = json!(at);
    }
    all
}

/// A source control configuration's properties.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Old {
    repository_url: Option<String>,
    operator_namespace: Option<String>,
    operator_scope: Option<String>,
    operator_params: Option<String>,
    ssh_known_hosts_contents: Option<String>,
    enable_helm_operator: Option<bool>,
}

fn invalid(message: impl Into<String>) -> Problem {
    Problem::stays("InvalidConfiguration", message)
}

impl Old {
    fn read(value: &Value) -> Result<Self, Problem> {
        serde_json::from_value(value.clone()).map_err(|err| invalid(format!("the properties cannot be read: {err}")))
    }

    fn translated(self) -> Result<Properties, Problem> {
        let params = OperatorParams::read(self.operator_params.as_deref().unwrap_or_default()).map_err(invalid)?;
        let mut paths = params.paths;
        if paths.is_empty() {
            paths.push(String::new());
        }
        let kustomization = |path: &String| Kustomization {
            path: Some(format!("./{path}")),
            timeout_in_seconds: Some(params.sync_timeout.unwrap_or(SYNC_TIMEOUT)),
            sync_interval_in_seconds: Some(params.sync_interval.unwrap_or(INTERVAL)),
            prune: Some(params.prune),
            // Flux 1 applied, and did not look whether anything became healthy.
            wait: Some(false),
            ..Kustomization::default()
        };
        let git = Git {
            url: self.repository_url.unwrap_or_default(),
            pull: Pull {
                timeout_in_seconds: Some(params.git_timeout.unwrap_or(GIT_TIMEOUT)),
                sync_interval_in_seconds: Some(params.poll_interval.unwrap_or(INTERVAL)),
                local_auth_ref: None,
            },
            repository_ref: Some(GitRef {
                branch: Some(params.branch.unwrap_or_else(|| BRANCH.to_owned())),
                ..GitRef::default()
            }),
            ssh_known_hosts: self.ssh_known_hosts_contents,
            ..Git::default()
        };
        Ok(Properties {
            scope: self.operator_scope,
            namespace: self.operator_namespace,
            source_kind: Some("GitRepository".to_owned()),
            git_repository: Some(git),
            kustomizations: Some(paths.iter().map(|path| (named(path), Some(kustomization(path)))).collect()),
            ..Properties::default()
        })
    }
}

/// The name of the kustomization of a path: it stays where others come and go, which would delete what it had applied.
fn named(path: &str) -> String {
    Sha256::of(path.as_bytes()).to_string().chars().filter(char::is_ascii_hexdigit).take(8).collect()
}

impl Configurations for GitConfigs {
    const IS_LATER: bool = true;

    fn properties(wanted: &Wanted) -> Result<Properties, Problem> {
        let properties = Old::read(&wanted.properties)?.translated()?;
        properties.bounded()?;
        Ok(properties)
    }

    /// The user of HTTPS is a protected setting here.
    fn reveal(properties: &mut Properties, secrets: &Secrets) -> Result<(), Problem> {
        let user = secrets.bytes("httpsUser")?.map(String::from_utf8).transpose();
        let user = user.map_err(|_| invalid("httpsUser is no UTF-8"))?;
        if let Some(git) = &mut properties.git_repository {
            git.https_user = user;
        }
        Ok(())
    }

    fn owner(name: &str) -> String {
        format!("{SOURCE_CONTROL}{name}")
    }

    fn owned(owner: &str) -> Option<&str> {
        owner.strip_prefix(SOURCE_CONTROL)
    }

    fn remark(wanted: &Wanted) -> Option<String> {
        let wants_helm = Old::read(&wanted.properties).ok()?.enable_helm_operator.unwrap_or(false);
        wants_helm.then(|| {
            "enableHelmOperator brings no operator: charts are installed where helm-controller runs, which the extension microsoft.flux leaves out unless its setting helm-controller.enabled is true, and from HelmReleases of helm.toolkit.fluxcd.io alone, not those of Flux 1 (helm.fluxcd.io)".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use types::agent_api::{ObjectError, encode};

    use super::{
        super::render::{called, labels_of, owner_of},
        *,
    };

    fn translated(properties: Value) -> Result<Properties, Problem> {
        GitConfigs::properties(&Wanted { properties, ..Wanted::default() })
    }

    fn kustomizations(properties: &Properties) -> Vec<&Kustomization> {
        properties.kustomizations().map(|(_, one)| one).collect()
    }

    #[test]
    fn g10_data_exchange_git_repo_url() {
        let properties = translated(json!({"repositoryUrl": "git@example.org:team/app", "operatorNamespace": "team", "operatorScope": "namespace"})).unwrap();
        assert_eq!(super::super::render::repository(&properties).unwrap(), "ssh://git@example.org/team/app");
        assert_eq!((properties.namespace(), properties.scope().unwrap().as_str()), ("team", "namespace"));
        assert_eq!(properties.git_repository.unwrap().repository_ref.unwrap().branch.as_deref(), Some("master"));
    }

    #[test]
    fn g10_data_exchange_flux_operator_parameters() {
        let params =
            "--git-branch=main --git-path=apps,infra --git-poll-interval=1m --sync-garbage-collection --git-readonly";
        let properties = translated(json!({"repositoryUrl": "https://g/r", "operatorParams": params})).unwrap();
        let git = properties.git_repository.clone().unwrap();
        assert_eq!(
            (git.pull.interval(), git.repository_ref.unwrap().branch.as_deref()),
            ("60s".to_owned(), Some("main"))
        );
        let all = kustomizations(&properties);
        let mut paths: Vec<_> = all.iter().filter_map(|one| one.path.as_deref()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["./apps", "./infra"]);
        assert!(all.iter().all(|one| one.prune == Some(true) && one.sync_interval_in_seconds == Some(300)));
        // A path keeps its kustomization where another one comes.
        let one = translated(json!({"repositoryUrl": "https://g/r", "operatorParams": "--git-path=infra"})).unwrap();
        let names: Vec<_> = one.kustomizations().map(|(name, _)| name.clone()).collect();
        assert!(properties.kustomizations().any(|(name, _)| *name == names[0]));
        assert_eq!(
            kustomizations(&translated(json!({"repositoryUrl": "https://g/r"})).unwrap())[0].path.as_deref(),
            Some("./")
        );
        // A gateway that was taken over sends what it wants.
        for bad in ["--git-path=../up", "--exec=sh"] {
            let refused = translated(json!({"repositoryUrl": "https://g/r", "operatorParams": bad})).unwrap_err();
            assert_eq!(refused.code, "InvalidConfiguration");
        }
    }

    #[test]
    fn g10_names_never_are_those_of_flux_configurations() {
        let longest = "x".repeat(GitConfigs::NAME_CHARS);
        assert_eq!(GitConfigs::owner(&longest).len() + 1 + named("apps").len(), 63);
        assert_eq!((GitConfigs::owned("git.web"), GitConfigs::owned("git-web")), (Some("web"), None));
        assert_eq!(called("git.web"), format!("{} web", GitConfigs::NOUN));
        assert_eq!(called("web"), "configuration web");
    }

    #[test]
    fn g10_objects_have_a_label_that_no_flux_configuration_has() {
        for (owner, key, value) in [("git.web", "towline.io/gitconfig", "web"), ("web", "towline.io/fluxconfig", "web")]
        {
            let labels = labels_of(owner);
            assert_eq!(labels, json!({"app.kubernetes.io/managed-by": "towline", key: value}));
            assert_eq!(owner_of(Some(&serde_json::from_value(labels).unwrap())).as_deref(), Some(owner));
        }
        assert_eq!((owner_of(None), owner_of(Some(&Default::default()))), (None, None));
    }

    #[test]
    fn g10_user_of_https_is_protected() {
        let mut properties = translated(json!({"repositoryUrl": "https://g/r"})).unwrap();
        let secrets = Secrets([("httpsUser".to_owned(), encode(b"reader"))].into());
        GitConfigs::reveal(&mut properties, &secrets).unwrap();
        assert_eq!(properties.git_repository.unwrap().https_user.as_deref(), Some("reader"));
    }

    #[test]
    fn g10_compliance_has_the_words_of_flux_1() {
        let said = |status: &Status<GitConfigs>| {
            let told = GitConfigs::details(status).unwrap()["complianceStatus"].clone();
            ["complianceState", "messageLevel", "message"].map(|key| told[key].as_str().unwrap_or_default().to_owned())
        };
        let mut status = Status::<GitConfigs>::default();
        assert_eq!(said(&status), ["Pending", "Information", ""]);
        (status.observed_generation, status.record.own.applied) = (3, Some(3));
        status.record.own.applied_at = Some("2026-11-27T10:00:00Z".to_owned());
        assert_eq!(said(&status)[..2], ["Installed", "Information"]);
        status.shown.compliance_state = Some("Compliant".to_owned());
        status.shown.source_synced_commit_id = Some("main@sha1:a".to_owned());
        assert_eq!(said(&status), ["Compliant", "Information", "main@sha1:a is applied"]);
        let told = GitConfigs::details(&status).unwrap();
        assert_eq!(told["complianceStatus"]["lastConfigApplied"], "2026-11-27T10:00:00Z");
        let wanted = Wanted { properties: json!({"enableHelmOperator": true}), ..Wanted::default() };
        status.shown.error_message = GitConfigs::remark(&wanted);
        assert_eq!(said(&status)[..2], ["Compliant", "Warning"]);
        assert!(said(&status)[2].contains("helm-controller.enabled"));
        status.shown.compliance_state = Some("Non-Compliant".to_owned());
        status.shown.error_message = Some("no such branch".to_owned());
        assert_eq!(said(&status), ["Noncompliant", "Error", "no such branch"]);
        status.state = Some(ObjectState::Failed);
        status.error_info = Some(ObjectError { code: "NotAllowedInCluster".to_owned(), message: "pinned".to_owned() });
        assert_eq!(said(&status), ["Failed", "Error", "pinned"]);
    }
}
