//! The last owner stays, whichever way they would go.

use super::*;
use crate::{
    issuer::{Issuer, IssuerSettings, PRINCIPALS_FILE, Principals, principals::SECRET_LIFE},
    owners,
    store::batch::{Batch, Expect},
};

const PRINCIPALS: &str = "/providers/Microsoft.Authorization/servicePrincipals";

impl Bench {
    /// Gives the role Owner at the subscription, as `recover-owner` does; the path of the assignment.
    async fn owner(&self, object_id: &str, ends: Option<&str>) -> String {
        let mut given = owners::assignment(SUBSCRIPTION, object_id, SystemTime::now()).unwrap();
        if let Some(ends) = ends {
            given.body["properties"]["endDateTime"] = ends.into();
        }
        let path = format!("{}?api-version=2022-04-01", given.id);
        let batch = Batch { puts: vec![(given, Expect::Absent)], ..Batch::default() };
        let _ = self.control.write(&batch).await.unwrap().unwrap();
        path
    }
}

#[tokio::test]
async fn the_last_owners_assignment_is_neither_deleted_nor_given_an_end() {
    let site = Bench::owned_by(Vec::new()).await;
    let own = site.owner(&site.object_id("owner").await, None).await;
    let refused = |answer: &Answer| assert_eq!((answer.status, answer.code()), (409, "CannotRemoveLastOwner"));
    refused(&site.call("owner", "DELETE", &own, None).await);
    let mut body = site.call("owner", "GET", &own, None).await.body;
    for (name, value) in [("endDateTime", "2100-01-01T00:00:00Z"), ("startDateTime", "2099-01-01T00:00:00Z")] {
        let mut bounded = body.clone();
        bounded["properties"][name] = value.into();
        refused(&site.call("owner", "PUT", &own, Some(json!({"properties": bounded["properties"]}))).await);
    }
    body["properties"]["principalType"] = "Group".into();
    refused(&site.call("owner", "PUT", &own, Some(json!({"properties": body["properties"]}))).await);
    // One that ends does not count, nor one elsewhere.
    site.owner(&site.object_id("ann").await, Some("2100-01-01T00:00:00Z")).await;
    site.group("G").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/G");
    assert_eq!(site.assign("bob", owners::role(), &scope, json!({})).await.status, 201);
    refused(&site.call("owner", "DELETE", &own, None).await);
    site.owner(&site.object_id("cat").await, None).await;
    assert_eq!(site.call("owner", "DELETE", &own, None).await.status, 200);
}

/// Each of two owners took the other away at the same moment.
#[tokio::test]
async fn of_two_owners_who_remove_each_other_one_stays() {
    let site = Bench::owned_by(Vec::new()).await;
    let one = site.owner(&site.object_id("owner").await, None).await;
    let other = site.owner(&site.object_id("ann").await, None).await;
    let (a, b) = tokio::join!(site.call("ann", "DELETE", &one, None), site.call("owner", "DELETE", &other, None));
    let mut answers = [a.status, b.status];
    answers.sort_unstable();
    assert!(answers[0] == 200 && [403, 409].contains(&answers[1]), "{answers:?}");
}

#[tokio::test]
async fn the_last_owners_service_principal_stays_and_a_stale_id_is_no_owner() {
    let state = tempfile::tempdir().unwrap();
    let edit = |name: &str| {
        let made = Principals::edit(&state.path().join(PRINCIPALS_FILE), |all| {
            all.create(name, SECRET_LIFE, SystemTime::now())
        });
        made.unwrap().0.object_id
    };
    let (first, second) = (edit("owner"), edit("second"));
    let stale = "99999999-9999-4999-8999-999999999999".to_owned();
    let mut site = Bench::owned_by(vec![first, stale]).await;
    site.built_in = Some(Arc::new(
        Issuer::open(IssuerSettings {
            url: format!("{URL}/.towline/issuer"),
            state: state.path().to_owned(),
            ttl: Duration::from_secs(60),
            tenant: TENANT.to_owned(),
            api_audience: URL.to_owned(),
            audiences: Vec::new(),
            clients: Vec::new(),
        })
        .unwrap(),
    ));
    // Who asks owns it for a time only.
    site.owner(&site.object_id("ann").await, Some("2100-01-01T00:00:00Z")).await;
    let remove = async |name: &str| {
        let path = format!("{PRINCIPALS}/{name}?api-version=2022-04-01");
        let answer = site.call("ann", "DELETE", &path, None).await;
        (answer.status, answer.code().to_owned())
    };
    let refused = (409, "CannotRemoveLastOwner".to_owned());
    assert_eq!(remove("owner").await, refused);
    site.owner(&second, None).await;
    assert_eq!(remove("owner").await.0, 200);
    assert_eq!(remove("second").await, refused);
}
