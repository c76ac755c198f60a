//! Texts mean themselves: statements, wildcards, NUL, characters beyond the first plane, in every place that takes one.

use gateway::store::{
    StoreError,
    batch::{BATCH_ENTRIES, Batch, Ended, Expect},
    operations::{Operation, Status},
    resources::Stored,
};
use serde_json::json;

use crate::{
    batch::operation,
    place::{CLUSTERS, GROUP, Place, cluster, group},
};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        statements_in_every_string_are_texts,
        nul_is_refused_by_name_before_the_database_is_asked,
        what_no_caller_may_write_is_refused,
    ]
}

const TEXTS: [&str; 14] = [
    "'; drop table resources; --",
    "\"; delete from resources; --",
    "' or '1'='1",
    "$1",
    "?1",
    ":a @b $c {text}",
    "%",
    "_",
    "\\",
    "\\' or 1=1 --",
    "/* */",
    "\u{1F980}\u{10FFFF}\u{301}\u{202E}",
    "\r\n\t\u{7f}\u{1}",
    "ﬀ İ ı ß \u{feff}",
];

async fn statements_in_every_string_are_texts(place: Place) {
    let store = place.with_group().await;
    for text in TEXTS {
        let mut stored = cluster(text);
        stored.kind = format!("{CLUSTERS}{text}").to_ascii_lowercase();
        stored.body = json!({ text: [text] });
        let mut of = group(text);
        of.kind = stored.kind.clone();
        let below = Stored { key: format!("{}/{text}", of.key), parent: of.key.clone(), ..stored.clone() };
        let begun = Operation {
            resource: text.to_owned(),
            work: json!({ text: text }),
            error: Some(json!(text)),
            ..operation(text)
        };
        let batch = Batch {
            puts: vec![(stored.clone(), Expect::Absent), (of.clone(), Expect::Absent), (below.clone(), Expect::Absent)],
            begins: vec![begun.clone()],
            ..Batch::default()
        };
        stored.revision = store.apply(&batch).await.unwrap().unwrap().revision;
        assert_eq!(store.get(&stored.key).await.unwrap().as_ref(), Some(&stored), "{text:?}");
        assert_eq!(store.page(&stored.kind, GROUP, "", 9).await.unwrap(), [stored.clone()], "{text:?}");
        assert_eq!(
            store.page(&stored.kind, "", &stored.key, 9).await.unwrap().len(),
            if of.key > stored.key { 2 } else { 0 }
        );
        assert_eq!(store.count(&stored.kind, &of.key).await.unwrap(), 1, "{text:?}");
        assert_eq!(store.children(&stored.kind, &of.key, "", 9).await.unwrap().len(), 1, "{text:?}");
        assert_eq!(store.operation(text).await.unwrap(), Some(begun), "{text:?}");
        let end = Ended { id: text.to_owned(), status: Status::Failed, error: Some(json!(text)), now_ms: 1 };
        let batch = Batch { deletes: vec![(of.key.clone(), Expect::Any)], ends: vec![end], ..Batch::default() };
        let applied = store.apply(&batch).await.unwrap().unwrap();
        assert_eq!(applied.deleted, 2, "{text:?}");
        assert_eq!(store.operation(text).await.unwrap().unwrap().status, Status::Failed, "{text:?}");
    }
    assert_eq!(store.count(CLUSTERS, "").await.unwrap(), 0);
    assert_eq!(store.forget_operations(2).await.unwrap(), TEXTS.len() as u64);
    for text in TEXTS {
        assert!(store.get(&cluster(text).key).await.unwrap().is_some(), "{text:?}");
    }
}

async fn nul_is_refused_by_name_before_the_database_is_asked(place: Place) {
    let store = place.with_group().await;
    let put = |stored: Stored| Batch { puts: vec![(stored, Expect::Any)], ..Batch::default() };
    let nul = "a\0b".to_owned();
    let end = Ended { id: nul.clone(), status: Status::Failed, error: None, now_ms: 1 };
    for batch in [
        put(cluster(&nul)),
        put(Stored { kind: nul.clone(), ..cluster("a") }),
        put(Stored { id: nul.clone(), ..cluster("a") }),
        put(Stored { parent: format!("/{nul}"), key: format!("/{nul}/c"), ..cluster("a") }),
        Batch { deletes: vec![(nul.clone(), Expect::Any)], ..Batch::default() },
        Batch { begins: vec![operation(&nul)], ..Batch::default() },
        Batch { begins: vec![Operation { resource: nul.clone(), ..operation("o") }], ..Batch::default() },
        Batch { ends: vec![end], ..Batch::default() },
    ] {
        let error = store.apply(&batch).await.unwrap_err();
        assert!(matches!(error, StoreError::Entry { .. }), "{error:?}");
        assert!(error.to_string().contains("NUL") && !error.to_string().contains('\0'), "{error}");
    }
    // Nothing of that name can be there.
    assert_eq!(store.get(&nul).await.unwrap(), None);
    assert_eq!(store.operation(&nul).await.unwrap(), None);
    for (kind, within, after) in [(&*nul, "", ""), ("k", &*nul, ""), ("k", "", &*nul)] {
        assert_eq!(store.page(kind, within, after, 9).await.unwrap(), []);
        assert_eq!(store.children(kind, within, after, 9).await.unwrap(), []);
    }
    assert_eq!((store.count(&nul, "").await.unwrap(), store.count("k", &nul).await.unwrap()), (0, 0));
    assert_eq!(store.revision().await.unwrap(), 1);
    // In a body it is JSON's \u0000.
    let mut stored = cluster("a");
    stored.body = json!({"\0": "\0"});
    stored.protected = Some(vec![0; 3]);
    store.put(&stored, Expect::Any).await.unwrap().unwrap();
    assert_eq!(store.get(&stored.key).await.unwrap().unwrap().body, stored.body);
}

async fn what_no_caller_may_write_is_refused(place: Place) {
    let store = place.with_group().await;
    for (stored, why) in [
        (Stored { key: cluster("A").id, ..cluster("A") }, "lower case"),
        (Stored { kind: "Microsoft.X/y".to_owned(), ..cluster("a") }, "lower case"),
        (Stored { parent: "/subscriptions/other".to_owned(), ..cluster("a") }, "its parent"),
        (Stored { key: format!("{GROUP}x"), ..cluster("a") }, "its parent"),
        (Stored { key: String::new(), parent: String::new(), ..cluster("a") }, "its parent"),
        (Stored { key: "g".to_owned(), parent: String::new(), ..cluster("a") }, "its parent"),
    ] {
        let error = store.put(&stored, Expect::Any).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let deletes = (0..=BATCH_ENTRIES).map(|n| (n.to_string(), Expect::Any)).collect();
    let error = store.apply(&Batch { deletes, ..Batch::default() }).await.unwrap_err().to_string();
    assert!(error.contains("too many"), "{error}");
    assert_eq!(store.revision().await.unwrap(), 1);
}
