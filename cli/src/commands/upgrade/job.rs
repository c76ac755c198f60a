//! What the Job of an upgrade runs (docs/upgrades.md), which the role upgrader of the agents makes:
//!
//! | word of `towline-agent upgrade` | image | what it does |
//! |---|---|---|
//! | `gather` | of the old version | writes what the agents that are there were told into a file |
//! | `render` | of the new version | makes that version's objects of it, without a way to the apiserver |
//! | `run` | of the old version | applies them |
//!
//! | part | what it does |
//! |---|---|
//! | [`gate`] | whether the new pods are as they should be |
//! | [`steps`] | applies, watches, and goes back |

mod gate;
mod steps;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use daemon::telemetry::{self, LogFormat};
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::steps::{Times, Upgrade};
use crate::{
    commands::connect::{fit, values_again},
    failure::Failure,
    kubernetes::{Kubernetes, kept::Gathered},
    manifests,
};

/// What is logged.
const LOG: &str = "info";
/// Bytes of objects that are read from a file.
const OBJECTS_MAX: u64 = 16 * 1024 * 1024;

/// The first argument by which `towline-agent` is this.
pub const WORD: &str = "upgrade";

#[derive(Parser)]
#[command(name = "towline-agent upgrade")]
struct Arguments {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    /// Writes what the agents that are there were told, for another version
    Gather(Gather),
    /// Writes the objects of this program's version, by what the agents that are there were told
    Render(Render),
    /// Applies them, watches the new pods, and goes back where they are not as they should be
    Run(Run),
}

#[derive(clap::Args)]
struct Gather {
    /// The namespace of the agents
    #[arg(long)]
    namespace: String,
    /// Where it is written
    #[arg(long)]
    out: PathBuf,
}

#[derive(clap::Args)]
struct Render {
    /// The namespace of the agents
    #[arg(long)]
    namespace: String,
    /// What they were told, as `gather` has written it
    #[arg(long)]
    told: PathBuf,
    /// The version that this must be
    #[arg(long)]
    agent_version: String,
    /// The image of the agents, REPOSITORY:VERSION, with a digest or without
    #[arg(long)]
    image: String,
    /// The image of extension-manager
    #[arg(long)]
    extension_image: Option<String>,
    /// Where the objects are written
    #[arg(long)]
    out: PathBuf,
}

#[derive(clap::Args)]
struct Run {
    /// The namespace of the agents
    #[arg(long)]
    namespace: String,
    /// The objects of the new version; without them an upgrade that was cut off is finished
    #[arg(long)]
    objects: Option<PathBuf>,
    /// What the objects were made of, as `gather` has written it: what somebody has changed since is not overwritten
    #[arg(long)]
    told: Option<PathBuf>,
    /// Seconds that new pods are watched once they are ready
    #[arg(long)]
    window: u64,
    /// Seconds that they may take for that
    #[arg(long)]
    timeout: u64,
}

/// The process, from its arguments to its exit code.
pub fn main() -> ExitCode {
    let Arguments { step } = Arguments::parse_from(std::env::args_os().skip(1));
    if let Err(error) = telemetry::init(LogFormat::Json, LOG) {
        return ended(&anyhow::anyhow!(error));
    }
    let runtime = match daemon::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return ended(&error.into()),
    };
    let result = runtime.block_on(async {
        match step {
            Step::Gather(args) => gather(args).await,
            Step::Render(args) => render(&args),
            Step::Run(args) => run(args).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ended(&error),
    }
}

/// The last line of the container's log is what an upgrade that was not begun shows.
#[expect(clippy::print_stderr, reason = "the log may not be set up")]
fn ended(error: &anyhow::Error) -> ExitCode {
    eprintln!("towline-agent upgrade: {error:#}");
    ExitCode::FAILURE
}

async fn gather(args: Gather) -> anyhow::Result<()> {
    let cluster = Kubernetes::of_pod().await?;
    let text = serde_json::to_vec(&cluster.gathered(&args.namespace).await?)?;
    std::fs::write(&args.out, text).with_context(|| format!("cannot write {}", args.out.display()))
}

/// The pod gives it no token: what it knows of the cluster is in the file.
fn render(args: &Render) -> anyhow::Result<()> {
    let own = manifests::version();
    if args.agent_version != own {
        bail!("the image {} holds version {own}, and {} is wanted: its tag is wrong", args.image, args.agent_version);
    }
    let told: Gathered = read(&args.told)?;
    let (kept, belongs) = told.kept()?;
    let mut values = values_again(&belongs.cluster_id, kept, &belongs.settings).map_err(Failure::into_error)?;
    fit(&mut values, told.kubernetes_minor);
    let image = &mut values.image;
    (image.repository, image.tag, image.digest) = parts(&args.image, own);
    if let Some(name) = &args.extension_image {
        let image = &mut values.extensions.image;
        (image.repository, image.tag, image.digest) = parts(name, own);
    }
    let mut objects = manifests::objects(&values, &args.namespace);
    // Whose content is nobody's business here: they stay as they are.
    objects.retain(|object| object["kind"] != "Secret");
    let text = serde_json::to_vec(&objects)?;
    std::fs::write(&args.out, text).with_context(|| format!("cannot write {}", args.out.display()))
}

/// Repository, tag and digest, such that the whole name is this one again: the tag stays before the digest, so that people
/// and the next upgrade see the version.
fn parts(name: &str, version: &str) -> (String, String, String) {
    match name.split_once('@') {
        Some((tagged, digest)) => (tagged.to_owned(), String::new(), digest.to_owned()),
        None => {
            let repository = name.strip_suffix(version).and_then(|name| name.strip_suffix(':'));
            (repository.unwrap_or(name).to_owned(), version.to_owned(), String::new())
        }
    }
}

async fn run(args: Run) -> anyhow::Result<()> {
    let cluster = Kubernetes::of_pod().await?;
    let objects: Option<Vec<Value>> = args.objects.as_deref().map(read).transpose()?;
    let times = Times { window: Duration::from_secs(args.window), timeout: Duration::from_secs(args.timeout) };
    let told: Option<Gathered> = args.told.as_deref().map(read).transpose()?;
    Upgrade::new(&cluster, &args.namespace, times, told.as_ref()).run(objects.as_deref()).await
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let size = std::fs::metadata(path).with_context(|| path.display().to_string())?.len();
    if size > OBJECTS_MAX {
        bail!("{} has {size} bytes, at most {OBJECTS_MAX} are read", path.display());
    }
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing here can reach an apiserver, as in the pod of the Job.
    #[test]
    fn u1_objects_are_rendered_of_what_was_gathered_alone() {
        let mut values = manifests::Values { replicas: 3, ..manifests::Values::default() };
        values.gateway.urls = vec!["https://gw.example.org".to_owned()];
        values.identity.cluster_id = "/c".to_owned();
        let objects = manifests::objects(&values, "towline");
        let folder = tempfile::tempdir().unwrap();
        let (told, out) = (folder.path().join("told.json"), folder.path().join("objects.json"));
        std::fs::write(&told, serde_json::to_vec(&Gathered { kubernetes_minor: 36, objects }).unwrap()).unwrap();
        let args = |version: &str| Render {
            namespace: "towline".to_owned(),
            told: told.clone(),
            agent_version: version.to_owned(),
            image: format!("r/agent:{version}"),
            extension_image: None,
            out: out.clone(),
        };
        render(&args(manifests::version())).unwrap();
        let rendered: Vec<Value> = read(&out).unwrap();
        let agent = rendered
            .iter()
            .find(|one| one["kind"] == "Deployment" && one["metadata"]["name"] == "clusterconnect-agent");
        let agent = &agent.unwrap()["spec"];
        assert_eq!(agent["replicas"], 3);
        let image = format!("r/agent:{}", manifests::version());
        assert_eq!(agent["template"]["spec"]["containers"][0]["image"], image.as_str());
        assert!(rendered.iter().all(|object| object["kind"] != "Secret"));
        assert!(render(&args("9.9.9")).unwrap_err().to_string().contains("its tag is wrong"));
    }

    #[test]
    fn u1_image_has_its_version_before_the_digest() {
        let whole = |name: &str| {
            let mut values = manifests::Values::default();
            (values.image.repository, values.image.tag, values.image.digest) = parts(name, "0.3.0");
            values.image_name()
        };
        for name in ["r:5000/agent:0.3.0", "r/agent:0.3.0@sha256:a"] {
            assert_eq!(whole(name), name);
        }
    }
}
