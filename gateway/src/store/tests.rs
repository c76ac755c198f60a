//! What only the statements themselves show; all else is in `gateway/tests/store`.

use super::{resources::Beside, *};
use crate::api_error::ApiError;

/// No question reads a whole table, however many rows there are.
#[tokio::test]
async fn every_question_has_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_file(&dir.path().join("towline.db")).await.unwrap();
    let selected = [resources::ONE, resources::PAGE, resources::CHILDREN, changes::PUT, changes::CHILDREN_PUT]
        .map(|rest| format!("SELECT {} FROM resources {rest}", resources::COLUMNS));
    let others =
        [resources::COUNT, resources::COUNT_CHILDREN, changes::DELETED, changes::NTH_DELETED, changes::PUT_SIZES]
            .into_iter();
    let others = others.chain([
        resources::SIZES,
        changes::CHILD_SIZES,
        changes::CHILDREN_DELETED,
        changes::CHILDREN_GONE,
        changes::PARENT_DELETED,
    ]);
    let others = others.chain([statuses::ONE, statuses::EVENTS, statuses::ENDED, operations::WAKE]);
    let others = others.chain([logs::POSITIONS, logs::BEHIND, logs::NEWEST, logs::SIZES, logs::SIZES_OF_CLUSTER]);
    let others = others.chain([tickets::OF_PLACE, tickets::OF_OWNER, tickets::COUNTED]);
    let others = others.chain([parts::OF, parts::LAST, parts::OTHERS, batch::BELOW]).map(str::to_owned);
    let tickets = [tickets::BY_KEY, tickets::BY_ALIAS].map(|rest| format!("SELECT sealed FROM tickets {rest}"));
    let operations = [operations::ONE, operations::WAITING].map(operations::selected).into_iter();
    let operations = operations.chain(
        [operations::FORGET, operations::BEGUN, operations::FORGET_BEGUN, operations::FORGET_BEGUN_LATER]
            .map(str::to_owned),
    );
    let operations = operations.chain([format!("{}$1", operations::NEXT)]);
    let agents = [agents::one(), agents::OF_UID.to_owned(), agents::CLAIMED.to_owned()].into_iter();
    let agents = agents.chain([events::TOLD_VERSION, events::TOLD_UPGRADE].map(str::to_owned));
    let agents = agents.chain([agents::JOINED_ONE, agents::JOINED_PAGE].map(agents::joined));
    let agents =
        agents.chain([with_child::joined(with_child::PAGE), resources::each_of(2), resources::revision_of_each(2)]);
    let windows = [Beside::Nothing, Beside::Told, Beside::Child("/c")];
    let windows = windows.map(|beside| resources::weighed(beside, resources::WINDOW)).into_iter();
    let windows = windows.chain([resources::weighed(Beside::Nothing, resources::WINDOW_OF_CHILDREN)]);
    let agents = agents.chain(windows);
    let events = [events::BEHIND, events::OF_CLUSTER, events::OF_GROUP, events::OF_SUBSCRIPTION];
    let events = events.map(events::selected).into_iter();
    let shares = [events::OLDEST_OF_GROUP, events::OLDEST_OF_SUBSCRIPTION, events::OF_NO_SUBSCRIPTION];
    let shares = shares.into_iter().chain([
        events::COUNTED_OF_GROUP,
        events::COUNTED_OF_SUBSCRIPTION,
        events::FORGOTTEN_OF_GROUPS,
    ]);
    let events = events.chain(shares.map(str::to_owned));
    let events = events.chain(["LIMIT 1", "ORDER BY a.resource_key LIMIT 5"].map(|rest| events::untold("r.id", rest)));
    for sql in selected.into_iter().chain(others).chain(tickets).chain(operations).chain(agents).chain(events) {
        let plain = (1..=5).fold(sql.clone(), |sql, n| sql.replace(&format!("${n}"), "1"));
        let explained = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {plain}"));
        let plan = sqlx::raw_sql(explained).fetch_all(&store.readers).await.unwrap();
        for step in plan {
            let step: String = step.try_get("detail").unwrap();
            assert!(!step.starts_with("SCAN"), "{sql}: {step}");
            // Of one cluster only a few deletions are there to be put in order.
            let few =
                sql.contains("told_status") || [changes::CHILDREN_DELETED, changes::CHILDREN_GONE].contains(&&*sql);
            assert!(!step.contains("TEMP B-TREE FOR ORDER BY") || few, "{sql}: {step}");
        }
    }
}

/// While a gateway is updated, replicas of the version before still tell what happens.
#[tokio::test]
async fn events_without_a_group_get_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_file(&dir.path().join("towline.db")).await.unwrap();
    let sql = "INSERT INTO events (number, resource_key, id, kind, at_ms) VALUES \
               (1, '/subscriptions/s/resourcegroups/g/providers/p/c/edge', '/edge', 'deleted', 1), \
               (2, '/subscriptions/s/resourcegroups/providers/providers/p/c/edge', '/edge', 'deleted', 1), \
               (3, '/subscriptions/s/providers/p/c/edge', '/edge', 'deleted', 1)";
    sqlx::query(sql).execute(&store.writers).await.unwrap();
    assert_eq!(store.tell(2).await.unwrap(), 0);
    use events::Of;
    for (of, count) in [
        (Of::Group("/subscriptions/s/resourcegroups/g"), 1),
        (Of::Group("/subscriptions/s/resourcegroups/providers"), 1),
        (Of::Group("/subscriptions/s"), 1),
        (Of::Subscription("/subscriptions/s"), 3),
    ] {
        assert_eq!(store.events(of, 0, 10).await.unwrap().len(), count, "{of:?}");
    }
}

/// SQLite itself takes back what it cannot write; the one writer must be good for the next batch.
#[tokio::test]
async fn a_full_disk_stops_nobody_once_there_is_room() {
    use batch::Expect;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_file(&dir.path().join("towline.db")).await.unwrap();
    let sized = |name: &str, bytes: usize| resources::Stored {
        key: format!("/{name}"),
        kind: "k".to_owned(),
        parent: String::new(),
        id: format!("/{name}"),
        revision: 0,
        body: "x".repeat(bytes).into(),
        protected: None,
    };
    store.put(&sized("a", 10), Expect::Absent).await.unwrap().unwrap();
    for _ in 0..3 {
        // Of the connection, which does not survive it.
        sqlx::raw_sql("PRAGMA max_page_count = 40").execute(&store.writers).await.unwrap();
        let error = store.put(&sized("b", 1_000_000), Expect::Any).await.unwrap_err().to_string();
        assert!(error.contains("full"), "{error}");
    }
    assert_eq!(store.put(&sized("c", 10), Expect::Any).await.unwrap(), Ok(2), "what fits is written");
    assert_eq!(store.put(&sized("b", 1_000_000), Expect::Absent).await.unwrap(), Ok(3));
    assert_eq!(store.count("k", "").await.unwrap(), 3);
}

#[test]
fn the_address_of_a_file_names_that_file() {
    for path in ["/a/b.db", "a.db", "/it's 100%/a #1?x=2&é.db", "/a%20b"] {
        assert_eq!(sqlite_file(&sqlite_url(Path::new(path))).as_deref(), Some(Path::new(path)));
    }
    assert_eq!(sqlite_file("sqlite:///a.db?mode=rwc").as_deref(), Some(Path::new("/a.db")));
    assert_eq!(sqlite_file("sqlite::memory:"), None);
}

/// An error as SQLite's driver reports it: the code is a text, often of an extended code.
#[derive(Debug)]
struct Said(&'static str);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SQLite says {}", self.0)
    }
}

impl std::error::Error for Said {}

impl sqlx::error::DatabaseError for Said {
    fn message(&self) -> &str {
        self.0
    }

    fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
        Some(self.0.into())
    }

    fn kind(&self) -> sqlx::error::ErrorKind {
        sqlx::error::ErrorKind::Other
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }
}

/// Who is told that a store is damaged puts a backup in its place, and loses what came after it.
#[test]
fn only_what_is_damaged_is_said_to_be() {
    use std::io::ErrorKind;
    let of = |error| StoreError::of_file(Path::new("/towline.db"), error);
    let said = |code| of(sqlx::Error::Database(Box::new(Said(code))));
    for damaged in ["11", "26", "267"] {
        assert!(matches!(said(damaged), StoreError::Damaged { .. }), "{damaged}");
    }
    for (code, expected) in [
        ("5", ErrorKind::TimedOut),
        ("261", ErrorKind::TimedOut),
        ("6", ErrorKind::TimedOut),
        ("3", ErrorKind::PermissionDenied),
        ("8", ErrorKind::PermissionDenied),
        ("1032", ErrorKind::PermissionDenied),
        ("13", ErrorKind::StorageFull),
        ("14", ErrorKind::Other),
        ("522", ErrorKind::Other),
    ] {
        let StoreError::File { source, .. } = said(code) else { panic!("{code}: {:?}", said(code)) };
        assert_eq!(source.kind(), expected, "{code}");
    }
    let StoreError::File { source, .. } = of(sqlx::Error::PoolTimedOut) else { panic!("a timeout") };
    assert_eq!(source.kind(), ErrorKind::TimedOut);
    assert!(matches!(said("1"), StoreError::Database(_)));
}

/// A client is told to come back, and not that the gateway is broken.
#[test]
fn t12_a_database_that_is_away_is_told_from_one_that_refuses() {
    let said = |code| StoreError::Database(sqlx::Error::Database(Box::new(Said(code))));
    for passing in ["57P01", "57P03", "08006", "53300", "25006", "55P03", "57014"] {
        assert!(said(passing).is_unavailable() && !said(passing).is_conflict(), "{passing}");
    }
    for repeated in ["40001", "40P01"] {
        assert!(said(repeated).is_unavailable() && said(repeated).is_conflict(), "{repeated}");
    }
    // 28 and 5386 are of SQLite: a warning, and its file.
    for lasting in ["42501", "23505", "42P01", "11", "13", "28", "5386"] {
        assert!(!said(lasting).is_unavailable() && !said(lasting).is_conflict(), "{lasting}");
    }
    let io = StoreError::Database(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()));
    assert!(io.is_unavailable() && StoreError::Database(sqlx::Error::PoolTimedOut).is_unavailable());
    // What is said where a balancer without a server closes what it has accepted.
    let closed = sqlx::Error::Protocol("unexpected response from SSLRequest: 0x00".to_owned());
    assert!(StoreError::Database(closed).is_unavailable());
    assert!(!StoreError::NoBackup.is_unavailable());
}

/// Of a changed password and a full disk of the server, clients were told that the gateway is broken.
#[test]
fn t12_a_database_that_lets_nobody_in_or_is_full_is_asked_again_later() {
    for code in ["28P01", "28000", "53100", "53200", "57P05", "58030"] {
        let refused = ApiError::from(StoreError::Database(sqlx::Error::Database(Box::new(Said(code)))));
        assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (503, "ServiceUnavailable"), "{code}");
        assert!(refused.header.is_some_and(|(name, _)| name == http::header::RETRY_AFTER), "{code}");
    }
}

/// Whatever a transaction does: what PostgreSQL gave up for others' sake is done again, a bounded number of times, and
/// nothing else is.
#[tokio::test]
async fn t12_what_is_given_up_for_others_is_done_again_and_nothing_else_is() {
    let said = |code| StoreError::Database(sqlx::Error::Database(Box::new(Said(code))));
    for (code, fails, tried, done) in
        [("40001", 3, 4, true), ("40P01", 3, 4, true), ("40P01", 4, 4, false), ("23505", 1, 1, false)]
    {
        let tries = std::cell::Cell::new(0);
        let once = async || {
            tries.set(tries.get() + 1);
            if tries.get() > fails { Ok(()) } else { Err(said(code)) }
        };
        let outcome: Result<(), StoreError> = repeated!(once());
        assert_eq!((tries.get(), outcome.is_ok()), (tried, done), "{code}");
    }
}
