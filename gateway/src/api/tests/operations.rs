//! Long-running operations of any kind: what is waited for, until when, and who goes on with them.

use futures_util::future::BoxFuture;

use super::*;
use crate::{
    control::work::{Step, WORKS, Work},
    store::{
        batch::Batch,
        operations::{Operation, Status},
    },
};

/// Work that ends when the cluster has done it, which it never does.
struct Install;

impl Work for Install {
    fn name(&self) -> &'static str {
        "install"
    }

    fn go_on<'a>(&'a self, control: &'a Arc<Control>, _: &'a Operation) -> BoxFuture<'a, Result<Step, String>> {
        Box::pin(async move { Ok(Step::Waits(control.now_ms() + 30_000)) })
    }

    fn waits_for(&self, _: &Control, _: &Operation) -> String {
        "The cluster has not said for 48 hours that it is installed.".to_owned()
    }
}

async fn begin(site: &Bench, kind: &str) -> Operation {
    let operation = Operation {
        id: crate::random::guid(),
        resource: cluster_id("g", "c").to_ascii_lowercase(),
        status: Status::InProgress,
        begun_ms: site.control.now_ms(),
        ended_ms: None,
        work: json!({"kind": kind}),
        due_ms: Some(site.control.now_ms() + DUE_MS),
        error: None,
    };
    site.control.write(&Batch { begins: vec![operation.clone()], ..Batch::default() }).await.unwrap().unwrap();
    operation
}

async fn status(site: &Bench, operation: &Operation) -> Status {
    site.control.store.operation(&operation.id).await.unwrap().unwrap().status
}

/// Until it has been looked at once: it then rests.
async fn looked_at(site: &Bench, operation: &Operation) {
    let waits = async || {
        let waiting = site.control.store.operations_waiting("install", site.control.now_ms(), 10).await.unwrap();
        waiting.iter().any(|one| one.operation.id == operation.id)
    };
    while waits().await {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn r10_what_waits_for_a_cluster_fails_when_it_is_due() {
    static WAITS: &[&dyn Work] = &[&Install];
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let operation = begin(&site, "install").await;
    let work = tokio::spawn(Arc::clone(&site.control).work(WAITS, site.shutdown.clone()));
    looked_at(&site, &operation).await;
    assert_eq!(status(&site, &operation).await, Status::InProgress);
    // A moment before it is due, and then.
    site.clock_ms.fetch_add(DUE_MS - 1, Ordering::SeqCst);
    looked_at(&site, &operation).await;
    assert_eq!(status(&site, &operation).await, Status::InProgress);
    site.clock_ms.fetch_add(1, Ordering::SeqCst);
    while status(&site, &operation).await == Status::InProgress {
        tokio::task::yield_now().await;
    }
    let failed = site.control.store.operation(&operation.id).await.unwrap().unwrap();
    assert_eq!(failed.status, Status::Failed);
    let error = failed.error.unwrap();
    assert_eq!(error["code"], "OperationTimedOut");
    assert_eq!(error["message"], "The cluster has not said for 48 hours that it is installed.");
    work.abort();
}

#[tokio::test]
async fn r10_work_of_a_newer_program_is_left_alone() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    assert!(WORKS.iter().all(|work| work.name() != "install"));
    let newer = begin(&site, "install").await;
    // What this program knows is carried out beside it, when it is due too.
    site.clock_ms.fetch_add(2 * DUE_MS, Ordering::SeqCst);
    let deleted = site.call("owner", "DELETE", &group("g"), None).await;
    let ended = site.ended("owner", deleted.header("azure-asyncoperation")).await;
    assert_eq!(ended.body["status"], "Succeeded");
    assert_eq!(status(&site, &newer).await, Status::InProgress);
}

#[tokio::test]
async fn r10_what_a_killed_process_was_at_is_gone_on_with_when_its_claim_ends() {
    let site = Bench::new().await;
    site.group("g").await;
    site.tasks[1].abort();
    let deleted = site.call("owner", "DELETE", &group("g"), None).await;
    let store = &site.control.store;
    let found = store.operations_waiting("delete", site.control.now_ms(), 1).await.unwrap().remove(0);
    let end = site.control.now_ms() + 60_000;
    assert!(store.claim_operation(&found, "killed", end).await.unwrap().is_some());
    let work = tokio::spawn(Arc::clone(&site.control).work(WORKS, site.shutdown.clone()));
    assert_eq!(status(&site, &found.operation).await, Status::InProgress);
    site.clock_ms.fetch_add(60_000, Ordering::SeqCst);
    let ended = site.ended("owner", deleted.header("azure-asyncoperation")).await;
    assert_eq!(ended.body["status"], "Succeeded");
    work.abort();
}
