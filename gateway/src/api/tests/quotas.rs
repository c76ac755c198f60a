//! What one tenant may take of what all share: the document of a cluster, and the work of decisions.

use super::*;
use crate::{
    random,
    resources::{self, enrolment_token, role_assignment, role_definition},
};

/// A definition of a role that may be assigned at a scope, with `patterns` data actions of 500 bytes.
fn large(scope: &str, name: &str, patterns: usize) -> Value {
    let actions: Vec<String> = (0..patterns).map(|n| format!("a/{}{n:0>10}/read", "x".repeat(483))).collect();
    json!({"properties": {"roleName": name, "assignableScopes": [scope], "permissions": [{"dataActions": actions}]}})
}

/// Stored as if it had been written before there were bounds: past the API.
async fn keep(site: &Bench, kind: &str, id: String, parent: &str, body: Value) {
    let stored = crate::store::resources::Stored {
        key: id.to_ascii_lowercase(),
        kind: kind.to_ascii_lowercase(),
        parent: parent.to_ascii_lowercase(),
        id,
        revision: 0,
        body,
        protected: None,
    };
    let batch = crate::store::batch::Batch {
        puts: vec![(stored, crate::store::batch::Expect::Any)],
        ..crate::store::batch::Batch::default()
    };
    site.control.write(&batch).await.unwrap().unwrap();
}

#[tokio::test]
async fn roles_beyond_the_bounds_of_patterns_are_refused() {
    let site = Bench::new().await;
    let top = format!("/subscriptions/{SUBSCRIPTION}");
    let put = async |actions: Vec<String>| {
        let role =
            json!({"properties": {"roleName": "r", "assignableScopes": [top], "permissions": [{"actions": actions}]}});
        site.call("owner", "PUT", &role_path(&top, &random::guid()), Some(role)).await
    };
    let wild = |n: usize| (0..n).map(|n| format!("A.B{n}/*/read")).collect::<Vec<_>>();
    let stars = |n: usize| vec![format!("A.B/{}read", "*x/".repeat(n))];
    for (bad, says) in [
        (wild(201), "at most 200 actions with a *"),
        (stars(9), "at most 8 times a *"),
        ((0..200).map(|n| format!("A.B/{}{n}", "x".repeat(400))).collect(), "at most 65536 characters"),
    ] {
        let refused = put(bad).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidActionOrNotAction"), "{}", refused.body);
        assert!(refused.body["error"]["message"].as_str().unwrap().contains(says), "{}", refused.body);
    }
    let scopes: Vec<String> = (0..101).map(|n| format!("{top}/resourceGroups/g{n}")).collect();
    let role = json!({"properties": {"roleName": "r", "assignableScopes": scopes, "permissions": []}});
    let refused = site.call("owner", "PUT", &role_path(&top, &random::guid()), Some(role)).await;
    assert_eq!((refused.status, refused.code()), (400, "InvalidAssignableScopes"), "{}", refused.body);
}

#[tokio::test]
async fn roles_of_a_namespace_have_a_quota_of_the_clusters_document() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let namespace = format!("{}/namespaces/dev", cluster_id("g", "c"));
    let mut refused = None;
    for n in 0..20 {
        let guid = random::guid();
        let role = large(&namespace, &format!("r{n}"), 125);
        let made = site.call("owner", "PUT", &role_path(&namespace, &guid), Some(role)).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let answer = site.assign("ann", &guid, &namespace, json!({})).await;
        if answer.status != 201 {
            refused = Some((n, guid, answer));
            break;
        }
    }
    let (n, _, answer) = refused.expect("twenty large roles are too much for one namespace");
    assert_eq!((answer.status, answer.code(), n), (409, "RoleAssignmentLimitExceeded", 4), "{}", answer.body);
    assert!(answer.body["error"]["message"].as_str().unwrap().contains("the quota of a scope is 262144"));
    // Others assign theirs as before, and so does this one what is small.
    let other = format!("{}/namespaces/prod", cluster_id("g", "c"));
    assert_eq!(site.assign("ann", CLUSTER_USER, &other, json!({})).await.status, 201);
    assert_eq!(site.assign("ann", CLUSTER_USER, &namespace, json!({})).await.status, 201);
}

/// A small role is assigned, and made large afterwards.
#[tokio::test]
async fn a_role_that_grows_where_it_is_assigned_has_the_same_quota() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let namespace = format!("{}/namespaces/dev", cluster_id("g", "c"));
    let guids: Vec<String> = (0..5).map(|_| random::guid()).collect();
    let put = async |n: usize, patterns: usize| {
        let path = role_path(&namespace, &guids[n]);
        site.call("owner", "PUT", &path, Some(large(&namespace, &format!("r{n}"), patterns))).await
    };
    for (n, guid) in guids.iter().enumerate() {
        assert_eq!(put(n, 1).await.status, 201);
        assert_eq!(site.assign("ann", guid, &namespace, json!({})).await.status, 201);
    }
    for n in 0..4 {
        assert_eq!(put(n, 125).await.status, 200);
    }
    let refused = put(4, 125).await;
    assert_eq!((refused.status, refused.code()), (409, "RoleDefinitionLimitExceeded"), "{}", refused.body);
    assert_eq!(put(0, 2).await.status, 200, "smaller is always fine");
    assert_eq!(put(4, 125).await.status, 200);
}

/// What was kept before there was a quota, or by two writes at once: the cluster's document has all the rest, and what
/// is withdrawn is gone from it.
#[tokio::test]
async fn a_cluster_whose_roles_are_too_large_still_hears_of_withdrawals() {
    let site = Bench::new().await;
    site.group("g").await;
    let mut body = new_cluster();
    body["properties"]["aadProfile"] = json!({"enableAzureRBAC": true});
    let made = site.call("owner", "PUT", &cluster("g", "c"), Some(body)).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let (id, at) = (cluster_id("g", "c"), cluster_id("g", "c").parse().unwrap());
    let heavy = format!("{id}/namespaces/heavy");
    for n in 0..20 {
        let (guid, assignment) = (random::guid(), random::guid());
        let definition = format!("{heavy}/providers/{}/{guid}", role_definition::NAME);
        keep(&site, role_definition::NAME, definition.clone(), &id, large(&heavy, &format!("r{n}"), 500)).await;
        let body =
            json!({"properties": {"principalId": "eve", "principalType": "User", "roleDefinitionId": definition}});
        keep(&site, role_assignment::NAME, format!("{heavy}/providers/{ASSIGNMENTS}/{assignment}"), &id, body).await;
    }
    const VIEWER: &str = "63f0a09d-1495-4db4-a681-037d84835eb4";
    let given = site.assign("ann", VIEWER, &format!("{id}/namespaces/dev"), json!({})).await;
    assert_eq!(given.status, 201, "{}", given.body);
    let document = || {
        let mut document = site.control.directory().document(&at);
        assert!(serde_json::to_string(&document).unwrap().len() > auth::rbac::snapshot::DOCUMENT_BYTES);
        let omitted = document.fit().unwrap();
        assert_eq!(omitted.scopes, [heavy.to_ascii_lowercase()]);
        assert!(serde_json::to_string(&document).unwrap().len() <= auth::rbac::snapshot::DOCUMENT_BYTES);
        document.assignments.iter().filter(|one| one.scope.ends_with("/dev")).count()
    };
    assert_eq!(document(), 1);
    let path = format!("{}?api-version=2022-04-01", given.body["id"].as_str().unwrap());
    assert_eq!(site.call("owner", "DELETE", &path, None).await.status, 200);
    assert_eq!(document(), 0);
}

/// A caller's own text is compared with the patterns of no role.
#[tokio::test]
async fn what_is_unknown_is_refused_before_it_is_authorised() {
    let site = Bench::new().await;
    site.group("g").await;
    let long = "x".repeat(200);
    let held = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers");
    for (method, path, code) in [
        ("POST", format!("/subscriptions/{SUBSCRIPTION}/providers/{long}/register"), "InvalidResourceNamespace"),
        ("GET", format!("{held}/{long}/{long}"), "InvalidResourceType"),
        ("GET", format!("{held}/{long}/{long}/n"), "InvalidResourceType"),
        ("PUT", format!("{held}/{long}/{long}/n"), "InvalidResourceType"),
        ("DELETE", format!("{held}/{long}/{long}/n"), "InvalidResourceType"),
        ("POST", format!("{held}/{long}/{long}/n/act"), "InvalidResourceType"),
    ] {
        // Nobody's right, and the same answer as to the owner.
        for user in ["stranger", "owner"] {
            let body = (method == "PUT").then(|| json!({}));
            let refused = site.call(user, method, &format!("{path}?{VERSION}"), body).await;
            assert_eq!((refused.status, refused.code()), (404, code), "{user} {method} {path}: {}", refused.body);
        }
    }
    let endless = format!("/subscriptions/{SUBSCRIPTION}/providers/{}/register?{VERSION}", "x".repeat(31 * 1024));
    let refused = site.call("stranger", "POST", &endless, None).await;
    assert_eq!((refused.status, refused.code()), (400, "InvalidResourceId"), "{}", refused.body);
    let query = format!("{}&a={}", group("g"), "x".repeat(17 * 1024));
    assert_eq!(site.call("owner", "GET", &query, None).await.status, 414);
}

/// A list decides about each of its rows.
#[tokio::test]
async fn a_list_shows_what_is_read_one_by_one_whatever_roles_there_are() {
    let site = Bench::new().await;
    site.group("g").await;
    for name in ["a", "b", "c"] {
        site.cluster("g", name).await;
    }
    assert_eq!(site.assign("ann", READER, &cluster_id("g", "b"), json!({})).await.status, 201);
    let list = format!("/subscriptions/{SUBSCRIPTION}/providers/{CLUSTERS}?{VERSION}");
    let shown = site.call("ann", "GET", &list, None).await;
    let names = shown.body["value"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["b"], "{}", shown.body);
}

/// Bounds that no test comes to.
const WIDE: Quota = Quota { resources: 1_000_000, mib: 1_000_000, operations: 1_000_000 };

/// Who may connect clusters in a group could make as many as they liked, and fill the database of everybody.
#[tokio::test]
async fn group_that_is_full_takes_no_more_resources_and_others_do() {
    let site = Bench::with_quotas(Quota { resources: 3, ..WIDE }, WIDE).await;
    site.group("g").await;
    site.group("h").await;
    for name in ["a", "b", "c"] {
        assert_eq!(site.cluster("g", name).await.status, 201);
    }
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    let refused = site.cluster("g", "d").await;
    assert_eq!((refused.status, refused.code()), (409, "QuotaExceeded"), "{}", refused.body);
    let says = "The resource group 'g' holds 3 resources, and 3 is the limit. Delete resources there";
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with(says) && message.contains("group_resources of [api.quotas]"), "{message}");
    // A token would be one more, and so would the cluster that it is for.
    let path = format!("{scope}/createEnrolmentToken?api-version=2024-03-01");
    let token = site.call("owner", "POST", &path, Some(json!({}))).await;
    assert_eq!((token.status, token.code()), (409, "QuotaExceeded"), "{}", token.body);
    let role = site.assign("ann", ONBOARDING, &scope, json!({})).await;
    assert_eq!((role.status, role.code()), (409, "QuotaExceeded"), "{}", role.body);
    // Others have theirs, and what is there can be changed.
    assert_eq!(site.cluster("h", "d").await.status, 201);
    assert_eq!(site.cluster("g", "a").await.status, 200);
    assert_eq!(site.call("owner", "GET", &cluster("g", "c"), None).await.status, 200);
    // It is what the store has that counts.
    let site = site.restart().await;
    assert_eq!(site.cluster("g", "d").await.code(), "QuotaExceeded");
    let gone = site.call("owner", "DELETE", &cluster("g", "b"), None).await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    known(&site).await;
    assert_eq!(site.cluster("g", "d").await.status, 201, "there is room again");
    assert_eq!(site.cluster("g", "e").await.code(), "QuotaExceeded");
}

/// A tenant that wrote and deleted filled the table of operations, which all share.
#[tokio::test]
async fn operations_of_a_day_are_bounded_and_changes_and_deletions_go_on() {
    let site = Bench::with_quotas(Quota { operations: 4, ..WIDE }, WIDE).await;
    site.group("g").await;
    site.group("h").await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        let made = site.cluster("g", name).await;
        assert!(made.status == 201 && made.headers.contains_key("azure-asyncoperation"), "{}", made.body);
    }
    // What takes an operation to delete is not created without one.
    let refused = site.cluster("g", "e").await;
    assert_eq!((refused.status, refused.code()), (409, "QuotaExceeded"), "{}", refused.body);
    let says = "'e' is not written: more than 4 operations of the resource group 'g' would have begun within 24 hours, which is the limit. There is room again at 2027-01-16T08:00:00";
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with(says) && message.contains("group_operations of [api.quotas]"), "{message}");
    // A change needs none where the answer says how it ended.
    let changed = site.cluster("g", "a").await;
    assert_eq!(
        (changed.status, changed.headers.contains_key("azure-asyncoperation")),
        (200, false),
        "{}",
        changed.body
    );
    // Whatever somebody has begun here, what is there can be taken away.
    for name in names {
        let gone = site.call("owner", "DELETE", &cluster("g", name), None).await;
        assert_eq!(gone.status, 202, "{}", gone.body);
        assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    }
    // Others have their own room.
    assert!(site.cluster("h", "a").await.headers.contains_key("azure-asyncoperation"));
    site.clock_ms.fetch_add(24 * 3600 * 1000, Ordering::SeqCst);
    assert_eq!(site.cluster("g", "e").await.status, 201);
}

/// Waits until the quotas have counted all that the store has. A deletion is shown as done a moment before that.
async fn known(site: &Bench) {
    let revision = site.control.store.revision().await.unwrap();
    site.control.caught_up(revision).await;
}

#[tokio::test]
async fn subscription_that_is_full_takes_no_more_whatever_its_groups_have() {
    let site = Bench::with_quotas(WIDE, Quota { resources: 4, ..WIDE }).await;
    site.group("g").await;
    site.group("h").await;
    assert_eq!((site.cluster("g", "a").await.status, site.cluster("h", "b").await.status), (201, 201));
    for refused in [
        site.cluster("h", "c").await,
        site.call("owner", "PUT", &group("i"), Some(json!({"location": "eastus"}))).await,
    ] {
        assert_eq!((refused.status, refused.code()), (409, "QuotaExceeded"), "{}", refused.body);
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("The subscription '{SUBSCRIPTION}' holds 4 resources")), "{message}");
    }
    // A group goes with all that it has.
    let gone = site.call("owner", "DELETE", &group("h"), None).await;
    assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
    known(&site).await;
    assert_eq!((site.cluster("g", "c").await.status, site.cluster("g", "d").await.status), (201, 201));
    assert_eq!(site.cluster("g", "e").await.code(), "QuotaExceeded");
}

/// A few large ones take as much as many.
#[tokio::test]
async fn group_whose_resources_are_too_large_may_only_make_them_smaller() {
    let site = Bench::with_quotas(Quota { mib: 1, ..WIDE }, WIDE).await;
    site.group("g").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    assert_eq!(site.assign("eve", ONBOARDING, &scope, json!({})).await.status, 201);
    let large = |tags: usize| {
        let mut body = new_cluster();
        let names = (0..tags).map(|n| format!("{n:0>2}{}", "\u{1d11e}".repeat(510)));
        body["tags"] =
            names.map(|name| (name, json!("\u{1d11e}".repeat(256)))).collect::<serde_json::Map<_, _>>().into();
        body
    };
    let put = async |n: usize, tags| site.call("eve", "PUT", &cluster("g", &format!("c{n}")), Some(large(tags))).await;
    let mut made = 0;
    let refused = loop {
        let answer = put(made, 50).await;
        if answer.status != 201 {
            break answer;
        }
        made += 1;
    };
    // Each has 50 tags of 3 KiB.
    assert_eq!((refused.status, refused.code(), made), (409, "QuotaExceeded", 6), "{}", refused.body);
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("and 1048576 (1 MiB) is the limit") && message.contains("group_mib"), "{message}");
    assert_eq!(put(made, 1).await.status, 201, "a small one has room");
    assert_eq!(put(made, 50).await.code(), "QuotaExceeded", "and may not grow beyond it");
    assert_eq!(put(0, 25).await.status, 200);
    assert_eq!(put(made, 25).await.status, 200, "what one gives up another one may have");
    assert_eq!(site.call("owner", "GET", &cluster("g", "c0"), None).await.status, 200);
}

/// A request that has one page alone.
struct OnePage;

impl resources::Paging for OnePage {
    fn rows(&self) -> Result<u32, ApiError> {
        Ok(1)
    }

    fn after(&self) -> Result<String, ApiError> {
        Ok(String::new())
    }

    fn link(&self, _: &str) -> Result<String, ApiError> {
        Ok(String::new())
    }
}

/// One gateway creates them one after the other, and several on one database do not wait for each other.
#[tokio::test]
async fn enrolment_tokens_at_once_are_no_more_than_may_be() {
    const MOST: u64 = 500;
    let site = Bench::new().await;
    site.group("g").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    let resource = site.control.store.get(&scope.to_ascii_lowercase()).await.unwrap().unwrap();
    let (body, caller) = (serde_json::Map::new(), Caller::of(&site.identity("owner", URL).await));
    let acting = resources::Acting {
        resource: &resource,
        action: enrolment_token::CREATE,
        version: "2024-03-01",
        body: &body,
        caller: &caller,
        control: &site.control,
        now_ms: site.control.now_ms(),
        paging: &OnePage,
    };
    let key = |made: &Value| format!("{scope}/providers/{}/{}", enrolment_token::KIND, made["id"].as_str().unwrap());
    let first = enrolment_token::act(&acting).await.unwrap();
    site.copied(&key(&first), MOST - 2).await;
    for round in 0..5 {
        let answers = futures_util::future::join_all((0..4).map(|_| enrolment_token::act(&acting))).await;
        let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!((made.len(), refused.len()), (1, 3), "round {round}");
        for error in refused.into_iter().filter_map(Result::err) {
            assert_eq!((error.status.as_u16(), error.detail.code.as_str()), (409, "QuotaExceeded"));
        }
        let key = key(made[0].as_ref().unwrap()).to_ascii_lowercase();
        site.control.store.delete(&key, crate::store::batch::Expect::Any).await.unwrap().unwrap();
    }
}
