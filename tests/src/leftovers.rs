//! What a failed test leaves in the cluster, taken away, so that it does not fail those that come after it.

use std::{collections::HashSet, time::Duration};

use anyhow::Context;

use crate::{cluster::cluster, kubectl::Kubectl, programs::eventually};

/// What programs under test make outside namespaces of their own, and namespaces, with which goes what is in them.
const KINDS: &str = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,\
                     validatingwebhookconfigurations,mutatingwebhookconfigurations,priorityclasses,\
                     roles,rolebindings,serviceaccounts,configmaps,secrets,deployments,jobs";
/// A namespace ends once its pods have.
const NAMESPACE_ENDS: Duration = Duration::from_secs(180);

/// What there was before a test. What has come since is taken away on drop, unless the test [passed](Self::passed).
pub struct Before {
    objects: HashSet<String>,
    has_passed: bool,
}

impl Before {
    /// Lists what the real cluster has now.
    pub fn look() -> anyhow::Result<Self> {
        Ok(Self { objects: listed(&cluster().admin())?.into_iter().collect(), has_passed: false })
    }

    /// The test looks itself whether it left anything.
    pub fn passed(mut self) {
        self.has_passed = true;
    }

    fn restore(&self) -> anyhow::Result<()> {
        let admin = cluster().admin().within(NAMESPACE_ENDS);
        let new: Vec<String> = listed(&admin)?.into_iter().filter(|line| !self.objects.contains(line)).collect();
        let parts: Vec<[&str; 3]> = new.iter().filter_map(|line| split(line)).collect();
        let is_new = |namespace: &str| parts.iter().any(|[kind, _, name]| *kind == "Namespace" && *name == namespace);
        for [kind, _, name] in &parts {
            if *kind == "CustomResourceDefinition" {
                free(&admin, name)?;
            }
        }
        for [kind, namespace, name] in &parts {
            if is_new(namespace) || *kind == "Namespace" {
                continue;
            }
            let mut args = vec!["delete", kind, name, "--ignore-not-found", "--wait=false"];
            if *namespace != NONE {
                args.extend(["-n", namespace]);
            }
            admin.ok(&args)?;
        }
        for [kind, _, name] in &parts {
            if *kind == "Namespace" {
                admin
                    .ok(&["delete", "namespace", name, "--ignore-not-found"])
                    .context("a namespace that does not end")?;
            }
        }
        eprintln!("   what a failed test left was taken away: {}", new.join(", "));
        Ok(())
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        if self.has_passed {
            return;
        }
        // The test's own reason is what counts, whatever comes of this.
        if let Err(error) = self.restore() {
            eprintln!("   what a failed test left is still there: {error:?}");
        }
    }
}

/// As kubectl prints a field that is not there.
const NONE: &str = "<none>";

/// Lines of a kind, a namespace and a name.
fn listed(admin: &Kubectl) -> anyhow::Result<Vec<String>> {
    let columns = "custom-columns=K:.kind,NS:.metadata.namespace,N:.metadata.name";
    let listed = admin.ok(&["get", KINDS, "-A", "-o", columns, "--no-headers", "--ignore-not-found"])?;
    Ok(listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect())
}

fn split(line: &str) -> Option<[&str; 3]> {
    let mut words = line.split(' ');
    Some([words.next()?, words.next()?, words.next()?])
}

/// Deletes definitions and namespaces, and waits until all are gone. Deleted one after the other they would be waited for one
/// after the other, each namespace for the five seconds after which Kubernetes begins with it. A definition is changed while
/// it goes: where kube-apiserver meets its own update of a definition as a conflict, it looks at that one again only when
/// it changes, or minutes later.
pub fn remove(admin: &Kubectl, definitions: &[&str], namespaces: &[&str]) -> anyhow::Result<()> {
    let kinds = [("customresourcedefinition", definitions), ("namespace", namespaces)];
    for (kind, names) in kinds.iter().filter(|(_, names)| !names.is_empty()) {
        admin.ok(&[&["delete", kind, "--ignore-not-found", "--wait=false"][..], names].concat())?;
    }
    gone(admin, definitions, namespaces)
}

/// Waits until definitions and namespaces are gone that were [deleted](remove).
pub fn gone(admin: &Kubectl, definitions: &[&str], namespaces: &[&str]) -> anyhow::Result<()> {
    let mut asked = 0;
    eventually(&format!("{definitions:?} and {namespaces:?} are gone"), NAMESPACE_ENDS, || {
        let left = admin.ok(&["get", "customresourcedefinitions,namespaces", "-o", "name"])?;
        let is_left = |one: &&str| {
            one.split_once('/').is_some_and(|(kind, name)| {
                if kind == "namespace" { namespaces.contains(&name) } else { definitions.contains(&name) }
            })
        };
        let left: Vec<&str> = left.lines().filter(is_left).collect();
        // One request each, so that of many some are left for the next time.
        let definitions = left.iter().copied().filter(|one| !one.starts_with("namespace/"));
        let definitions: Vec<&str> = definitions.take(10).collect();
        if !definitions.is_empty() {
            asked += 1;
            let annotation = format!("tests.towline.io/asked={asked}");
            // One may go meanwhile.
            admin.run(&[&["annotate", "--overwrite", &annotation][..], &definitions].concat())?;
        }
        Ok(left.is_empty())
    })
    .map(drop)
}

/// Takes the finalizers from the objects of a definition: who would do their work has failed or is gone.
pub fn free(admin: &Kubectl, definition: &str) -> anyhow::Result<()> {
    let path = "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{\"\\n\"}{end}";
    let all = admin.run(&["get", definition, "-A", "-o", path])?.text();
    for (namespace, name) in all.lines().filter_map(|line| line.split_once('/')) {
        let none = r#"{"metadata": {"finalizers": null}}"#;
        let mut args = vec!["patch", definition, name, "--type", "merge", "-p", none];
        if !namespace.is_empty() {
            args.extend(["-n", namespace]);
        }
        // It may go meanwhile.
        admin.run(&args)?;
    }
    Ok(())
}
