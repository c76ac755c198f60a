//! Several gateways on one PostgreSQL behind one address (docs/replicas.md).

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    apiserver::{Apiserver, answer},
    case::{Needs, alone, case, full, waits},
    kubectl::Kubectl,
    postgres::{Postgres, Wire},
    programs::{binary, eventually, pause_after, run, scratch},
    raw::Raw,
    replicas::{Replicas, Site},
    stack::note_secret,
};

pub fn tests() -> Vec<Trial> {
    let long = full().then(|| {
        waits(
            "replicas::t12_a_replica_that_is_cut_off_for_a_minute_is_fenced_and_comes_back",
            Needs::Namespaces,
            cut_off,
        )
    });
    let short = vec![
        case("replicas::t12_any_replica_reaches_a_cluster_over_one_hop", Needs::Cluster, hop),
        case("replicas::t12_a_withdrawal_is_answered_when_all_replicas_know_it", Needs::Nothing, withdrawal),
        alone("replicas::t12_sessions_are_listed_extended_and_ended_at_any_replica", Needs::Nothing, sessions),
        case("replicas::t12_two_replicas_do_not_take_the_last_two_owners_away", Needs::Nothing, last_owners),
        alone("replicas::t12_a_killed_replica_ends_its_own_requests_alone", Needs::Nothing, killed),
        alone("replicas::t12_a_rolling_restart_fails_no_request", Needs::Nothing, rolling),
        case("replicas::t12_a_backup_is_restored_under_three_replicas", Needs::Nothing, restored),
        alone("replicas::t12_postgresql_may_be_away", Needs::Nothing, database_away),
        case("replicas::t12_a_rotated_password_of_postgresql_is_taken_without_a_restart", Needs::Nothing, rotated),
        case("replicas::t12_postgresql_fails_and_recovers_under_load", Needs::Nothing, database_fails),
        alone("replicas::t12_a_promoted_standby_is_followed_and_a_vanished_server_is_left", Needs::Nothing, standby),
        case("replicas::t12_idle_replicas_send_two_statements_a_second_at_most", Needs::Nothing, idle),
    ];
    short.into_iter().chain(long).collect()
}

/// The replicas that have a tunnel of the cluster, once there are `at_least`.
fn holders(replicas: &Replicas, site: &Site, at_least: usize) -> anyhow::Result<Vec<usize>> {
    let mut found = Vec::new();
    eventually("tunnels are up", Duration::from_secs(60), || {
        found = replicas.holders(site);
        Ok(found.len() >= at_least)
    })
    .with_context(|| replicas.tails())?;
    Ok(found)
}

/// The real apiserver through each replica: reads, a write, a watch, and upgraded connections.
fn hop() -> anyhow::Result<()> {
    let replicas = Replicas::start("replicas-hop", 3, "")?;
    let admin = tests::cluster::cluster().admin_kubeconfig();
    let site = replicas.connect("hop", admin, "h2", "")?;
    let there = holders(&replicas, &site, 1)?;
    let token = replicas.owner_for(&site.id.audience())?;
    known_everywhere(&replicas, &site, &token)?;
    for number in 0..replicas.count() {
        let at = replicas.address(number).to_owned();
        eventually("the cluster is reached", Duration::from_secs(20), || {
            Ok(replicas.get(&at, &site, &token, "/version")?.status == 200)
        })
        .with_context(|| format!("at {}, tunnels at {there:?}: {}", replicas.name(number), replicas.tails()))?;
        let kubectl = Kubectl::new(&replicas.kubeconfig(&at, &site, &token)?);
        let said = kubectl.ok(&["version", "-o", "json"])?;
        ensure!(said.contains("serverVersion"), "{said}");
    }
    // Their names and addresses differ, and none of the settings that they are to share.
    for number in 0..replicas.count() {
        eventually("each has compared its settings with the others'", Duration::from_secs(20), || {
            let told: Value = serde_json::from_str(&replicas.admin_get(number, "/replicas")?)?;
            let known = told["known"].as_array().context("no list of replicas")?;
            let same = known.iter().all(|other| other["settings_differ"] == json!([]));
            Ok(same && known.len() + 1 == replicas.count())
        })
        .with_context(|| replicas.tails())?;
    }
    // Each request has one record, where it came in.
    let count = |number: usize| -> anyhow::Result<usize> {
        let records = replicas.audit(number)?;
        Ok(records.iter().filter(|record| record.to_string().contains("/version")).count())
    };
    for number in 0..replicas.count() {
        eventually("records are written", Duration::from_secs(10), || Ok(count(number)? > 0))?;
        let records = replicas.audit(number)?;
        let named = records.iter().all(|record| record["replica"] == replicas.name(number));
        ensure!(named, "a record without the replica's name: {records:?}");
    }
    Ok(())
}

/// A role is taken away at one replica: when that is answered, no other lets its holder in any more.
fn withdrawal() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("replicas-withdrawal-apiserver"))?;
    let replicas = Replicas::start("replicas-withdrawal", 3, "")?;
    let site = replicas.connect("withdrawal", &apiserver.kubeconfig, "h2", "")?;
    let (owner, at) = (replicas.owner()?, replicas.address(0).to_owned());
    known_everywhere(&replicas, &site, &replicas.owner_for(&site.id.audience())?)?;
    let made = replicas.call(
        &at,
        &owner,
        "POST",
        "/providers/Microsoft.Authorization/servicePrincipals?api-version=2022-04-01",
        &json!({"displayName": "robot"}),
    )?;
    ensure!(matches!(made.status, 200 | 201), "{}", String::from_utf8_lossy(&made.body));
    let made = made.json()?;
    let text = |key: &str| made[key].as_str().map(str::to_owned).with_context(|| format!("no {key}: {made}"));
    let (client, secret, object) = (text("clientId")?, text("clientSecret")?, text("objectId")?);
    note_secret(&secret)?;
    // Made at one replica, it signs in at another at once.
    let principal = format!("/providers/Microsoft.Authorization/servicePrincipals/{object}?api-version=2022-04-01");
    let robot = replicas.token_of(replicas.address(1), (&client, &secret), &site.id.audience())?;
    let given = json!({"properties": {
        "roleDefinitionId": "/providers/Microsoft.Authorization/roleDefinitions/00493d72-78f6-4148-b6c5-d3ce8e4799dd",
        "principalId": object, "principalType": "ServicePrincipal",
    }});
    for round in 0..10 {
        let path = format!(
            "{}/providers/Microsoft.Authorization/roleAssignments/44444444-4444-4444-8444-44444444444{round}?api-version=2022-04-01",
            site.id.as_str()
        );
        let said = replicas.call(&at, &owner, "PUT", &path, &given)?;
        ensure!(said.status == 201, "{}", String::from_utf8_lossy(&said.body));
        for number in 0..replicas.count() {
            let said = replicas.get(replicas.address(number), &site, &robot, "/version")?;
            ensure!(said.status == 200, "round {round}, {}: {}", replicas.name(number), said.head);
        }
        let writer = replicas.address(round % replicas.count()).to_owned();
        let said = replicas.call(&writer, &owner, "DELETE", &path, &Value::Null)?;
        ensure!(matches!(said.status, 200 | 204), "{}", said.head);
        for number in 0..replicas.count() {
            let said = replicas.get(replicas.address(number), &site, &robot, "/version")?;
            ensure!(said.status == 403, "round {round}, {}: {}", replicas.name(number), said.head);
        }
    }
    // Removed at one replica, it signs in at none.
    let said = replicas.call(replicas.address(1), &owner, "DELETE", &principal, &Value::Null)?;
    ensure!(said.status == 200, "{}", said.head);
    for number in 0..replicas.count() {
        let signed_in = replicas.token_of(replicas.address(number), (&client, &secret), &site.id.audience());
        ensure!(signed_in.is_err(), "a service principal that was removed signs in at {}", replicas.name(number));
    }
    Ok(())
}

/// A watch at each replica. All are seen from any of them, and a newer token that is shown at one extends those at the
/// others. One is ended from another replica. A replica that stands still is named in the answer.
fn sessions() -> anyhow::Result<()> {
    const SESSIONS: &str = "/providers/Microsoft.Kubernetes/sessions";
    let apiserver = watched_apiserver("replicas-sessions-apiserver")?;
    let replicas = Replicas::start("replicas-sessions", 3, "")?;
    let site = replicas.connect("sessions", &apiserver.kubeconfig, "h2", "")?;
    let (owner, token) = (replicas.owner()?, replicas.owner_for(&site.id.audience())?);
    known_everywhere(&replicas, &site, &token)?;
    // What goes by way of one that stands still stands still with it, so that it is one without a tunnel.
    let [first, still, other] = without_tunnel(&replicas)?;
    let mut watches = watch_at_each(&replicas, &site, &token)?;
    let at = |number: usize, method: &str, id: &str| {
        let path = format!("{SESSIONS}{id}?api-version=2026-05-01");
        replicas.call(replicas.address(number), &owner, method, &path, &Value::Null)
    };
    let listed = |number: usize| -> anyhow::Result<Value> {
        let said = at(number, "GET", "")?;
        ensure!(said.status == 200, "{}", String::from_utf8_lossy(&said.body));
        said.json()
    };
    let of = |list: &Value, replica: &str| -> Option<Value> {
        let rows = list["value"].as_array()?;
        rows.iter().find(|row| row["replica"] == replica && row["what"] == "GET /api/v1/pods").cloned()
    };
    let missing = |list: &Value| -> Vec<String> {
        let all = list["incomplete"].as_array().cloned().unwrap_or_default();
        all.iter().filter_map(|one| one["replica"].as_str().map(str::to_owned)).collect()
    };
    for number in 0..replicas.count() {
        let list = listed(number)?;
        let all = (0..replicas.count()).all(|other| of(&list, replicas.name(other)).is_some());
        ensure!(all && missing(&list).is_empty(), "at {}: {list}", replicas.name(number));
    }

    let ends = |list: &Value| of(list, replicas.name(first)).and_then(|row| row["ends"].as_str().map(str::to_owned));
    let before = ends(&listed(other)?);
    eventually("a newer token extends what is open at another replica", Duration::from_secs(20), || {
        let newer = replicas.owner_for(&site.id.audience())?;
        let said = replicas.get(replicas.address(still), &site, &newer, "/.towline/refresh")?;
        ensure!(said.status < 300 && said.header("x-towline-unconfirmed-by").is_none(), "{}", said.head);
        Ok(ends(&listed(other)?) > before)
    })?;

    let list = listed(first)?;
    let row = of(&list, replicas.name(other)).context("the watch at the last replica")?;
    let id = format!("/{}", row["id"].as_str().unwrap_or_default());
    let (seen, ended) = (at(first, "GET", &id)?, at(first, "DELETE", &id)?);
    ensure!(seen.status == 200 && seen.json()?["replica"] == replicas.name(other), "{}", seen.head);
    ensure!(ended.status == 204, "{}", String::from_utf8_lossy(&ended.body));
    while matches!(watches[other].chunk(), Ok(Some(_))) {}
    eventually("what was ended is listed no more", Duration::from_secs(10), || {
        Ok(of(&listed(still)?, replicas.name(other)).is_none())
    })?;
    ensure!(at(still, "DELETE", &id)?.status == 404);

    replicas.signal(still, "STOP")?;
    let (list, unknown) = (listed(first), at(first, "GET", &id));
    // Its lease ends meanwhile, and it is named all the same.
    let later = eventually("the lease ends", Duration::from_secs(60), || {
        let told: Value = serde_json::from_str(&replicas.admin_get(first, "/replicas")?)?;
        Ok(told.to_string().contains(r#""alive":false"#))
    })
    .and_then(|_| listed(first));
    replicas.signal(still, "CONT")?;
    for list in [list?, later?] {
        ensure!(missing(&list) == [replicas.name(still)] && of(&list, replicas.name(first)).is_some(), "{list}");
    }
    let unknown = unknown?;
    ensure!(unknown.status == 503 && unknown.header("retry-after").is_some(), "{}", unknown.head);
    eventually("it answers again", Duration::from_secs(30), || {
        // Its own watch may have ended with the link that it went over.
        Ok(missing(&listed(first)?).is_empty())
    })
    .with_context(|| replicas.tails())?;
    // Last, for it ends the watches of above too.
    all_of_a_user(&replicas, &site, &token)
}

/// A watch of pods at each replica, which has answered.
fn watch_at_each(replicas: &Replicas, site: &Site, token: &str) -> anyhow::Result<Vec<Raw>> {
    let open = |number| {
        let mut raw = Raw::connect(replicas.address(number), &replicas.ca(), &[b"http/1.1"])?;
        let (path, host) = (format!("/{}/api/v1/pods?watch=1", site.id.key()), replicas.front.address);
        raw.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n").as_bytes())?;
        ensure!(raw.head()?.starts_with("HTTP/1.1 200"));
        Ok(raw)
    };
    (0..replicas.count()).map(open).collect()
}

/// A watch at each replica, and one command that ends all of them and no one else's.
fn all_of_a_user(replicas: &Replicas, site: &Site, token: &str) -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let towline = |args: &[&str]| {
        let mut command = Command::new(binary("towline"));
        command.args(args).env("HOME", home.path()).env("TOWLINE_CLIENT_SECRET", replicas.text("clientSecret"));
        run(command.env_remove("XDG_CONFIG_HOME").env_remove("TOWLINE_HOME"), Duration::from_secs(60))?.ok()
    };
    let (url, ca, id) = (replicas.text("url"), replicas.ca().display().to_string(), replicas.text("clientId"));
    towline(&["login", &url, "--ca", &ca, "--service-principal", "-u", &id])?;
    let watches = watch_at_each(replicas, site, token)?;
    let listed = || -> anyhow::Result<Vec<Value>> {
        let list: Value = serde_json::from_str(&towline(&["sessions", "list", "-o", "json"])?)?;
        Ok(list.as_array().cloned().unwrap_or_default())
    };
    let before = listed()?;
    let at: BTreeSet<&str> = before.iter().filter_map(|row| row["replica"].as_str()).collect();
    ensure!(at.len() == replicas.count(), "{before:?}");
    towline(&["sessions", "end", "--user", "nobody"])?;
    ensure!(listed()?.len() == before.len(), "another user's sessions were ended");
    let user = before[0]["user"].as_str().context("a user")?;
    towline(&["sessions", "end", "--user", user])?;
    for mut raw in watches {
        while matches!(raw.chunk(), Ok(Some(_))) {}
    }
    eventually("none is listed any more", Duration::from_secs(10), || Ok(listed()?.is_empty()))?;
    Ok(())
}

/// The replicas in an order in which the second has no tunnel, once the agent has its two.
fn without_tunnel(replicas: &Replicas) -> anyhow::Result<[usize; 3]> {
    let mut still = None;
    eventually("one of three has no tunnel", Duration::from_secs(60), || {
        let mut empty = Vec::new();
        for number in 0..replicas.count() {
            let told: Value = serde_json::from_str(&replicas.admin_get(number, "/tunnels")?)?;
            if told["tunnels"].as_array().is_some_and(Vec::is_empty) {
                empty.push(number);
            }
        }
        still = empty.first().copied();
        Ok(empty.len() == 1)
    })?;
    let still = still.context("one without a tunnel")?;
    Ok([(still + 1) % 3, still, (still + 2) % 3])
}

/// Two owners, each of whom takes the other's role away at a replica of their own, at the same time: one is refused.
fn last_owners() -> anyhow::Result<()> {
    const OWNER: &str = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635";
    const PRINCIPALS: &str = "/providers/Microsoft.Authorization/servicePrincipals";
    let replicas = Replicas::start("replicas-owners", 2, "")?;
    let first = replicas.owner()?;
    let subscription = format!("/subscriptions/{}", replicas.text("subscription"));
    let call = |number: usize, token: &str, method: &str, path: &str, body: &Value| -> anyhow::Result<(u16, Value)> {
        let path = format!("{path}?api-version=2022-04-01");
        let said = replicas.call(replicas.address(number), token, method, &path, body)?;
        Ok((said.status, said.json().unwrap_or_default()))
    };
    let given = AtomicUsize::new(0);
    let give = |number: usize, token: &str, principal: &str| -> anyhow::Result<String> {
        let name = format!("55555555-5555-4555-8555-{:012}", given.fetch_add(1, Ordering::Relaxed));
        let path = format!("{subscription}/providers/Microsoft.Authorization/roleAssignments/{name}");
        let body = json!({"properties": {
            "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{OWNER}"),
            "principalId": principal, "principalType": "ServicePrincipal",
        }});
        let (status, said) = call(number, token, "PUT", &path, &body)?;
        ensure!(status == 201, "{said}");
        Ok(path)
    };
    let (mut objects, mut tokens, mut roles) = (Vec::new(), Vec::new(), Vec::new());
    for name in ["one", "other"] {
        let (status, made) = call(0, &first, "POST", PRINCIPALS, &json!({"displayName": name}))?;
        ensure!(status == 201, "{made}");
        let text = |key: &str| made[key].as_str().map(str::to_owned).with_context(|| format!("no {key}"));
        let (client, secret) = (text("clientId")?, text("clientSecret")?);
        note_secret(&secret)?;
        objects.push(text("objectId")?);
        roles.push(give(0, &first, &text("objectId")?)?);
        tokens.push(replicas.token_of(replicas.address(1), (&client, &secret), &replicas.text("url"))?);
    }
    let (status, list) = call(0, &tokens[0], "GET", PRINCIPALS, &Value::Null)?;
    let all = list["value"].as_array().cloned().unwrap_or_default();
    let gone = all.iter().find(|one| one["displayName"] == "owner").and_then(|one| one["objectId"].as_str());
    let gone = gone.with_context(|| format!("the first owner: {status} {list}"))?;
    let (status, said) = call(0, &tokens[0], "DELETE", &format!("{PRINCIPALS}/{gone}"), &Value::Null)?;
    ensure!(status == 200, "{said}");

    for round in 0..8 {
        let take = |number: usize| call(number, &tokens[number], "DELETE", &roles[1 - number], &Value::Null);
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(|| take(1));
            [take(0), other.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread ended")))]
        });
        let [one, other] = both;
        let (one, other) = (one?, other?);
        // Refused as the last one, or by somebody who is no owner any more.
        let won = match (one.0, other.0) {
            (200 | 204, 409 | 403) => 0,
            (409 | 403, 200 | 204) => 1,
            _ => anyhow::bail!("round {round}: {one:?} {other:?}"),
        };
        roles[1 - won] = give(won, &tokens[won], &objects[1 - won])?;
    }
    Ok(())
}

/// What became of a load's requests.
#[derive(Default)]
struct Counts {
    good: AtomicUsize,
    failed: AtomicUsize,
    slowest_ms: AtomicUsize,
    /// What was said of those that were tried again, and of those that failed.
    said: Mutex<Vec<String>>,
}

/// How long a client tries again what was answered 503, or not at all.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often one of a load's threads asks.
#[derive(Clone, Copy)]
enum Pace {
    /// Most of the time it pauses, so that the machine keeps up whatever it is.
    AsItCan,
    /// Once in this time.
    Every(Duration),
}

/// GETs by way of what is in front, one after the other, until told. What may be tried again is tried again for a
/// while, as clients do.
fn load(replicas: &Replicas, site: &Site, token: &str, stop: &AtomicBool, counts: &Counts) {
    load_at(Pace::AsItCan, replicas, site, token, stop, counts);
}

fn load_at(pace: Pace, replicas: &Replicas, site: &Site, token: &str, stop: &AtomicBool, counts: &Counts) {
    let front = replicas.front.address.to_string();
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let good = eventually("an answer", PATIENCE, || {
            let said = match replicas.get(&front, site, token, "/api") {
                Ok(answer) if answer.status == 200 => return Ok(true),
                Ok(answer) if answer.status == 503 => answer.head.lines().take(7).collect::<Vec<_>>().join(" "),
                Ok(answer) => anyhow::bail!("{}", answer.head),
                Err(error) => error.to_string(),
            };
            counts.said.lock().unwrap().push(said);
            Ok(false)
        });
        if let Err(error) = &good {
            counts.said.lock().unwrap().push(format!("FAILED: {error:#}"));
        }
        let count = if good.is_ok() { &counts.good } else { &counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        let took = usize::try_from(start.elapsed().as_millis()).unwrap_or(usize::MAX);
        counts.slowest_ms.fetch_max(took, Ordering::Relaxed);
        match pace {
            Pace::AsItCan => pause_after(start),
            // A rate is kept by the clock: a slow answer delays no later question but those that were due meanwhile.
            Pace::Every(pause) => {
                due = (due + pause).max(Instant::now());
                std::thread::park_timeout(due - Instant::now());
            }
        }
    }
}

/// Each thing that was said, and how often.
fn told(counts: &Counts) -> BTreeMap<String, usize> {
    let mut told = BTreeMap::new();
    for said in counts.said.lock().unwrap().iter() {
        *told.entry(said.split(" x-towline-request-id").next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    told
}

fn of(count: &AtomicUsize) -> usize {
    count.load(Ordering::Relaxed)
}

/// Waits until `count` more were answered.
fn more(counts: &Counts, count: usize) -> anyhow::Result<()> {
    let before = of(&counts.good);
    eventually("the load goes on", Duration::from_secs(30), || Ok(of(&counts.good) >= before + count)).map(drop)
}

/// Whichever replica is killed, requests that come afterwards get through, by those that are left.
fn killed() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("replicas-killed-apiserver"))?;
    let replicas = Replicas::start("replicas-killed", 3, "")?;
    let site = replicas.connect("killed", &apiserver.kubeconfig, "h2", "")?;
    let token = replicas.owner_for(&site.id.audience())?;
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| load(&replicas, &site, &token, &stop, &counts));
        }
        let outcome = (0..3).try_for_each(|round| {
            let there = holders(&replicas, &site, 2)?;
            more(&counts, 20)?;
            // One that has a tunnel, and one that may have none, in turn.
            let number = if round % 2 == 0 { there[0] } else { round % replicas.count() };
            replicas.kill(number);
            more(&counts, 40).with_context(|| format!("after {} was killed", replicas.name(number)))?;
            replicas.start_again(number)
        });
        stop.store(true, Ordering::Relaxed);
        outcome
    })
    .with_context(|| replicas.tails())?;
    let (good, failed, slowest) = (of(&counts.good), of(&counts.failed), of(&counts.slowest_ms));
    eprintln!("   {:#?}", told(&counts));
    eprintln!("   {good} answered, {failed} failed, the slowest after {slowest} ms");
    ensure!(failed == 0, "{failed} requests of {good} failed: {:#?}", told(&counts));
    Ok(())
}

/// An apiserver whose watches stay open and say something twice a second, and whose execs say what they are told.
fn watched_apiserver(name: &str) -> anyhow::Result<Apiserver> {
    use std::io::{Read as _, Write as _};
    Apiserver::start(
        &scratch(name),
        false,
        Arc::new(|request, connection| {
            let asks_for = |word: &[u8]| request.target().windows(word.len()).any(|part| part == word);
            if asks_for(b"/exec") {
                let head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n";
                connection.write_all(head)?;
                let mut buffer = [0; 1024];
                loop {
                    connection.flush()?;
                    match connection.read(&mut buffer)? {
                        0 => return Ok(false),
                        count => connection.write_all(&buffer[..count])?,
                    }
                }
            }
            if !asks_for(b"watch=1") {
                return answer(connection, "200 OK", b"{}");
            }
            connection.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
            )?;
            loop {
                connection.write_all(b"3\r\n{}\n\r\n")?;
                connection.flush()?;
                // The apiserver's own pace, not a wait of the test.
                std::thread::park_timeout(Duration::from_millis(500));
            }
        }),
    )
}

/// All replicas know of a cluster that was connected a moment ago.
fn known_everywhere(replicas: &Replicas, site: &Site, token: &str) -> anyhow::Result<()> {
    for number in 0..replicas.count() {
        eventually("each replica reaches the cluster", Duration::from_secs(20), || {
            Ok(replicas.get(replicas.address(number), site, token, "/api")?.status == 200)
        })
        .with_context(|| replicas.tails())?;
    }
    Ok(())
}

/// Each of three is restarted in order, and the first again, under a load and with 50 watches and 20 execs open: no request is refused,
/// or broken off, not even so that its client may try it again. A watch that ends is opened again at once; an exec lasts
/// until its replica's grace is over. In the long run the load is 200 requests a second, each on a new connection.
fn rolling() -> anyhow::Result<()> {
    const WATCHES: usize = 50;
    const EXECS: usize = 20;
    let apiserver = watched_apiserver("replicas-rolling-apiserver")?;
    let replicas = Replicas::start("replicas-rolling", 3, "[limits]\ndrain_grace = \"5s\"")?;
    let site = replicas.connect("rolling", &apiserver.kubeconfig, "h2", "")?;
    let token = replicas.owner_for(&site.id.audience())?;
    known_everywhere(&replicas, &site, &token)?;
    let (stop, counts, watches) = (AtomicBool::new(false), Counts::default(), AtomicUsize::new(0));
    let execs = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Watches and execs that could not be opened.
    let refused = Mutex::new(Vec::new());
    let open = |method: &str, path: &str, headers: &str, status: &str| {
        let front = replicas.front.address.to_string();
        let open = || -> anyhow::Result<Raw> {
            let mut raw = Raw::connect(&front, &replicas.ca(), &[b"http/1.1"])?;
            let head = format!("{method} /{}{path} HTTP/1.1\r\nHost: {front}", site.id.key());
            raw.send(format!("{head}\r\nAuthorization: Bearer {token}\r\n{headers}\r\n").as_bytes())?;
            let head = raw.head()?;
            ensure!(head.split(' ').nth(1) == Some(status), "{head}");
            Ok(raw)
        };
        open().inspect_err(|error| refused.lock().unwrap().push(format!("{method} {path}: {error:#}"))).ok()
    };
    let watch = || {
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            if let Some(mut raw) = open("GET", "/api/v1/pods?watch=1", "", "200") {
                watches.fetch_add(1, Ordering::Relaxed);
                while matches!(raw.chunk(), Ok(Some(_))) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            pause_after(start);
        }
    };
    let exec = || {
        let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            if let Some(mut raw) = open("POST", "/api/v1/namespaces/n/pods/p/exec?command=cat", upgrade, "101") {
                execs.0.fetch_add(1, Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    if raw.send(b"word").is_err() || raw.exactly(4).map_or(true, |word| word != b"word") {
                        break;
                    }
                    execs.1.fetch_add(1, Ordering::Relaxed);
                    // The pace of whoever types.
                    std::thread::park_timeout(Duration::from_millis(250));
                }
            }
            pause_after(start);
        }
    };
    let (loads, pace) = if full() { (20, Pace::Every(Duration::from_millis(100))) } else { (4, Pace::AsItCan) };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..loads {
            scope.spawn(|| load_at(pace, &replicas, &site, &token, &stop, &counts));
        }
        (0..WATCHES).for_each(|_| drop(scope.spawn(watch)));
        (0..EXECS).for_each(|_| drop(scope.spawn(exec)));
        let outcome = (0..4).try_for_each(|round| {
            holders(&replicas, &site, 2)?;
            more(&counts, 20)?;
            let number = round % replicas.count();
            replicas.stop(number)?;
            more(&counts, 20).with_context(|| format!("without {}", replicas.name(number)))?;
            replicas.start_again(number)
        });
        stop.store(true, Ordering::Relaxed);
        outcome
    })
    .with_context(|| replicas.tails())?;
    let (good, failed, slowest) = (of(&counts.good), of(&counts.failed), of(&counts.slowest_ms));
    eprintln!("   {:#?}", told(&counts));
    let (opened, words) = (of(&execs.0), of(&execs.1));
    let watched = of(&watches);
    let rate = good as f64 / begun.elapsed().as_secs_f64();
    eprintln!(
        "   {good} answered, {rate:.0} a second, {failed} failed, {watched} watches, {opened} execs with {words} words, the slowest after {slowest} ms"
    );
    let refused = refused.into_inner().unwrap();
    let said = told(&counts);
    ensure!(
        failed == 0 && said.is_empty(),
        "of {good} requests {failed} failed, and others were tried again: {said:#?}"
    );
    // Those of each replica have ended once.
    ensure!(watched > WATCHES && opened > EXECS && words > opened, "{watched} watches, {opened} execs, {words} words");
    ensure!(refused.is_empty(), "{} watches and execs were refused: {refused:#?}", refused.len());
    Ok(())
}

/// While PostgreSQL is away requests to clusters go on, and the API says that it cannot; afterwards all is as before.
fn database_away() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("replicas-away-apiserver"))?;
    let replicas = Replicas::start("replicas-away", 2, "")?;
    let site = replicas.connect("away", &apiserver.kubeconfig, "h2", "")?;
    let (owner, token) = (replicas.owner()?, replicas.owner_for(&site.id.audience())?);
    known_everywhere(&replicas, &site, &token)?;
    let at = replicas.address(0).to_owned();
    let group = format!("/subscriptions/{}/resourceGroups/later?api-version=2021-04-01", replicas.text("subscription"));
    replicas.postgres.pause()?;
    let started = Instant::now();
    let mut said = Vec::new();
    eventually("the API says that it cannot", Duration::from_secs(60), || {
        let answer = replicas.call(&at, &owner, "PUT", &group, &json!({"location": "local"}));
        said.push(answer.as_ref().map_or(0, |answer| answer.status));
        for number in 0..replicas.count() {
            let answer = replicas.get(replicas.address(number), &site, &token, "/version")?;
            ensure!(answer.status == 200, "{}: {}", replicas.name(number), answer.head);
        }
        Ok(answer.is_ok_and(|answer| answer.status == 503 && answer.header("retry-after").is_some()))
    })
    .with_context(|| format!("statuses {said:?}"))?;
    eprintln!("   503 after {:?}", started.elapsed());
    replicas.postgres.resume()?;
    eventually("the API answers again", Duration::from_secs(60), || {
        let answer = replicas.call(&at, &owner, "PUT", &group, &json!({"location": "local"}));
        Ok(answer.is_ok_and(|answer| matches!(answer.status, 200 | 201)))
    })
    .with_context(|| replicas.tails())?;
    for number in 0..replicas.count() {
        eventually("each knows of it", Duration::from_secs(20), || {
            Ok(replicas.call(replicas.address(number), &owner, "GET", &group, &Value::Null)?.status == 200)
        })?;
    }
    Ok(())
}

/// A replica loses the database and the other replicas for a minute, while its users and agents still reach it. It goes on
/// with what it knows for `stale_for`, and is named by whoever writes meanwhile; then it refuses connections. The others
/// reach the cluster by its other tunnel. It comes back with all that was withdrawn.
fn cut_off() -> anyhow::Result<()> {
    const CUT: Duration = Duration::from_secs(60);
    let apiserver = Apiserver::plain(&scratch("replicas-cut-off-apiserver"))?;
    let replicas = Replicas::start_apart("replicas-cut-off", 3, "stale_for = \"20s\"")?;
    let site = replicas.connect("cut-off", &apiserver.kubeconfig, "h2", "")?;
    let (owner, token) = (replicas.owner()?, replicas.owner_for(&site.id.audience())?);
    known_everywhere(&replicas, &site, &token)?;
    let cut_number = holders(&replicas, &site, 2)?[0];
    let others: Vec<usize> = (0..replicas.count()).filter(|number| *number != cut_number).collect();
    let name = replicas.name(cut_number).to_owned();
    let at = replicas.address(others[0]).to_owned();
    let (robot, path, given) = a_robot(&replicas, &site, &owner, &at)?;
    let at_cut = |token: &str| replicas.get(replicas.address(cut_number), &site, token, "/version");
    eventually("the robot gets in", Duration::from_secs(20), || Ok(at_cut(&robot)?.status == 200))?;
    let unconfirmed = |answer: &tests::raw::Answer| {
        answer.header("x-towline-unconfirmed-by").is_some_and(|names| names.contains(name.as_str()))
    };

    let begun = Instant::now();
    let cut = replicas.cut_off(cut_number)?;
    // A right that is taken away: the cut off replica cannot know it, and is named for as long as it may go on.
    let said = replicas.call(&at, &owner, "DELETE", &path, &Value::Null)?;
    ensure!(matches!(said.status, 200 | 204) && unconfirmed(&said), "{}", said.head);
    ensure!(at_cut(&robot)?.status == 200, "it goes on with what it knows");
    // The others see the cluster through its other tunnel, once the silent links are given up.
    let mut failed = 0;
    for number in &others {
        eventually("the other tunnel is used", Duration::from_secs(60), || {
            let good = replicas.get(replicas.address(*number), &site, &token, "/version")?.status == 200;
            failed += usize::from(!good);
            Ok(good && links(&replicas, *number)? == 4)
        })
        .with_context(|| replicas.tails())?;
    }
    eprintln!("   {failed} requests failed before, {:?} after the cut", begun.elapsed());
    let is_connected = || -> anyhow::Result<bool> {
        let said = replicas.call(&at, &owner, "GET", &format!("{}?api-version=2024-01-01", site.id), &Value::Null)?;
        Ok(said.json()?["properties"]["connectivityStatus"] == "Connected")
    };
    let (mut named, mut fenced) = (0, None);
    let is_fenced = || {
        let is_ready = replicas.admin_get(cut_number, "/readyz").is_ok_and(|said| said.trim() == "ready");
        !is_ready && std::net::TcpStream::connect(replicas.address(cut_number)).is_err()
    };
    // All the time, and until a minute is over.
    eventually("a minute is over", CUT * 2, || {
        for number in &others {
            let said = replicas.get(replicas.address(*number), &site, &token, "/version")?;
            ensure!(
                said.status == 200,
                "{}: {} ({:?} after the cut)",
                replicas.name(*number),
                said.head,
                begun.elapsed()
            );
            let said = replicas.get(replicas.address(*number), &site, &robot, "/version")?;
            ensure!(said.status == 403, "{}: {}", replicas.name(*number), said.head);
        }
        ensure!(is_connected()?, "a tunnel is up");
        // Whoever writes is told of the one that may let somebody in by what it knew. Asked before: it may be fenced
        // between the two.
        let said = replicas.call(&at, &owner, "PUT", &path, &given)?;
        ensure!(matches!(said.status, 200 | 201), "{}", said.head);
        named += usize::from(unconfirmed(&said));
        let said = replicas.call(&at, &owner, "DELETE", &path, &Value::Null)?;
        ensure!(unconfirmed(&said) || is_fenced(), "{name} goes on, and is not named: {}", said.head);
        if fenced.is_none() && is_fenced() {
            fenced = Some(begun.elapsed());
        }
        Ok(begun.elapsed() >= CUT && fenced.is_some())
    })
    .with_context(|| replicas.tails())?;
    ensure!(named > 0, "{name} is named while it goes on");
    // The agents that it had are at the others.
    ensure!(holders(&replicas, &site, 2)?.iter().all(|number| *number != cut_number), "a fenced replica has no tunnel");
    let said = replicas.call(&at, &owner, "DELETE", &path, &Value::Null)?;
    ensure!(!unconfirmed(&said), "a fenced replica is not waited for: {}", said.head);
    eprintln!("   fenced after {:?}, named by {named} writes", fenced.unwrap_or_default());

    drop(cut);
    let back = Instant::now();
    eventually("it is ready again", Duration::from_secs(60), || {
        Ok(replicas.admin_get(cut_number, "/readyz").is_ok_and(|said| said.trim() == "ready"))
    })
    .with_context(|| replicas.tails())?;
    eprintln!("   ready again after {:?}", back.elapsed());
    eventually("it takes connections", Duration::from_secs(20), || Ok(at_cut(&robot).is_ok()))?;
    ensure!(at_cut(&robot)?.status == 403, "what was withdrawn meanwhile is known there");
    eventually("it reaches the cluster", Duration::from_secs(20), || Ok(at_cut(&token)?.status == 200))?;
    let said = replicas.call(&at, &owner, "PUT", &path, &given)?;
    ensure!(matches!(said.status, 200 | 201) && !unconfirmed(&said), "{}", said.head);
    ensure!(at_cut(&robot)?.status == 200, "it knows what is given from then on");
    Ok(())
}

/// Links that one keeps to others; four to each.
fn links(replicas: &Replicas, number: usize) -> anyhow::Result<usize> {
    let metrics = replicas.admin_get(number, "/metrics")?;
    let line = metrics.lines().find_map(|line| line.strip_prefix("gateway_links_open "));
    Ok(line.context("no gateway_links_open")?.trim().parse()?)
}

/// A service principal that may see the cluster: its token for that, and the role assignment by its path and content.
fn a_robot(replicas: &Replicas, site: &Site, owner: &str, at: &str) -> anyhow::Result<(String, String, Value)> {
    let principals = "/providers/Microsoft.Authorization/servicePrincipals?api-version=2022-04-01";
    let made = replicas.call(at, owner, "POST", principals, &json!({"displayName": "robot"}))?;
    ensure!(matches!(made.status, 200 | 201), "{}", String::from_utf8_lossy(&made.body));
    let made = made.json()?;
    let text = |key: &str| made[key].as_str().map(str::to_owned).with_context(|| format!("no {key}: {made}"));
    let (client, secret, object) = (text("clientId")?, text("clientSecret")?, text("objectId")?);
    note_secret(&secret)?;
    let token = replicas.token_of(at, (&client, &secret), &site.id.audience())?;
    let given = json!({"properties": {
        "roleDefinitionId": "/providers/Microsoft.Authorization/roleDefinitions/00493d72-78f6-4148-b6c5-d3ce8e4799dd",
        "principalId": object, "principalType": "ServicePrincipal",
    }});
    let path = format!(
        "{}/providers/Microsoft.Authorization/roleAssignments/44444444-4444-4444-8444-444444444440?api-version=2022-04-01",
        site.id.as_str()
    );
    let said = replicas.call(at, owner, "PUT", &path, &given)?;
    ensure!(said.status == 201, "{}", String::from_utf8_lossy(&said.body));
    Ok((token, path, given))
}

/// PostgreSQL fails three times while users ask and groups are written: no request to the cluster fails, and no write
/// that was answered is lost.
fn database_fails() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("replicas-fails-apiserver"))?;
    let replicas = Replicas::start("replicas-fails", 3, "")?;
    let site = replicas.connect("fails", &apiserver.kubeconfig, "h2", "")?;
    let (owner, token) = (replicas.owner()?, replicas.owner_for(&site.id.audience())?);
    let group = |name: usize| {
        format!("/subscriptions/{}/resourceGroups/g{name}?api-version=2021-04-01", replicas.text("subscription"))
    };
    let (stop, counts, written) = (AtomicBool::new(false), Counts::default(), Mutex::new(Vec::new()));
    let write = || {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            let at = replicas.address(number % replicas.count());
            let said = replicas.call(at, &owner, "PUT", &group(number), &json!({"location": "local"}));
            if said.is_ok_and(|answer| matches!(answer.status, 200 | 201)) {
                written.lock().unwrap().push(number);
            }
            number += 1;
        }
    };
    let writes = || written.lock().unwrap().len();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| load(&replicas, &site, &token, &stop, &counts));
        }
        scope.spawn(write);
        let outcome = (0..3).try_for_each(|round| {
            let before = writes();
            let context = || format!("round {round}: {}", replicas.tails());
            eventually("groups are written", Duration::from_secs(60), || Ok(writes() > before + 5))
                .with_context(context)?;
            replicas.postgres.fail()?;
            more(&counts, 20).with_context(|| format!("round {round}, without a database"))?;
            replicas.postgres.start_again()
        });
        let before = writes();
        let last = eventually("groups are written at last", Duration::from_secs(60), || Ok(writes() > before + 5));
        stop.store(true, Ordering::Relaxed);
        outcome.and(last.map(drop))
    })
    .with_context(|| replicas.tails())?;
    let (good, failed) = (of(&counts.good), of(&counts.failed));
    let written = written.into_inner().unwrap();
    eprintln!("   {good} answered, {failed} failed, {} groups", written.len());
    ensure!(failed == 0, "{failed} requests of {good} failed: {:#?}", told(&counts));
    for number in written {
        let said = replicas.call(replicas.address(0), &owner, "GET", &group(number), &Value::Null)?;
        ensure!(said.status == 200, "group {number} is lost: {}", said.head);
    }
    Ok(())
}

/// The primary ends under writes and reads, its standby is promoted, and the database's address leads there: no request
/// to the cluster fails, the API says meanwhile that it cannot, and no write that was answered is lost. Then all
/// connections to the new one fall silent, as where a machine vanishes: others are made in their place.
fn standby() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("replicas-standby-apiserver"))?;
    let dir = scratch("replicas-standby");
    let primary = Postgres::start(&dir.join("postgres.log"))?;
    let wire = Wire::to(primary.port())?;
    let replicas = Replicas::start_on(dir.clone(), (primary, wire.port), 3, "", str::to_owned)?;
    let standby = replicas.postgres.start_standby(&dir.join("standby.log"))?;
    let site = replicas.connect("standby", &apiserver.kubeconfig, "h2", "")?;
    let (owner, token) = (replicas.owner()?, replicas.owner_for(&site.id.audience())?);
    known_everywhere(&replicas, &site, &token)?;
    let group = |name: usize| {
        format!("/subscriptions/{}/resourceGroups/s{name}?api-version=2021-04-01", replicas.text("subscription"))
    };
    let (stop, counts, written) = (AtomicBool::new(false), Counts::default(), Mutex::new(Vec::new()));
    let refused = AtomicUsize::new(0);
    let write = || {
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let start = Instant::now();
            let at = replicas.address(number % replicas.count());
            match replicas.call(at, &owner, "PUT", &group(number), &json!({"location": "local"})) {
                Ok(said) if matches!(said.status, 200 | 201) => written.lock().unwrap().push(number),
                Ok(said) if said.status == 503 && said.header("retry-after").is_some() => {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                other => counts.said.lock().unwrap().push(format!("PUT: {:?}", other.map(|said| said.head))),
            }
            pause_after(start);
        }
    };
    // Each replica has written again.
    let all_write = |what: &str| {
        let before = written.lock().unwrap().len();
        eventually(what, Duration::from_secs(90), || {
            let written = written.lock().unwrap();
            let later = &written[before..];
            Ok((0..replicas.count()).all(|replica| later.iter().any(|number| number % replicas.count() == replica)))
        })
        .with_context(|| replicas.tails())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load(&replicas, &site, &token, &stop, &counts));
        scope.spawn(write);
        let outcome = (|| {
            all_write("groups are written")?;
            replicas.postgres.fail()?;
            eventually("the API says that it cannot", Duration::from_secs(60), || Ok(of(&refused) > 0))?;
            more(&counts, 20).context("without a database")?;
            standby.promote()?;
            wire.lead_to(standby.port());
            eprintln!("   {:?} until all write to the standby", all_write("groups are written at the standby")?);
            more(&counts, 20)?;
            wire.lose_all();
            eprintln!("   {:?} until all write on other connections", all_write("groups are written again")?);
            more(&counts, 20)
        })();
        stop.store(true, Ordering::Relaxed);
        outcome
    })
    .with_context(|| replicas.tails())?;
    let (good, failed) = (of(&counts.good), of(&counts.failed));
    let written = written.into_inner().unwrap();
    eprintln!("   {good} answered, {failed} failed, {} groups, {} refused", written.len(), of(&refused));
    let said = told(&counts);
    ensure!(failed == 0 && !said.keys().any(|said| said.starts_with("PUT")), "{failed} of {good} failed: {said:#?}");
    for number in written {
        let said = replicas.call(replicas.address(0), &owner, "GET", &group(number), &Value::Null)?;
        ensure!(said.status == 200, "group {number} is lost: {}", said.head);
    }
    for number in 0..replicas.count() {
        let log = std::fs::read_to_string(dir.join(format!("{}.log", replicas.name(number))))?;
        ensure!(log.contains("everything is read anew"), "{} did not see the promotion", replicas.name(number));
    }
    let numbers = "SELECT count(*) = count(DISTINCT number) AND count(*) = max(number) FROM events";
    let numbered = standby.administer(&format!("psql -Atc '{numbers}' towline"))?;
    ensure!(numbered.trim() == "t", "events are not numbered from 1, each once");
    Ok(())
}

/// Statements that the server counts, of three replicas with a cluster and nothing to do: at most four for each renewal
/// of a lease, which is every two seconds.
fn idle() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("replicas-idle-apiserver"))?;
    let replicas = Replicas::start("replicas-idle", 3, "")?;
    let site = replicas.connect("idle", &apiserver.kubeconfig, "h2", "")?;
    holders(&replicas, &site, 2)?;
    let ask = |sql: &str| replicas.postgres.administer(&format!("psql -AtF '|' -c \"{sql}\" postgres"));
    ask("CREATE EXTENSION pg_stat_statements")?;
    let counted = || -> anyhow::Result<(usize, usize, String)> {
        let of_towline = "FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = 'towline'";
        let all = ask(&format!("SELECT calls, regexp_replace(query, '\\s+', ' ', 'g') {of_towline} ORDER BY 1 DESC"))?;
        let count = |line: &str| line.split_once('|').and_then(|(calls, _)| calls.parse::<usize>().ok());
        let renewals = all.lines().filter(|line| line.contains("UPDATE replicas SET renewed_ms"));
        Ok((all.lines().filter_map(count).sum(), renewals.filter_map(count).sum(), all))
    };
    let stretch = || -> anyhow::Result<(usize, usize, String)> {
        ask("SELECT pg_stat_statements_reset()")?;
        eventually("leases are renewed", Duration::from_secs(120), || Ok(counted()?.1 >= 30))?;
        counted()
    };
    // What the start, the cluster and its agent had to say may be in the first stretch.
    let mut seen = String::new();
    for _ in 0..3 {
        let (all, renewals, statements) = stretch()?;
        seen += &format!("{all} statements, {renewals} renewals:\n{statements}\n");
        if all <= 4 * renewals {
            eprintln!("   {seen}");
            return Ok(());
        }
    }
    anyhow::bail!("idle replicas send more than two statements a second: {seen}")
}

/// The database has another password, and later its connections break: all of them are made again with the password that
/// the file has by then, and with no other.
fn rotated() -> anyhow::Result<()> {
    const OLD: &str = "a-pass-word-of-replicas";
    const NEW: &str = "a-rotated-pass-word-of-replicas";
    note_secret(NEW)?;
    let replicas = Replicas::start("replicas-rotated", 2, "")?;
    let owner = replicas.owner()?;
    let ask = |sql: &str| replicas.postgres.administer(&format!("psql -Atc \"{sql}\" postgres"));
    let pids = || -> anyhow::Result<BTreeSet<String>> {
        let said = ask("SELECT pid FROM pg_stat_activity WHERE usename = 'towline'")?;
        Ok(said.lines().map(str::to_owned).collect())
    };
    let logs = |number: usize, part: &str| -> anyhow::Result<bool> {
        let log = replicas.dir.join(format!("{}.log", replicas.name(number)));
        Ok(std::fs::read_to_string(log)?.contains(part))
    };
    // Replaced at once, and readable by its owner alone as the one before.
    let write = |number: usize, edit: &dyn Fn(&str) -> String| -> anyhow::Result<()> {
        let file = replicas.folder(number).join("postgres.url");
        let next = file.with_extension("next");
        std::fs::copy(&file, &next)?;
        std::fs::write(&next, edit(&std::fs::read_to_string(&file)?))?;
        Ok(std::fs::rename(next, file)?)
    };
    let make = |number: usize, name: &str| -> anyhow::Result<bool> {
        let path =
            format!("/subscriptions/{}/resourceGroups/{name}?api-version=2021-04-01", replicas.text("subscription"));
        let said = replicas.call(replicas.address(number), &owner, "PUT", &path, &json!({"location": "local"}))?;
        Ok(matches!(said.status, 200 | 201) && said.header("x-towline-unconfirmed-by").is_none())
    };
    ask(&format!("ALTER ROLE towline PASSWORD '{NEW}'"))?;
    // A file that is not readable as an address changes nothing.
    write(0, &|url| url.replace("sslmode=verify-full", "sslmode=perhaps"))?;
    eventually("the unreadable address is refused", Duration::from_secs(30), || {
        logs(0, "cannot be used; the former one stays")
    })
    .with_context(|| replicas.tails())?;
    write(0, &|url| url.replace("sslmode=perhaps", "sslmode=verify-full"))?;
    let before = pids()?;
    for number in 0..replicas.count() {
        write(number, &|url| url.replace(OLD, NEW))?;
    }
    for number in 0..replicas.count() {
        eventually("the address is taken", Duration::from_secs(30), || {
            logs(number, "new connections to the database are made")
        })
        .with_context(|| replicas.tails())?;
    }
    ensure!(!before.is_disjoint(&pids()?), "no connection went on");

    // What was tried with the old password before it was replaced is no matter.
    let server_log = replicas.dir.join("postgres.log");
    let tried = std::fs::read_to_string(&server_log)?.len();
    ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'towline'")?;
    for number in 0..replicas.count() {
        eventually("a write is confirmed by all", Duration::from_secs(60), || make(number, &format!("g{number}")))
            .with_context(|| replicas.tails())?;
    }
    // The connections that renew leases and that hear of writes are not of the pool.
    eventually("leases are renewed and writes are heard", Duration::from_secs(25), || {
        let count = |query: &str| -> anyhow::Result<bool> {
            let of = format!("FROM pg_stat_activity WHERE usename = 'towline' AND query LIKE '{query}'");
            Ok(ask(&format!("SELECT count(*) {of}"))?.trim() == replicas.count().to_string())
        };
        Ok(count("%SET renewed_ms%")? && count("LISTEN%")?)
    })
    .with_context(|| replicas.tails())?;
    let log = std::fs::read_to_string(&server_log)?;
    ensure!(!log[tried..].contains("authentication failed"), "{}", &log[tried..]);
    for number in 0..replicas.count() {
        let told = logs(number, NEW)? || logs(number, OLD)?;
        ensure!(!told, "the log of {} has a password", replicas.name(number));
    }
    Ok(())
}

/// A copy is made while three serve, and put back while none does: what came later is gone at all of them, agents come
/// back, and leases of the copy are no one's.
fn restored() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("replicas-restored-apiserver"))?;
    let replicas = Replicas::start("replicas-restored", 3, "")?;
    let site = replicas.connect("restored", &apiserver.kubeconfig, "h2", "")?;
    let owner = replicas.owner()?;
    known_everywhere(&replicas, &site, &replicas.owner_for(&site.id.audience())?)?;
    let group = |name: &str| {
        format!("/subscriptions/{}/resourceGroups/{name}?api-version=2021-04-01", replicas.text("subscription"))
    };
    let make = |number: usize, name: &str| -> anyhow::Result<()> {
        let at = replicas.address(number);
        let said = replicas.call(at, &owner, "PUT", &group(name), &json!({"location": "local"}))?;
        ensure!(matches!(said.status, 200 | 201), "{name}: {}", said.head);
        Ok(())
    };
    make(0, "before")?;
    let dump = replicas.dir.join("towline.dump").display().to_string();
    replicas.postgres.administer(&format!("pg_dump --format=custom --file='{dump}' towline"))?;
    make(1, "after")?;
    (0..replicas.count()).try_for_each(|number| replicas.stop(number))?;
    replicas
        .postgres
        .administer(&format!("pg_restore --clean --if-exists --single-transaction --dbname=towline '{dump}'"))?;
    (0..replicas.count()).try_for_each(|number| replicas.start_again(number))?;
    let owner = replicas.owner()?;
    known_everywhere(&replicas, &site, &replicas.owner_for(&site.id.audience())?)?;
    for number in 0..replicas.count() {
        for (name, status) in [("before", 200), ("after", 404)] {
            let said = replicas.call(replicas.address(number), &owner, "GET", &group(name), &Value::Null)?;
            ensure!(said.status == status, "{name} at {}: {}", replicas.name(number), said.head);
        }
    }
    // A write at one is known by all, and nobody who is gone is waited for.
    let said = replicas.call(replicas.address(2), &owner, "PUT", &group("later"), &json!({"location": "local"}))?;
    ensure!(said.status == 201 && said.header("x-towline-unconfirmed-by").is_none(), "{}", said.head);
    let told: Value = serde_json::from_str(&replicas.command(0, &["replicas"])?)?;
    ensure!(told["replicas"].as_array().is_some_and(|rows| rows.len() == 3), "{told}");
    Ok(())
}
