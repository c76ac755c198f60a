//! What goes on in a cluster that the gateway does not know: extensions and configurations of a former connection, or from
//! before the gateway's database was restored. Agents leave them alone, because nobody said that they are to be deleted.
//! `connect` and `troubleshoot` name them, with what to do.

use std::collections::BTreeSet;

use types::api::ResourceId;

use super::{
    extension::EXTENSIONS,
    flux::{CONFIGURATIONS, source_control},
};
use crate::{
    api::{Api, at, versions},
    failure::Outcome,
    kubernetes::left::{Managed, There, What},
};

/// Of them, how many are named.
const SHOWN: usize = 20;
/// What they are.
pub const HEADING: &str = "a former connection left in the cluster what the gateway does not know";
/// What to do with them.
pub const ADVICE: &str = "agents leave them as they are. One that is created again with the same name (towline extension create; towline flux create, in the same namespace) takes over what is there, and its deletion removes it. By hand, where a kustomization with prune takes all with it that it applied:";

/// Names of what the gateway knows of a cluster, in small letters.
pub type Known = BTreeSet<(What, String)>;

/// Asks the gateway what it knows of a cluster.
///
/// # Errors
/// When a list cannot be read.
pub async fn known(api: &Api, id: &ResourceId) -> Outcome<Known> {
    let mut known = Known::new();
    let kinds = [
        (What::Extension, EXTENSIONS, versions::EXTENSIONS),
        (What::Flux, CONFIGURATIONS, versions::FLUX),
        (What::SourceControl, source_control::CONFIGURATIONS, versions::SOURCE_CONTROL),
    ];
    for (what, kind, version) in kinds {
        let listed = api.list(&at(format!("{id}/providers/{kind}"), version)).await?;
        known.extend(listed.iter().filter_map(|one| Some((what, one["name"].as_str()?.to_ascii_lowercase()))));
    }
    Ok(known)
}

/// What is said after a connection of what was in the cluster before it: nothing where nothing is left behind. `api`: none
/// for who may read nothing. `is_new`: the resource was made just now, and has nothing yet.
pub async fn told(
    api: Option<&Api>,
    id: &ResourceId,
    there: anyhow::Result<Managed>,
    is_new: bool,
    agents: &str,
) -> Vec<String> {
    let there = match there {
        Ok(there) if there.is_empty() => return Vec::new(),
        Ok(there) => there,
        Err(error) => {
            return vec![format!("note: what a former connection left in the cluster is not known: {error:#}")];
        }
    };
    let known = match api {
        Some(api) => known(api, id).await.map_err(|failure| format!(": {:#}", failure.into_error())),
        None => Err(String::new()),
    };
    let known = match known {
        Ok(known) => known,
        Err(_) if is_new => Known::new(),
        Err(why) => {
            return vec![format!(
                "note: whether something of a former connection is left in the cluster is not known, because the gateway's extensions and configurations of it cannot be read{why}"
            )];
        }
    };
    let mut lines = lines(&there, &known, agents);
    if !lines.is_empty() {
        lines.insert(0, format!("note: {HEADING}; {ADVICE}"));
    }
    lines
}

/// What is left behind, a line each with the commands that remove it. None of them reads what `agents`, the agents'
/// namespace, has not.
pub fn lines(there: &Managed, known: &Known, agents: &str) -> Vec<String> {
    let left = there.iter().filter(|(key, _)| !known.contains(*key));
    let mut lines: Vec<String> = left
        .map(|((what, name), there)| format!("{}: {}", called(*what, name), removal(*what, name, there, agents)))
        .collect();
    let all = lines.len();
    if all > SHOWN {
        lines.truncate(SHOWN);
        lines.push(format!("and {} more", all - SHOWN));
    }
    lines
}

fn called(what: What, name: &str) -> String {
    match what {
        What::Extension => format!("extension {name}"),
        What::Flux => format!("flux configuration {name}"),
        What::SourceControl => format!("source control configuration {name}"),
    }
}

/// The commands by which it is removed without a gateway: what agents know of it first, which would make the rest anew.
fn removal(what: What, name: &str, there: &There, agents: &str) -> String {
    let mut commands = Vec::new();
    if there.has_resource {
        let kind = what.kind().name.to_ascii_lowercase();
        commands.push(format!("kubectl -n {agents} delete {kind} {name} --ignore-not-found"));
    }
    for (namespace, release) in &there.releases {
        commands.push(format!("helm -n {namespace} uninstall {release}"));
    }
    let namespaces: BTreeSet<_> = there.objects.iter().flat_map(|(_, namespaces)| namespaces).collect();
    for namespace in namespaces {
        let kinds = there.objects.iter().filter(|(_, all)| all.contains(namespace)).map(|(kind, _)| kind.as_str());
        let kinds = kinds.collect::<Vec<_>>().join(",");
        commands.push(format!("kubectl -n {namespace} delete {kinds} -l {}={name}", what.label()));
    }
    commands.join(" && ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::left::tests::{cluster, left};

    #[tokio::test]
    async fn g11_what_is_left_is_named_with_commands_that_remove_it() {
        let there = cluster(left()).managed("towline").await.unwrap();
        assert_eq!(
            lines(&there, &Known::new(), "towline"),
            [
                "extension alone: kubectl -n towline delete extensionconfig alone --ignore-not-found",
                "extension web: helm -n web uninstall web",
                "flux configuration fleet: kubectl -n fleet delete kustomizations.kustomize.toolkit.fluxcd.io,gitrepositories.source.toolkit.fluxcd.io -l towline.io/fluxconfig=fleet",
                "source control configuration old: kubectl -n fleet delete kustomizations.kustomize.toolkit.fluxcd.io -l towline.io/gitconfig=old",
            ]
        );
        let known: Known = [(What::Extension, "web"), (What::Flux, "fleet"), (What::Extension, "old")]
            .map(|(what, name)| (what, name.to_owned()))
            .into();
        let lines = lines(&there, &known, "towline");
        assert_eq!(lines.len(), 2, "a name is one of its kind: {lines:?}");
        assert!(
            lines[0].starts_with("extension alone: ") && lines[1].starts_with("source control configuration old: ")
        );
    }

    #[tokio::test]
    async fn g11_connect_says_what_is_left_where_the_gateway_knows_it_or_can_know_nothing() {
        let id = ResourceId::top("s").unwrap();
        let of = async |lists, is_new| {
            let there = cluster(lists).managed("towline").await;
            told(None, &id, there, is_new, "towline").await
        };
        let new = of(left(), true).await;
        assert_eq!(new.len(), 5, "{new:?}");
        assert!(new[0].contains("does not know") && new[0].contains("towline flux create"), "{new:?}");
        let unknown = of(left(), false).await;
        assert!(unknown.len() == 1 && unknown[0].contains("cannot be read"), "{unknown:?}");
        let unread = of(Vec::new(), true).await;
        assert!(unread.len() == 1 && unread[0].contains("helm's releases cannot be read"), "{unread:?}");
        let nothing = vec![("/api/v1/secrets", serde_json::json!([]))];
        assert!(of(nothing, false).await.is_empty());
    }

    #[test]
    fn g11_a_long_list_of_what_is_left_says_how_many_more_there_are() {
        let there: Managed = (0..25).map(|number| ((What::Flux, format!("c{number}")), There::default())).collect();
        let lines = lines(&there, &Known::new(), "towline");
        assert_eq!((lines.len(), lines[20].as_str()), (21, "and 5 more"));
    }
}
