//! The same tests on SQLite and on a real PostgreSQL of the machine.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::json;

use super::{
    batch::{Batch, Ended, Expect, Refused},
    changes::{Change, Changes},
    operations::{Operation, Status},
    resources::{PAGE_ROWS, Stored},
    *,
};

const GROUP: &str = "/subscriptions/s/resourcegroups/g";
const CLUSTERS: &str = "microsoft.kubernetes/connectedclusters";

/// Runs `test` on both, each empty.
fn on_both<F: Future<Output = ()>>(test: impl Fn(Store) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open_file(&dir.path().join("towline.db")).await.unwrap();
        test(store.clone()).await;
        store.close().await;
        let server = Postgres::start();
        let store = Store::open(&server.url()).await.unwrap();
        test(store.clone()).await;
        store.close().await;
    });
}

/// A PostgreSQL server of a test, reached by a Unix socket.
struct Postgres {
    folder: tempfile::TempDir,
    server: Child,
}

impl Postgres {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        if is_root() {
            // The server refuses to run as root.
            let owned = Command::new("chown").arg("postgres").arg(folder.path()).status().unwrap();
            assert!(owned.success());
        }
        let made = program("initdb")
            .args(["--auth=trust", "--username=towline", "--no-sync", "--locale=en_US.UTF-8", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        if !made.success() {
            let made = program("initdb")
                .args(["--auth=trust", "--username=towline", "--no-sync", "--locale=C.UTF-8", "-D"])
                .arg(&data)
                .stdout(Stdio::null())
                .status()
                .unwrap();
            assert!(made.success());
        }
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let server = program("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let socket = folder.path().join(".s.PGSQL.5432");
        let this = Self { folder, server };
        while !socket.exists() || !ready(this.folder.path()) {
            std::thread::yield_now();
        }
        this
    }

    fn url(&self) -> String {
        let socket: String =
            url::form_urlencoded::byte_serialize(self.folder.path().to_str().unwrap().as_bytes()).collect();
        format!("postgres://towline@localhost/postgres?host={socket}&sslmode=disable")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = self.server.id().to_string();
        let _ = Command::new("kill").args(["-QUIT", &pid]).status();
        let _ = self.server.wait();
    }
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

fn ready(folder: &Path) -> bool {
    program("pg_isready").arg("-q").arg("-h").arg(folder).status().unwrap().success()
}

/// A program of the newest installed PostgreSQL, as the user who may run it.
fn program(name: &str) -> Command {
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .expect("PostgreSQL is installed")
        .flatten()
        .map(|e| e.path())
        .collect();
    versions.sort();
    let path = versions.last().expect("PostgreSQL is installed").join("bin").join(name);
    if !is_root() {
        return Command::new(path);
    }
    // Not runuser, which would be the parent of what is to be signalled.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path).current_dir("/");
    command
}

fn resource(kind: &str, parent: &str, id: &str) -> Stored {
    Stored {
        key: id.to_lowercase(),
        kind: kind.to_owned(),
        parent: parent.to_owned(),
        id: id.to_owned(),
        revision: 0,
        body: json!({"n": 0}),
        protected: None,
    }
}

fn cluster(name: &str) -> Stored {
    let id = format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/{name}");
    resource(CLUSTERS, GROUP, &id)
}

async fn with_group(store: &Store) {
    let group = resource("microsoft.resources/resourcegroups", "", "/subscriptions/s/resourceGroups/g");
    store.put(&group, Expect::Absent).await.unwrap().unwrap();
}

async fn since(store: &Store, revision: i64) -> Vec<Change> {
    match store.changes(revision).await.unwrap() {
        Changes::Since(changes) => changes,
        Changes::TooOld => panic!("{revision} is too old"),
    }
}

#[test]
fn what_is_written_is_read_back() {
    on_both(|store| async move {
        with_group(&store).await;
        let mut wanted = cluster("É-Ünïcode'; DROP TABLE resources; --");
        wanted.protected = Some(vec![0, 1, 255]);
        wanted.revision = store.put(&wanted, Expect::Absent).await.unwrap().unwrap();
        assert_eq!(store.get(&wanted.key).await.unwrap().unwrap(), wanted);
        assert_eq!(store.get("/nothing").await.unwrap(), None);
        assert_eq!(store.revision().await.unwrap(), wanted.revision);
    });
}

#[test]
fn a_child_needs_its_parent() {
    on_both(|store| async move {
        assert_eq!(
            store.put(&cluster("a"), Expect::Absent).await.unwrap(),
            Err(Refused::NoParent { key: cluster("a").key })
        );
        assert_eq!(store.revision().await.unwrap(), 0, "what did not happen has no revision");
    });
}

#[test]
fn two_writers_never_lose_an_update() {
    const WRITERS: u64 = 4;
    const ROUNDS: u64 = 25;
    on_both(|store| async move {
        with_group(&store).await;
        store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
        assert!(matches!(
            store.put(&cluster("a"), Expect::Absent).await.unwrap(),
            Err(Refused::Changed { found: Some(_), .. })
        ));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..WRITERS {
            let store = store.clone();
            tasks.spawn(async move {
                for _ in 0..ROUNDS {
                    loop {
                        let mut it = store.get(&cluster("a").key).await.unwrap().unwrap();
                        it.body["n"] = json!(it.body["n"].as_u64().unwrap() + 1);
                        match store.put(&it, Expect::Revision(it.revision)).await.unwrap() {
                            Ok(_) => break,
                            Err(refused) => assert!(matches!(refused, Refused::Changed { found: Some(_), .. })),
                        }
                    }
                }
            });
        }
        tasks.join_all().await;
        let body = store.get(&cluster("a").key).await.unwrap().unwrap().body;
        assert_eq!(body["n"], json!(WRITERS * ROUNDS));
    });
}

#[test]
fn pages_stay_right_while_rows_change() {
    on_both(|store| async move {
        with_group(&store).await;
        // A collation of a language would put _ and - elsewhere, or nowhere.
        let mut names = ["a", "B", "a-b", "a_b", "a.b", "aB", "z", "Z1"].map(str::to_owned);
        for name in &names {
            store.put(&cluster(name), Expect::Absent).await.unwrap().unwrap();
        }
        names.sort_by_key(|name| name.to_lowercase());
        let name = |stored: &Stored| stored.id.rsplit('/').next().unwrap().to_owned();
        let first = store.page(CLUSTERS, GROUP, "", 3).await.unwrap();
        assert_eq!(first.iter().map(name).collect::<Vec<_>>(), names[..3]);
        let after = &first.last().unwrap().key;
        // Gone before the place where the next one begins: nothing is skipped.
        assert_eq!(store.delete(&first[0].key, Expect::Revision(first[0].revision)).await.unwrap(), Ok(1));
        let rest = store.page(CLUSTERS, GROUP, after, PAGE_ROWS).await.unwrap();
        assert_eq!(rest.iter().map(name).collect::<Vec<_>>(), names[3..]);
        assert_eq!(store.page(CLUSTERS, "/subscriptions/s/resourcegroups/other", "", 9).await.unwrap(), []);
        assert_eq!(store.page(CLUSTERS, "", "", PAGE_ROWS).await.unwrap().len(), names.len() - 1);
    });
}

#[test]
fn deleting_takes_what_is_below_and_nothing_beside() {
    on_both(|store| async move {
        with_group(&store).await;
        let beside = resource("microsoft.resources/resourcegroups", "", "/subscriptions/s/resourceGroups/g2");
        store.put(&beside, Expect::Absent).await.unwrap().unwrap();
        store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
        let before = store.revision().await.unwrap();
        let group = store.get(GROUP).await.unwrap().unwrap();
        assert_eq!(
            store.delete(GROUP, Expect::Revision(0)).await.unwrap(),
            Err(Refused::Changed { key: GROUP.to_owned(), found: Some(group.revision) })
        );
        assert_eq!(store.delete(GROUP, Expect::Revision(group.revision)).await.unwrap(), Ok(2));
        assert_eq!(store.get(&cluster("a").key).await.unwrap(), None);
        assert!(store.get(&beside.key).await.unwrap().is_some());
        let changes = since(&store, before).await;
        assert!(changes.iter().all(|change| matches!(change, Change::Deleted { .. })), "{changes:?}");
        let gone: Vec<&str> = changes.iter().map(Change::key).collect();
        assert_eq!(gone, [GROUP, &cluster("a").key]);
    });
}

#[test]
fn changes_are_seen_once_and_in_order() {
    on_both(|store| async move {
        with_group(&store).await;
        let one = store.put(&cluster("one"), Expect::Absent).await.unwrap().unwrap();
        store.put(&cluster("two"), Expect::Absent).await.unwrap().unwrap();
        let newer = store.put(&cluster("one"), Expect::Revision(one)).await.unwrap().unwrap();
        let changes = since(&store, 0).await;
        let keys: Vec<&str> = changes.iter().map(Change::key).collect();
        assert_eq!(keys, [GROUP, &cluster("two").key, &cluster("one").key]);
        assert_eq!(changes.last().unwrap().revision(), newer);
        assert_eq!(since(&store, newer).await, []);
    });
}

#[test]
fn an_operation_ends_once() {
    on_both(|store| async move {
        let begun = Operation {
            id: "o".to_owned(),
            resource: GROUP.to_owned(),
            status: Status::InProgress,
            begun_ms: 5,
            ended_ms: None,
            work: json!({"delete": true}),
            error: None,
        };
        let begins = Batch { begins: vec![begun.clone()], ..Batch::default() };
        store.apply(&begins).await.unwrap().unwrap();
        assert_eq!(store.operations_under_way(10).await.unwrap(), std::slice::from_ref(&begun));
        let error = json!({"code": "X"});
        for (status, error, now_ms, ended) in
            [(Status::Failed, Some(error.clone()), 7, 1), (Status::Succeeded, None, 8, 0)]
        {
            let ends = Batch { ends: vec![Ended { id: "o".to_owned(), status, error, now_ms }], ..Batch::default() };
            assert_eq!(store.apply(&ends).await.unwrap().unwrap().ended, ended);
        }
        let ended = Operation { status: Status::Failed, ended_ms: Some(7), error: Some(error), ..begun };
        assert_eq!(store.operation("o").await.unwrap(), Some(ended));
        assert_eq!(store.operations_under_way(10).await.unwrap(), []);
        assert_eq!(store.forget_operations(7).await.unwrap(), 0);
        assert_eq!(store.forget_operations(8).await.unwrap(), 1);
    });
}

#[tokio::test]
async fn a_backup_is_a_whole_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_file(&dir.path().join("a.db")).await.unwrap();
    with_group(&store).await;
    store.backup(&dir.path().join("b.db")).await.unwrap();
    store.put(&cluster("later"), Expect::Absent).await.unwrap().unwrap();
    let copy = Store::open_file(&dir.path().join("b.db")).await.unwrap();
    assert_eq!(copy.get(GROUP).await.unwrap(), store.get(GROUP).await.unwrap());
    assert_eq!(copy.get(&cluster("later").key).await.unwrap(), None);
}

#[tokio::test]
async fn a_newer_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let store = Store::open_file(&path).await.unwrap();
    sqlx::query("UPDATE _sqlx_migrations SET version = 99").execute(&store.writers).await.unwrap();
    store.close().await;
    let error = Store::open_file(&path).await.err().unwrap().to_string();
    assert!(error.contains("newer"), "{error}");
}

#[tokio::test]
async fn a_password_is_not_shown() {
    let error = Store::open("mysql://u:hunter2@h/d").await.err().unwrap().to_string();
    assert!(error.contains("mysql") && error.contains("postgres://") && !error.contains("hunter2"), "{error}");
}
