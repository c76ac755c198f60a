//! Logs, metrics, audit records and error texts of the whole run hold no token, key or password: this reads them all.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use tests::{
    apiserver::{AGENT_TOKEN, Apiserver},
    case::{Needs, alone},
    programs::{scratch, scratch_root},
    stack::{Plan, Stack, keep_all_metrics},
};

pub fn sweep() -> Trial {
    alone("secrets::nothing_written_holds_a_secret", Needs::Nothing, nothing_written_holds_a_secret)
}

/// Files that are meant to hold secrets; everything else is read.
fn holds_secrets_on_purpose(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name == "secrets"
        || name.ends_with(".kubeconfig")
        || name.ends_with(".key")
        || path.components().any(|part| part.as_os_str() == "state")
}

/// What every run leaves, by the names of the files. A sweep that does not find one of them has lost it.
const KEPT: [&str; 6] = ["gateway.log", "agent.log", "audit.jsonl", "metrics", "error-answers", "towline.stderr"];

fn nothing_written_holds_a_secret() -> anyhow::Result<()> {
    // A stack of its own, so that there is something to read whatever else ran.
    let stack = busy_stack()?;
    keep_all_metrics();
    let metrics = std::fs::read_to_string(stack.dir.join("metrics"))?;
    for name in ["gateway_requests_total", "agent_tunnels"] {
        ensure!(metrics.contains(name), "no {name} among the metrics that were kept");
    }
    let root = scratch_root();
    let secrets = secrets(&root)?;
    let known = Known::new(&secrets);
    ensure!(!secrets.is_empty(), "no secret was noted");
    for planted in &secrets {
        for text in [format!("a line\nwith {planted} in it"), planted.clone(), format!("{planted}{planted}")] {
            ensure!(fault(&text, &known).is_some(), "a planted secret is not found");
        }
    }
    for text in ["eyJhbGciOiJ", "-BEGIN PRIVATE KEY-"] {
        ensure!(fault(text, &known).is_some(), "a planted secret is not found");
    }
    ensure!(fault("nothing of it\nä", &known).is_none(), "what is not a secret is found");
    let mut read: BTreeMap<String, usize> = BTreeMap::new();
    for path in files(root)? {
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        if let Some(fault) = fault(&text, &known) {
            bail!("{}: {fault}", path.display());
        }
        *read.entry(path.file_name().unwrap_or_default().to_string_lossy().into_owned()).or_default() += 1;
    }
    eprintln!("   read {} files for {} secrets", read.values().sum::<usize>(), secrets.len());
    for name in KEPT {
        ensure!(read.contains_key(name), "no {name} was kept; there are {:?}", read.keys());
    }
    Ok(())
}

/// A stack that has answered, refused and told a client why.
fn busy_stack() -> anyhow::Result<Stack> {
    let stack = Stack::start(&Plan::scripted("sweep", &Apiserver::plain(&scratch("sweep-apiserver"))?))?;
    let token = stack.token("admin")?;
    let cut = &token[..token.len() - 4];
    ensure!(stack.get_with(&token, "/version")?.status == 200);
    ensure!(stack.get_with(cut, "/version")?.status == 401);
    ensure!(stack.towline(&["token", "--user", "nobody", "--cluster", "dev"])?.code != Some(0));
    Ok(stack)
}

/// All that must be seen nowhere.
fn secrets(root: &Path) -> anyhow::Result<Vec<String>> {
    let noted = std::fs::read_to_string(root.join("secrets"))?;
    // A secret that was noted with a line end leaves an empty line, which every text has.
    let mut secrets: Vec<String> = noted.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    secrets.push(AGENT_TOKEN.to_owned());
    // Of a JWT no part may be seen: its payload says as much as the whole, its signature is the secret.
    let parts: Vec<String> = secrets
        .iter()
        .flat_map(|secret| secret.split('.').skip(1))
        .filter(|part| part.len() > 20)
        .map(str::to_owned)
        .collect();
    secrets.extend(parts);
    Ok(secrets)
}

/// The files below a folder that are read.
fn files(root: PathBuf) -> anyhow::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![root]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            // What a repository keeps is compressed, and a link, such as tests of hostile repositories make, leads anywhere.
            if kind.is_symlink() || path.extension().is_some_and(|end| end == "git") || path.ends_with(".git") {
                continue;
            }
            if kind.is_dir() {
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
            files.push(path);
        }
    }
    Ok(files)
}

/// A JWT, whole or cut off: its header, the base64 of `{"alg":`, `{"typ":` or `{"kid":`. What else begins with `{"` is
/// none, such as the `continue` of a list.
fn looks_like_a_token(line: &str) -> bool {
    ["eyJhbGciOi", "eyJ0eXAiOi", "eyJraWQiOi"].iter().any(|header| line.contains(header)) || line.contains(".eyJ")
}

/// Bytes by which a secret is looked up, and those of them that are looked at first.
const START: usize = 8;
const FIRST: usize = 3;

/// Secrets by how they begin: a run notes thousands, and each text is read once for all of them.
struct Known<'a> {
    /// Whether any begins with these [`FIRST`] bytes.
    first: Vec<bool>,
    by_start: HashMap<&'a [u8], Vec<&'a [u8]>>,
    short: Vec<&'a str>,
}

fn first_of(start: &[u8]) -> usize {
    start[..FIRST].iter().fold(0, |at, byte| (at << 8) | usize::from(*byte))
}

impl<'a> Known<'a> {
    fn new(secrets: &'a [String]) -> Self {
        let (mut first, mut by_start) = (vec![false; 1 << (8 * FIRST)], HashMap::<_, Vec<_>>::new());
        for secret in secrets.iter().map(String::as_bytes).filter(|secret| secret.len() >= START) {
            first[first_of(secret)] = true;
            by_start.entry(&secret[..START]).or_default().push(secret);
        }
        let short = secrets.iter().map(String::as_str).filter(|secret| secret.len() < START).collect();
        Self { first, by_start, short }
    }

    fn is_in(&self, line: &str) -> bool {
        let text = line.as_bytes();
        let begins = |at: usize| {
            let start = &text[at..at + START];
            self.first[first_of(start)]
                && self.by_start.get(start).is_some_and(|all| all.iter().any(|secret| text[at..].starts_with(secret)))
        };
        (0..(text.len() + 1).saturating_sub(START)).any(begins) || self.short.iter().any(|secret| line.contains(secret))
    }
}

/// What is wrong with a text, without the secret.
fn fault(text: &str, secrets: &Known<'_>) -> Option<String> {
    if text.contains("PRIVATE KEY") {
        return Some("holds a private key".to_owned());
    }
    text.lines().enumerate().find_map(|(number, line)| {
        if looks_like_a_token(line) {
            return Some(format!("line {} holds what looks like a token", number + 1));
        }
        secrets.is_in(line).then(|| format!("line {} holds a secret", number + 1))
    })
}
