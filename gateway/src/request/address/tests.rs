use http::HeaderValue;
use proptest::prelude::*;
use types::ids::ClusterId;

use super::*;

const DOMAIN: &str = "clusters.example.org";
const SUFFIX: &str = "clusters.towline.internal";

fn key() -> ClusterKey {
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/a"
        .parse::<ClusterId>()
        .unwrap()
        .key()
}

fn at(host: &str, target: &str) -> Result<Address, AddressError> {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
    on(ServerName::Gateway, &headers, target)
}

fn on(server_name: ServerName, headers: &HeaderMap, target: &str) -> Result<Address, AddressError> {
    let names = Names { domain: Some(DOMAIN.to_owned()), suffix: Some(SUFFIX.to_owned()) };
    parse(Version::HTTP_11, &Method::GET, &target.parse().unwrap(), headers, &names, server_name, None)
}

fn cluster(host: &str, target: &str) -> Box<ClusterAddress> {
    match at(host, target) {
        Ok(Address::Cluster(address)) => address,
        other => panic!("{target}: {other:?}"),
    }
}

#[test]
fn both_address_forms_lead_to_the_cluster_and_keep_the_bytes() {
    let key = key();
    for rest in ["/api/v1/pods?limit=5", "/a%2Fb//c;x=1?y=%2F..&z", "/\u{e4}/%C3%A4", "/api/", "//", "/?"] {
        assert_eq!(cluster("gw:8443", &format!("/{key}{rest}")).target, rest);
        assert_eq!(cluster(&format!("{}.{DOMAIN}:8443", key.base32()), rest).target, rest);
        assert_eq!(cluster(&format!("{}.{DOMAIN}.", key.base32().to_uppercase()), rest).key, key);
    }
    assert_eq!(cluster("gw", &format!("/{key}")).target, "/");
    assert_eq!(cluster("gw", &format!("/{key}?x")).target, "/?x");
}

/// A million parameters, each looked at for `watch` before anybody knew who asked, took a worker for tens of
/// milliseconds.
#[test]
fn query_of_ten_thousand_parameters_is_taken_and_no_more() {
    let target = |count: usize| format!("/{}/api/v1/pods/p/exec?{}", key(), vec!["c=a"; count].join("&"));
    assert!(at("gw", &target(10_000)).is_ok());
    assert_eq!(at("gw", &target(10_001)).err(), Some(AddressError::Parameters));
}

#[test]
fn targets_that_readers_route_differently_are_refused() {
    let key = key();
    let encoded = format!("%{:02x}{}", key.hex().as_bytes()[0], &key.hex()[1..]);
    for (target, error) in [
        (format!("/{key}/api/v1/pods?{}", "&".repeat(10_000)), AddressError::Parameters),
        (format!("/{key}/./api"), AddressError::DotSegment),
        (format!("/{key}/../{key}/api"), AddressError::DotSegment),
        (format!("/{key}/%2e%2E/api"), AddressError::DotSegment),
        (format!("/{key}/a%2f..%2fb"), AddressError::DotSegment),
        (format!("/{key}/..;x/b"), AddressError::DotSegment),
        (format!("/{key}/.."), AddressError::DotSegment),
        (format!("/{key}/a%5cb"), AddressError::Character),
        (format!("/{key}/a%00"), AddressError::Character),
        (format!("/{key}/a%0d%0aX:y"), AddressError::Character),
        (format!("/{key}/%c0%ae%c0%ae/b"), AddressError::Encoding),
        (format!("/{key}/a%2"), AddressError::Encoding),
        (format!("/{key}/a%zz"), AddressError::Encoding),
        (format!("//{key}/api"), AddressError::KeySpelling),
        (format!("/%2f{key}/api"), AddressError::KeySpelling),
        (format!("/{key}%2fapi"), AddressError::KeySpelling),
        (format!("/{encoded}/api"), AddressError::KeySpelling),
        (format!("/{}/api", key.hex().to_uppercase()), AddressError::KeySpelling),
    ] {
        assert_eq!(at("gw", &target), Err(error), "{target}");
    }
}

/// Every such byte became the same character: ids that differ named one resource.
#[test]
fn an_id_of_the_resource_api_is_text() {
    for bad in ["%ff", "%fe", "a%c3", "%ed%a0%80"] {
        assert_eq!(at("gw", &format!("/subscriptions/s/resourceGroups/{bad}")), Err(AddressError::Encoding), "{bad}");
    }
    // Decoded, it is the id of another resource than the one that was authorised by somebody in front of us.
    let slash = at("gw", "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters%2Fc1");
    assert_eq!(slash, Err(AddressError::Slash));
    let good = at("gw", "/subscriptions/s/resourceGroups/%C3%A4");
    assert_eq!(good, Ok(Address::Api("/subscriptions/s/resourceGroups/\u{e4}".to_owned())));
}

#[test]
fn hosts_are_checked() {
    let key = key();
    let mut headers = HeaderMap::new();
    let uri: Uri = format!("/{key}/api").parse().unwrap();
    assert_eq!(
        parse(Version::HTTP_11, &Method::GET, &uri, &headers, &Names::default(), ServerName::Gateway, None),
        Err(AddressError::HostCount)
    );
    assert!(
        parse(Version::HTTP_10, &Method::GET, &uri, &headers, &Names::default(), ServerName::Gateway, None).is_ok()
    );
    headers.append(header::HOST, HeaderValue::from_static("a"));
    let absolute: Uri = format!("https://b/{key}/api").parse().unwrap();
    assert_eq!(
        parse(Version::HTTP_11, &Method::GET, &absolute, &headers, &Names::default(), ServerName::Gateway, None),
        Err(AddressError::HostMismatch)
    );
    assert_eq!(
        parse(Version::HTTP_2, &Method::GET, &absolute, &headers, &Names::default(), ServerName::Gateway, None),
        Err(AddressError::HostMismatch)
    );
    headers.append(header::HOST, HeaderValue::from_static("a"));
    assert_eq!(
        parse(Version::HTTP_11, &Method::GET, &uri, &headers, &Names::default(), ServerName::Gateway, None),
        Err(AddressError::HostCount)
    );
    for bad in ["user@gw", "gw/x", "gw:port", "", "g w", "[::1", "a,b", ":80"] {
        assert_eq!(at(bad, "/x"), Err(AddressError::HostSyntax), "{bad}");
    }
    for good in ["gw", "gw:8443", "127.0.0.1:1", "[::1]:8443", "[::1]"] {
        assert_eq!(at(good, "/x"), Ok(Address::Nowhere), "{good}");
    }
}

#[test]
fn a_key_in_the_path_of_a_host_form_address_is_only_a_path() {
    let key = key();
    let other = ClusterKey::from_hex(&[b'a'; 64]).unwrap();
    let address = cluster(&format!("{}.{DOMAIN}", key.base32()), &format!("/{other}/api"));
    assert_eq!(address.key, key);
    assert_eq!(address.target, format!("/{other}/api"));
}

#[test]
fn our_own_paths() {
    assert_eq!(at("gw", "/.towline/tunnel"), Ok(Address::Tunnel));
    assert_eq!(at("gw", "/.towline/tunnel/x"), Ok(Address::Nowhere));
    assert_eq!(at("gw", "/.towline/issuer/keys"), Ok(Address::Issuer));
    assert_eq!(at("gw", "/.towline/agent/challenge"), Ok(Address::Agents));
    assert_eq!(at("gw", "/.towline/agents/challenge"), Ok(Address::Nowhere));
    assert_eq!(at("gw", "/.towline/issuers"), Ok(Address::Nowhere));
    assert_eq!(at("gw", "/"), Ok(Address::Nowhere));
    assert_eq!(cluster("gw", &format!("/{}/.towline/whoami", key())).endpoint, Endpoint::WhoAmI);
    assert_eq!(cluster("gw", &format!("/{}/.towline/refresh?x", key())).endpoint, Endpoint::Refresh);
    assert_eq!(cluster("gw", &format!("/{}//.towline/x", key())).endpoint, Endpoint::Unknown);
    assert_eq!(cluster("gw", &format!("/{}/%2etowline/whoami", key())).endpoint, Endpoint::WhoAmI);
}

proptest! {
    /// Whatever comes behind the key, it is either refused or forwarded byte for byte to that very cluster.
    #[test]
    fn targets_are_refused_or_kept_byte_for_byte(rest in "[/%.;?a-fA-F0-9\\\\#&=:~ä]{0,60}") {
        let key = key();
        let target = format!("/{key}/{rest}");
        if target.parse::<Uri>().is_err() {
            return Ok(());
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("gw"));
        match on(ServerName::Gateway, &headers, &target) {
            Ok(Address::Cluster(address)) => {
                prop_assert_eq!(address.key, key);
                let sent = format!("/{}", rest.split('#').next().unwrap_or_default());
                prop_assert_eq!(address.target.as_ref(), sent.as_bytes());
            }
            Ok(other) => prop_assert!(false, "{:?}", other),
            Err(_) => {}
        }
    }

    /// No target makes the parser panic.
    #[test]
    fn any_path_is_read(path in "\\PC{0,80}") {
        let _ = decode(&path);
    }

    /// A cleaned path names the same cluster as the raw one, or the raw one is refused.
    #[test]
    fn cleaning_a_path_never_changes_the_cluster(front in "[/.%2eEfF]{0,8}", back in "[/.%2eEfF]{0,8}") {
        let key = key();
        let Ok(uri) = format!("/{front}{key}{back}").parse::<Uri>() else { return Ok(()) };
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("gw"));
        if let Ok(address) = parse(Version::HTTP_11, &Method::GET, &uri, &headers, &Names::default(), ServerName::Gateway, None) {
            let decoded = decode(uri.path()).unwrap();
            let cleaned = decoded.split('/').find(|s| !s.is_empty()).unwrap_or_default().to_owned();
            let names_cluster = ClusterKey::from_hex(cleaned.to_ascii_lowercase().as_bytes()).is_some();
            prop_assert_eq!(names_cluster, matches!(address, Address::Cluster(_)));
        }
    }
}

#[test]
fn a_server_name_is_read_in_any_case_and_with_a_final_dot() {
    let (key, of) = (key(), |name: &str| ServerName::of(Some(name), Some(DOMAIN), Some(SUFFIX)));
    let label = key.base32();
    for name in [format!("{label}.{SUFFIX}"), format!("{label}.{SUFFIX}.").to_uppercase()] {
        assert_eq!(of(&name), ServerName::Cluster(key), "{name}");
        // Where no certificate for such names was shown the name says nothing.
        assert_eq!(ServerName::of(Some(&name), Some(DOMAIN), None), ServerName::Gateway);
    }
    assert_eq!(of(&format!("{label}.{DOMAIN}")), ServerName::Host(key));
    for name in [
        format!("x.{SUFFIX}"),
        format!("a.{label}.{SUFFIX}"),
        format!("{}.{SUFFIX}", key.hex()),
        format!("{label}x.{SUFFIX}"),
    ] {
        assert_eq!(of(&name), ServerName::Nobody, "{name}");
    }
    for name in ["gateway.example.org", SUFFIX, "127.0.0.1", ""] {
        assert_eq!(of(name), ServerName::Gateway, "{name}");
    }
    assert_eq!(ServerName::of(None, Some(DOMAIN), Some(SUFFIX)), ServerName::Gateway);
}

#[test]
fn a_bound_connection_leads_to_its_cluster_whatever_the_path() {
    let key = key();
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_static("gw:8443"));
    for target in [
        "/api",
        "/.towline/tunnel",
        "/.towline/addresses",
        "/subscriptions/x",
        &format!("/{key}/api"),
        &format!("/{}", "0".repeat(64)),
    ] {
        match on(ServerName::Cluster(key), &headers, target) {
            Ok(Address::Cluster(address)) => {
                assert_eq!((address.key, &*address.target, address.form), (key, target.as_bytes(), Form::Own));
            }
            other => panic!("{target}: {other:?}"),
        }
        assert_eq!(on(ServerName::Nobody, &headers, target), Err(AddressError::Misdirected));
    }
    assert_eq!(on(ServerName::Gateway, &headers, ADDRESSES_PATH), Ok(Address::Addresses));
}
