//! The custom resource that shows what the agents know, `connectedclusters.towline.io/clustermetadata`: for
//! `kubectl get` and `kubectl describe` in the agents' namespace. The chart defines it
//! (docker/chart/towline-agent/files/crd.yaml).

use std::time::SystemTime;

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use super::{
    cluster_metadata_operator::{self, Facts},
    health::{Health, RoleHealth, State},
    kubernetes::problem,
};
use crate::identity::{Identities, spell};

/// The object's name.
pub const OBJECT: &str = "clustermetadata";
/// Who writes it, in its managed fields.
const MANAGER: &str = cluster_metadata_operator::NAME;
/// Conditions and errors at most, as the definition has it.
const LIST_MAX: usize = 32;
/// Characters of a condition's message.
const MESSAGE_CHARS: usize = 4000;

/// All that is shown.
pub struct Shown<'a> {
    /// The cluster's ARM id.
    pub cluster: &'a str,
    /// What is known of it.
    pub facts: &'a Facts,
    /// How the roles fare.
    pub health: &'a Health,
    /// Holds the certificate in use, whose dates are shown.
    pub identities: &'a Identities,
    /// When the gateway last took a heartbeat, by its clock.
    pub last_connectivity: Option<String>,
    /// The revision of the desired state that is worked with.
    pub desired_revision: i64,
    /// Now, by the agent's clock.
    pub now: SystemTime,
}

impl Shown<'_> {
    /// The object's `status`. What is not known is null, which a merge takes out.
    pub fn status(&self) -> Value {
        let facts = self.facts;
        let certificate = self.identities.current().map(|identity| {
            let stored = &identity.stored;
            json!({
                "notBefore": spell(stored.not_before), "notAfter": spell(stored.not_after),
                "renewAfter": spell(identity.renew_at(self.now, 0.0)), "principalId": stored.principal_id,
            })
        });
        json!({
            "agentVersion": daemon::release::version(),
            "kubeSystemUid": facts.kube_system_uid,
            "kubernetesVersion": facts.kubernetes_version,
            "totalNodeCount": facts.nodes,
            "totalCoreCount": facts.cores,
            "distribution": facts.distribution,
            "distributionVersion": facts.distribution_version,
            "infrastructure": facts.infrastructure,
            "lastConnectivityTime": self.last_connectivity,
            "desiredRevision": self.desired_revision,
            "certificate": certificate,
            "agentErrors": errors(self.health, LIST_MAX),
            "conditions": self.conditions(),
        })
    }

    fn conditions(&self) -> Vec<Value> {
        let roles = self.health.all();
        let worst = |state| roles.iter().find(|(_, health)| health.state == state);
        let (status, reason, message, since) = match worst(State::Failing).or_else(|| worst(State::Starting)) {
            Some((name, health)) => {
                let told = if health.message.is_empty() { health.state.as_str() } else { &health.message };
                ("False", health.reason, format!("{name}: {told}"), health.since)
            }
            None => {
                let since = roles.values().map(|health| health.since).max().unwrap_or(self.now);
                ("True", "AllRunning", String::new(), since)
            }
        };
        let mut conditions = vec![condition("Ready", status, reason, &message, since)];
        let of_role = |(name, health): (&&'static str, &RoleHealth)| {
            let status = match health.state {
                State::Running => "True",
                State::Failing => "False",
                State::Starting => "Unknown",
            };
            let message = [&[health.message.clone()][..], &health.warnings].concat();
            let message: Vec<String> = message.into_iter().filter(|text| !text.is_empty()).collect();
            condition(name, status, health.reason, &message.join("; "), health.since)
        };
        conditions.extend(roles.iter().take(LIST_MAX - 1).map(of_role));
        conditions
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, since: SystemTime) -> Value {
    let message: String = message.chars().take(MESSAGE_CHARS).collect();
    json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": spell(since),
    })
}

/// What does not work, newest first, as the resource API shows it (docs/features.md D7).
pub fn errors(health: &Health, max: usize) -> Vec<types::agent_api::AgentError> {
    let mut errors = Vec::new();
    for (name, role) in health.all() {
        let of = |message: &str, severity: &str| types::agent_api::AgentError {
            message: message.to_owned(),
            severity: severity.to_owned(),
            component: name.to_owned(),
            time: spell(role.since),
        };
        if role.state == State::Failing {
            errors.push((role.since, of(&format!("{}: {}", role.reason, role.message), "Error")));
        }
        errors.extend(role.warnings.iter().map(|warning| (role.since, of(warning, "Warning"))));
    }
    errors.sort_by_key(|(since, _)| std::cmp::Reverse(*since));
    errors.into_iter().take(max).map(|(_, error)| error).collect()
}

/// Writes the object; makes it where it is not there.
pub async fn write(client: &Client, shown: &Shown<'_>) -> Result<(), String> {
    let kind = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("towline.io", "v1alpha1", "ConnectedCluster"),
        "connectedclusters",
    );
    let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({ "status": shown.status() }));
    let what = "the custom resource clustermetadata";
    match api.patch_status(OBJECT, &params, &patch).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(err) => return Err(problem(what, &err)),
    }
    let object = DynamicObject::new(OBJECT, &kind).data(json!({ "spec": { "resourceId": shown.cluster } }));
    let create = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&create, &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {
            return Err(format!("{what} cannot be made: its definition connectedclusters.towline.io is missing"));
        }
        Err(err) => return Err(problem(what, &err)),
    }
    api.patch_status(OBJECT, &params, &patch).await.map(|_| ()).map_err(|err| problem(what, &err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m5_what_may_not_be_read_is_null_and_named_and_a_role_that_fails_makes_all_not_ready() {
        let health = Health::default();
        health.of("cluster-metadata-operator").running();
        let forbidden = "the cluster's nodes may not be read: nodes is forbidden; give the agents the rights";
        health.of("cluster-metadata-operator").warnings(vec![forbidden.to_owned()]);
        let facts = Facts { kubernetes_version: Some("v1.34.1".to_owned()), ..Facts::default() };
        let identities = Identities::default();
        let shown = |health| Shown {
            cluster: "/c",
            facts: &facts,
            health,
            identities: &identities,
            last_connectivity: None,
            desired_revision: 0,
            now: SystemTime::UNIX_EPOCH,
        };
        let status = shown(&health).status();
        assert_eq!(status["totalNodeCount"], Value::Null);
        assert_eq!(status["agentErrors"][0]["message"], forbidden);
        assert_eq!(status["agentErrors"][0]["severity"], "Warning");
        assert_eq!(
            (&status["conditions"][0]["type"], &status["conditions"][0]["status"]),
            (&json!("Ready"), &json!("True"))
        );
        health.of("metrics-agent").failing("Unreachable", "no tunnel");
        let status = shown(&health).status();
        assert_eq!(status["conditions"][0]["status"], "False");
        assert_eq!(status["conditions"][0]["message"], "metrics-agent: no tunnel");
        assert_eq!(status["conditions"][2]["type"], "metrics-agent");
        assert_eq!(status["agentErrors"][0]["component"], "metrics-agent");
    }
}
