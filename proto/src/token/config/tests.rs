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

#[test]
fn two_issuers_do_not_give_the_same_names_unless_both_say_so() {
    let raw = |name: &str, prefix: Option<&str>| RawIssuer {
        username_prefix: prefix.map(str::to_owned),
        groups_prefix: prefix.map(str::to_owned),
        ..RawIssuer::new(name, format!("https://{name}.test"))
    };
    let all = |a, b| Issuer::all(vec![raw("a", a), raw("b", b)]).map(|_| ()).map_err(|Faults(f)| f.len());
    assert_eq!(all(None, None), Err(2));
    assert_eq!(all(None, Some("")), Err(2));
    assert_eq!(all(Some(""), Some("")), Ok(()));
    assert_eq!(all(None, Some("b:")), Ok(()));
    assert!(Issuer::all(vec![raw("a", Some("a:")), raw("a", Some("b:"))]).is_err());
}
