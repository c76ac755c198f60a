//! Logs, metrics, audit records and error texts of the whole run hold no token, key or password: this reads them all.

use std::path::Path;

use anyhow::ensure;
use libtest_mimic::Trial;
use tests::{
    apiserver::AGENT_TOKEN,
    case::{Needs, alone},
    stack::scratch_root,
};

pub fn tests() -> Vec<Trial> {
    vec![alone("secrets::nothing_written_holds_a_secret", Needs::Nothing, sweep)]
}

/// Files that are meant to hold secrets; everything else is read.
fn holds_secrets_on_purpose(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name == "secrets"
        || name.ends_with(".kubeconfig")
        || name.ends_with(".key")
        || path.components().any(|part| part.as_os_str() == "state")
}

fn sweep() -> anyhow::Result<()> {
    let root = scratch_root();
    let mut secrets: Vec<String> =
        std::fs::read_to_string(root.join("secrets")).unwrap_or_default().lines().map(str::to_owned).collect();
    secrets.push(AGENT_TOKEN.to_owned());
    // Of a JWT no part may be seen: its payload says as much as the whole, its signature is the secret.
    let parts: Vec<String> = secrets
        .iter()
        .flat_map(|secret| secret.split('.').skip(1))
        .filter(|part| part.len() > 20)
        .map(str::to_owned)
        .collect();
    secrets.extend(parts);
    let mut files = 0;
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // Sockets and the like hold nothing; what clients cache is the apiserver's, not ours.
            let cached = path.components().any(|part| part.as_os_str() == ".kube" || part.as_os_str() == ".cache");
            if cached || !path.is_file() {
                continue;
            }
            let audit = path.to_string_lossy().contains("audit");
            if (holds_secrets_on_purpose(&path) && !audit) || path.metadata()?.len() > 200_000_000 {
                continue;
            }
            files += 1;
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            ensure!(!text.contains("PRIVATE KEY"), "{} holds a private key", path.display());
            for (number, line) in text.lines().enumerate() {
                ensure!(!line.contains("eyJ"), "{}:{} holds what looks like a token", path.display(), number + 1);
                ensure!(
                    !secrets.iter().any(|secret| line.contains(secret.as_str())),
                    "{}:{} holds a secret",
                    path.display(),
                    number + 1
                );
            }
        }
    }
    eprintln!("   read {files} files for {} secrets", secrets.len());
    Ok(())
}
