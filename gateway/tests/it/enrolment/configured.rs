//! A cluster that the configuration file names has that one authority: the API neither creates nor enrols nor changes
//! it, and what the store has of the same id counts for nothing.

use gateway::{Gateway, config::Config};

use super::*;

/// `[[clusters]]` and a grant of `dev:ann` for each.
fn entries(ids: &[String]) -> String {
    let entry =
        |id: &String| format!("\n[[clusters]]\nid = \"{id}\"\n[[grants]]\ncluster = \"{id}\"\nusers = [\"dev:ann\"]\n");
    ids.iter().map(entry).collect()
}

fn config(ids: &[String]) -> String {
    world::config_with("authority_dir = \"authority\"", &(section("") + &entries(ids)))
}

/// The id in other letters: names are the same in any case.
fn shouted(name: &str) -> String {
    id(name).as_str().to_owned().replace("resourcegroups", "resourceGroups").replace(name, &name.to_uppercase())
}

fn resource(key: &str) -> Value {
    json!({
        "location": "here",
        "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": key},
    })
}

impl Site {
    async fn configure(&self, ids: &[String]) {
        self.world.reconfigure(&config(ids)).await.unwrap();
    }

    /// A request of `dev:ann` for a cluster, on its way.
    async fn ask(&self, name: &str) -> world::User {
        let token = self.world.issuer.token("ann", &[], &id(name).audience(), SystemTime::now());
        let mut user = self.world.user().await;
        user.send(world::get(&format!("/{}/version", id(name).key()), &token, "")).await;
        user
    }

    /// An agent whose certificate the operator made.
    async fn by_hand(&self, name: &str) -> Agent {
        let own = self.world.authority.issue_agent(id(name).as_str(), Validity::days(1)).unwrap();
        Agent { tunnel: self.world.dial(own.credentials()).await.unwrap() }
    }
}

#[tokio::test]
async fn configured_cluster_cannot_be_written_through_the_api() {
    let site = Site::new().await;
    site.configure(&[id("edge").as_str().to_owned()]).await;
    let key = Onboarding::new();
    for at in [id("edge").as_str().to_owned(), shouted("edge")] {
        let tags = json!({"tags": {"a": "b"}});
        for (method, body) in
            [("PUT", Some(resource(&key.public))), ("PUT", Some(resource(""))), ("PATCH", Some(tags)), ("DELETE", None)]
        {
            let refused = site.api(method, &at, body).await;
            assert_eq!(
                (refused.status, code(&refused).as_str()),
                (409, "ClusterInConfiguration"),
                "{method} {at}: {}",
                refused.text()
            );
            assert!(message(&refused).contains("[[clusters]]"), "{}", message(&refused));
        }
        assert_eq!(site.api("GET", &at, None).await.status, 404);
    }
    // Who may not write there learns nothing of it.
    let token = site.world.issuer.token("nobody", &[], URL, SystemTime::now());
    let target = format!("{}?api-version=2024-01-01", id("edge"));
    let refused = site.http("PUT", &target, Some(&token), Some(resource(&key.public)), None).await;
    assert_eq!((refused.status, code(&refused).as_str()), (403, "AuthorizationFailed"));
    // What it does not name is the API's, as ever.
    site.cluster("other", &key).await;
}

/// It would count for nothing, and for everything once the entry is gone.
#[tokio::test]
async fn role_at_a_configured_cluster_cannot_be_given() {
    const READER: &str = "acdd72a7-3385-48ef-bd42-f606fba81ae7";
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let at = |scope: &str, n: u32| {
        let name = format!("{n:08}-1111-4111-8111-111111111111");
        format!("{scope}/providers/Microsoft.Authorization/roleAssignments/{name}")
    };
    let given = json!({"properties": {
        "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{READER}"),
        "principalId": "dev:ann", "principalType": "User",
    }});
    let cluster = id("edge").as_str().to_owned();
    let put = async |target: String| {
        let target = format!("{target}?api-version=2022-04-01");
        let token = site.world.issuer.token("owner", &[], URL, SystemTime::now());
        site.http("PUT", &target, Some(&token), Some(given.clone()), None).await
    };
    let first = put(at(&cluster, 1)).await;
    assert_eq!(first.status, 201, "{}", first.text());
    site.configure(std::slice::from_ref(&cluster)).await;
    for (scope, n) in [(cluster.clone(), 1), (cluster.clone(), 2), (format!("{cluster}/namespaces/dev"), 3)] {
        let refused = put(at(&scope, n)).await;
        assert_eq!((refused.status, code(&refused).as_str()), (409, "ClusterInConfiguration"), "{scope}");
    }
    let group = cluster.split("/providers/").next().unwrap();
    assert_eq!(put(at(group, 4)).await.status, 201, "above it there are other clusters");
    // What was given before can be taken away.
    let target = format!("{}?api-version=2022-04-01", at(&cluster, 1));
    let token = site.world.issuer.token("owner", &[], URL, SystemTime::now());
    assert_eq!(site.http("DELETE", &target, Some(&token), None, None).await.status, 200);
}

/// Who may assign roles in a resource group let others reach a cluster of the operator's whose id lies in it.
#[tokio::test]
async fn role_above_a_configured_cluster_does_not_lead_to_it() {
    const CLUSTER_USER: &str = "00493d72-78f6-4148-b6c5-d3ce8e4799dd";
    let site = Site::new().await;
    let key = Onboarding::new();
    for name in ["edge", "other"] {
        site.cluster(name, &key).await;
    }
    let owner = site.world.issuer.token("owner", &[], URL, SystemTime::now());
    let group = id("edge").as_str().split("/providers/").next().unwrap().to_owned();
    for (n, scope) in [group.as_str(), group.split("/resource").next().unwrap()].into_iter().enumerate() {
        let assignments = "providers/Microsoft.Authorization/roleAssignments";
        let target = format!("{scope}/{assignments}/{n:08}-1111-4111-8111-111111111111?api-version=2022-04-01");
        let given = json!({"properties": {
            "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{CLUSTER_USER}"),
            "principalId": "dev:bob", "principalType": "User",
        }});
        let made = site.http("PUT", &target, Some(&owner), Some(given), None).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }
    let decide = async |name: &str, user: &str| {
        let token = site.world.issuer.token(user, &[], &id(name).audience(), SystemTime::now());
        let mut asking = site.world.user().await;
        asking.send(world::get(&format!("/{}/version", id(name).key()), &token, "")).await;
        asking.answer().await.status
    };
    assert_eq!((decide("edge", "bob").await, decide("other", "bob").await), (503, 503), "neither has an agent");
    site.configure(&[shouted("edge")]).await;
    assert_eq!((decide("edge", "bob").await, decide("other", "bob").await), (403, 503));
    assert_eq!((decide("edge", "ann").await, decide("edge", "owner").await), (503, 503), "by the configuration");
}

#[tokio::test]
async fn configured_cluster_cannot_be_enrolled_by_a_token() {
    let site = Site::new().await;
    let (named, any) = (site.token(json!({"name": "edge"})).await, site.token(json!({})).await);
    site.configure(&[shouted("edge")]).await;
    let key = Onboarding::new();
    let refused = site.join(&named, "Edge", &key).await;
    assert_eq!((refused.status, code(&refused).as_str()), (409, "ResourceExists"), "{}", refused.text());
    let refused = site.join(&any, "edge", &key).await;
    assert_eq!((refused.status, code(&refused).as_str()), (401, codes::INVALID_PROOF), "as a name that is taken");
    assert_eq!(site.api("GET", id("edge").as_str(), None).await.status, 404);
    site.configure(&[]).await;
    assert_eq!(site.join(&named, "edge", &key).await.status, 200, "what was refused did not use it up");
}

/// Somebody created it before the operator named it, or while the gateway of before took both.
#[tokio::test]
async fn stored_cluster_counts_for_nothing_once_it_is_configured() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let principal = site.cluster("edge", &key).await;
    let given = site.enrol("edge", &key).await;
    let mut off = resource(&key.public);
    off["properties"]["privateLinkState"] = json!("Enabled");
    site.put(id("edge").as_str(), off).await;
    let secret = json!({"properties": {
        "extensionType": "example.web", "configurationProtectedSettings": {"password": "hunter2-hunter2"},
    }});
    let web = format!("{}/providers/Microsoft.KubernetesConfiguration/extensions/web", id("edge"));
    let owner = site.world.issuer.token("owner", &[], URL, SystemTime::now());
    let made = site.http("PUT", &format!("{web}?api-version=2023-05-01"), Some(&owner), Some(secret), None).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let store = &site.world.gateway.core().control.as_ref().unwrap().store;
    let kept = store.get(&web.to_ascii_lowercase()).await.unwrap().unwrap();
    let tunnel = site.tunnel(&given).await;
    site.configure(&[shouted("edge")]).await;

    // Its agents are no agents of this cluster, on no way.
    assert_eq!(closed(&tunnel).await, CloseCode::Unauthorised);
    let refused = site.world.dial(&given.own).await.err().unwrap();
    let HelloError::Refused { code: CloseCode::Unauthorised, message, .. } = refused else { panic!("{refused}") };
    assert!(message.contains("configuration"), "{message}");
    let refused = site.try_enrol("edge", &key, "uid-of-edge").await.err().unwrap();
    assert_eq!((refused.status, code(&refused).as_str()), (401, codes::INVALID_PROOF));
    let challenge = site.challenge("edge").await;
    let signature = key.sign(&enrolled_message(&id("edge"), &challenge));
    let question = json!({"clusterId": id("edge").as_str(), "challenge": challenge, "signature": signature});
    assert_eq!(site.agents("enrolled", question).await.status, 401);
    let refused = site.api("PUT", id("edge").as_str(), Some(resource(&key.public))).await;
    assert_eq!((refused.status, code(&refused).as_str()), (409, "ClusterInConfiguration"));

    // The operator's agent gets the requests, whatever the resource says of cluster connect, and writes nothing into
    // it.
    let agent = site.by_hand("edge").await;
    for _ in 0..4 {
        let mut user = site.ask("edge").await;
        agent.next().await.answer(200, &[], "{}").await;
        assert_eq!(user.answer().await.status, 200);
    }
    let beat = json!({"agentVersion": "by-hand", "kubeSystemUid": "another"});
    assert_eq!(ask(&agent.tunnel, Method::POST, paths::HEARTBEAT, &beat).await.0, 200);
    let (_, wanted) = ask(&agent.tunnel, Method::GET, paths::DESIRED, &Value::Null).await;
    assert_eq!(wanted["clusterConnect"], true, "{wanted}");
    // Nor do they learn what lies below the resource, or say anything about it.
    let question = json!({"id": web, "protected": kept.body["object"]["protected"]});
    let (status, answer) = ask(&agent.tunnel, Method::POST, paths::PROTECTED, &question).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("ResourceNotFound")), "{answer}");
    let status = json!({"id": web, "generation": kept.body["object"]["generation"], "state": "Succeeded"});
    let (_, answer) = ask(&agent.tunnel, Method::POST, paths::STATUSES, &json!({"objects": [status]})).await;
    assert_eq!(answer["unknown"], json!([web]), "{answer}");
    assert!(store.told(&kept.key).await.unwrap().is_none(), "what it told of that is not kept");
    let line = json!({"id": web, "source": "pod", "position": {"nanos": 1, "nth": 1}, "level": "error"});
    assert_eq!(ask(&agent.tunnel, Method::POST, paths::OBJECT_LOGS, &json!({"lines": [line]})).await.0, 204);
    let (_, positions) = ask(&agent.tunnel, Method::GET, paths::OBJECT_LOGS, &Value::Null).await;
    assert_eq!(positions, json!({"sources": {}}), "no line of it is kept");
    let (_, objects) = ask(&agent.tunnel, Method::GET, paths::OBJECTS, &Value::Null).await;
    assert_eq!(objects["objects"], json!([]));
    let token = json!({"audience": URL, "extension": "web"});
    assert_eq!(ask(&agent.tunnel, Method::POST, paths::TOKEN, &token).await.0, 409);
    let shown = site.api("GET", id("edge").as_str(), None).await.json();
    assert_ne!(shown["properties"]["agentVersion"], "by-hand", "{shown}");
    let snapshot = site.world.gateway.core().snapshots.load();
    assert!(!snapshot.is_identity(&principal), "the identity of the resource is nobody's");
    assert_eq!(snapshot.cluster_count(), 3);

    // The operator gives it to the API.
    site.configure(&[]).await;
    assert_eq!(closed(&agent.tunnel).await, CloseCode::Unauthorised);
    site.tunnel(&given).await;
}

#[tokio::test]
async fn stored_cluster_counts_for_nothing_at_a_start() {
    let mut site = Site::new().await;
    let key = Onboarding::new();
    for name in ["edge", "other"] {
        site.cluster(name, &key).await;
    }
    site.world.stop().await;
    let file = site.world.dir.path().join("gateway.toml");
    let clusters = async |text: &str| {
        std::fs::write(&file, text).unwrap();
        let gateway = Gateway::build(Config::load(&file).unwrap(), Extras::default()).await.unwrap();
        let snapshot = gateway.handle().core().snapshots.load();
        gateway.handle().core().control.as_ref().unwrap().store.close().await;
        ["edge", "other"]
            .map(|name| snapshot.cluster(&id(name).key()).map(|cluster| cluster.agents.principal().is_some()))
    };
    assert_eq!(clusters(&config(&[shouted("edge")])).await, [Some(false), Some(true)]);
    // A subscription that is the configuration's no more takes its clusters with it: nobody could manage them.
    let moved = config(&[]).replace(SUBSCRIPTION, "99999999-9999-4999-8999-999999999999");
    assert_eq!(clusters(&moved).await, [None, None]);
}
