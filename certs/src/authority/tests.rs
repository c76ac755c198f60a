use std::{os::unix::fs::PermissionsExt as _, time::SystemTime};

use super::*;
use crate::PeerIdentity;

const ID: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/edge-1";

#[test]
fn an_authority_kept_in_a_directory_goes_on_issuing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca");
    let first = Authority::create("kept", Validity::days(1)).unwrap();
    first.save(&path).unwrap();
    first.save(&path).unwrap();
    let second = Authority::load(&path).unwrap();
    assert_eq!(first.certificate_pem(), second.certificate_pem());
    let issued = second.issue_agent(ID, Validity::days(1)).unwrap();
    let roots = first.roots().unwrap();
    assert!(PeerIdentity::from_der(issued.credentials().chain(), &roots, SystemTime::now()).is_ok());
    let mode = std::fs::metadata(path.join("ca.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn names_that_no_certificate_can_hold_are_refused() {
    let authority = Authority::create("ca", Validity::days(1)).unwrap();
    let validity = Validity::days(1);
    assert!(authority.issue_agent("", validity).is_err());
    assert!(authority.issue_agent("a b", validity).is_err());
    assert!(authority.issue_agent("a\nb", validity).is_err());
    assert!(authority.issue_access(ID, "", validity).is_err());
    assert!(authority.issue_access(ID, "ann\nroot", validity).is_err());
    assert!(authority.issue_server(&[], validity).is_err());
    for wrong in ["", "a b", "*.*.test", "a/b", "urn:towline:agent:x", "a..b"] {
        assert!(authority.issue_server(&[wrong], validity).is_err(), "{wrong:?}");
    }
    let long = format!("{}.test", "a".repeat(60));
    authority.issue_server(&["127.0.0.1", "::1", "*.clusters.test", "localhost", &long], validity).unwrap();
}

#[test]
fn errors_say_which_file_what_is_wrong_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let authority = Authority::create("ca", Validity::days(1)).unwrap();
    let (a, b) = (authority.issue_agent(ID, Validity::days(1)), authority.issue_agent(ID, Validity::days(1)));
    let (a, b) = (a.unwrap(), b.unwrap());
    a.save(&at("a.crt"), &at("a.key")).unwrap();
    b.save(&at("b.crt"), &at("b.key")).unwrap();
    std::fs::write(at("empty"), "").unwrap();
    std::fs::write(at("broken"), "-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap();
    std::fs::write(at("two.key"), format!("{}{}", a.key_pem(), b.key_pem())).unwrap();
    std::fs::write(at("big"), vec![b'\n'; 2 * 1024 * 1024]).unwrap();
    let load = |c: &str, k: &str| Credentials::load(&at(c), &at(k)).map(|_| ()).map_err(|e| e.to_string());
    assert_eq!(load("a.crt", "a.key"), Ok(()));
    for (certificate, key, file, words) in [
        ("none", "a.key", "none", "cannot be read"),
        ("empty", "a.key", "empty", "no certificate"),
        ("broken", "a.key", "broken", "no END line"),
        ("a.key", "a.key", "a.key", "no certificate"),
        ("a.crt", "a.crt", "a.crt", "no private key"),
        ("a.crt", "two.key", "two.key", "several private keys"),
        ("a.crt", "b.key", "b.key", "does not belong"),
        ("big", "a.key", "big", "larger than"),
    ] {
        let text = load(certificate, key).unwrap_err();
        assert!(text.starts_with(&at(file).display().to_string()) && text.contains(words), "{text}");
    }
    let text = Roots::load(&at("a.crt")).unwrap_err().to_string();
    assert!(text.contains("not a certificate authority"), "{text}");
}

#[test]
fn keys_do_not_print() {
    let authority = Authority::create("ca", Validity::days(1)).unwrap();
    let issued = authority.issue_agent(ID, Validity::days(1)).unwrap();
    let printed = format!("{authority:?} {issued:?} {:?}", issued.credentials());
    let secret = issued.key_pem().lines().nth(1).unwrap();
    assert!(!printed.contains(secret) && !printed.contains("PRIVATE"));
}
