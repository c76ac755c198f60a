//! Child processes: built by cargo, logs kept for the sweep for secrets, ended on drop.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Where a program of ours is: `TOWLINE_BIN_DIR`, else beside the test binary's profile folder.
pub fn binary(name: &str) -> PathBuf {
    if let Some(dir) = std::env::var_os("TOWLINE_BIN_DIR") {
        return Path::new(&dir).join(name);
    }
    let exe = std::env::current_exe().unwrap();
    exe.parent().and_then(Path::parent).unwrap().join(name)
}

/// The folder of all files of this run.
pub fn scratch_root() -> PathBuf {
    let root = std::env::var_os("TOWLINE_E2E_DIR").map_or_else(|| root().join("target/e2e"), PathBuf::from);
    std::fs::create_dir_all(&root).unwrap();
    root
}

/// A port at `ip` for a program that is to listen there and cannot choose one itself. The kernel gives outgoing
/// connections ports from 32768 on (`net.ipv4.ip_local_port_range`). A port of that range can be free when a test looks,
/// and taken when the program listens; so this one is below the range. It is also below the ports that `towline dev` picks
/// from.
pub fn free_port(ip: &str) -> anyhow::Result<u16> {
    const FIRST: u32 = 11_000;
    const COUNT: u32 = 7_000;
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    // Each is given once in a process, and other processes begin elsewhere.
    let begin = std::process::id().wrapping_mul(2_741);
    let mut ports = (0..COUNT).map(|_| begin.wrapping_add(NUMBER.fetch_add(1, Ordering::Relaxed)) % COUNT + FIRST);
    ports
        .find_map(|port| {
            let port = u16::try_from(port).ok()?;
            std::net::TcpListener::bind((ip, port)).ok().map(|_| port)
        })
        .with_context(|| format!("no free port at {ip}"))
}

/// A folder below the target folder for this run's files: `target/e2e/<name>`.
pub fn scratch(name: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let dir = scratch_root().join(format!("{name}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Process ids of programs that were started and not killed.
fn running() -> std::sync::MutexGuard<'static, Vec<u32>> {
    static RUNNING: std::sync::Mutex<Vec<u32>> = std::sync::Mutex::new(Vec::new());
    RUNNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Kills what still runs: programs that tests share live in statics, which are never dropped.
pub fn end_all() {
    for pid in running().drain(..) {
        let _ = Command::new("kill").arg("-KILL").arg(pid.to_string()).status();
    }
}

/// Appends to a file of this run what a client was told, for the sweep for secrets. What cannot be kept is not missed:
/// the folder of a test that cleans up after itself may be gone.
pub fn keep(file: &Path, text: &str) {
    use std::io::Write;
    if !text.is_empty()
        && let Ok(mut file) = File::options().create(true).append(true).open(file)
    {
        let _ = writeln!(file, "{text}");
    }
}

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    /// Its standard error, kept.
    pub log: PathBuf,
    name: String,
}

impl Program {
    /// Starts `command` with standard error appended to `log`.
    pub fn start(name: &str, mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let file =
            File::options().create(true).append(true).open(log).with_context(|| format!("open {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {name}: {:?}", command.get_program()))?;
        running().push(child.id());
        Ok(Self { child, log: log.to_owned(), name: name.to_owned() })
    }

    /// Reads the first line of standard output, which must have been piped; standard output is drained from then on.
    pub fn first_line(&mut self, within: Duration) -> anyhow::Result<String> {
        let out = self.child.stdout.take().context("standard output is not piped")?;
        let (line, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for text in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = line.send(text);
            }
        });
        lines
            .recv_timeout(within)
            .with_context(|| format!("{} printed no line within {within:?}; log:\n{}", self.name, self.tail()))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name, such as `TERM` or `KILL`.
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        let ok = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status()?.success();
        if ok { Ok(()) } else { bail!("kill -{name} {} failed", self.name) }
    }

    /// Waits until it ends, and returns its exit code.
    pub fn wait(&mut self, within: Duration) -> anyhow::Result<Option<i32>> {
        let mut status = None;
        eventually(&format!("{} ends", self.name), within, || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        Ok(status.and_then(|status| status.code()))
    }

    /// Kills it and waits.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let pid = self.pid();
        running().retain(|running| *running != pid);
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Resident memory in KiB.
    pub fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How long a test waits for something, by the time that the machine gave it. While processes queue for a processor
/// (Linux's pressure stall information), the clock runs on and nothing gets done: a bound would tell a busy machine from a
/// quiet one, and not a program that works from one that does not. Such time counts for nothing, up to three times the
/// bound.
struct Patience {
    start: Instant,
    within: Duration,
    stalled: Duration,
}

impl Patience {
    fn new(within: Duration) -> Self {
        Self { start: Instant::now(), within, stalled: stalled() }
    }

    fn over(&self) -> bool {
        let elapsed = self.start.elapsed();
        elapsed > self.within && elapsed > self.within + stalled().saturating_sub(self.stalled).min(self.within * 3)
    }
}

/// Since the machine started: how long there was at least one process that waited for a processor. Nothing where the
/// kernel does not say.
fn stalled() -> Duration {
    std::fs::read_to_string("/proc/pressure/cpu").ok().and_then(|text| some_total(&text)).unwrap_or_default()
}

/// Of the lines of the kernel the total of the first, `some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>`.
fn some_total(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    Some(Duration::from_micros(line.rsplit_once("total=")?.1.trim().parse().ok()?))
}

/// Polls `done` until it holds; says what was awaited when it does not in time.
pub fn eventually(
    what: &str,
    within: Duration,
    mut done: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Duration> {
    let patience = Patience::new(within);
    loop {
        let asked = Instant::now();
        if done().with_context(|| what.to_owned())? {
            let took = patience.start.elapsed();
            tell_of_wait(took, || what.to_owned());
            return Ok(took);
        }
        if patience.over() {
            bail!("not within {within:?}: {what}");
        }
        // Another process has no event to wait on: this is the poll's pace, not a guess at its speed.
        pause_after(asked);
    }
}

/// With `TOWLINE_TEST_WAITS=1` prints what a test waited for, if that took more than a second: where its time goes.
fn tell_of_wait(took: Duration, what: impl FnOnce() -> String) {
    if took > Duration::from_secs(1) && std::env::var_os("TOWLINE_TEST_WAITS").is_some() {
        eprintln!("  {:5.1} s: {}", took.as_secs_f64(), what());
    }
}

/// Pauses a test before it asks the same question again, for three times as long as the last answer took. A test that asks
/// by kubectl without a pause takes most of a processor from the program that it waits for.
pub fn pause_after(asked: Instant) {
    std::thread::park_timeout((asked.elapsed() * 3).clamp(Duration::from_millis(20), Duration::from_secs(2)));
}

/// Runs a command to its end within a bound; returns exit code, standard output and standard error.
pub fn run(command: &mut Command, within: Duration) -> anyhow::Result<Output> {
    run_with_input(command, None, within)
}

/// Where a thread writes and others look before it has ended.
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// As [`run`], with bytes for standard input.
pub fn run_with_input(command: &mut Command, input: Option<&[u8]>, within: Duration) -> anyhow::Result<Output> {
    use std::io::{Read, Write};
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {command:?}"))?;
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        let held = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&held);
        let thread = std::thread::spawn(move || {
            if let Some(mut pipe) = pipe {
                let _ = std::io::copy(&mut pipe, &mut Shared(into));
            }
        });
        (thread, held)
    };
    let all = |(thread, held): (std::thread::JoinHandle<()>, Arc<Mutex<Vec<u8>>>)| {
        thread.join().unwrap();
        std::mem::take(&mut *held.lock().unwrap())
    };
    let out = reader(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let err = reader(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let writer = input.map(|input| (child.stdin.take().unwrap(), input.to_vec())).map(|(mut pipe, input)| {
        std::thread::spawn(move || {
            let _ = pipe.write_all(&input);
        })
    });
    let patience = Patience::new(within);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if patience.over() {
            // Not the reader's end: what the command has started may hold the other end of the pipe for ever.
            let _ = child.kill();
            let _ = child.wait();
            let (out, err) = (out.1.lock().unwrap(), err.1.lock().unwrap());
            bail!("{command:?} did not end within {within:?}\nstdout: {}\nstderr: {}", cut(&out), cut(&err));
        }
        std::thread::park_timeout(Duration::from_millis(5));
    };
    if let Some(writer) = writer {
        let _ = writer.join();
    }
    tell_of_wait(patience.start.elapsed(), || {
        let words = std::iter::once(command.get_program()).chain(command.get_args()).take(9);
        words
            .map(|word| word.to_string_lossy().rsplit('/').next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    });
    Ok(Output {
        code: status.code(),
        out: all(out),
        err: String::from_utf8_lossy(&all(err)).into_owned(),
        took: patience.start.elapsed(),
    })
}

fn cut(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned()
}

/// What a command did.
#[derive(Debug)]
pub struct Output {
    /// Exit code, none if a signal ended it.
    pub code: Option<i32>,
    /// All that it wrote to standard output.
    pub out: Vec<u8>,
    /// All that it wrote to standard error.
    pub err: String,
    /// Wall-clock time that it took.
    pub took: Duration,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Fails unless the exit code is 0; returns standard output.
    pub fn ok(&self) -> anyhow::Result<String> {
        if self.code == Some(0) {
            Ok(self.text())
        } else {
            bail!("exit code {:?}\nstdout: {}\nstderr: {}", self.code, cut(&self.out), self.err)
        }
    }

    /// Fails unless the exit code is other than 0; returns standard error.
    pub fn refused(&self) -> anyhow::Result<String> {
        if self.code != Some(0) {
            Ok(self.err.clone())
        } else {
            bail!("succeeded, expected a refusal; stdout: {}", cut(&self.out))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_full_machine_is_read() {
        let text = "some avg10=12.46 avg60=7.83 avg300=21.72 total=25592721152\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(some_total(text), Some(Duration::from_micros(25_592_721_152)));
        assert_eq!(some_total("full avg10=0.00 total=1\n"), None);
        assert_eq!(some_total("some avg10=0.00 total=x\n"), None);
    }

    #[test]
    fn what_does_not_come_is_given_up_and_named() {
        let mut asked = 0;
        let outcome = eventually("that pigs fly", Duration::from_millis(1), || {
            asked += 1;
            Ok(false)
        });
        assert!(asked > 0 && format!("{:#}", outcome.unwrap_err()).contains("that pigs fly"));
        assert!(eventually("that it is so", Duration::ZERO, || Ok(true)).is_ok());
    }
}
