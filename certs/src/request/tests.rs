use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, SanType, string::Ia5String,
};

use super::*;
use crate::{AgentName, Authority, Peer, PeerError, PeerIdentity, Roots, Validity};

const ID: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/edge-1";
const PRINCIPAL: &str = "7a1f6f2e-0f9e-4a53-8d8b-0d5b0a3ad001";
const NAME: AgentName<'static> = AgentName { cluster_id: ID, principal: PRINCIPAL, onboarding: "0a1b" };
const DAY: Duration = Duration::from_secs(86_400);

fn plain() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
}

fn signed(params: &CertificateParams) -> Vec<u8> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    params.serialize_request(&key).unwrap().der().to_vec()
}

fn named(kind: DnType, name: &str) -> CertificateParams {
    let mut params = plain();
    params.distinguished_name.push(kind, name);
    params
}

fn with_names(names: Vec<SanType>) -> CertificateParams {
    let mut params = plain();
    params.subject_alt_names = names;
    params
}

fn uri(text: &str) -> SanType {
    SanType::URI(Ia5String::try_from(text).unwrap())
}

fn read(der: &[u8]) -> Result<AgentRequest, RequestError> {
    AgentRequest::read(der, ID, &["edge-1", PRINCIPAL])
}

#[test]
fn r7_a_certificate_is_of_the_cluster_and_its_principal_for_clients_alone_and_at_most_90_days() {
    let authority = Authority::create("ca", Validity::days(400)).unwrap();
    let now = SystemTime::now();
    for params in [plain(), named(DnType::CommonName, "edge-1"), with_names(vec![uri(&format!("{AGENT}{ID}"))])] {
        let request = read(&signed(&params)).unwrap();
        let signed = authority.sign_agent(&request, NAME, Validity::at(now, 90 * DAY, 90 * DAY)).unwrap();
        let Validity { not_before, not_after } = signed.validity;
        assert!(not_after.duration_since(not_before).unwrap() <= 90 * DAY && not_before < now);
        let chain = crate::file::certificates(None, signed.certificate_pem.as_bytes()).unwrap();
        let peer = Peer::verify(&chain, &authority.roots().unwrap(), now).unwrap();
        assert_eq!(peer.identity, PeerIdentity::Agent(ID.to_owned()));
        assert_eq!((peer.principal.as_deref(), peer.onboarding.as_deref()), (Some(PRINCIPAL), Some("0a1b")));
        assert_eq!((peer.not_after, peer.serial), (not_after, signed.serial));
        let after = Peer::verify(&chain, &authority.roots().unwrap(), not_after + Duration::from_secs(1));
        assert_eq!(after, Err(PeerError::Expired));
    }
}

#[test]
fn r7_no_certificate_outlives_its_authority() {
    let authority = Authority::create("ca", Validity::days(10)).unwrap();
    let request = read(&signed(&plain())).unwrap();
    let validity = Validity::at(SystemTime::now(), 90 * DAY, 90 * DAY);
    let signed = authority.sign_agent(&request, NAME, validity).unwrap();
    assert!(signed.validity.not_after <= SystemTime::now() + 10 * DAY);
}

/// docs/threats.md TH30: whoever holds one cluster's key asks for another's certificate, or for more than an agent's.
#[test]
fn r7_requests_that_name_anybody_else_or_ask_for_more_are_refused() {
    let other = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/other";
    let own = || uri(&format!("{AGENT}{ID}"));
    let mut two = named(DnType::CommonName, "edge-1");
    two.distinguished_name.push(DnType::OrganizationName, "system:masters");
    let mut authority = plain();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut server = plain();
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let mut both = with_names(vec![own()]);
    both.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    for (params, wanted) in [
        (named(DnType::CommonName, "other"), RequestError::Subject),
        (named(DnType::CommonName, ""), RequestError::Subject),
        (named(DnType::OrganizationName, "edge-1"), RequestError::Subject),
        (two, RequestError::Subject),
        (with_names(vec![uri(&format!("{AGENT}{other}"))]), RequestError::Names),
        (with_names(vec![uri(&format!("urn:towline:access:{ID}"))]), RequestError::Names),
        (with_names(vec![own(), uri(&format!("{AGENT}{other}"))]), RequestError::Names),
        (with_names(vec![own(), own()]), RequestError::Names),
        (with_names(vec![SanType::DnsName(Ia5String::try_from("gateway.test").unwrap())]), RequestError::Names),
        (authority, RequestError::More("an extension other than subjectAltName")),
        (server, RequestError::More("an extension other than subjectAltName")),
        (both, RequestError::More("several extensions")),
    ] {
        assert_eq!(read(&signed(&params)).err(), Some(wanted));
    }
}

/// Keys that a reconnect storm would pay for, and requests by somebody without the key.
#[test]
fn r7_only_a_p256_key_that_signed_the_request_gets_a_certificate() {
    for kind in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        let key = KeyPair::generate_for(kind).unwrap();
        assert_eq!(read(plain().serialize_request(&key).unwrap().der()).err(), Some(RequestError::KeyKind));
    }
    let rsa = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
    assert_eq!(read(plain().serialize_request(&rsa).unwrap().der()).err(), Some(RequestError::KeyKind));
    let good = signed(&plain());
    let key = read(&good).unwrap().public_key;
    let mut broken = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        broken += usize::from(read(&bad).err() == Some(RequestError::Signature));
        // Around what is signed there are bytes that say nothing.
        assert!(read(&bad).is_ok_and(|read| read.public_key == key) || read(&bad).is_err(), "byte {at}");
        assert!(read(&good[..at]).is_err(), "cut at {at}");
    }
    assert!(broken > 100, "{broken}");
    assert!(read(&[good.clone(), vec![0]].concat()).is_err());
    assert!(read(&[good, vec![0; REQUEST_BYTES]].concat()).is_err());
}

/// While one authority follows another, certificates of both are good; afterwards only the next one's.
#[test]
fn r8_both_authorities_are_trusted_while_one_follows_the_other() {
    let (old, new) = (Authority::create("ca", Validity::days(10)), Authority::create("ca", Validity::days(10)));
    let (old, new) = (old.unwrap(), new.unwrap());
    let both = format!("{}{}", old.certificate_pem(), new.certificate_pem());
    let both = Roots::from_pem(both.as_bytes()).unwrap();
    let now = SystemTime::now();
    let chain = |authority: &Authority| {
        let request = read(&signed(&plain())).unwrap();
        let signed = authority.sign_agent(&request, NAME, Validity::at(now, DAY, DAY)).unwrap();
        crate::file::certificates(None, signed.certificate_pem.as_bytes()).unwrap()
    };
    for authority in [&old, &new] {
        assert!(Peer::verify(&chain(authority), &both, now).is_ok());
    }
    assert!(Peer::verify(&chain(&new), &new.roots().unwrap(), now).is_ok());
    assert_eq!(Peer::verify(&chain(&old), &new.roots().unwrap(), now), Err(PeerError::UnknownIssuer));
}
