//! An acknowledged write survives `kill -9`. A process of its own writes and says what was acknowledged; it is killed
//! at any point, a hundred times, and what it said is compared with what is there.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};

use gateway::store::{
    Store,
    batch::{Batch, Ended, Expect},
    operations::{Operation, Status},
};
use serde_json::json;

use crate::{
    batch::operation,
    place::{Place, cluster, group},
};

/// The first argument of this program when it is the writer; the file is the second.
const WRITER: &str = "--write-until-killed";
const WRITERS: usize = 3;
const KILLS: usize = 100;
/// A database lives through as many of them.
const KILLS_OF_ONE: usize = 20;
/// Acknowledgements after which a writer is killed, at most.
const ACKNOWLEDGED: u64 = 24;

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![an_acknowledged_write_survives_kill_9]
}

/// The file to write to, if this process is the writer.
pub fn asked() -> Option<PathBuf> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == WRITER).then(|| arguments.next().unwrap().into())
}

/// The writer: several at once, each batch two resources, the end of one operation and the beginning of the next.
pub fn write(file: &Path) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        say("opening");
        let store = Store::open_file(file).await.unwrap();
        store.put(&group("g"), Expect::Any).await.unwrap().unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(write_one(store.clone(), writer));
        }
        writers.join_all().await;
    });
    ExitCode::FAILURE
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Who is not listened to any more ends.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

async fn write_one(store: Store, writer: usize) {
    let found = store.get(&cluster(&format!("{writer}-a")).key).await.unwrap();
    let mut n = found.map_or(0, |stored| stored.body["n"].as_u64().unwrap());
    loop {
        n += 1;
        let puts = ["a", "b"].map(|name| {
            let mut stored = cluster(&format!("{writer}-{name}"));
            stored.body = json!({"n": n, "filling": "x".repeat(usize::try_from(n % 7).unwrap() * 900)});
            (stored, Expect::Any)
        });
        let last = format!("{writer}-{}", n - 1);
        let ended = Ended { id: last, status: Status::Succeeded, error: None, now_ms: 2 };
        let mut batch = Batch {
            puts: puts.into(),
            deletes: vec![(cluster(&format!("{writer}-scratch-{}", n - 1)).key, Expect::Any)],
            begins: vec![Operation { begun_ms: 1, ..operation(&format!("{writer}-{n}")) }],
            ends: if n == 1 { Vec::new() } else { vec![ended] },
            ..Batch::default()
        };
        batch.puts.push((cluster(&format!("{writer}-scratch-{n}")), Expect::Absent));
        let applied = store.apply(&batch).await.unwrap().unwrap();
        say(&format!("{writer} {n} {}", applied.revision));
    }
}

/// What the writers said.
#[derive(Default, Clone, Copy)]
struct Said {
    n: [u64; WRITERS],
    revision: i64,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let mut next = || words.next().unwrap().parse::<u64>().unwrap();
        let (writer, n, revision) = (next(), next(), next());
        self.n[usize::try_from(writer).unwrap()] = n;
        self.revision = self.revision.max(i64::try_from(revision).unwrap());
    }
}

struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets a writer run until it has said so many lines, kills it, and hears what it had still said.
fn run_and_kill(file: &Path, lines: u64, spins: u64, said: &mut Said) {
    let child = Command::new(std::env::current_exe().unwrap())
        .arg(WRITER)
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Writer(child);
    let mut out = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut hear = |line: String| {
        if line != "opening" {
            said.hear(&line);
        }
    };
    for _ in 0..lines {
        hear(out.next().expect("it writes until it is killed").unwrap());
    }
    // Not right behind an acknowledgement only.
    (0..spins).for_each(|_| std::thread::yield_now());
    // Sends SIGKILL, so that the process has no chance to write anything more.
    child.0.kill().unwrap();
    out.map_while(Result::ok).for_each(&mut hear);
    child.0.wait().unwrap();
}

async fn compare(file: &Path, said: Said) -> Said {
    let store = Store::open_file(file).await.unwrap();
    let mut found = Said { revision: store.revision().await.unwrap(), ..said };
    assert!(found.revision >= said.revision, "{} was acknowledged, {} is there", said.revision, found.revision);
    for writer in 0..WRITERS {
        let n_of = async |name: &str| {
            let found = store.get(&cluster(&format!("{writer}-{name}")).key).await.unwrap();
            found.map_or(0, |stored| stored.body["n"].as_u64().unwrap())
        };
        let n = n_of("a").await;
        assert!((said.n[writer]..=said.n[writer] + 1).contains(&n), "{} acknowledged, {n} there", said.n[writer]);
        assert_eq!(n_of("b").await, n, "a batch is whole");
        let status = async |n: u64| store.operation(&format!("{writer}-{n}")).await.unwrap().map(|it| it.status);
        let scratch = async |n: u64| store.get(&cluster(&format!("{writer}-scratch-{n}")).key).await.unwrap().is_some();
        if n > 0 {
            assert_eq!((status(n).await, status(n + 1).await), (Some(Status::InProgress), None));
            assert_eq!((scratch(n).await, scratch(n - 1).await), (true, false));
        }
        if n > 1 {
            assert_eq!(status(n - 1).await, Some(Status::Succeeded));
        }
        found.n[writer] = n;
    }
    store.close().await;
    found
}

async fn an_acknowledged_write_survives_kill_9(place: Place) {
    // Any numbers do; these are others in each run.
    let random = std::hash::RandomState::new();
    let mut heard = 0;
    for database in 0..KILLS / KILLS_OF_ONE {
        let mut said = Said::default();
        let at = Place { folder: tempfile::tempdir().unwrap(), url: place.url.clone(), is_sqlite: true };
        let file = at.folder.path().join("towline.db");
        for kill in 0..KILLS_OF_ONE {
            let any = std::hash::BuildHasher::hash_one(&random, (database, kill));
            // Now and then while it is still opening, or making its tables.
            let before = said.revision;
            run_and_kill(&file, any % ACKNOWLEDGED, (any >> 32) % 200, &mut said);
            heard += said.revision - before;
            said = compare(&file, said).await;
        }
        let whole = Place { url: gateway::store::sqlite_url(&file), ..at };
        assert_eq!(whole.texts("SELECT integrity_check FROM pragma_integrity_check").await, ["ok"]);
    }
    assert!(heard > KILLS as i64, "hardly anything was written: the test shows nothing");
}
