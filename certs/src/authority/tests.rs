use std::{
    os::unix::fs::PermissionsExt as _,
    time::{Duration, SystemTime},
};

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

#[test]
fn r8_an_authority_is_told_from_one_of_the_same_name_by_its_key() {
    let [one, other] = ["ca", "ca"].map(|name| Authority::create(name, Validity::days(9)).unwrap());
    let own = one.issue_server(&["gateway.example.org"], Validity::days(1)).unwrap();
    assert!(one.is_issuer_of(own.credentials()) && !other.is_issuer_of(own.credentials()));
    // Also of one that has ended.
    let day = Duration::from_secs(86_400);
    let past = Validity { not_before: SystemTime::now() - 3 * day, not_after: SystemTime::now() - day };
    let ended = one.issue_server(&["gateway.example.org"], past).unwrap();
    assert!(one.is_issuer_of(ended.credentials()) && !other.is_issuer_of(ended.credentials()));
}

/// The key in its place and the certificate not yet, or the other way round: a gateway that starts then has a pair.
#[test]
fn a_pair_whose_replacement_was_cut_short_is_found_and_can_be_replaced_again() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::create("ca", Validity::days(9)).unwrap();
    let issue = || ca.issue_server(&["gateway.example.org"], Validity::days(1)).unwrap();
    let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    let new = |path: &Path| path.with_file_name(format!("{}.new", path.file_name().unwrap().to_str().unwrap()));
    let loaded = || Credentials::load(&certificate, &key).map(|pair| pair.chain().to_vec());
    let chain = |issued: &Issued| issued.credentials().chain().to_vec();
    for key_first in [true, false] {
        let (old, next, last) = (issue(), issue(), issue());
        old.save(&certificate, &key).unwrap();
        // Both are written, none has taken its place.
        std::fs::write(new(&key), next.key_pem()).unwrap();
        std::fs::write(new(&certificate), &next.certificate_pem).unwrap();
        assert_eq!(loaded().unwrap(), chain(&old));
        let first = if key_first { &key } else { &certificate };
        std::fs::rename(new(first), first).unwrap();
        assert_eq!(loaded().unwrap(), chain(&next));
        // The next one keeps the half that is needed until it has both of its own.
        last.save(&certificate, &key).unwrap();
        assert_eq!(loaded().unwrap(), chain(&last));
        assert!(!new(&key).exists() && !new(&certificate).exists());
    }
    // Without anything beside it a pair that is none is named.
    std::fs::write(&key, issue().key_pem()).unwrap();
    assert!(loaded().unwrap_err().to_string().contains("does not belong"));
}

/// While one authority follows another their certificates are in one file.
#[test]
fn r8_of_several_authorities_in_its_file_it_is_the_one_whose_key_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| Authority::create(name, Validity::days(9)).unwrap());
    one.save(dir.path()).unwrap();
    let both = format!("{}{}", two.certificate_pem(), one.certificate_pem());
    std::fs::write(dir.path().join(Authority::CERTIFICATE_FILE), both).unwrap();
    for expected in [&one, &two] {
        expected.save_key(&dir.path().join(Authority::KEY_FILE)).unwrap();
        let loaded = Authority::load(dir.path()).unwrap();
        assert_eq!(loaded.certificate(), expected.certificate());
        assert_eq!((loaded.certificate_pem(), loaded.name()), (expected.certificate_pem(), expected.name()));
        let roots = Roots::load(&dir.path().join(Authority::CERTIFICATE_FILE)).unwrap();
        let issued = loaded.issue_agent(ID, Validity::days(1)).unwrap();
        let signer = roots.signer_of(issued.credentials().chain(), SystemTime::now());
        assert_eq!(signer.as_ref(), expected.roots().unwrap().ids().first());
    }
}
