//! The operators' guide: its commands are run as they are written.

use std::{process::Command, time::Duration};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    case::{Needs, case},
    programs::{binary, keep, root, run, scratch},
    stack::note_secret,
};

pub fn tests() -> Vec<Trial> {
    vec![case("operating::the_guide_works_as_it_is_written", Needs::Nothing, guide)]
}

fn guide() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root().join("OPERATING.md"))?;
    let mut script = "set -euo pipefail\nset -m\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
    let mut blocks = 0;
    for block in text.split("\n```sh\n").skip(1) {
        script += block.split_once("\n```").context("a block of the guide has no end")?.0;
        script += "\n";
        blocks += 1;
    }
    ensure!(blocks >= 5, "{blocks} blocks of commands");
    // Away from what is swept for secrets: accounts and keys are in it. What the gateway logs is kept for that.
    let folder = tempfile::tempdir()?;
    let dir = folder.path();
    // Free a moment ago; nobody else is told of it.
    let listen = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let programs = binary("towline-gateway");
    let path = format!(
        "{}:{}",
        programs.parent().context("no folder of programs")?.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env("PATH", path).env("dir", dir).env("listen", listen.to_string());
    command.env("url", format!("https://{listen}")).env("TOWLINE_CONFIG_DIR", dir.join("config"));
    let output = run(&mut command, Duration::from_secs(120))?;
    for file in ["owner.json", "owner-2.json"] {
        let Ok(owner) = std::fs::read_to_string(dir.join(file)) else { continue };
        let Ok(owner) = serde_json::from_str::<serde_json::Value>(&owner) else { continue };
        note_secret(owner["clientSecret"].as_str().context("no secret")?)?;
    }
    if let Ok(user) = std::fs::read_to_string(dir.join("ann.json")) {
        let user: serde_json::Value = serde_json::from_str(&user)?;
        note_secret(user["password"].as_str().context("no password")?)?;
    }
    let log = std::fs::read_to_string(dir.join("gateway.log")).unwrap_or_default();
    keep(&scratch("operating").join("gateway.log"), &log);
    let told = output.ok().with_context(|| format!("the gateway's log:\n{log}"))?;
    ensure!(told.contains("edge"), "{told}");
    Ok(())
}
