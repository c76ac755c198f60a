//! What a request of ARM's clients means beyond its shape: older api-versions, tags of what is shown, lists that lose
//! nothing.

use futures_util::StreamExt;

use super::*;

const NEWEST: &str = "api-version=2026-05-01";
const AUTHORIZATION: &str = "api-version=2022-04-01";

fn newest(name: &str) -> String {
    format!("{}?{NEWEST}", cluster_id("g", name))
}

fn subscription() -> String {
    format!("/subscriptions/{SUBSCRIPTION}")
}

impl Bench {
    /// All that a list shows, page by page.
    async fn all(&self, user: &str, path: &str) -> Vec<Value> {
        let (mut next, mut value) = (Some(path.to_owned()), Vec::new());
        while let Some(path) = next {
            let page = self.call(user, "GET", &path, None).await;
            assert_eq!(page.status, 200, "{}", page.body);
            value.extend(page.body["value"].as_array().unwrap().iter().cloned());
            next = page.body["nextLink"].as_str().map(|link| link.strip_prefix(URL).unwrap().to_owned());
        }
        value
    }

    async fn names(&self, path: &str) -> Vec<String> {
        let name = |shown: Value| shown["name"].as_str().unwrap().to_owned();
        self.all("owner", path).await.into_iter().map(name).collect()
    }
}

/// A connection whose request was not read to its end is closed, and the client's next request met that: one in a
/// hundred refused writes broke the request behind it.
#[tokio::test]
async fn a_refused_write_is_taken_in_to_its_end() {
    let site = Bench::new().await;
    site.group("g").await;
    let token = |user: &str| format!("Bearer {}", site.issuer.token(user, &[], URL, SystemTime::now()));
    for (who, method, path, status) in [
        (None, "PUT", newest("c"), 401),
        (Some("stranger"), "PUT", newest("c"), 403),
        (Some("owner"), "PUT", newest("-c"), 400),
        (Some("owner"), "PUT", cluster_id("g", "c"), 400),
        (Some("owner"), "PUT", newest("c").replace("connectedClusters", "nothings"), 404),
        (Some("owner"), "POST", newest("c/nothing"), 404),
        (Some("owner"), "OPTIONS", newest("c"), 405),
        (Some("owner"), "PUT", newest("c"), 415),
    ] {
        let left = std::sync::atomic::AtomicUsize::new(3);
        let frames = futures_util::stream::iter(0..3).map(|_| {
            left.fetch_sub(1, Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from_static(b" ")))
        });
        let mut request = Request::builder().method(method).uri(&path);
        if let Some(user) = who {
            request = request.header("authorization", token(user));
        }
        let request = request.body(http_body_util::StreamBody::new(frames)).unwrap();
        assert_eq!(site.respond(request).await.status(), status, "{method} {path}");
        assert_eq!(left.into_inner(), 0, "{method} {path}");
    }
}

/// Any text was a location, an empty one and two thousand characters too.
#[tokio::test]
async fn r12_a_location_is_one_that_somebody_could_mean() {
    let site = Bench::new().await;
    site.group("g").await;
    let long = "x".repeat(91);
    for bad in ["", "  ", "'; drop table resources; --", "eu/west", "s\u{fc}d", &long] {
        let mut body = new_cluster();
        body["location"] = json!(bad);
        for (path, body) in [(newest("c"), body), (group("h"), json!({"location": bad}))] {
            let refused = site.call("owner", "PUT", &path, Some(body)).await;
            let target = refused.body["error"]["target"].as_str();
            assert_eq!((refused.status, target), (400, Some("location")), "{bad}: {}", refused.body);
        }
    }
    let made = site.call("owner", "PUT", &group("h"), Some(json!({"location": "West Europe"}))).await;
    assert_eq!((made.status, &made.body["location"]), (201, &json!("West Europe")));
}

/// Roles without a name, and for the subscriptions of others, were kept.
#[tokio::test]
async fn z4_a_role_has_a_name_and_is_for_subscriptions_of_this_gateway() {
    let site = Bench::new().await;
    let (own, other) = (subscription(), "/subscriptions/99999999-9999-4999-8999-999999999999".to_owned());
    let below = format!("{other}/resourceGroups/g");
    let nameless = "properties.roleName";
    let foreign = "properties.assignableScopes";
    let long = "n".repeat(513);
    for (name, scopes, target) in [
        ("", vec![&own], nameless),
        ("  ", vec![&own], nameless),
        (&long, vec![&own], nameless),
        ("r", vec![&own, &other], foreign),
        ("r", vec![&below], foreign),
    ] {
        let body = json!({"properties": {
            "roleName": name, "assignableScopes": scopes, "permissions": [{"actions": ["*/read"]}],
        }});
        let guid = crate::random::guid();
        let path = format!("{own}/providers/Microsoft.Authorization/roleDefinitions/{guid}?{AUTHORIZATION}");
        let refused = site.call("owner", "PUT", &path, Some(body)).await;
        assert_eq!((refused.status, refused.body["error"]["target"].as_str()), (400, Some(target)), "{}", refused.body);
    }
}

/// A role in what can be no namespace is for nothing, and looked as if it were not.
#[tokio::test]
async fn z6_a_role_is_in_a_namespace_that_can_be() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let long = "n".repeat(64);
    for bad in ["Bad_NS", "a.b", &long] {
        let scope = format!("{}/namespaces/{bad}", cluster_id("g", "c"));
        let refused = site.assign("u", CLUSTER_USER, &scope, json!({})).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidScope"), "{bad}: {}", refused.body);
    }
    assert_eq!(
        site.assign("u", CLUSTER_USER, &format!("{}/namespaces/Dev", cluster_id("g", "c")), json!({})).await.status,
        201
    );
}

#[tokio::test]
async fn k9_a_client_of_an_older_api_version_switches_nothing_on_that_it_does_not_see() {
    let site = Bench::new().await;
    site.group("g").await;
    let mut body = new_cluster();
    let properties = body["properties"].as_object_mut().unwrap();
    properties.insert(
        "arcAgentryConfigurations".to_owned(),
        json!([{"feature": "cluster-connect", "settings": {"enabled": "false"}}]),
    );
    properties.insert("gateway".to_owned(), json!({"enabled": true}));
    let components = json!([{"type": "x", "majorVersion": 1}]);
    properties
        .insert("arcAgentProfile".to_owned(), json!({"desiredAgentVersion": "1.2", "systemComponents": components}));
    assert_eq!(site.call("owner", "PUT", &newest("c"), Some(body)).await.status, 201);
    // Read and written back, as clients change things; then without what it could have said of the agents.
    let read = site.call("owner", "GET", &cluster("g", "c"), None).await.body;
    assert!(read["properties"].get("gateway").is_none());
    let mut less = read.clone();
    less["properties"].as_object_mut().unwrap().remove("arcAgentProfile");
    for (body, version) in [(read, json!("1.2")), (less, Value::Null)] {
        let put = site.call("owner", "PUT", &cluster("g", "c"), Some(body)).await;
        assert_eq!(put.status, 200, "{}", put.body);
        let credential = format!("{}/listClusterUserCredential?{VERSION}", cluster_id("g", "c"));
        let asked = json!({"authenticationMethod": "AAD", "clientProxy": false});
        let answer = site.call("owner", "POST", &credential, Some(asked)).await;
        assert_eq!((answer.status, answer.code()), (409, "ClusterConnectDisabled"), "{}", answer.body);
        let shown = site.call("owner", "GET", &newest("c"), None).await.body;
        let profile = &shown["properties"]["arcAgentProfile"];
        assert_eq!(shown["properties"]["gateway"], json!({"enabled": true}));
        assert_eq!((&profile["systemComponents"][0]["type"], &profile["desiredAgentVersion"]), (&json!("x"), &version));
    }
    // Who sees them takes them away by leaving them out.
    assert_eq!(site.call("owner", "PUT", &newest("c"), Some(new_cluster())).await.status, 200);
    let shown = site.call("owner", "GET", &newest("c"), None).await.body;
    assert!(shown["properties"].get("arcAgentryConfigurations").is_none(), "{shown}");
}

#[tokio::test]
async fn c2_a_tag_names_what_was_shown_and_a_write_compares_what_was_written() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("c").await;
    let path = newest("c");
    let before = site.call("owner", "GET", &path, None).await.header("etag").to_owned();
    let unchanged = site.call_with("owner", "GET", &path, None, &[("if-none-match", &before)]).await;
    assert_eq!((unchanged.status, unchanged.header("etag")), (304, before.as_str()));
    site.seen("c").await;
    let changed = site.call_with("owner", "GET", &path, None, &[("if-none-match", &before)]).await;
    assert_eq!(changed.status, 200, "its status is another one");
    assert_eq!(changed.body["properties"]["connectivityStatus"], "Connected");
    let after = changed.header("etag").to_owned();
    assert_ne!(before, after);
    assert_eq!(site.call("owner", "HEAD", &path, None).await.header("etag"), after);
    // Nobody has written it: who read the older status may write, and then no more.
    let tags = Some(json!({"tags": {"a": "b"}}));
    let written = site.call_with("owner", "PATCH", &path, tags.clone(), &[("if-match", &before)]).await;
    assert_eq!(written.status, 200, "{}", written.body);
    for old in [&before, &after] {
        let again = site.call_with("owner", "PATCH", &path, tags.clone(), &[("if-match", old)]).await;
        assert_eq!((again.status, again.code()), (412, "PreconditionFailed"));
    }
    let now = written.header("etag").to_owned();
    assert_eq!(site.call("owner", "GET", &path, None).await.header("etag"), now, "a write's answer shows the same");
    let version = now.trim_matches('"').split('.').next().unwrap();
    for (tag, status) in [
        (format!("\"{version}0.1\""), 412),
        (format!("W/{now}"), 412),
        ("\"\"".to_owned(), 412),
        (format!("\"1\", {now}"), 200),
        ("*".to_owned(), 200),
    ] {
        let answer = site.call_with("owner", "PATCH", &path, tags.clone(), &[("if-match", &tag)]).await;
        assert_eq!(answer.status, status, "{tag}: {}", answer.body);
    }
}

#[tokio::test]
async fn z2_an_assignment_names_a_type_or_a_guid() {
    let site = Bench::new().await;
    site.group("g").await;
    let assign = async |principal: &str, scope: &str, kind: Value| {
        let mut properties = json!({
            "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{READER}"),
            "principalId": principal,
        });
        if !kind.is_null() {
            properties["principalType"] = kind;
        }
        let name = crate::random::guid();
        let path = format!("{scope}/providers/{ASSIGNMENTS}/{name}?{AUTHORIZATION}");
        site.call("owner", "PUT", &path, Some(json!({"properties": properties}))).await
    };
    let held = format!("{}/resourceGroups/g", subscription());
    let team = site.identity("bob", URL).await.groups[0].clone();
    // A name may be a user's or a group's; a GUID is one principal's, whoever knows it.
    let refused = assign(&team, &held, Value::Null).await;
    assert_eq!((refused.status, refused.code()), (400, "PrincipalNotFound"), "{}", refused.body);
    assert_eq!(refused.body["error"]["target"], "properties.principalType");
    let stranger = assign(&crate::random::guid(), &held, Value::Null).await;
    assert_eq!(
        (stranger.status, &stranger.body["properties"]["principalType"]),
        (201, &Value::Null),
        "{}",
        stranger.body
    );
    let both = crate::resources::role_assignment::principal_keys(stranger.body["properties"].as_object().unwrap());
    assert_eq!(both.len(), 2, "a user's and a group's");
    let made = assign(&team, &held, json!("Group")).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(site.call("bob", "GET", &group("g"), None).await.status, 200, "a group's id");
    let twice = assign(&team, &held, json!("Group")).await;
    assert_eq!((twice.status, twice.code()), (409, "RoleAssignmentExists"));
    let mine =
        format!("{held}/providers/{ASSIGNMENTS}?{AUTHORIZATION}&$filter=assignedTo('{}')", site.object_id("bob").await);
    assert_eq!(site.all("bob", &mine).await.len(), 1, "assigned to a group of mine");
    // Taken back, nobody has it.
    let at = format!("{}?{AUTHORIZATION}", made.body["id"].as_str().unwrap());
    assert_eq!(site.call("owner", "DELETE", &at, None).await.status, 200);
    assert_eq!(site.call("bob", "GET", &group("g"), None).await.status, 403);
    site.cluster("g", "other").await;
    assert_eq!(assign(&site.object_id("eve").await, &cluster_id("g", "other"), json!("User")).await.status, 201);
    assert_eq!(site.call("eve", "GET", &cluster("g", "other"), None).await.status, 200, "a user's id");
}

#[tokio::test]
async fn z2_lists_of_what_is_inherited_have_pages_and_lose_nothing() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let held = format!("{}/resourceGroups/g", subscription());
    let cluster = cluster_id("g", "c");
    let scopes = [subscription(), held, cluster.clone(), format!("{cluster}/namespaces/dev")];
    let mut all = std::collections::BTreeSet::new();
    for (i, scope) in scopes.iter().enumerate() {
        for n in 0..5 {
            let made = site.assign(&format!("user-{i}-{n}"), READER, scope, json!({})).await;
            assert_eq!(made.status, 201, "{}", made.body);
            all.insert(made.body["name"].as_str().unwrap().to_owned());
        }
    }
    let list = format!("{cluster}/providers/{ASSIGNMENTS}?{AUTHORIZATION}");
    for more in ["", "&$top=1", "&$top=3", "&$top=4"] {
        let names = site.names(&format!("{list}{more}")).await;
        assert_eq!(names.len(), 20, "{more}");
        assert_eq!(names.into_iter().collect::<std::collections::BTreeSet<_>>(), all, "{more}");
    }
    let first = site.call("owner", "GET", &format!("{list}&$top=3"), None).await;
    assert_eq!(first.body["value"].as_array().unwrap().len(), 3, "what is inherited is counted, too");
    assert_eq!(site.names(&format!("{list}&$top=2&$filter=atScope()")).await.len(), 15, "not what is below");
    let one = site.object_id("user-0-3").await;
    let filtered = format!("{list}&$top=1&$filter=principalId%20eq%20'{one}'");
    assert_eq!(site.names(&filtered).await.len(), 1);
    let definitions = format!("{cluster}/providers/Microsoft.Authorization/roleDefinitions?{AUTHORIZATION}");
    let built_in = auth::rbac::role::built_in().len();
    for more in ["", "&$top=2"] {
        assert_eq!(site.names(&format!("{definitions}{more}")).await.len(), built_in, "{more}");
    }
}

#[tokio::test]
async fn r12_groups_and_resources_are_found_by_their_tags() {
    let site = Bench::new().await;
    for (name, tags) in [("g", json!({"Team": "it's"})), ("h", json!({"team": "b", "stage": "it's"})), ("i", json!({}))]
    {
        let body = json!({"location": "eastus", "tags": tags});
        assert_eq!(site.call("owner", "PUT", &group(name), Some(body)).await.status, 201);
    }
    site.cluster("g", "c").await;
    let groups = format!("{}/resourcegroups?api-version=2024-03-01&$filter=", subscription());
    let resources = format!("{}/resources?api-version=2024-03-01&$filter=", subscription());
    for (filter, found) in [
        ("tagName eq 'team'", &["g", "h"][..]),
        ("tagname eq 'TEAM' and tagvalue eq 'it''s'", &["g"]),
        ("TagValue eq 'b' and TagName eq 'team'", &["h"]),
        ("tagName eq 'team' and tagValue eq 'B'", &[]),
        ("tagName eq 'none'", &[]),
        ("name eq 'H'", &["h"]),
        ("location eq 'East US'", &["g", "h", "i"]),
    ] {
        let path = format!("{groups}{}", filter.replace(' ', "%20"));
        assert_eq!(site.names(&path).await, found, "{filter}");
    }
    for (filter, found) in [
        ("tagName eq 'a' and tagValue eq '1'", &["c"][..]),
        ("tagname eq 'A' and resourceType eq 'microsoft.kubernetes/connectedclusters'", &["c"]),
        ("tagName eq 'a' and tagValue eq '2'", &[]),
        ("RESOURCEGROUP eq 'G' and location eq 'eastus'", &["c"]),
    ] {
        let path = format!("{resources}{}", filter.replace(' ', "%20"));
        assert_eq!(site.names(&path).await, found, "{filter}");
    }
    for bad in ["tagValue eq 'b'", "tagName eq 'a' and tagName eq 'b'", "tagname eq 'a' and nonsense eq 'x'"] {
        for list in [&groups, &resources] {
            let refused = site.call("owner", "GET", &format!("{list}{}", bad.replace(' ', "%20")), None).await;
            assert_eq!((refused.status, refused.code()), (400, "InvalidFilter"), "{bad}");
        }
    }
}

#[tokio::test]
async fn r12_tags_are_bounded_as_arm_bounds_them() {
    let site = Bench::new().await;
    site.group("g").await;
    let many = |n: usize| (0..n).map(|n| (format!("t{n}"), json!("v"))).collect::<serde_json::Map<_, _>>();
    let one = |name: usize, value: usize| json!({"n".repeat(name): "v".repeat(value)});
    for (tags, fine) in [
        (json!(many(50)), true),
        (json!(many(51)), false),
        (one(512, 256), true),
        (one(513, 1), false),
        (one(1, 257), false),
        (one(0, 1), false),
        (json!({"a": 1}), false),
    ] {
        let mut body = new_cluster();
        body["tags"] = tags.clone();
        for (method, path, body) in [
            ("PUT", cluster("g", "c"), body),
            ("PATCH", group("g"), json!({"tags": tags.clone()})),
            ("PUT", group("h"), json!({"location": "eastus", "tags": tags})),
        ] {
            let answer = site.call("owner", method, &path, Some(body)).await;
            if fine {
                assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
            } else {
                assert_eq!(answer.status, 400, "{}", answer.body);
                assert_eq!(answer.body["error"]["target"], "tags", "{}", answer.body);
            }
        }
    }
}

#[tokio::test]
async fn lists_are_bounded_in_bytes_and_go_on_where_they_ended() {
    let site = Bench::new().await;
    site.group("g").await;
    let mut names = Vec::new();
    for n in 0..40 {
        let mut body = new_cluster();
        let long = json!({"feature": format!("f{n}"), "settings": (0..100).map(|n| (format!("s{n}"), json!("v".repeat(2000)))).collect::<serde_json::Map<_, _>>()});
        body["properties"]["arcAgentryConfigurations"] = json!([long]);
        let name = format!("c{n:02}");
        let made = site.call("owner", "PUT", &newest(&name), Some(body)).await;
        assert_eq!(made.status, 201);
        names.push(name);
    }
    let list = format!("{}/providers/{CLUSTERS}?{NEWEST}&$top=1000", subscription());
    let first = site.call("owner", "GET", &list, None).await;
    assert!(first.body.to_string().len() <= 8 * 1024 * 1024, "no more than ARM lets through");
    assert!(first.body["value"].as_array().unwrap().len() < 40 && first.body["nextLink"].is_string());
    assert_eq!(site.names(&list).await, names);
}

#[tokio::test]
async fn z4_a_role_has_a_bounded_number_of_patterns() {
    let site = Bench::new().await;
    let top = subscription();
    let role = |patterns: usize| {
        let half = |n: usize| (0..n).map(|n| format!("A.B/c{n}/read")).collect::<Vec<_>>();
        let permissions = json!([{"actions": half(patterns / 2)}, {"dataActions": half(patterns - patterns / 2)}]);
        json!({"properties": {"roleName": "r", "assignableScopes": [top], "permissions": permissions}})
    };
    let guid = crate::random::guid();
    let path = role_path(&top, &guid);
    let refused = site.call("owner", "PUT", &path, Some(role(1001))).await;
    assert_eq!((refused.status, refused.code()), (400, "InvalidActionOrNotAction"), "{}", refused.body);
    assert_eq!(site.call("owner", "PUT", &path, Some(role(1000))).await.status, 201);
}

#[tokio::test]
async fn protected_settings_stay_with_their_feature() {
    let site = Bench::new().await;
    site.group("g").await;
    let put = async |configurations: Value| {
        let mut body = new_cluster();
        body["properties"]["arcAgentryConfigurations"] = configurations;
        let answer = site.call("owner", "PUT", &newest("c"), Some(body)).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
        let id = ResourceId::parse(&cluster_id("g", "c")).unwrap();
        let sealed = site.control.store.get(id.key()).await.unwrap().unwrap().protected;
        let text = sealed.map(|sealed| site.control.unseal(id.key(), &sealed).unwrap().to_string()).unwrap_or_default();
        ["one", "two", "three"].map(|secret| text.contains(secret))
    };
    let entry = |feature: &str| json!({"feature": feature, "settings": {}});
    let with = |feature: &str, secret: &str| json!({"feature": feature, "protectedSettings": {"key": secret}});
    assert_eq!(put(json!([with("a", "one"), with("b", "two")])).await, [true, true, false]);
    // In another order and without their secrets, as they are read: each keeps its own.
    assert_eq!(put(json!([entry("b"), entry("A")])).await, [true, true, false]);
    // Another one's secret is not taken for that of a feature that has none, and who is gone takes it along.
    assert_eq!(put(json!([with("c", "three"), entry("b")])).await, [false, true, true]);
    assert_eq!(put(json!([entry("c")])).await, [false, false, true]);
    assert_eq!(put(json!([])).await, [false, false, false]);
    assert_eq!(put(json!([entry("c")])).await, [false, false, false]);
}

/// Of a gateway of before 2026-11-22: places in lists were positions.
#[tokio::test]
async fn protected_settings_that_were_sealed_in_the_old_form_are_kept() {
    let site = Bench::new().await;
    site.group("g").await;
    let entry = |feature: &str| json!({"feature": feature, "settings": {}});
    let put = async |configurations: Value| {
        let mut body = new_cluster();
        body["properties"]["arcAgentryConfigurations"] = configurations;
        let answer = site.call("owner", "PUT", &newest("c"), Some(body)).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
    };
    put(json!([entry("a"), entry("b")])).await;
    let key = ResourceId::parse(&cluster_id("g", "c")).unwrap().key().to_owned();
    let mut stored = site.control.store.get(&key).await.unwrap().unwrap();
    let at = |place: &str| format!("properties.arcAgentryConfigurations[{place}].protectedSettings");
    let old = json!({at("0"): {"key": "one"}, at("1"): {"key": "two"}});
    stored.protected = Some(site.control.seal(&key, &old).unwrap());
    let revision = stored.revision;
    site.control.store.put(&stored, crate::store::batch::Expect::Revision(revision)).await.unwrap().unwrap();
    put(json!([entry("B"), entry("a")])).await;
    let sealed = site.control.store.get(&key).await.unwrap().unwrap().protected.unwrap();
    let kept = site.control.unseal(&key, &sealed).unwrap();
    assert_eq!(kept, json!({at("\"a\"#0"): {"key": "one"}, at("\"b\"#0"): {"key": "two"}}));
}

#[tokio::test]
async fn k1_the_answer_has_what_a_client_of_arm_reads_and_a_kubeconfig_that_signs_in() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let id: types::ids::ClusterId = cluster_id("g", "c").parse().unwrap();
    let ask = async |version: &str, client_proxy: bool| {
        let path = format!("{}/listClusterUserCredential?{version}", cluster_id("g", "c"));
        let body = json!({"authenticationMethod": "AAD", "clientProxy": client_proxy});
        let answer = site.call("owner", "POST", &path, Some(body)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    };
    let hosted = ask(NEWEST, false).await;
    assert!(hosted.get("hybridConnectionConfig").is_none());
    let kubeconfig = BASE64.decode(hosted["kubeconfigs"][0]["value"].as_str().unwrap()).unwrap();
    let kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    let exec = &kubeconfig["users"][0]["user"]["exec"];
    assert_eq!((&exec["apiVersion"], &exec["command"]), (&json!("client.authentication.k8s.io/v1"), &json!("towline")));
    assert_eq!(exec["args"].as_array().unwrap().last(), Some(&json!(id.as_str())));
    let connection = ask(NEWEST, true).await["hybridConnectionConfig"].clone();
    let now = site.clock_ms.load(Ordering::SeqCst) / 1000;
    assert_eq!(connection["expirationTime"], now + 3600, "seconds");
    let name = connection["hybridConnectionName"].as_str().unwrap();
    assert!(name.starts_with(&format!("microsoft.kubernetes/connectedclusters/{}/", id.key().hex())), "{name}");
    assert_eq!((&connection["relay"], &connection["relayTid"]), (&json!("gateway.test"), &json!(TENANT)));
    assert!(connection["token"].as_str().is_some_and(|token| !token.is_empty()));
    let other = ask(NEWEST, true).await["hybridConnectionConfig"].clone();
    assert_ne!(other["hybridConnectionName"], connection["hybridConnectionName"]);
    let old = ask(VERSION, true).await["hybridConnectionConfig"].clone();
    assert!(old.get("relayTid").is_none() && old.get("relayType").is_none(), "{old}");
}

#[tokio::test]
async fn r11_of_a_creation_and_an_unregistration_at_once_one_is_refused() {
    let site = Bench::new().await;
    site.group("g").await;
    let provider = |more: &str| format!("{}/providers/microsoft.kubernetes{more}?{VERSION}", subscription());
    for n in 0..12 {
        let name = format!("c{n}");
        let unregistered = async || site.call("owner", "POST", &provider("/unregister"), None).await;
        // Each is first in its turn.
        let (made, gone) = if n % 2 == 0 {
            tokio::join!(site.cluster("g", &name), unregistered())
        } else {
            let (gone, made) = tokio::join!(unregistered(), site.cluster("g", &name));
            (made, gone)
        };
        match (made.status, made.code(), gone.status, gone.code()) {
            (201, _, 409, "ResourcesExist") => {
                let deleted = site.call("owner", "DELETE", &cluster("g", &name), None).await;
                site.ended("owner", deleted.header("azure-asyncoperation")).await;
            }
            (409, "MissingSubscriptionRegistration", 200, _) => {
                let done = site.call("owner", "POST", &provider("/register"), None).await;
                assert_eq!(done.status, 200, "{}", done.body);
            }
            other => panic!("round {n}: {other:?}: {} {}", made.body, gone.body),
        }
    }
    // What decides is the batch: it is refused where a resource lies below, however deep.
    let made = site.cluster("g", "last").await;
    assert_eq!(made.status, 201, "{}", made.body);
    let without = vec![("microsoft.kubernetes/connectedclusters".to_owned(), subscription().to_ascii_lowercase())];
    let deletes = vec![(provider("").to_ascii_lowercase(), crate::store::batch::Expect::Any)];
    let batch = crate::store::batch::Batch { deletes, without, ..Default::default() };
    let refused = site.control.store.apply(&batch).await.unwrap();
    assert!(matches!(refused, Err(crate::store::batch::Refused::Changed { .. })), "{refused:?}");
}

#[tokio::test]
async fn r11_what_is_unregistered_is_refused_until_it_is_registered_again() {
    let site = Bench::new().await;
    site.group("g").await;
    let provider = |more: &str| format!("{}/providers/microsoft.kubernetes{more}?{VERSION}", subscription());
    let state = async || site.call("owner", "GET", &provider(""), None).await.body["registrationState"].clone();
    assert_eq!(state().await, "Registered", "nobody needs to register anything");
    site.cluster("g", "c").await;
    let held = site.call("owner", "POST", &provider("/unregister"), None).await;
    assert_eq!((held.status, held.code()), (409, "ResourcesExist"), "{}", held.body);
    let gone = site.call("owner", "DELETE", &cluster("g", "c"), None).await;
    site.ended("owner", gone.header("azure-asyncoperation")).await;
    assert_eq!(site.call("stranger", "POST", &provider("/unregister"), None).await.status, 403);
    for _ in 0..2 {
        let done = site.call("owner", "POST", &provider("/unregister"), None).await;
        assert_eq!((done.status, &done.body["registrationState"]), (200, &json!("Unregistered")), "{}", done.body);
    }
    let site = site.restart().await;
    let refused = site.cluster("g", "c").await;
    assert_eq!((refused.status, refused.code()), (409, "MissingSubscriptionRegistration"), "{}", refused.body);
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert_eq!(message.rsplit('\'').nth(1), Some("Microsoft.Kubernetes"), "SDKs read it there: {message}");
    // What is always there cannot be taken away.
    let groups = provider("/unregister").replace("kubernetes", "Resources");
    assert_eq!(site.call("owner", "POST", &groups, None).await.body["registrationState"], "Registered");
    site.group("h").await;
    let done = site.call("owner", "POST", &provider("/register"), None).await;
    assert_eq!((done.status, &done.body["registrationState"]), (200, &json!("Registered")));
    assert_eq!(site.cluster("g", "c").await.status, 201);
    let unknown = site.call("owner", "POST", &provider("/register").replace("kubernetes", "none"), None).await;
    assert_eq!((unknown.status, unknown.code()), (404, "InvalidResourceNamespace"));
}

/// Stock `az` ended with an error where there was nothing to list.
#[tokio::test]
async fn types_of_which_there_are_none_are_empty_lists_for_who_may_read() {
    let site = Bench::new().await;
    site.group("g").await;
    let top = format!("/subscriptions/{SUBSCRIPTION}");
    let of_group = |path: &str| format!("{top}/resourcegroups/g/providers/{path}");
    for path in [
        format!("{top}/tagNames"),
        format!("{top}/providers/Microsoft.Authorization/locks"),
        of_group("Microsoft.Authorization/locks"),
        of_group("Microsoft.Resources/deployments/"),
        format!("{top}/providers/Microsoft.Authorization/policyAssignments"),
    ] {
        let path = format!("{path}?api-version=2021-04-01");
        let listed = site.call("owner", "GET", &path, None).await;
        assert_eq!((listed.status, &listed.body), (200, &json!({"value": []})), "{path}");
        let refused = site.call("nobody", "GET", &path, None).await;
        assert_eq!((refused.status, refused.code()), (403, "AuthorizationFailed"), "{path}");
    }
    let lock = format!("{}/x?api-version=2021-04-01", of_group("Microsoft.Authorization/locks"));
    let refused = site.call("owner", "PUT", &lock, Some(json!({"properties": {"level": "ReadOnly"}}))).await;
    assert_eq!((refused.status, refused.code()), (404, "InvalidResourceType"));
    let doubled = cluster("g", "none").replace("Microsoft.Kubernetes/", "Microsoft.Kubernetes//");
    assert_eq!(site.call("owner", "GET", &doubled, None).await.code(), "ResourceNotFound");
}
