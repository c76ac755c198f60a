//! Runs helm as a child process: one at a time, with an empty environment, its output bounded, and killed with its whole
//! process group at a deadline. Values and charts reach it by files that nobody else may read.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
        process::ExitStatusExt as _,
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    sync::Mutex,
};

use super::images::{self, Rules};
use crate::config::{Cluster, in_cluster_address};

/// Bytes of each of a child's outputs that are kept: their ends.
const OUTPUT_BYTES: usize = 1024 * 1024;
/// The folder below `work_dir`.
const FOLDER: &str = "towline-extensions";
/// The folder of what is pulled, below the other one.
const PULLED: &str = "pulled";
/// How long a chart is pulled.
const PULL: Duration = Duration::from_secs(120);
/// Revisions that helm keeps of a release.
pub const HISTORY: &str = "3";
/// A helm that an agent before left behind is killed, and must be gone after this.
const ORPHAN: Duration = Duration::from_secs(5);
/// How often a release is taken down where helm gives up before its time, and after which pause.
const UNINSTALLS: u32 = 3;
/// Pause between two of the attempts that [`UNINSTALLS`] counts.
const UNINSTALL_AGAIN: Duration = Duration::from_secs(5);

/// Why helm did not do it.
#[derive(Debug, thiserror::Error)]
pub enum HelmError {
    /// It is not there, or not a program.
    #[error("{} cannot be run ({source}); use the image of the extension manager, or set helm in [extensions]", .program.display())]
    Missing {
        /// The path that was tried.
        program: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of ours.
    #[error("{what}: {source}")]
    File {
        /// The file, and what was done with it.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It took too long.
    #[error("helm was ended after {} s", .0.as_secs())]
    Late(Duration),
    /// Somebody, or the kernel, ended it by this signal; it says nothing of what it did.
    #[error(
        "helm was ended by the signal {0}; where memory is short the kernel does that: look at the limit of the pod's memory (extensions.resources of the chart)"
    )]
    Killed(i32),
    /// Another one still runs.
    #[error("a helm of an agent before still runs, and cannot be ended")]
    Busy,
    /// It says why.
    #[error("{0}")]
    Failed(String),
}

/// Whose rights helm has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acting {
    /// The agent's own.
    Self_,
    /// Those of a service account.
    ServiceAccount {
        /// Namespace of the service account.
        namespace: String,
        /// Name of the service account.
        name: String,
    },
}

impl Acting {
    fn arguments(&self) -> Vec<String> {
        match self {
            Self::Self_ => Vec::new(),
            Self::ServiceAccount { namespace, name } => vec![
                format!("--kube-as-user=system:serviceaccount:{namespace}:{name}"),
                "--kube-as-group=system:serviceaccounts".to_owned(),
                format!("--kube-as-group=system:serviceaccounts:{namespace}"),
                "--kube-as-group=system:authenticated".to_owned(),
            ],
        }
    }
}

/// A release, and who acts on it.
#[derive(Debug, Clone)]
pub struct On<'a> {
    /// Name of the Helm release.
    pub release: &'a str,
    /// Namespace that Helm keeps the release in.
    pub namespace: &'a str,
    /// Whose rights Helm uses at the apiserver.
    pub acting: &'a Acting,
}

/// What to install.
pub struct Install<'a> {
    /// The chart's archive.
    pub chart: &'a [u8],
    /// The chart's values, as one JSON object.
    pub values: &'a Value,
    /// Labels of the release.
    pub labels: &'a [(&'static str, String)],
    /// Where images come from, if not from where the chart says.
    pub images: Option<&'a Rules>,
    /// What becomes of fields of the chart that somebody else has set meanwhile, as by `kubectl edit`.
    pub others: Others,
}

/// What helm does about fields of a chart that another manager owns in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// It sets them as the chart has them.
    Overruled,
    /// It fails, and says which they are.
    Kept,
}

impl Others {
    fn argument(self) -> Option<String> {
        (self == Self::Overruled).then(|| "--force-conflicts".to_owned())
    }
}

/// How a registry is reached.
#[derive(Default)]
pub struct Access {
    /// As docker keeps it: who signs in.
    pub config: Option<Vec<u8>>,
    /// PEM: whom it is trusted by; none: by the authorities of the system.
    pub ca: Option<Vec<u8>>,
}

/// The program, and where it keeps its things.
pub struct Helm {
    program: PathBuf,
    folder: PathBuf,
    kubeconfig: PathBuf,
    context: Option<String>,
    /// How long it waits for objects.
    pub timeout: Duration,
    /// One at a time.
    turn: Mutex<()>,
    /// The one that runs.
    running: Running,
    /// No other one begins.
    closing: AtomicBool,
}

/// The process group of the helm that runs.
type Running = std::sync::Mutex<Option<Pid>>;

fn set(running: &Running, pid: Option<Pid>) {
    *running.lock().unwrap_or_else(PoisonError::into_inner) = pid;
}

/// How a child ended.
#[derive(Debug)]
pub struct Ended {
    status: ExitStatus,
    /// The ends of its outputs.
    pub stdout: Vec<u8>,
    /// The other one.
    pub stderr: Vec<u8>,
}

fn file_fault(what: &Path) -> impl FnOnce(std::io::Error) -> HelmError + '_ {
    move |source| HelmError::File { what: what.display().to_string(), source }
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<(), HelmError> {
    let write = || {
        let _ = std::fs::remove_file(path);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
    };
    write().map_err(file_fault(path))
}

/// A file that goes when it is dropped.
struct Private(PathBuf);

impl Private {
    fn new(path: PathBuf, bytes: &[u8]) -> Result<Self, HelmError> {
        let this = Self(path);
        write_private(&this.0, bytes)?;
        Ok(this)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A folder that goes with all that is in it when it is dropped.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn new(path: PathBuf) -> Result<Self, HelmError> {
        let _ = std::fs::remove_dir_all(&path);
        DirBuilder::new().mode(0o700).create(&path).map_err(file_fault(&path))?;
        Ok(Self(path))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a folder that is there is ours alone: somebody else's could lead what is written in it elsewhere.
fn is_private(folder: &Path) -> Result<(), HelmError> {
    let meta = std::fs::symlink_metadata(folder).map_err(file_fault(folder))?;
    let ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o777 == 0o700;
    let why = || std::io::Error::other("it is there and not a folder of this user alone (mode 0700): remove it");
    if ours { Ok(()) } else { Err(file_fault(folder)(why())) }
}

impl Helm {
    /// Makes the folder, empty, and a kubeconfig in it where the agent has none.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(program: PathBuf, work_dir: &Path, cluster: &Cluster, timeout: Duration) -> Result<Self, HelmError> {
        let folder = work_dir.join(FOLDER);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => {}
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {
                is_private(&folder)?;
                // What an agent before left.
                for name in ["chart.tgz", "values.json", "why"] {
                    let _ = std::fs::remove_file(folder.join(name));
                }
                let _ = std::fs::remove_dir_all(folder.join(PULLED));
            }
            Err(err) => return Err(file_fault(&folder)(err)),
        }
        let (kubeconfig, context) = match cluster {
            Cluster::Kubeconfig { path, context } => (path.clone(), context.clone()),
            Cluster::InCluster { service_account_dir } => {
                let path = folder.join("kubeconfig");
                write_private(&path, in_cluster(service_account_dir).to_string().as_bytes())?;
                (path, None)
            }
        };
        let (turn, running, closing) = (Mutex::new(()), Running::default(), AtomicBool::new(false));
        Ok(Self { program, folder, kubeconfig, context, timeout, turn, running, closing })
    }

    /// No helm begins any more: one that is asked for never ends.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    fn running(&self) -> Option<Pid> {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a helm runs.
    pub fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// Waits for the end of the helm that runs; whether it came in this time.
    pub async fn ended_within(&self, time: Duration) -> bool {
        let ended = async {
            while self.is_running() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(time, ended).await.is_ok()
    }

    /// Tells the helm that runs to end (SIGTERM): it leaves a release that failed, not one that is pending.
    pub fn terminate(&self) {
        if let Some(pid) = self.running() {
            tracing::info!("helm is told to end");
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }

    /// Whether the program is there.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub async fn version(&self) -> Result<String, HelmError> {
        let ended =
            self.run(&["version".to_owned(), "--template={{.Version}}".to_owned()], Duration::from_secs(60)).await?;
        let version = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
        if version.starts_with("v4.") {
            return Ok(version);
        }
        Err(HelmError::Failed(format!("{} is helm {version:?}; version 4 is needed", self.program.display())))
    }

    /// The longest that one run may take: helm waits for hooks before and after the objects, and rolls back.
    pub fn deadline(&self) -> Duration {
        self.timeout * 4 + Duration::from_secs(60)
    }

    fn on(&self, on: &On<'_>, verb: &str) -> Vec<String> {
        let mut arguments =
            vec![verb.to_owned(), on.release.to_owned(), "--namespace".to_owned(), on.namespace.to_owned()];
        arguments.extend(on.acting.arguments());
        arguments
    }

    fn plugins(&self) -> PathBuf {
        self.folder.join("plugins")
    }

    fn waiting(&self) -> [String; 1] {
        [format!("--timeout={}s", self.timeout.as_secs())]
    }

    /// Installs or upgrades; a failed upgrade is rolled back, a failed first installation taken down.
    ///
    /// # Errors
    /// What helm says.
    pub async fn upgrade(&self, on: &On<'_>, install: &Install<'_>) -> Result<(), HelmError> {
        let _turn = self.turn.lock().await;
        let chart = Private::new(self.folder.join("chart.tgz"), install.chart)?;
        let values = Private::new(self.folder.join("values.json"), install.values.to_string().as_bytes())?;
        let mut arguments = self.on(on, "upgrade");
        arguments.insert(2, chart.0.display().to_string());
        let labels: Vec<_> = install.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        arguments.extend(
            [
                "--install",
                "--rollback-on-failure",
                "--wait",
                "--reset-values",
                "--history-max",
                HISTORY,
                "--output",
                "json",
            ]
            .map(str::to_owned),
        );
        arguments.extend(self.waiting());
        arguments.extend(install.others.argument());
        arguments.push(format!("--values={}", values.0.display()));
        arguments.push(format!("--labels={}", labels.join(",")));
        let Some(rules) = install.images else {
            return self.run_locked(&arguments, self.deadline()).await.map(|_| ());
        };
        let (plugins, why) = (self.plugins(), self.folder.join("why"));
        images::write_plugin(&plugins).map_err(file_fault(&plugins))?;
        // Empty until there is something to say.
        let why = Private::new(why, b"")?;
        arguments.extend(rules.arguments(&why.0));
        self.run_locked(&arguments, self.deadline()).await.map(|_| ()).map_err(|err| {
            match std::fs::read_to_string(&why.0).unwrap_or_default().as_str() {
                "" => err,
                why => HelmError::Failed(format!("images cannot be taken from {}: {why}", rules.registry)),
            }
        })
    }

    /// Takes a release down; none is no fault. On a busy apiserver helm's watch may break off, and helm then says within
    /// seconds that objects "still exist" which are on their way out: it is asked again.
    ///
    /// # Errors
    /// What helm says.
    pub async fn uninstall(&self, on: &On<'_>) -> Result<(), HelmError> {
        let mut arguments = self.on(on, "uninstall");
        arguments.extend(["--wait", "--ignore-not-found", "--cascade=foreground"].map(str::to_owned));
        arguments.extend(self.waiting());
        let mut tries = 0;
        loop {
            let (begun, ended) = (Instant::now(), self.run(&arguments, self.deadline()).await);
            tries += 1;
            let gave_up_early = matches!(ended, Err(HelmError::Failed(_))) && begun.elapsed() < self.timeout / 2;
            if !gave_up_early || tries == UNINSTALLS {
                return ended.map(|_| ());
            }
            tokio::time::sleep(UNINSTALL_AGAIN).await;
        }
    }

    /// Pulls a chart of this size from a registry; what it is is not looked at.
    ///
    /// # Errors
    /// What helm says.
    pub async fn pull(&self, url: &str, version: &str, access: &Access, size: u64) -> Result<Vec<u8>, HelmError> {
        let _turn = self.turn.lock().await;
        // With it go the chart, what signs in, and helm's own copy: memory is where they are.
        let folder = PrivateFolder::new(self.folder.join(PULLED))?;
        let path = |name: &str| folder.0.join(name);
        write_private(&path("config.json"), access.config.as_deref().unwrap_or(b"{}"))?;
        let option = |name: &str, file: &str| format!("--{name}={}", path(file).display());
        let mut arguments = ["pull", url, "--version", version].map(str::to_owned).to_vec();
        arguments.extend([
            option("registry-config", "config.json"),
            option("content-cache", "content"),
            option("destination", "chart"),
        ]);
        if let Some(ca) = &access.ca {
            write_private(&path("ca.crt"), ca)?;
            arguments.push(option("ca-file", "ca.crt"));
        }
        DirBuilder::new().mode(0o700).create(path("chart")).map_err(file_fault(&folder.0))?;
        self.run_locked(&arguments, PULL).await?;
        let entries = std::fs::read_dir(path("chart")).map_err(file_fault(&folder.0))?;
        let file = entries.filter_map(Result::ok).map(|entry| entry.path()).next();
        let file = file.ok_or_else(|| HelmError::Failed("helm pull left no file".to_owned()))?;
        let has = std::fs::metadata(&file).map_err(file_fault(&file))?.len();
        if has != size {
            let message =
                format!("it has {has} bytes there, and {size} in the signed catalogue: it is not found there");
            return Err(HelmError::Failed(message));
        }
        std::fs::read(&file).map_err(file_fault(&file))
    }

    /// Goes back to a revision; waits for its hooks alone, because an upgrade follows.
    ///
    /// # Errors
    /// What helm says.
    pub async fn rollback(&self, on: &On<'_>, revision: u64, others: Others) -> Result<(), HelmError> {
        let mut arguments = self.on(on, "rollback");
        arguments.insert(2, revision.to_string());
        arguments.extend(["--wait=hookOnly", "--history-max", HISTORY].map(str::to_owned));
        arguments.extend(others.argument());
        arguments.extend(self.waiting());
        self.run(&arguments, self.deadline()).await.map(|_| ())
    }

    /// The revisions that helm keeps, with a word on each.
    ///
    /// # Errors
    /// What helm says.
    pub async fn history(&self, on: &On<'_>) -> Result<Vec<Value>, HelmError> {
        let mut arguments = self.on(on, "history");
        arguments.extend(["--output", "json", "--max", HISTORY].map(str::to_owned));
        let ended = self.run(&arguments, Duration::from_secs(60)).await?;
        serde_json::from_slice(&ended.stdout).map_err(|err| HelmError::Failed(format!("helm history: {err}")))
    }

    async fn run(&self, arguments: &[String], deadline: Duration) -> Result<Ended, HelmError> {
        let _turn = self.turn.lock().await;
        self.run_locked(arguments, deadline).await
    }

    async fn run_locked(&self, arguments: &[String], deadline: Duration) -> Result<Ended, HelmError> {
        let lock = self.lock().await?;
        let home = self.folder.join("home");
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env_clear()
            .env("HOME", &home)
            .env("TMPDIR", &self.folder)
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data"))
            .env("HELM_PLUGINS", self.plugins())
            .env("KUBECONFIG", &self.kubeconfig)
            .current_dir(&self.folder);
        if let Some(context) = &self.context {
            command.env("HELM_KUBECONTEXT", context);
        }
        if self.closing.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let ended = child(command, lock, deadline, &self.running).await.map_err(|err| match err {
            HelmError::Missing { source, .. } => HelmError::Missing { program: self.program.clone(), source },
            other => other,
        })?;
        if ended.status.success() {
            return Ok(ended);
        }
        if self.closing.load(Ordering::Relaxed) {
            // It was told to end, which is no fault of what it did: the next agent goes on.
            std::future::pending::<()>().await;
        }
        Err(match ended.status.signal() {
            Some(signal) => HelmError::Killed(signal),
            None => HelmError::Failed(said(&ended.stderr)),
        })
    }

    /// The lock that a running helm holds as its standard input, so that one whose agent was killed is noticed.
    async fn lock(&self) -> Result<File, HelmError> {
        let path = self.folder.join("lock");
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = open().map_err(file_fault(&path))?;
        if file.try_lock().is_ok() {
            return Ok(file);
        }
        let mut text = String::new();
        let _ = file.read_to_string(&mut text);
        let pid = text.trim().parse().ok().and_then(Pid::from_raw).ok_or(HelmError::Busy)?;
        tracing::warn!(pid = text.trim(), "a helm of an agent before still runs: it is ended");
        let _ = kill_process_group(pid, Signal::KILL);
        let waited = tokio::time::timeout(ORPHAN, async {
            while file.try_lock().is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        waited.await.map_err(|_| HelmError::Busy)?;
        Ok(file)
    }
}

/// Kills a process group, unless it has ended.
struct Group<'a>(Option<Pid>, &'a Running);

impl Drop for Group<'_> {
    fn drop(&mut self) {
        set(self.1, None);
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

async fn child(mut command: Command, lock: File, deadline: Duration, running: &Running) -> Result<Ended, HelmError> {
    let missing = |source| HelmError::Missing { program: PathBuf::new(), source };
    let input = lock.try_clone().map_err(missing)?;
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    let mut child: Child = command.spawn().map_err(missing)?;
    drop(command);
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut group = Group(pid, running);
    set(running, pid);
    if let Some(pid) = pid {
        note(&lock, pid.as_raw_nonzero().get());
    }
    drop(lock);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (status, stdout, stderr) = tokio::join!(child.wait(), end_of(out), end_of(err));
        status.map(|status| Ended { status, stdout, stderr })
    };
    match tokio::time::timeout(deadline, work).await {
        Ok(ended) => {
            group.0 = None;
            ended.map_err(missing)
        }
        Err(_) => Err(HelmError::Late(deadline)),
    }
}

/// Writes the process's number where the next agent looks for it.
fn note(mut file: &File, pid: i32) {
    use std::io::Seek as _;
    let _ = file.set_len(0);
    let _ = file.rewind();
    let _ = writeln!(file, "{pid}");
}

/// The end of what comes.
async fn end_of(source: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut source) = source else { return kept };
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = source.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        kept.extend_from_slice(&buffer[..read]);
        if kept.len() > 2 * OUTPUT_BYTES {
            kept.drain(..kept.len() - OUTPUT_BYTES);
        }
    }
    let over = kept.len().saturating_sub(OUTPUT_BYTES);
    kept.drain(..over);
    kept
}

/// What helm says last: its error, without its log. A chart may say `Error: ` as well, within what helm says of it.
fn said(stderr: &[u8]) -> String {
    const ERROR: &str = "Error: ";
    let text = String::from_utf8_lossy(stderr);
    let begun = if text.starts_with(ERROR) { Some(0) } else { text.find(&format!("\n{ERROR}")).map(|at| at + 1) };
    let error = match begun.or_else(|| text.rfind(ERROR)) {
        Some(at) => &text[at + ERROR.len()..],
        None => text.as_ref(),
    };
    let lines: Vec<_> = error.lines().map(str::trim_end).filter(|line| !line.starts_with("level=")).collect();
    let said = lines.join("\n");
    if said.trim().is_empty() { "helm failed and did not say why".to_owned() } else { said.trim().to_owned() }
}

/// A kubeconfig of a pod's service account. YAML is a superset of JSON.
fn in_cluster(dir: &Path) -> Value {
    let (host, port) = in_cluster_address().unwrap_or_else(|| ("kubernetes.default.svc".to_owned(), 443));
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {
            "server": format!("https://{host}:{port}"), "certificate-authority": dir.join("ca.crt"),
        }}],
        "users": [{"name": "here", "user": {"tokenFile": dir.join("token")}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
    })
}

/// A helm that several parts use.
pub type SharedHelm = Arc<Helm>;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A helm that is a shell script.
    fn script(text: &str) -> (tempfile::TempDir, Helm) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("helm");
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let cluster = Cluster::Kubeconfig { path: dir.path().join("kubeconfig"), context: None };
        let helm = Helm::new(program, dir.path(), &cluster, Duration::from_secs(5)).unwrap();
        (dir, helm)
    }

    fn arguments() -> Vec<String> {
        vec!["x".to_owned()]
    }

    #[tokio::test]
    async fn output_of_a_child_is_bounded_and_its_end_is_kept() {
        let (_dir, helm) = script("head -c 5000000 /dev/zero | tr '\\0' a; echo end; echo 'Error: no' >&2; exit 1");
        let error = helm.run(&arguments(), Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.to_string(), "no");
        let (_dir, helm) = script("head -c 5000000 /dev/zero | tr '\\0' a; echo end");
        let ended = helm.run(&arguments(), Duration::from_secs(60)).await.unwrap();
        assert!(ended.stdout.len() <= OUTPUT_BYTES && ended.stdout.ends_with(b"end\n"));
    }

    #[tokio::test]
    async fn child_that_hangs_is_killed_with_its_group() {
        let (dir, helm) = script("sleep 300 & echo $! >$TMPDIR/../inner; wait");
        let begun = Instant::now();
        let error = helm.run(&arguments(), Duration::from_millis(800)).await.unwrap_err();
        assert!(matches!(error, HelmError::Late(_)) && begun.elapsed() < Duration::from_secs(60));
        let inner = std::fs::read_to_string(dir.path().join("inner")).unwrap();
        let stat = format!("/proc/{}/stat", inner.trim());
        for _ in 0..100 {
            // Gone, or dead and not yet looked after by the first process.
            match std::fs::read_to_string(&stat) {
                Ok(text) if !text.contains(") Z ") => tokio::time::sleep(Duration::from_millis(50)).await,
                _ => return,
            }
        }
        panic!("the inner process still runs");
    }

    #[tokio::test]
    async fn helm_that_is_told_to_end_ends_and_no_other_begins() {
        // The sleep is there before it is told to end, or it would be told nothing and keep the outputs open.
        let (dir, helm) =
            script("trap 'echo told >$TMPDIR/../told; exit 1' TERM; sleep 60 & touch $TMPDIR/../begun; wait");
        let arguments = arguments();
        let mut run = std::pin::pin!(helm.run(&arguments, Duration::from_secs(60)));
        let begun = async {
            while !dir.path().join("begun").exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            _ = &mut run => panic!("it runs"),
            () = begun => {}
        }
        helm.close();
        assert!(helm.is_running());
        helm.terminate();
        tokio::select! {
            _ = &mut run => panic!("what was told to end is not said to have failed"),
            ended = helm.ended_within(Duration::from_secs(30)) => assert!(ended),
        }
        assert!(dir.path().join("told").exists());
    }

    #[test]
    fn folder_of_somebody_else_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(FOLDER);
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(is_private(&folder).is_err());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(is_private(&folder).is_ok());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(is_private(&link).is_err());
    }

    #[tokio::test]
    async fn helm_of_a_killed_agent_is_ended_before_another_runs() {
        let (dir, helm) = script("if [ -e $TMPDIR/again ]; then exit 0; fi; touch $TMPDIR/again; sleep 300");
        let folder = dir.path().join(FOLDER);
        use std::os::unix::process::CommandExt as _;
        let lock = helm.lock().await.unwrap();
        // The command keeps its standard input open.
        let mut orphan = {
            let mut command = std::process::Command::new("sleep");
            command.arg("300").stdin(lock.try_clone().unwrap()).process_group(0).spawn().unwrap()
        };
        note(&lock, i32::try_from(orphan.id()).unwrap());
        drop(lock);
        std::fs::write(folder.join("again"), "").unwrap();
        helm.run(&arguments(), Duration::from_secs(60)).await.unwrap();
        assert!(!orphan.wait().unwrap().success());
    }

    #[tokio::test]
    async fn child_has_no_environment_and_files_are_private() {
        let (dir, helm) = script("env | cut -d= -f1 | sort | tr '\\n' ' '");
        let ended = helm.run(&arguments(), Duration::from_secs(60)).await.unwrap();
        let names = String::from_utf8(ended.stdout).unwrap();
        for name in names.split_whitespace() {
            let known = ["HOME", "TMPDIR", "KUBECONFIG", "PWD", "SHLVL", "_", "OLDPWD"];
            assert!(known.contains(&name) || name.starts_with("HELM_"), "{name}");
        }
        let file = dir.path().join("f");
        let private = Private::new(file.clone(), b"x").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        drop(private);
        assert!(!file.exists());
    }

    #[tokio::test]
    async fn x5_what_a_post_renderer_says_is_told_and_the_plugin_is_there_for_it() {
        let (dir, helm) = script(
            "for a in \"$@\"; do case $a in *--why=*) printf because >\"${a##*--why=}\" ;; esac; done\n\
             ls -L \"$HELM_PLUGINS/towline-images\" >\"$TMPDIR/../plugin\"; echo 'Error: exited with error' >&2; exit 1",
        );
        let on = On { release: "r", namespace: "n", acting: &Acting::Self_ };
        let rules = Rules { registry: "r.test/mirror".to_owned(), keep: Vec::new() };
        let values = json!({});
        let mut install =
            Install { chart: b"", values: &values, labels: &[], images: Some(&rules), others: Others::Kept };
        let error = helm.upgrade(&on, &install).await.unwrap_err().to_string();
        assert_eq!(error, "images cannot be taken from r.test/mirror: because");
        let plugin = std::fs::read_to_string(dir.path().join("plugin")).unwrap();
        assert_eq!(plugin.split_whitespace().collect::<Vec<_>>(), ["plugin.yaml", "towline-agent"]);
        install.images = None;
        assert_eq!(helm.upgrade(&on, &install).await.unwrap_err().to_string(), "exited with error");
        assert!(!dir.path().join(FOLDER).join("why").exists());
    }

    #[tokio::test]
    async fn x5_chart_is_pulled_privately_by_its_size_and_nothing_stays() {
        let (dir, helm) = script(
            "for a in \"$@\"; do case $a in --destination=*) to=${a#*=} ;; --registry-config=*) cat \"${a#*=}\" >\"$TMPDIR/../config\" ;; esac; done\n\
             echo \"$@\" >\"$TMPDIR/../arguments\"; printf 12345 >\"$to/web-1.0.0.tgz\"",
        );
        let access = Access { config: Some(b"secret".to_vec()), ca: Some(b"ca".to_vec()) };
        let pull = |size| helm.pull("oci://r.test/charts/web", "1.0.0", &access, size);
        assert_eq!(pull(5).await.unwrap(), b"12345");
        let arguments = std::fs::read_to_string(dir.path().join("arguments")).unwrap();
        assert!(arguments.starts_with("pull oci://r.test/charts/web --version 1.0.0"), "{arguments}");
        assert!(arguments.contains("--ca-file=") && !arguments.contains("secret"), "{arguments}");
        assert_eq!(std::fs::read_to_string(dir.path().join("config")).unwrap(), "secret");
        let other = pull(6).await.unwrap_err().to_string();
        assert!(other.contains("5 bytes there, and 6 in the signed catalogue"), "{other}");
        assert!(!dir.path().join(FOLDER).join(PULLED).exists());
    }

    #[tokio::test]
    async fn missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::Kubeconfig { path: "/k".into(), context: None };
        let helm = Helm::new("/none/helm".into(), dir.path(), &cluster, Duration::from_secs(5)).unwrap();
        let error = helm.version().await.unwrap_err().to_string();
        assert!(error.starts_with("/none/helm cannot be run"), "{error}");
    }

    /// Else an edit by `kubectl` would hold up every later version, and also the way back from one that failed.
    #[tokio::test]
    async fn e1_helm_overrules_fields_that_others_have_set_only_where_that_is_wanted() {
        let (dir, helm) = script("echo \"$@\" >>$TMPDIR/../said");
        let on = On { release: "web", namespace: "web", acting: &Acting::Self_ };
        let values = json!({});
        for others in [Others::Overruled, Others::Kept] {
            let install = Install { chart: b"", values: &values, labels: &[], images: None, others };
            helm.upgrade(&on, &install).await.unwrap();
            helm.rollback(&on, 2, others).await.unwrap();
        }
        let said = std::fs::read_to_string(dir.path().join("said")).unwrap();
        let forced: Vec<bool> = said.lines().map(|line| line.contains(" --force-conflicts ")).collect();
        assert_eq!(forced, [true, true, false, false], "{said}");
    }

    #[tokio::test]
    async fn e1_helm_that_is_killed_says_nothing_of_what_it_did() {
        let (_dir, helm) = script("echo 'Error: half a word' >&2; kill -9 $$");
        let error = helm.run(&arguments(), Duration::from_secs(60)).await.unwrap_err();
        assert!(matches!(error, HelmError::Killed(9)), "{error:?}");
        assert!(error.to_string().contains("signal 9") && error.to_string().contains("extensions.resources"));
    }

    #[test]
    fn errors_are_helms_last_word() {
        assert_eq!(said(b"level=WARN msg=x\nError: a\nb\n"), "a\nb");
        let of_a_chart =
            "UPGRADE FAILED: execution error at (web/templates/a.yaml:1:4): Error: set foo\nError: set bar";
        assert_eq!(said(format!("level=WARN msg=x\nError: {of_a_chart}\n").as_bytes()), of_a_chart);
        assert_eq!(said(b""), "helm failed and did not say why");
    }
}
