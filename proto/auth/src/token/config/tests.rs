use super::*;

fn keys(raw: RawIssuer) -> Vec<&'static str> {
    Issuer::try_from(raw).map(|_| Vec::new()).unwrap_or_else(|Faults(all)| all.into_iter().map(|f| f.key).collect())
}

#[test]
fn a_name_and_an_address_are_enough() {
    let issuer = Issuer::try_from(RawIssuer::new("main", "https://issuer.test/x")).unwrap();
    assert_eq!(issuer.algorithms, [Algorithm::Rs256, Algorithm::Es256]);
    assert_eq!(issuer.username, Username::Claim("sub".into()));
    assert_eq!(issuer.groups_claim.as_deref(), Some("groups"));
    assert_eq!((issuer.skew, issuer.pop), (Duration::from_secs(30), Pop::Allowed));
}

#[test]
fn all_faults_are_told_at_once_with_their_keys() {
    let raw = RawIssuer {
        algorithms: vec!["none".into(), "HS256".into()],
        ca_file: Some("/nowhere/ca.crt".into()),
        keys_file: Some("/nowhere/keys.json".into()),
        username_claim: Some(String::new()),
        username_prefix: Some("a\nb".into()),
        clock_skew: Some("2h".into()),
        pop_validity: Some("soon".into()),
        allow_reserved: vec!["admin".into()],
        extra: [("Upper".to_owned(), "x".to_owned())].into(),
        ..RawIssuer::new("a b", "http://issuer.test")
    };
    let expected = [
        "name",
        "url",
        "allow_reserved",
        "keys_file",
        "ca_file",
        "algorithms",
        "algorithms",
        "username_claim",
        "username_prefix",
        "extra",
        "clock_skew",
        "pop_validity",
    ];
    assert_eq!(keys(raw), expected);
}

#[test]
fn plain_http_is_for_loopback_and_only_when_said() {
    let with = |url: &str, allow| keys(RawIssuer { allow_http_loopback: allow, ..RawIssuer::new("a", url) });
    assert!(with("http://127.0.0.1:9/x", true).is_empty());
    assert!(with("http://localhost:9", true).is_empty());
    assert!(with("http://[::1]:9", true).is_empty());
    for (url, allow) in [
        ("http://127.0.0.1:9", false),
        ("http://issuer.test", true),
        ("http://127.0.0.1.evil.test", true),
        ("http://localhost.evil.test", true),
        ("https://user:pw@issuer.test", false),
        ("https://issuer.test?x=y", false),
        ("https://issuer.test#x", false),
        ("ftp://issuer.test", false),
        ("issuer.test", false),
    ] {
        assert_eq!(with(url, allow), ["url"], "{url}");
    }
}

#[test]
fn entra_names_one_tenant_and_checks_it_in_the_token() {
    let with = |url: &str| RawIssuer { kind: Some(IssuerKind::Entra), ..RawIssuer::new("entra", url) };
    assert_eq!(keys(with("https://login.microsoftonline.com/common/v2.0")), ["url"]);
    assert_eq!(keys(with("https://login.microsoftonline.com/organizations/v2.0")), ["url"]);
    let tenant = "00000000-0000-0000-0000-000000000007";
    for url in
        [format!("https://login.microsoftonline.com/{tenant}/v2.0"), format!("https://sts.windows.net/{tenant}/")]
    {
        let issuer = Issuer::try_from(with(&url)).unwrap();
        assert_eq!(issuer.required, [("tid".to_owned(), vec![tenant.to_owned()])]);
        assert_eq!(issuer.username, Username::Entra);
        assert_eq!(issuer.extra["oid"], "oid");
    }
}

/// Two issuers with these prefixes of user and group names: the keys that are at fault.
fn prefixes((a, a_url): (Option<&str>, &str), (b, b_url): (Option<&str>, &str)) -> Vec<&'static str> {
    let raw = |name: &str, prefix: Option<&str>, url: &str| RawIssuer {
        username_prefix: prefix.map(str::to_owned),
        groups_prefix: prefix.map(str::to_owned),
        ..RawIssuer::new(name, url)
    };
    let keys = |all: Result<Vec<Issuer>, Faults>| {
        all.map(|_| Vec::new()).unwrap_or_else(|Faults(all)| all.into_iter().map(|f| f.key).collect())
    };
    keys(Issuer::all(vec![raw("a", a, a_url), raw("b", b, b_url)]))
}

const BOTH: [&str; 2] = ["username_prefix", "groups_prefix"];

#[test]
fn two_issuers_do_not_give_the_same_names_unless_both_say_so() {
    let all = |a, b| prefixes((a, "https://a.test"), (b, "https://b.test"));
    assert_eq!(all(None, None), BOTH);
    assert_eq!(all(None, Some("")), BOTH);
    assert_eq!(all(Some("x:"), Some("x:")), [""; 0]);
    assert_eq!(all(Some("a:"), Some("b:")), [""; 0]);
    let raw = |name: &str, url: &str| RawIssuer { username_prefix: Some("x:".to_owned()), ..RawIssuer::new(name, url) };
    assert!(Issuer::all(vec![raw("a", "https://a.test"), raw("a", "https://b.test")]).is_err());
}

/// The issuer with the shorter prefix could give the names of the other one.
#[test]
fn prefixes_that_begin_with_one_another_are_refused() {
    let all = |a, b| prefixes((Some(a), "https://a.test"), (Some(b), "https://b.test"));
    for (a, b) in [("", ""), ("", "corp:"), ("corp", "corp:"), ("corp:", "corp:eu:"), ("c", "corp:")] {
        assert_eq!((all(a, b), all(b, a)), (BOTH.to_vec(), BOTH.to_vec()), "{a:?} {b:?}");
    }
    assert_eq!(all("corp:", "cord:"), [""; 0]);
    // Where groups are not read none are given.
    let raw = |name: &str, users: &str, groups: &str, claim: &str| RawIssuer {
        username_prefix: Some(users.to_owned()),
        groups_prefix: Some(groups.to_owned()),
        groups_claim: Some(claim.to_owned()),
        ..RawIssuer::new(name, format!("https://{name}.test"))
    };
    let with = |claim| Issuer::all(vec![raw("a", "a:", "", claim), raw("b", "b:", "b:", "groups")]).is_ok();
    assert!(with("") && !with("groups"));
}

/// Its names are without a prefix beside any issuer's; which of them it may give is looked at in its tokens.
#[test]
fn a_gateways_own_issuer_alone_is_without_a_prefix_beside_others() {
    let own = format!("https://gateway.test{OWN_ISSUER_PATH}");
    assert_eq!(prefixes((None, &own), (Some("corp:"), "https://b.test")), [""; 0]);
    assert_eq!(prefixes((Some("corp:"), "https://b.test"), (None, &own)), [""; 0]);
    assert_eq!(prefixes((None, &own), (None, "https://b.test")), BOTH);
    assert_eq!(prefixes((Some("corp"), &own), (Some("corp:"), "https://b.test")), BOTH);
    for other in
        [format!("{own}/x"), format!("https://x.test/x{OWN_ISSUER_PATH}"), format!("https://x.test/?{OWN_ISSUER_PATH}")]
    {
        assert_ne!(prefixes((None, &other), (Some("corp:"), "https://b.test")), [""; 0], "{other}");
    }
}
