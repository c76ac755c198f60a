//! The guide docs/gitops.md, typed as it stands there, in the real cluster and with a real Git server (docs/features.md
//! G1, G2, G6, G9, G11, G13).

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, installs},
    git::CREDENTIALS,
    programs::{Output, binary, eventually, root, run, scratch},
};

use crate::{
    connect::GROUP,
    gitops::{Gitops, chart},
};

pub fn tests() -> Vec<Trial> {
    vec![installs("gitops_guide::g1_g6_g9_g11_g13_commands_of_the_guide_work", Needs::Pods, guide)]
}

/// The folder in which the commands are typed.
struct Desk<'a> {
    gitops: &'a Gitops,
    folder: PathBuf,
    url: String,
}

impl Desk<'_> {
    /// Types a block of the guide, for the cluster and the repository of this test.
    fn type_in(&self, block: &str) -> anyhow::Result<Output> {
        let script = block
            .replace("-g edge -c shop", &format!("-g {GROUP} -c c1"))
            .replace("-g edge -n shop", &format!("-g {GROUP} -n c1"))
            .replace("-g edge", &format!("-g {GROUP}"))
            .replace("https://git.example.org/team/fleet.git", &self.url)
            .replace("--https-user reader", &format!("--https-user {}", CREDENTIALS.0));
        let programs = binary("towline").parent().context("a folder")?.to_owned();
        let mut command = Command::new("sh");
        command.args(["-euxc", &script]).current_dir(&self.folder);
        // As the site's own commands, with the programs of this build.
        for (name, value) in self.gitops.site.command(&[]).get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
        let output = run(&mut command, Duration::from_secs(600))?;
        output.ok().with_context(|| format!("{script}\n{}\n{}", output.err, self.gitops.state()))?;
        Ok(output)
    }
}

fn guide() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root().join("docs/gitops.md"))?;
    let blocks: Vec<&str> = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [catalogued, create, look, change, delete, assign, withdraw] = blocks.as_slice() else {
        anyhow::bail!("{} blocks of commands in the guide", blocks.len());
    };
    let gitops = Gitops::start("gitops-guide", &[])?;
    let repository = gitops.server.repository("fleet")?;
    let map = |name: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: fleet}}\ndata: {{greeting: hello}}\n"
        )
    };
    let commit = repository.push(&[("infra/db.yaml", Some(&map("db"))), ("apps/web.yaml", Some(&map("web")))])?;

    // A folder of this name is left out when everything that was written is read for secrets.
    let folder = scratch("gitops-guide-desk").join("state");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("password"), CREDENTIALS.1)?;
    std::fs::write(folder.join("ca.pem"), &gitops.server.ca)?;
    std::fs::copy(chart()?, folder.join("microsoft.flux-1.1.0.tgz"))?;
    let desk = Desk { gitops: &gitops, folder, url: repository.url.clone() };
    desk.type_in("towline catalogue init --catalogue ./catalogue --key signing.key\n")?;
    desk.type_in(catalogued)?;

    let created = desk.type_in(create)?;
    ensure!(created.text().contains("Succeeded"), "{}", created.text());
    let told = created.text() + &created.err;
    ensure!(told.contains("extension flux (microsoft.flux)"), "how Flux comes is told: {told}");
    // The shell repeats what is typed, the file's name and not its content.
    ensure!(!told.contains(CREDENTIALS.1), "{told}");
    let show = ["flux", "show", "-g", GROUP, "-c", "c1", "-n", "fleet", "-o", "json"];
    eventually("the configuration complies", Duration::from_secs(180), || {
        let shown: Value = serde_json::from_str(&gitops.site.ok(&show)?.text())?;
        let synced = shown["properties"]["sourceSyncedCommitId"].as_str().is_some_and(|id| id.contains(&commit));
        Ok(synced && shown["properties"]["complianceState"] == "Compliant")
    })
    .with_context(|| gitops.state())?;
    let looked = desk.type_in(look)?.text();
    for expected in ["Compliant", commit.as_str(), "ConfigMap", "fleet-apps", "Kustomization"] {
        ensure!(looked.contains(expected), "{expected}: {looked}");
    }
    let changed = desk.type_in(change)?.text();
    ensure!(changed.contains("1m") && !changed.contains(CREDENTIALS.1), "{changed}");
    desk.type_in(delete)?;
    eventually("what was applied is gone", Duration::from_secs(90), || {
        let left = gitops.admin.run(&["-n", "fleet", "get", "configmap", "web", "db", "-o", "name"])?;
        Ok(left.text().trim().is_empty())
    })
    .with_context(|| gitops.state())?;
    fleet(&desk, assign, withdraw)?;
    gitops.end()
}

/// The step that gives a configuration to clusters by their tags.
fn fleet(desk: &Desk<'_>, assign: &str, withdraw: &str) -> anyhow::Result<()> {
    let gitops = desk.gitops;
    let properties = json!({
        "namespace": "fleet",
        "gitRepository": {
            "url": desk.url, "repositoryRef": {"branch": "main"}, "httpsUser": CREDENTIALS.0,
            "httpsCACert": BASE64.encode(&gitops.server.ca),
        },
        "kustomizations": {"infra": {"path": "./infra", "prune": true}},
        "configurationProtectedSettings": {"httpsKey": BASE64.encode(CREDENTIALS.1)},
    });
    std::fs::write(desk.folder.join("fleet.yaml"), properties.to_string())?;
    let told = desk.type_in(assign)?;
    ensure!(!(told.text() + &told.err).contains(CREDENTIALS.1), "{}", told.text());
    let show = ["flux", "assignment", "show", "-g", GROUP, "-n", "canaries", "-o", "json"];
    eventually("the fleet complies", Duration::from_secs(120), || {
        let shown: Value = serde_json::from_str(&gitops.site.ok(&show)?.text())?;
        let own = &shown["properties"];
        Ok(own["state"] == "Complete" && own["counts"]["compliant"] == 1 && shown["clusters"][0]["name"] == "c1")
    })
    .with_context(|| gitops.state())?;
    desk.type_in(withdraw)?;
    eventually("what the assignment made is gone", Duration::from_secs(90), || {
        let left = gitops.admin.run(&["-n", "fleet", "get", "configmap", "db", "-o", "name"])?;
        Ok(left.text().trim().is_empty())
    })
    .with_context(|| gitops.state())?;
    // The assignment is gone once that has begun; its configuration is when the cluster has told.
    let list = ["flux", "list", "-g", GROUP, "-c", "c1", "-o", "json"];
    eventually("the assignment's configuration is gone", Duration::from_secs(90), || {
        Ok(serde_json::from_str::<Vec<Value>>(&gitops.site.ok(&list)?.text())?.is_empty())
    })
    .with_context(|| gitops.state())?;
    Ok(())
}
