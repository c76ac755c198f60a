//! The apiserver: whether it is reached, and whether RBAC lets the agent do what it has to.

use daemon::TaskGroup;
use http::StatusCode;
use serde_json::json;

use super::Finding;
use crate::{
    chain,
    config::{Cluster, Config},
    roles::kube_aad_proxy::{
        dial::{Apiserver, access::Access},
        impersonate::ORIGINAL_USER,
        review::own_review,
    },
};

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// Reachability and the agent's own RBAC.
pub(super) async fn apiserver(config: &Config, findings: &mut Vec<Finding>) {
    let access = match Access::new(&config.cluster).await {
        Ok(access) => access,
        Err(err) => {
            let remedy = match config.cluster {
                Cluster::InCluster { .. } => "run the agent in a pod with a service account, or set cluster.kubeconfig",
                Cluster::Kubeconfig { .. } => {
                    "correct cluster.kubeconfig or cluster.context (--kubeconfig, --context): a file that reaches the \
                     apiserver itself, not through a gateway"
                }
            };
            return findings.push(Finding::failed("apiserver access", chain(&err), remedy));
        }
    };
    let check = format!("apiserver {}", access.authority());
    let kind = access.own_kind();
    let tasks = TaskGroup::new("check");
    let apiserver = match Apiserver::new(access, tasks.clone()) {
        Ok(apiserver) => apiserver,
        Err(err) => return findings.push(Finding::failed(check, chain(&err), "correct the cluster's address")),
    };
    let mut needed = vec![
        ("impersonate", "", "users", None),
        ("impersonate", "", "groups", None),
        ("impersonate", "", "serviceaccounts", None),
        ("impersonate", AUTHENTICATION, "uids", None),
        ("impersonate", AUTHENTICATION, "userextras", Some(ORIGINAL_USER)),
        ("create", AUTHORIZATION, "subjectaccessreviews", None),
    ];
    needed.extend(
        config.impersonation.extras.iter().map(|key| ("impersonate", AUTHENTICATION, "userextras", Some(key.as_str()))),
    );
    let mut reached = false;
    for (verb, group, resource, subresource) in needed {
        let mut attributes = json!({ "verb": verb, "group": group, "resource": resource });
        if let Some(subresource) = subresource {
            attributes["subresource"] = json!(subresource);
        }
        let (status, answer) = match own_review(&apiserver, &attributes).await {
            Ok(answer) => answer,
            Err(refusal) => {
                let remedy = "let the agent reach the apiserver: network policies, its address, its CA";
                findings.push(Finding::failed(check, refusal.detail.unwrap_or(refusal.message), remedy));
                break;
            }
        };
        if status != StatusCode::CREATED {
            let remedy = "give the agent a credential that the apiserver accepts";
            findings.push(Finding::failed(check, format!("answers {status} to the agent's {kind}"), remedy));
            break;
        }
        if !reached {
            findings.push(Finding::passed(check.clone(), format!("reached; it accepts the agent's {kind}")));
            reached = true;
        }
        let what = subresource.map_or(resource.to_owned(), |subresource| format!("{resource}/{subresource}"));
        let name = format!("RBAC {verb} {what}");
        findings.push(if answer["status"]["allowed"] == true {
            Finding::passed(name, "allowed")
        } else {
            let group = if group.is_empty() { "core" } else { group };
            let remedy = format!("add a rule for {verb} on {what} in API group {group} to the agent's ClusterRole");
            Finding::failed(name, "not allowed", remedy)
        });
    }
    tasks.abort();
}
