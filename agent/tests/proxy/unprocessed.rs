//! What the apiserver did not process is sent again, whatever its method, and exactly once processed; anything else is
//! not.

use bytes::Bytes;
use futures_util::future::join_all;
use tunnel::exchange::KEPT_PER_BODY;

use crate::{
    frames::{Act, CANCEL, ENHANCE_YOUR_CALM, Frames, INTERNAL_ERROR, NO_ERROR, REFUSED_STREAM},
    harness::{Answer, Harness, answer, head},
};

/// Streams at once, few enough for one connection.
const WRITES: usize = 60;

fn body(number: usize) -> Bytes {
    Bytes::from(vec![u8::try_from(number).unwrap(); 1000 * number])
}

/// Concurrent writes, each with another body; every second one without a length.
async fn write_all(harness: &Harness) -> Vec<Answer> {
    let jane = harness.jane();
    join_all((1..=WRITES).map(|number| {
        let jane = &jane;
        async move {
            let length = (1000 * number).to_string();
            let mut headers = vec![("authorization", jane.as_str())];
            if number % 2 == 0 {
                headers.push(("content-length", &length));
            }
            let method = ["POST", "DELETE", "PATCH", "PUT"][number % 4];
            let mut stream = harness.open(&head(method, "/api/v1/namespaces/n/configmaps", &headers)).await;
            for chunk in body(number).chunks(7000) {
                stream.send.send(Bytes::copy_from_slice(chunk)).await.unwrap();
            }
            stream.send.finish().unwrap();
            answer(&mut stream.recv).await
        }
    }))
    .await
}

async fn all_are_processed_once(script: impl Fn(usize, u32) -> Act + Send + Sync + 'static) {
    let apiserver = Frames::start(script).await;
    let harness = Harness::new(apiserver.access()).await;
    for answer in write_all(&harness).await {
        assert_eq!((answer.status, answer.body.as_str(), answer.end), (200, "done", Ok(())), "{:?}", answer.refused_by);
    }
    let wanted: Vec<_> = (1..=WRITES).map(|number| body(number).to_vec()).collect();
    assert_eq!(apiserver.bodies(), wanted);
    // What is kept of bodies is given back.
    assert_eq!(harness.upstream.room().left(), tunnel::exchange::KEPT_IN_ALL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goaway_below_open_streams_loses_no_write() {
    for code in [NO_ERROR, ENHANCE_YOUR_CALM] {
        all_are_processed_once(move |connection, count| match (connection, count) {
            (0..3, 0..=5) => Act::Process,
            (0..3, 9) => Act::GoAway(5, code),
            (0..3, _) => Act::Ignore,
            _ => Act::Process,
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goaway_of_all_then_of_some_loses_no_write() {
    all_are_processed_once(|connection, count| match (connection, count) {
        (0..3, 0..=5) => Act::Process,
        (0..3, 9) => Act::GoAwayTwice(5, NO_ERROR),
        (0..3, _) => Act::Ignore,
        _ => Act::Process,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_streams_lose_no_write() {
    all_are_processed_once(|_, count| {
        if count <= WRITES as u32 && count.is_multiple_of(3) { Act::Reset(REFUSED_STREAM) } else { Act::Process }
    })
    .await;
}

async fn post(harness: &Harness) -> Answer {
    let jane = harness.jane();
    harness.send(&head("POST", "/api/v1/namespaces/n/configmaps", &[("authorization", &jane)]), b"write").await
}

/// It may have been carried out: a second one could be a second write.
#[tokio::test]
async fn writes_that_break_off_without_proof_are_sent_once() {
    for act in [Act::Reset(INTERNAL_ERROR), Act::Reset(CANCEL), Act::Break] {
        let apiserver = Frames::start(move |_, _| act).await;
        let harness = Harness::new(apiserver.access()).await;
        let answer = post(&harness).await;
        assert_eq!((answer.status, answer.refused_by.as_deref()), (502, Some("dial")));
        assert!(!answer.headers.contains_key("retry-after"), "clients repeat what has one");
        assert_eq!(apiserver.seen.lock().unwrap().heads, 1);
    }
}

/// Its stream is not above the last one of the GOAWAY, and the connection ends before the answer.
#[tokio::test]
async fn write_that_a_goaway_includes_is_sent_once() {
    let apiserver = Frames::start(|connection, count| match (connection, count) {
        (0, 1) => Act::Ignore,
        (0, 2) => Act::GoAway(1, NO_ERROR),
        (0, _) => Act::Break,
        _ => Act::Process,
    })
    .await;
    let harness = Harness::new(apiserver.access()).await;
    let first = post(&harness);
    let others = async {
        while apiserver.seen.lock().unwrap().heads < 1 {
            tokio::task::yield_now().await;
        }
        // The second is not processed there, but elsewhere.
        post(&harness).await
    };
    let closes = async {
        let (first, second) = futures_util::future::join(first, others).await;
        (first.status, second.status)
    };
    // The GOAWAY leaves the first one's stream open; nothing more comes on it, and its user gives up.
    tokio::select! {
        answered = closes => panic!("{answered:?}"),
        () = async {
            while apiserver.bodies().is_empty() {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    assert_eq!(apiserver.bodies(), [b"write"]);
    assert_eq!(apiserver.seen.lock().unwrap().heads, 3);
}

#[tokio::test]
async fn writes_that_are_always_refused_end_with_503() {
    let apiserver = Frames::start(|_, _| Act::Reset(REFUSED_STREAM)).await;
    let harness = Harness::new(apiserver.access()).await;
    let answer = post(&harness).await;
    assert_eq!((answer.status, answer.refused_by.as_deref()), (503, Some("dial")));
    assert_eq!(answer.headers["retry-after"], "1");
    let heads = apiserver.seen.lock().unwrap().heads;
    assert!((2..=10).contains(&heads), "{heads}");
}

/// The apiserver goes while the body is on its way; what was sent goes to the next one, and then the rest.
#[tokio::test]
async fn goaway_within_a_body_sends_what_was_sent_again() {
    let apiserver =
        Frames::start(|connection, _| if connection == 0 { Act::GoAwayWithin(4) } else { Act::Process }).await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let mut stream = harness.open(&head("POST", "/api", &[("authorization", &jane), ("content-length", "8")])).await;
    stream.send.send(Bytes::from_static(b"half")).await.unwrap();
    while apiserver.seen.lock().unwrap().heads < 2 {
        tokio::task::yield_now().await;
    }
    stream.send.send(Bytes::from_static(b"rest")).await.unwrap();
    stream.send.finish().unwrap();
    assert_eq!(answer(&mut stream.recv).await.status, 200);
    assert_eq!(apiserver.bodies(), [b"halfrest"]);
}

#[tokio::test]
async fn body_beyond_the_bound_is_refused_as_not_done() {
    let apiserver = Frames::start(
        |connection, _| {
            if connection == 0 { Act::GoAwayWithin(KEPT_PER_BODY + 1) } else { Act::Process }
        },
    )
    .await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let mut stream = harness.open(&head("POST", "/api", &[("authorization", &jane)])).await;
    let sent = async {
        let chunk = Bytes::from(vec![0; 64 * 1024]);
        for _ in 0..=KEPT_PER_BODY / chunk.len() {
            // The agent stops reading the body once the answer has begun.
            if stream.send.send(chunk.clone()).await.is_err() {
                break;
            }
        }
    };
    let (answer, ()) = futures_util::future::join(answer(&mut stream.recv), sent).await;
    assert_eq!((answer.status, answer.refused_by.as_deref()), (503, Some("dial")));
    assert_eq!(answer.headers["retry-after"], "1");
    assert!(answer.body.contains("nothing was done"), "{}", answer.body);
    assert!(apiserver.bodies().is_empty());
}
