use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType, string::Ia5String};

use super::*;
use crate::{
    authority::{Authority, Issued, parameters},
    facts::{ID_BYTES, Validity},
    proof::{ProofError, sign_proof, verify_proof},
};

const ID: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/edge-1";

fn authority() -> (Authority, Roots) {
    let authority = Authority::create("test", Validity::days(1)).unwrap();
    let roots = authority.roots().unwrap();
    (authority, roots)
}

fn verify(issued: &Issued, roots: &Roots) -> Result<PeerIdentity, PeerError> {
    PeerIdentity::from_der(issued.credentials().chain(), roots, SystemTime::now())
}

/// An agent's certificate, changed.
fn odd(authority: &Authority, change: impl FnOnce(&mut rcgen::CertificateParams)) -> Issued {
    let mut params = parameters("odd", Validity::days(1)).unwrap();
    params.subject_alt_names = vec![uri(&format!("{AGENT}{ID}"))];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    authority.issue_as_is(&params).unwrap()
}

fn uri(text: &str) -> SanType {
    SanType::URI(Ia5String::try_from(text).unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(Ia5String::try_from(text).unwrap())
}

#[test]
fn roles_read_back() {
    let (authority, roots) = authority();
    let agent = authority.issue_agent(ID, Validity::days(1)).unwrap();
    assert_eq!(verify(&agent, &roots), Ok(PeerIdentity::Agent(ID.into())));
    let access = authority.issue_access(ID, "ann@example.org", Validity::days(1)).unwrap();
    let expected = PeerIdentity::Access { id: ID.into(), name: "ann@example.org".into() };
    assert_eq!(verify(&access, &roots), Ok(expected));
}

#[test]
fn an_access_certificate_is_no_agent_and_the_reverse() {
    let (authority, roots) = authority();
    let agent = verify(&authority.issue_agent(ID, Validity::days(1)).unwrap(), &roots).unwrap();
    let access = verify(&authority.issue_access(ID, "ann", Validity::days(1)).unwrap(), &roots).unwrap();
    assert_eq!(agent.agent(), Ok(ID));
    assert_eq!(access.access(), Ok((ID, "ann")));
    assert_eq!(access.agent(), Err(PeerError::Role { found: "access", wanted: "agent" }));
    assert_eq!(agent.access(), Err(PeerError::Role { found: "agent", wanted: "access" }));
}

#[test]
fn t12_a_replicas_certificate_is_nothing_where_agents_or_users_come_and_the_reverse() {
    let (authority, roots) = authority();
    let gateway = verify(&authority.issue_gateway("gw-0", Validity::days(1)).unwrap(), &roots).unwrap();
    assert_eq!(gateway.gateway(), Ok("gw-0"));
    assert_eq!(gateway.agent(), Err(PeerError::Role { found: "gateway", wanted: "agent" }));
    assert_eq!(gateway.access(), Err(PeerError::Role { found: "gateway", wanted: "access" }));
    let agent = verify(&authority.issue_agent(ID, Validity::days(1)).unwrap(), &roots).unwrap();
    assert_eq!(agent.gateway(), Err(PeerError::Role { found: "agent", wanted: "gateway" }));
    let access = verify(&authority.issue_access(ID, "ann", Validity::days(1)).unwrap(), &roots).unwrap();
    assert_eq!(access.gateway(), Err(PeerError::Role { found: "access", wanted: "gateway" }));
    for bad in ["", "A", "a b", "a%41"] {
        let issued = odd(&authority, |p| p.subject_alt_names = vec![uri(&format!("{GATEWAY}{bad}"))]);
        assert_eq!(verify(&issued, &roots), Err(PeerError::BadName("replica's name")), "{bad:?}");
    }
}

#[test]
fn a_server_certificate_is_no_peer() {
    let (authority, roots) = authority();
    let server = authority.issue_server(&["gateway.test"], Validity::days(1)).unwrap();
    assert_eq!(verify(&server, &roots), Err(PeerError::Usage));
}

#[test]
fn wrong_extended_key_usages_are_refused() {
    let (authority, roots) = authority();
    use ExtendedKeyUsagePurpose::{Any, ClientAuth, Other, ServerAuth};
    for usages in
        [vec![], vec![Any], vec![ServerAuth], vec![ClientAuth, ServerAuth], vec![ClientAuth, Other(vec![1, 2, 3])]]
    {
        let issued = odd(&authority, |p| p.extended_key_usages = usages.clone());
        assert_eq!(verify(&issued, &roots), Err(PeerError::Usage), "{usages:?}");
    }
}

#[test]
fn an_authority_is_no_peer() {
    let (authority, roots) = authority();
    let issued = odd(&authority, |p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    assert_eq!(verify(&issued, &roots), Err(PeerError::IsAuthority));
    let signs = odd(&authority, |p| p.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign]);
    assert_eq!(verify(&signs, &roots), Err(PeerError::IsAuthority));
}

#[test]
fn exactly_one_name_and_that_a_role() {
    let (authority, roots) = authority();
    let other = format!("{AGENT}{ID}2");
    let cases = [
        (vec![uri(&format!("{AGENT}{ID}")), uri(&other)], PeerError::Names { uris: 2, others: 0 }),
        (vec![uri(&format!("{AGENT}{ID}")), uri(&format!("{ACCESS}{ID}"))], PeerError::Names { uris: 2, others: 0 }),
        (vec![uri(&format!("{AGENT}{ID}")), dns("a.test")], PeerError::Names { uris: 1, others: 1 }),
        (vec![dns("a.test")], PeerError::Names { uris: 0, others: 1 }),
        (vec![], PeerError::Names { uris: 0, others: 0 }),
        (vec![uri("urn:towline:other:x")], PeerError::UnknownRole),
        (vec![uri(&format!("URN:towline:agent:{ID}"))], PeerError::UnknownRole),
        (vec![uri(&format!(" {AGENT}{ID}"))], PeerError::UnknownRole),
        (vec![uri(AGENT)], PeerError::BadName("cluster id")),
        (vec![uri(&format!("{AGENT}a b"))], PeerError::BadName("cluster id")),
        (vec![uri(&format!("{AGENT}a\0b"))], PeerError::BadName("cluster id")),
        (vec![uri(&format!("{AGENT}{}", "x".repeat(ID_BYTES + 1)))], PeerError::BadName("cluster id")),
    ];
    for (names, expected) in cases {
        let issued = odd(&authority, |p| p.subject_alt_names = names.clone());
        assert_eq!(verify(&issued, &roots), Err(expected), "{names:?}");
    }
}

#[test]
fn access_needs_one_common_name() {
    let (authority, roots) = authority();
    let without = odd(&authority, |p| {
        p.subject_alt_names = vec![uri(&format!("{ACCESS}{ID}"))];
        p.distinguished_name = rcgen::DistinguishedName::new();
    });
    assert_eq!(verify(&without, &roots), Err(PeerError::BadName("common name")));
    let lines = odd(&authority, |p| {
        p.subject_alt_names = vec![uri(&format!("{ACCESS}{ID}"))];
        p.distinguished_name.push(rcgen::DnType::CommonName, "ann\nroot");
    });
    assert_eq!(verify(&lines, &roots), Err(PeerError::BadName("common name")));
}

#[test]
fn time_decides() {
    let (authority, roots) = authority();
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    let past = Validity { not_before: now - 2 * hour, not_after: now - hour };
    let future = Validity { not_before: now + hour, not_after: now + 2 * hour };
    assert_eq!(verify(&authority.issue_agent(ID, past).unwrap(), &roots), Err(PeerError::Expired));
    assert_eq!(verify(&authority.issue_agent(ID, future).unwrap(), &roots), Err(PeerError::NotYetValid));
    let short = authority.issue_agent(ID, Validity::for_duration(hour)).unwrap();
    let at = |t| PeerIdentity::from_der(short.credentials().chain(), &roots, t);
    assert!(at(now).is_ok());
    assert_eq!(at(now + 2 * hour), Err(PeerError::Expired));
    assert_eq!(at(SystemTime::UNIX_EPOCH - hour), Err(PeerError::NotYetValid));
}

#[test]
fn self_signed_and_other_authorities_are_refused() {
    let (authority, roots) = authority();
    let (other, other_roots) = self::authority();
    let issued = other.issue_agent(ID, Validity::days(1)).unwrap();
    assert_eq!(verify(&issued, &roots), Err(PeerError::UnknownIssuer));
    // During a roll-over both are trusted.
    assert!(verify(&issued, &roots.and(&other_roots)).is_ok());
    assert!(verify(&authority.issue_agent(ID, Validity::days(1)).unwrap(), &roots.and(&other_roots)).is_ok());

    let mut params = parameters("self", Validity::days(1)).unwrap();
    params.subject_alt_names = vec![uri(&format!("{AGENT}{ID}"))];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let own = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let chain = [own.der().clone()];
    assert_eq!(PeerIdentity::from_der(&chain, &roots, SystemTime::now()), Err(PeerError::UnknownIssuer));
}

#[test]
fn an_agent_cannot_issue_for_another_cluster() {
    let (authority, roots) = authority();
    let agent = authority.issue_agent(ID, Validity::days(1)).unwrap();
    let key = KeyPair::from_pem(agent.key_pem()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(&agent.credentials().chain()[0], key).unwrap();
    let mut params = parameters("forged", Validity::days(1)).unwrap();
    params.subject_alt_names = vec![uri(&format!("{AGENT}{ID}2"))];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let forged = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
    let chain = [forged.der().clone(), agent.credentials().chain()[0].clone()];
    assert!(PeerIdentity::from_der(&chain, &roots, SystemTime::now()).is_err());
}

#[test]
fn broken_chains_are_refused() {
    let (authority, roots) = authority();
    let now = SystemTime::now();
    assert_eq!(PeerIdentity::from_der(&[], &roots, now), Err(PeerError::Missing));
    let good = authority.issue_agent(ID, Validity::days(1)).unwrap().credentials().chain()[0].clone();
    assert_eq!(PeerIdentity::from_der(&vec![good.clone(); 9], &roots, now), Err(PeerError::TooMany(9)));
    let longer = CertificateDer::from([&good[..], b"\0"].concat());
    assert!(matches!(PeerIdentity::from_der(&[longer], &roots, now), Err(PeerError::Malformed(_))));
    for cut in 0..good.len() {
        assert!(PeerIdentity::from_der(&[CertificateDer::from(good[..cut].to_vec())], &roots, now).is_err());
    }
    for at in 0..good.len() {
        let mut flipped = good.to_vec();
        flipped[at] ^= 1;
        assert!(PeerIdentity::from_der(&[CertificateDer::from(flipped)], &roots, now).is_err(), "byte {at}");
    }
}

#[test]
fn a_proof_holds_for_its_message_key_and_role_only() {
    let (authority, roots) = authority();
    let now = SystemTime::now();
    let agent = authority.issue_agent(ID, Validity::days(1)).unwrap();
    let own = agent.credentials();
    let signature = sign_proof(own, b"nonce 1").unwrap();
    let peer = verify_proof(own.chain(), b"nonce 1", &signature, &roots, now).unwrap();
    assert_eq!(peer.identity.agent(), Ok(ID));
    assert_eq!(verify_proof(own.chain(), b"nonce 2", &signature, &roots, now), Err(ProofError::Signature));
    for zero in [&b""[..], &[0x30, 6, 2, 1, 0, 2, 1, 0], &[0; 64]] {
        assert_eq!(verify_proof(own.chain(), b"nonce 1", zero, &roots, now), Err(ProofError::Signature));
    }
    let second = authority.issue_agent(ID, Validity::days(1)).unwrap();
    let others = second.credentials().chain();
    assert_eq!(verify_proof(others, b"nonce 1", &signature, &roots, now), Err(ProofError::Signature));
    let (_, other_roots) = self::authority();
    let foreign = verify_proof(own.chain(), b"nonce 1", &signature, &other_roots, now);
    assert_eq!(foreign, Err(ProofError::Peer(PeerError::UnknownIssuer)));
    let later = now + Duration::from_secs(3 * 86_400);
    let expired = verify_proof(own.chain(), b"nonce 1", &signature, &roots, later);
    assert_eq!(expired, Err(ProofError::Peer(PeerError::Expired)));
}
