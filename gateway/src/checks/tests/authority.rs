//! A certificate in `[tls]` of another authority than `[api] ca_file` is a fault, and in every setup that clients accept
//! the check finds nothing.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};

use super::*;

/// A certificate with its key.
struct Made {
    pem: String,
    params: CertificateParams,
    key: KeyPair,
}

/// Makes one that `by` signed, or that signed itself.
fn make(name: &str, by: Option<&Made>, change: impl FnOnce(&mut CertificateParams)) -> Made {
    let mut params = CertificateParams::new(vec!["gateway.example.org".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = match by {
        Some(by) => params.signed_by(&key, &Issuer::from_params(&by.params, &by.key)),
        None => params.self_signed(&key),
    };
    Made { pem: certificate.unwrap().pem(), params, key }
}

fn authority(params: &mut CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

fn plain(_: &mut CertificateParams) {}

fn expired(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
}

/// A root authority, another one, an authority below the first, and a gateway's certificate of each of the three.
struct Site {
    root: Made,
    other: Made,
    middle: Made,
    of_root: Made,
    of_other: Made,
    of_middle: Made,
}

impl Site {
    fn new() -> Self {
        let root = make("root", None, authority);
        let other = make("other", None, authority);
        let middle = make("middle", Some(&root), authority);
        let of_root = make("gateway", Some(&root), plain);
        let of_other = make("gateway", Some(&other), plain);
        let of_middle = make("gateway", Some(&middle), plain);
        Self { root, other, middle, of_root, of_other, of_middle }
    }
}

fn pem(all: &[&Made]) -> String {
    all.iter().map(|made| made.pem.as_str()).collect()
}

/// A configuration whose `[tls]` has this chain and whose `[api] ca_file` has this text.
fn configured(dir: &Path, chain: &[&Made], trusted: &str) -> PathBuf {
    let file = made(dir);
    fs::write(dir.join("tls/tls.crt"), pem(chain)).unwrap();
    fs::write(dir.join("tls/tls.key"), chain[0].key.serialize_pem()).unwrap();
    fs::write(dir.join("trusted.crt"), trusted).unwrap();
    let of_api = "ca_file = \"ca/ca.crt\"            # what clients check [tls] against";
    set(dir, of_api, "ca_file = \"trusted.crt\"");
    file
}

/// What the check finds: settings and sentences.
fn found(file: &Path) -> Vec<(String, String)> {
    let config = Config::load(file).unwrap();
    let faults = of(&config, &[certificate_authority]).of(file).faults;
    faults.into_iter().map(|fault| (fault.key, fault.problem)).collect()
}

fn found_for(chain: &[&Made], trusted: &str) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    found(&configured(&dir.path().join("g"), chain, trusted))
}

#[track_caller]
fn silent(chain: &[&Made], trusted: &[&Made]) {
    let found = found_for(chain, &pem(trusted));
    assert!(found.is_empty(), "{found:?}");
}

#[track_caller]
fn strange(chain: &[&Made], trusted: &[&Made]) {
    let found = found_for(chain, &pem(trusted));
    let [(key, problem)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(key, "tls.certificate_file");
    assert!(problem.contains("trusted.crt") && problem.contains("tls_ends_before"), "{problem}");
}

#[test]
fn certificate_of_another_authority_is_a_fault() {
    let site = Site::new();
    strange(&[&site.of_other], &[&site.root]);
    strange(&[&site.of_other, &site.other], &[&site.root]);
    let expired = make("gateway", Some(&site.other), expired);
    strange(&[&expired], &[&site.root]);
    let namesake = make("root", None, authority);
    strange(&[&site.of_root], &[&namesake]);
}

#[test]
fn chain_without_its_intermediate_is_a_fault() {
    let site = Site::new();
    strange(&[&site.of_middle], &[&site.root]);
}

#[test]
fn reload_refuses_a_certificate_of_another_authority() {
    let (dir, site) = (tempfile::tempdir().unwrap(), Site::new());
    let file = configured(&dir.path().join("g"), &[&site.of_other], &site.root.pem);
    let refused = reloaded(&Config::load(&file).unwrap()).unwrap_err();
    assert!(refused.faults.iter().any(|fault| fault.key == "tls.certificate_file"), "{refused}");
}

#[test]
fn ca_file_without_authorities_is_a_fault_of_its_own() {
    let site = Site::new();
    for (trusted, part) in [
        ("nothing", "no certificate"),
        (site.of_other.pem.as_str(), "not a certificate authority"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not a valid X.509"),
    ] {
        let found = found_for(&[&site.of_root], trusted);
        let [(key, problem)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(key, "api.ca_file");
        assert!(problem.contains(part) && problem.contains("trusted.crt"), "{problem}");
    }
}

#[test]
fn intermediates_in_the_chain_file_are_no_fault() {
    let site = Site::new();
    silent(&[&site.of_middle, &site.middle], &[&site.root]);
    silent(&[&site.of_middle, &site.middle, &site.root], &[&site.root]);
    silent(&[&site.of_middle], &[&site.middle]);
}

#[test]
fn one_of_several_authorities_is_no_fault() {
    let site = Site::new();
    silent(&[&site.of_root], &[&site.other, &site.root]);
    // One that follows another may have the same name.
    let namesake = make("root", None, authority);
    silent(&[&site.of_root], &[&namesake, &site.root]);
}

#[test]
fn self_signed_certificate_that_is_trusted_is_no_fault() {
    for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        let own = make("gateway", None, |params| params.is_ca = is_ca);
        silent(&[&own], &[&own]);
        silent(&[&own], &[&Site::new().other, &own]);
    }
}

#[test]
fn certificate_out_of_its_validity_is_no_fault_here() {
    let site = Site::new();
    let ended = make("gateway", Some(&site.root), expired);
    silent(&[&ended], &[&site.root]);
    let future = make("gateway", Some(&site.root), |params| params.not_before = date_time_ymd(2999, 1, 1));
    silent(&[&future], &[&site.root]);
}

#[test]
fn authority_that_ends_before_the_certificate_is_no_fault() {
    let site = Site::new();
    // The intermediate holds today, and does not at the last second of the certificate.
    let middle = make("middle", Some(&site.root), |params| {
        authority(params);
        params.not_after = date_time_ymd(2999, 1, 1);
    });
    let own = make("gateway", Some(&middle), plain);
    silent(&[&own, &middle], &[&site.root]);
    // Both have ended, the intermediate first.
    let middle = make("middle", Some(&site.root), |params| {
        authority(params);
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2000, 6, 1));
    });
    let own = make("gateway", Some(&middle), expired);
    silent(&[&own, &middle], &[&site.root]);
    let root = make("root", None, |params| {
        authority(params);
        expired(params);
    });
    let own = make("gateway", Some(&root), plain);
    silent(&[&own], &[&root]);
}

#[test]
fn other_names_and_purposes_are_no_fault_here() {
    let site = Site::new();
    for names in [&["*.example.org"][..], &["192.0.2.7", "2001:db8::7"], &["clusters.example.org", "127.0.0.1"], &[]] {
        let of = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        let own = make("gateway", Some(&site.root), |params| params.subject_alt_names = of.subject_alt_names);
        silent(&[&own], &[&site.root]);
    }
    let own = make("gateway", Some(&site.root), |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    silent(&[&own], &[&site.root]);
}

#[test]
fn certificate_of_a_balancer_or_of_a_public_authority_is_no_fault() {
    let site = Site::new();
    // An empty file: users' and clusters' machines know the authority.
    assert!(found_for(&[&site.of_other], "").is_empty());
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("g");
    let file = configured(&folder, &[&site.of_other], &site.root.pem);
    assert_eq!(found(&file).len(), 1);
    set(&folder, "[listen]\n", "[listen]\ntls_ends_before = true\n");
    assert!(found(&file).is_empty());
    set(&folder, "tls_ends_before = true\n", "");
    set(&folder, "ca_file = \"trusted.crt\"\n", "");
    assert!(found(&file).is_empty());
}
