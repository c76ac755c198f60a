//! What the rows of the feature table say of bad input, where a client of ARM sees it.

use super::*;

fn definition(guid: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{guid}")
}

fn target(answer: &Answer) -> &str {
    answer.body["error"]["target"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn k1_a_question_for_a_credential_is_whole_allowed_and_of_a_known_cluster() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let path = |name: &str| format!("{}/listClusterUserCredential?{VERSION}", cluster_id("g", name));
    let good = json!({"authenticationMethod": "AAD", "clientProxy": false});
    for (body, code, at) in [
        (
            json!({"authenticationMethod": "Basic", "clientProxy": false}),
            "InvalidRequestContent",
            "authenticationMethod",
        ),
        (json!({"authenticationMethod": "", "clientProxy": false}), "InvalidRequestContent", "authenticationMethod"),
        (json!({"authenticationMethod": 7, "clientProxy": false}), "InvalidRequestContent", "authenticationMethod"),
        (json!({"clientProxy": false}), "MissingRequiredProperty", "authenticationMethod"),
        (json!({"authenticationMethod": "AAD"}), "MissingRequiredProperty", "clientProxy"),
        (json!({"authenticationMethod": "AAD", "clientProxy": "no"}), "InvalidRequestContent", "clientProxy"),
        (json!({"authenticationMethod": "AAD", "clientProxy": false, "admin": true}), "UnknownProperty", "admin"),
    ] {
        let refused = site.call("owner", "POST", &path("c"), Some(body.clone())).await;
        assert_eq!((refused.status, refused.code(), target(&refused)), (400, code, at), "{body}: {}", refused.body);
    }
    let scope = cluster_id("g", "c");
    for (user, role) in [("stranger", None), ("reader", Some(READER)), ("onboarder", Some(ONBOARDING))] {
        if let Some(role) = role {
            assert_eq!(site.assign(user, role, &scope, json!({})).await.status, 201);
        }
        let refused = site.call(user, "POST", &path("c"), Some(good.clone())).await;
        assert_eq!((refused.status, refused.code()), (403, "AuthorizationFailed"), "{user}: {}", refused.body);
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains("listClusterUserCredential/action") && message.contains(&scope), "{message}");
    }
    let unknown = site.call("owner", "POST", &path("none"), Some(good.clone())).await;
    assert_eq!((unknown.status, unknown.code()), (404, "ResourceNotFound"), "{}", unknown.body);
    let other = site.call("owner", "GET", &path("c"), None).await;
    assert!(matches!(other.status, 400 | 404 | 405), "it is asked for by POST: {}", other.body);
    assert_eq!(site.call("owner", "POST", &path("c"), Some(good)).await.status, 200);
}

#[tokio::test]
async fn z2_an_assignment_is_of_a_known_role_at_a_known_scope_under_a_guid() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    let group = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    let put = async |scope: &str, name: &str, role: &str, principal: Value| {
        let path = format!("{scope}/providers/{ASSIGNMENTS}/{name}?api-version=2022-04-01");
        let body = json!({"properties": {"roleDefinitionId": role, "principalId": principal, "principalType": "User"}});
        site.call("owner", "PUT", &path, Some(body)).await
    };
    let (guid, reader, ann) = (crate::random::guid(), definition(READER), json!("ann"));
    let known = |answer: Answer| (answer.status, answer.code().to_owned());
    let refused = |status: u16, code: &str| (status, code.to_owned());
    let unknown = definition(&crate::random::guid());
    assert_eq!(known(put(&group, &guid, &unknown, ann.clone()).await), refused(404, "RoleDefinitionDoesNotExist"));
    for role in ["", "Reader", READER, "/subscriptions", &definition("Reader"), &definition("../x")] {
        let answer = put(&group, &guid, role, ann.clone()).await;
        assert_eq!((answer.status, target(&answer)), (400, "properties.roleDefinitionId"), "{role}: {}", answer.body);
    }
    for (scope, code) in [
        (group.replace("/g", "/nowhere"), "ResourceGroupNotFound"),
        (cluster_id("g", "none"), "ResourceNotFound"),
        (format!("{}/namespaces/dev", cluster_id("g", "none")), "ResourceNotFound"),
        (group.replace(SUBSCRIPTION, TENANT), "SubscriptionNotFound"),
    ] {
        assert_eq!(known(put(&scope, &guid, &reader, ann.clone()).await), refused(404, code), "{scope}");
    }
    for name in ["reader", "1", &guid[1..], &format!("{guid}0"), &guid.replace('-', "")] {
        assert_eq!(known(put(&group, name, &reader, ann.clone()).await), refused(400, "InvalidResourceName"), "{name}");
    }
    for principal in [json!(""), json!("a\nb"), json!("x".repeat(513)), json!(7)] {
        let answer = put(&group, &guid, &reader, principal).await;
        assert_eq!((answer.status, target(&answer)), (400, "properties.principalId"), "{}", answer.body);
    }
    let answer = put(&group, &guid, &reader, Value::Null).await;
    assert_eq!((answer.status, answer.code()), (400, "MissingRequiredProperty"), "{}", answer.body);
    assert_eq!(put(&group, &guid, &reader, ann.clone()).await.status, 201);
    assert_eq!(put(&group, &guid, &reader, ann.clone()).await.status, 200, "the same again is no other");
    let twice = put(&group, &crate::random::guid(), &reader, ann.clone()).await;
    assert_eq!((twice.status, twice.code()), (409, "RoleAssignmentExists"), "{}", twice.body);
    assert!(twice.body["error"]["message"].as_str().unwrap().contains(&guid), "the one that is there: {}", twice.body);
    let changed = put(&group, &guid, &reader, json!("bob")).await;
    assert_eq!((changed.status, changed.code()), (400, "RoleAssignmentUpdateNotPermitted"), "{}", changed.body);
}

#[tokio::test]
async fn z3_a_built_in_role_is_neither_written_nor_deleted() {
    let site = Bench::new().await;
    let top = format!("/subscriptions/{SUBSCRIPTION}");
    for role in auth::rbac::role::built_in() {
        let path = role_path(&top, role.role.id());
        let put = site.call("owner", "PUT", &path, custom_role(&[&top], &["*"])).await;
        let deleted = site.call("owner", "DELETE", &path, None).await;
        for refused in [put, deleted] {
            assert_eq!((refused.status, refused.code()), (403, "RoleDefinitionIsBuiltIn"), "{}", refused.body);
        }
    }
}

#[tokio::test]
async fn z4_a_bad_wildcard_is_refused_in_each_list_of_a_role() {
    let site = Bench::new().await;
    let top = format!("/subscriptions/{SUBSCRIPTION}");
    for list in ["actions", "notActions", "dataActions", "notDataActions"] {
        for bad in ["", "a b", "Microsoft.*/?/read", "Microsoft.Kubernetes//read", "*/*/*/\u{0430}", "a/b\n", "/read"] {
            let role =
                json!({"properties": {"roleName": "r", "assignableScopes": [top], "permissions": [{list: [bad]}]}});
            let path = role_path(&top, &crate::random::guid());
            let refused = site.call("owner", "PUT", &path, Some(role)).await;
            let expected = (400, "InvalidActionOrNotAction", "properties.permissions");
            assert_eq!(
                (refused.status, refused.code(), target(&refused)),
                expected,
                "{list} {bad:?}: {}",
                refused.body
            );
        }
    }
    for scopes in [json!(["nowhere"]), json!([""]), json!([format!("{top}/../x")]), json!([7])] {
        let role = json!({"properties": {"roleName": "r", "assignableScopes": scopes, "permissions": []}});
        let refused = site.call("owner", "PUT", &role_path(&top, &crate::random::guid()), Some(role)).await;
        assert_eq!((refused.status, target(&refused)), (400, "properties.assignableScopes[0]"), "{}", refused.body);
    }
}

#[tokio::test]
async fn z11_an_assignment_ends_after_now_and_after_it_begins() {
    let site = Bench::new().await;
    site.group("g").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    let now = site.clock_ms.load(Ordering::SeqCst);
    for (bad, code) in [
        (json!({"endDateTime": instant(now - 1000)}), "InvalidExpiration"),
        (json!({"endDateTime": instant(now)}), "InvalidExpiration"),
        (json!({"startDateTime": instant(now + 9000), "endDateTime": instant(now + 8000)}), "InvalidExpiration"),
        (json!({"endDateTime": "tomorrow"}), "InvalidRequestContent"),
        (json!({"endDateTime": "2030-02-30T00:00:00Z"}), "InvalidRequestContent"),
        (json!({"startDateTime": "2030-01-01"}), "InvalidRequestContent"),
        (json!({"startDateTime": 7}), "InvalidRequestContent"),
        (json!({"condition": "true", "conditionVersion": "2.0"}), "InvalidRequestContent"),
    ] {
        let refused = site.assign("ann", READER, &scope, bad.clone()).await;
        assert_eq!((refused.status, refused.code()), (400, code), "{bad}: {}", refused.body);
    }
    assert_eq!(site.call("ann", "GET", &group("g"), None).await.status, 403);
}

/// Also what is below of what never was.
#[tokio::test]
async fn r10_deleting_what_is_not_there_is_204() {
    let site = Bench::new().await;
    site.group("g").await;
    let (guid, scope) = (crate::random::guid(), format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g"));
    for path in [
        group("none"),
        cluster("g", "none"),
        cluster("none", "none"),
        role_path(&scope, &guid),
        format!("{scope}/providers/{ASSIGNMENTS}/{guid}?api-version=2022-04-01"),
    ] {
        let gone = site.call("owner", "DELETE", &path, None).await;
        assert_eq!((gone.status, &gone.body), (204, &Value::Null), "{path}");
    }
}

/// The token of a next page is this gateway's or none at all, whatever is done to it.
#[tokio::test]
async fn tokens_of_pages_that_were_changed_are_refused() {
    let site = Bench::new().await;
    site.group("g").await;
    for name in ["a", "b"] {
        site.cluster("g", name).await;
    }
    let list = format!("/subscriptions/{SUBSCRIPTION}/providers/{CLUSTERS}?{VERSION}&$top=1");
    let first = site.call("owner", "GET", &list, None).await;
    let next = first.body["nextLink"].as_str().unwrap();
    let token = next.split("skipToken=").nth(1).unwrap().to_owned();
    let ask = async |token: &str| site.call("owner", "GET", &format!("{list}&$skipToken={token}"), None).await;
    assert_eq!(ask(&token).await.body["value"][0]["name"], "b");
    let cut = (0..token.len()).map(|at| token[..at].to_owned());
    let flipped = (0..token.len()).map(|at| {
        let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
        format!("{}{other}{}", &token[..at], &token[at + 1..])
    });
    let more = [format!("{token}A"), format!("A{token}"), token.to_lowercase(), token.repeat(2), "%F0%9F".to_owned()];
    for bad in cut.chain(flipped).chain(more) {
        let refused = ask(&bad).await;
        let expected = (400, "InvalidQueryParameterValue", "$skipToken");
        assert_eq!((refused.status, refused.code(), target(&refused)), expected, "{bad}: {}", refused.body);
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_version_or_none(text in "\\PC{0,30}|[0-9]{4}-[0-9]{2}-[0-9]{2}.{0,12}") {
        let (date, rest) = text.char_indices().nth(10).map_or((text.as_str(), ""), |(at, _)| text.split_at(at));
        let shape: String = date.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        let known = ["", "-preview", "-alpha", "-beta", "-rc", "-privatepreview"];
        let expected = shape == "0000-00-00" && known.contains(&rest.to_ascii_lowercase().as_str());
        proptest::prop_assert_eq!(is_version(&text), expected);
    }
}

#[tokio::test]
async fn t12_while_the_database_is_away_clients_are_told_to_come_back() {
    let site = Bench::new().await;
    site.group("g").await;
    site.cluster("g", "c").await;
    site.control.store.close().await;
    for (method, body) in [("GET", None), ("PATCH", Some(json!({"tags": {"a": "b"}}))), ("DELETE", None)] {
        let path = format!("{}?{VERSION}", cluster_id("g", "c"));
        let refused = site.call("owner", method, &path, body).await;
        assert_eq!((refused.status, refused.code()), (503, "ServiceUnavailable"), "{method}: {}", refused.body);
        assert_eq!(refused.header("retry-after"), "5");
        let text = refused.body.to_string();
        assert!(!text.contains("pool"), "what the database said is for the log alone: {text}");
    }
}
