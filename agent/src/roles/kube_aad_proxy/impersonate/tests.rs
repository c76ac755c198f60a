use bytes::Bytes;
use tunnel::wire::head::RequestHead;
use types::ids::RequestId;

use super::*;
use crate::roles::kube_aad_proxy::admit::admit;

fn subject(user: &str, groups: &[&str]) -> Result<Subject, Refusal> {
    let subject = Subject {
        user: user.to_owned(),
        uid: Some("uid-1".to_owned()),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        extra: [("oid".to_owned(), vec!["o".to_owned()])].into(),
    };
    subject.checked(&names())
}

fn names() -> Names {
    Names::new(&config::Impersonation {
        extras: vec!["oid".to_owned(), "a/B_c".to_lowercase()],
        allow_reserved: vec!["system:monitoring".to_owned()],
    })
}

fn admitted(headers: &[(&'static str, &'static str)]) -> Admitted {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_static(value));
    }
    admit(RequestHead {
        role: String::new(),
        request_id: RequestId([0; 16]),
        method: Method::GET,
        target: Bytes::from_static(b"/api"),
        headers: map,
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    })
    .unwrap()
}

#[test]
fn attack_th8_reserved_and_malformed_names_are_refused() {
    let long = "x".repeat(64 * 1024);
    for bad in [
        "system:admin",
        "system:serviceaccount:kube-system:x",
        "System:Masters",
        "system:",
        "",
        " system:masters",
        "system:masters ",
        "a\nb",
        "a\0b",
        long.as_str(),
    ] {
        assert!(subject(bad, &[]).is_err(), "{bad:?}");
        assert!(subject("jane", &["fine", bad]).is_err(), "{bad:?}");
    }
    assert!(subject("system:monitoring", &["system:monitoring", "a,b"]).is_ok());
}

#[test]
fn attack_th9_all_groups_go() {
    let groups: Vec<String> = (0..300).map(|n| format!("{n:0>100}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let jane = subject("jane", &groups).unwrap();
    let head = UpstreamHead::new(admitted(&[("accept", "*/*")]), &Principal::Impersonated(jane)).unwrap();
    let sent: Vec<_> = head.headers().get_all("impersonate-group").iter().collect();
    assert_eq!(sent.len(), 300);
    assert_eq!(head.headers().get_all("impersonate-user").iter().count(), 1);
    assert_eq!(head.headers()["impersonate-extra-oid"], "o");
    assert!(head.needs_own_credential());
}

#[test]
fn a_passed_token_goes_alone() {
    let principal = Principal::PassThrough { token: SecretString::from("opaque"), asked: None };
    let head = UpstreamHead::new(admitted(&[]), &principal).unwrap();
    assert_eq!(head.headers()["authorization"], "Bearer opaque");
    assert!(!head.needs_own_credential());
    assert!(!head.headers().keys().any(|name| name.as_str().starts_with("impersonate")));
}

#[test]
fn nested_names_may_be_service_accounts_but_nothing_else_that_is_reserved() {
    let may = |user: &str, groups: &[&str]| {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        Subject::may_be_asked(&Asked { user: user.to_owned(), groups, ..Asked::default() }, &names()).is_ok()
    };
    assert!(may("system:serviceaccount:apps:web", &["system:serviceaccounts", "system:serviceaccounts:apps"]));
    assert!(may("jane", &["dev", "system:authenticated"]));
    for (user, group) in [
        ("system:serviceaccount:kube-system:x", "dev"),
        ("system:admin", "dev"),
        ("system:serviceaccount::x", "dev"),
        ("jane", "system:masters"),
        ("jane", "SYSTEM:masters"),
        ("jane", "system:serviceaccounts:kube-system"),
        ("jane", "system:serviceaccount:apps:web"),
        ("jane", "system:nodes"),
    ] {
        assert!(!may(user, &[group]), "{user} {group}");
    }
}

#[test]
fn a_nested_subject_names_the_real_user_in_an_extra_that_nobody_can_ask_for() {
    let real = subject("jane", &[]).unwrap();
    let nested = Subject::nested(Asked { user: "bob".to_owned(), ..Asked::default() }, &real);
    let head = UpstreamHead::new(admitted(&[]), &Principal::Impersonated(nested)).unwrap();
    assert_eq!(head.headers()["impersonate-user"], "bob");
    assert_eq!(head.headers()["impersonate-extra-towline.io%2foriginal-user"], "jane");
    let extra = [(ORIGINAL_USER.to_owned(), vec!["x".to_owned()])].into();
    assert!(Subject::may_be_asked(&Asked { user: "bob".to_owned(), extra, ..Asked::default() }, &names()).is_err());
}

#[test]
fn extra_keys_are_lower_case_and_percent_encoded() {
    assert_eq!(encode_key("Scopes/a_b c"), "scopes%2fa%5fb%20c");
    assert_eq!(
        encode_key("authentication.kubernetes.io/credential-id"),
        "authentication.kubernetes.io%2fcredential-id"
    );
}

/// A header of several values brings its name once.
#[test]
fn every_value_of_a_header_goes_on_and_none_that_names_somebody() {
    let mut admitted = admitted(&[("accept", "a"), ("x-one", "1"), ("accept", "b"), ("x-one", "2")]);
    for value in ["c", "d"] {
        admitted.headers.append("authorization", HeaderValue::from_static(value));
        admitted.headers.append("x-remote-user", HeaderValue::from_static(value));
    }
    admitted.headers.append("x-last", HeaderValue::from_static("3"));
    let principal = Principal::Impersonated(subject("jane", &["one", "two"]).unwrap());
    let mut head = UpstreamHead::new(admitted, &principal).unwrap();
    let values = |head: &UpstreamHead, name: &str| -> Vec<String> {
        head.headers().get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(values(&head, "accept"), ["a", "b"]);
    assert_eq!(values(&head, "x-one"), ["1", "2"]);
    assert_eq!(values(&head, "x-last"), ["3"]);
    assert_eq!(values(&head, "impersonate-group"), ["one", "two"]);
    assert!(values(&head, "authorization").is_empty() && values(&head, "x-remote-user").is_empty());
    // The agent's own comes last, and is the only one.
    let room = head.headers.capacity();
    for own in ["Bearer one", "Bearer two"] {
        head.authorize(HeaderValue::from_static(own));
        assert_eq!(values(&head, "authorization"), [own]);
    }
    assert_eq!(head.headers.capacity(), room, "the map has grown");
}
