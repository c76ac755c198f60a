//! Proof of possession: one test for each check in `pop::check` (docs/features.md A5).

use super::*;

const HOST: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/a";

fn holder() -> TestKey {
    TestKey::rs256("holder", 1)
}

impl Site {
    /// An access token bound to a key.
    fn bound(&self, key: &TestKey) -> String {
        self.issuer.mint(&self.changed(|c| c["cnf"] = json!({"kid": key.thumbprint()})))
    }

    fn pop(&self) -> String {
        holder().pop(&self.bound(&holder()), HOST, unix_seconds(self.now))
    }

    async fn refused_pop(&self, change: impl FnOnce(&mut Value, &mut Value)) -> TokenError {
        let key = holder();
        let mut header = json!({"alg": "RS256", "typ": "pop", "kid": key.thumbprint()});
        let mut payload = key.pop_payload(&self.bound(&key), HOST, unix_seconds(self.now));
        change(&mut header, &mut payload);
        self.try_token(&key.jws(&header, payload.to_string().as_bytes())).await.unwrap_err()
    }
}

fn pop(error: PopError) -> TokenError {
    TokenError::Pop(error)
}

fn without(value: &mut Value, member: &str) {
    value.as_object_mut().unwrap().remove(member);
}

#[tokio::test]
async fn a_proof_gives_the_identity_of_the_token_in_it_and_may_be_shown_again() {
    let site = site();
    let token = site.pop();
    for _ in 0..3 {
        assert_eq!(site.try_token(&token).await.unwrap().username, "ann");
    }
    // Another verifier (the agent after the gateway) takes the same nonce.
    let second = verifier(vec![site.issuer.fixed(RawIssuer::new("test", URL))]);
    second.verify(&token, AUD, site.now).await.unwrap();
    assert_eq!(TokenKind::of(&second, &token), Ok(TokenKind::Issuer("test".into())));
}

#[tokio::test]
async fn the_type_is_read_without_case_and_the_host_too() {
    let site = site();
    let key = holder();
    let header = json!({"alg": "RS256", "typ": "PoP", "kid": "x"});
    let payload = key.pop_payload(&site.bound(&key), &HOST.to_uppercase(), unix_seconds(site.now));
    site.try_token(&key.jws(&header, payload.to_string().as_bytes())).await.unwrap();
}

#[tokio::test]
async fn a_proof_without_kid_is_refused() {
    assert_eq!(site().refused_pop(|h, _| without(h, "kid")).await, pop(PopError::NoKeyId));
}

#[tokio::test]
async fn a_proof_with_another_algorithm_is_refused() {
    for alg in ["none", "HS256", "PS256", "ES256", "rs256"] {
        assert_eq!(site().refused_pop(|h, _| h["alg"] = json!(alg)).await, pop(PopError::Algorithm));
    }
}

#[tokio::test]
async fn a_proof_of_another_type_is_no_token() {
    let error = site().refused_pop(|h, _| h["typ"] = json!("JWT")).await;
    assert_eq!(error, TokenError::UnknownIssuer);
}

#[tokio::test]
async fn a_proof_without_a_time_is_refused() {
    assert_eq!(site().refused_pop(|_, p| without(p, "ts")).await, pop(PopError::Timestamp));
    for ts in [json!("1"), json!(null), json!(-1), json!(1e40)] {
        assert_eq!(site().refused_pop(|_, p| p["ts"] = ts.clone()).await, pop(PopError::Timestamp));
    }
}

#[tokio::test]
async fn an_old_proof_is_refused_to_the_second_also_after_it_was_kept() {
    let site = site();
    let now = unix_seconds(site.now);
    assert_eq!(site.refused_pop(|_, p| p["ts"] = json!(now - 900)).await, pop(PopError::Expired));
    let token = holder().pop(&site.bound(&holder()), HOST, now - 899);
    site.try_token(&token).await.unwrap();
    let later = site.verifier.verify(&token, AUD, site.now + Duration::from_secs(1)).await;
    assert_eq!(later.unwrap_err(), pop(PopError::Expired));
}

#[tokio::test]
async fn a_proof_from_the_future_is_refused() {
    let site = site();
    let now = unix_seconds(site.now);
    assert_eq!(site.refused_pop(|_, p| p["ts"] = json!(now + 31)).await, pop(PopError::Future));
    let token = holder().pop(&site.bound(&holder()), HOST, now + 30);
    site.try_token(&token).await.unwrap();
}

#[tokio::test]
async fn a_proof_for_another_cluster_is_refused() {
    for u in [json!(format!("{HOST}2")), json!(""), json!(null), json!([HOST]), json!(AUD)] {
        assert_eq!(site().refused_pop(|_, p| p["u"] = u.clone()).await, pop(PopError::Host));
    }
    assert_eq!(site().refused_pop(|_, p| without(p, "u")).await, pop(PopError::Host));
}

#[tokio::test]
async fn a_proof_without_a_usable_key_is_refused() {
    for cnf in [json!({}), json!({"jwk": {}}), json!({"kid": "x"}), json!({"jwk": TestKey::es256("e").jwk()})] {
        assert_eq!(site().refused_pop(|_, p| p["cnf"] = cnf.clone()).await, pop(PopError::Key));
    }
    let small = json!({"jwk": {"kty": "RSA", "e": "AQAB", "n": B64.encode([0xff; 128])}});
    assert_eq!(site().refused_pop(|_, p| p["cnf"] = small.clone()).await, pop(PopError::Key));
    for member in ["n", "e"] {
        assert_eq!(site().refused_pop(|_, p| without(&mut p["cnf"]["jwk"], member)).await, pop(PopError::Key));
    }
}

#[tokio::test]
async fn a_proof_without_an_access_token_is_refused() {
    let site = site();
    assert_eq!(site.refused_pop(|_, p| without(p, "at")).await, pop(PopError::AccessToken));
    for at in [json!(1), json!(""), json!("garbage")] {
        assert_eq!(site.refused_pop(|_, p| p["at"] = at.clone()).await, pop(PopError::AccessToken));
    }
}

#[tokio::test]
async fn an_access_token_bound_to_another_key_or_none_is_refused() {
    let site = site();
    let other = site.bound(&TestKey::rs256("other", 2));
    assert_eq!(site.refused_pop(|_, p| p["at"] = json!(other)).await, pop(PopError::Binding));
    let unbound = site.issuer.mint(&site.claims());
    assert_eq!(site.refused_pop(|_, p| p["at"] = json!(unbound)).await, pop(PopError::Binding));
}

#[tokio::test]
async fn a_proof_signed_by_another_key_is_refused() {
    let site = site();
    let key = holder();
    let header = json!({"alg": "RS256", "typ": "pop", "kid": key.thumbprint()});
    let payload = key.pop_payload(&site.bound(&key), HOST, unix_seconds(site.now));
    let forged = TestKey::rs256("other", 2).jws(&header, payload.to_string().as_bytes());
    assert_eq!(site.try_token(&forged).await.unwrap_err(), pop(PopError::Signature));
}

#[tokio::test]
async fn a_proof_in_a_proof_is_refused() {
    let site = site();
    let inner = site.pop();
    assert_eq!(site.refused_pop(|_, p| p["at"] = json!(inner)).await, pop(PopError::Nested));
}

#[tokio::test]
async fn the_token_in_a_proof_is_checked_like_any_other() {
    let site = site();
    let key = holder();
    let expired = site.issuer.mint(&site.changed(|c| {
        c["cnf"] = json!({"kid": key.thumbprint()});
        c["exp"] = json!(1);
    }));
    assert!(matches!(site.refused_pop(|_, p| p["at"] = json!(expired)).await, TokenError::Expired { .. }));
    let forged = TestIssuer::new(URL).mint(&site.changed(|c| c["cnf"] = json!({"kid": key.thumbprint()})));
    assert_eq!(site.refused_pop(|_, p| p["at"] = json!(forged)).await, TokenError::Signature);
}

#[tokio::test]
async fn a_bound_token_without_its_proof_is_refused_whatever_is_configured() {
    for pop in [Pop::Off, Pop::Allowed, Pop::Required] {
        let site = with(|raw| raw.pop = Some(pop));
        let token = site.bound(&holder());
        assert_eq!(site.try_token(&token).await.unwrap_err(), TokenError::PopRequired);
    }
}

#[tokio::test]
async fn proofs_can_be_off_or_required() {
    let off = with(|raw| raw.pop = Some(Pop::Off));
    assert_eq!(off.try_token(&off.pop()).await.unwrap_err(), TokenError::PopOff);
    let required = with(|raw| raw.pop = Some(Pop::Required));
    required.try_token(&required.pop()).await.unwrap();
    assert_eq!(required.refused(|_| {}).await, TokenError::PopRequired);
}

/// A gateway chooses by this what to verify a token for an unknown cluster against; without `u` a proof for a cluster
/// that is not there was refused as bad, one for a forbidden cluster as forbidden, and whoever holds a key could tell.
#[test]
fn a_proof_names_the_cluster_that_it_is_for() {
    assert_eq!(claimed_audiences(&site().pop()), [AUD]);
    let upper = holder().pop("a.b.c", &HOST.to_uppercase(), 1);
    assert_eq!(claimed_audiences(&upper), [AUD]);
}
