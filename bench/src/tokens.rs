//! What checking who somebody is costs, without anything around it: tokens, by the verifier that gateway and agent
//! share, its keys at hand, and certificates. Run by the harness in a process of its own, pinned where hops are.

mod certificate;

use std::{
    path::Path,
    sync::Arc,
    time::{Instant, SystemTime},
};

use anyhow::{Context, ensure};
use auth::token::{Direct, Issuer, RawIssuer, Verifier};
use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeySize,
    signature::{KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use serde_json::{Value, json};
use types::{ids::ClusterId, instants::unix_seconds};

use crate::{link::Seat, load::Outcome, path::Bench, program::output, statistics::Middle};

const ISSUER: &str = "https://issuer.test";
const CLUSTER: &str = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/bench/providers/Microsoft.Kubernetes/connectedClusters/bench";
const KEY: &str = "k1";
/// Length of a usual token.
const USUAL_BYTES: usize = 1024;
/// Of a user of a large company, whose token is then of 40 KB.
const GROUPS: usize = 300;
const GROUP_BYTES: usize = 96;
/// Checks of a kept decision are too short to be timed one by one.
const BATCH: u32 = 200;

/// Tokens and certificates of each kind that are verified for the first time, and batches of kept ones.
#[derive(Clone, Copy, clap::Args)]
pub struct Args {
    /// Number of tokens and certificates of each kind, and of batches.
    #[arg(long)]
    count: u32,
}

/// Measures in a process of its own, where hops are.
///
/// # Errors
/// A process that fails, with what it said.
pub async fn run(bench: &Bench, count: u32) -> anyhow::Result<Outcome> {
    let mut command = bench.link.command(Seat::Outer, &std::env::current_exe()?);
    command.args(["tokens", "--count"]).arg(count.to_string());
    Ok(serde_json::from_str(&output(command, b"").await?)?)
}

/// Measures, and writes an [`Outcome`] to standard output.
///
/// # Errors
/// A token that is refused, keys that cannot be made.
pub fn main(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    crate::print::say(&serde_json::to_string(&runtime.block_on(measure(args.count))?)?);
    Ok(())
}

async fn measure(count: u32) -> anyhow::Result<Outcome> {
    let (dir, signer) = (tempfile::tempdir()?, Signer::new()?);
    let verifier = signer.verifier(dir.path())?;
    let groups: Vec<_> = (0..GROUPS).map(|n| format!("group-{n:0>width$}", width = GROUP_BYTES - 6)).collect();
    let usual = |n: u32| signer.token(&json!({"sub": format!("user-{n}"), "groups": ["a", "b"]}));
    let large = |n: u32| signer.token(&json!({"sub": format!("large-{n}"), "groups": groups}));
    let mut outcome = Outcome::default();
    let mut keep = |name: &str, middle: f64| outcome.extra.insert(name.to_owned(), middle);
    keep("cold_rs256_us", cold_token(&verifier, count, usual).await?);
    keep("cached_1kb_us", kept_token(&verifier, count, &usual(0)?).await?);
    keep("cold_300_groups_us", cold_token(&verifier, count, large).await?);
    keep("cached_300_groups_us", kept_token(&verifier, count, &large(0)?).await?);
    for (name, middle) in certificate::measure(&verifier, &signer, count).await? {
        keep(name, middle);
    }
    // No seconds: checks a second of so many kinds together would say nothing.
    outcome.requests = u64::from(count) * (4 + 3 * u64::from(BATCH));
    Ok(outcome)
}

async fn cold_token(
    verifier: &Verifier,
    count: u32,
    token: impl Fn(u32) -> anyhow::Result<String>,
) -> anyhow::Result<f64> {
    let audience = audience()?;
    cold(count, token, async |token| {
        verifier.verify(token, &audience, SystemTime::now()).await?;
        Ok(())
    })
    .await
}

async fn kept_token(verifier: &Verifier, batches: u32, token: &str) -> anyhow::Result<f64> {
    let audience = audience()?;
    let first = verifier.verify(token, &audience, SystemTime::now()).await?;
    kept(batches, async || {
        let again = verifier.verify(token, &audience, SystemTime::now()).await?;
        ensure!(Arc::ptr_eq(&first, &again), "the decision was not kept");
        Ok(())
    })
    .await
}

/// The median over different credentials, each checked once.
async fn cold<T>(
    count: u32,
    credential: impl Fn(u32) -> anyhow::Result<T>,
    check: impl AsyncFn(&T) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    // The first ones bring the code into the processor's caches.
    for n in 0..count + 10 {
        let credential = credential(n)?;
        let begin = Instant::now();
        check(&credential).await?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Middle::of(times.split_off(10)).context("no credential")?.median)
}

/// The median of batches, of a check whose decision was made before.
async fn kept(batches: u32, check: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..batches {
        let begin = Instant::now();
        for _ in 0..BATCH {
            check().await?;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(BATCH));
    }
    Ok(Middle::of(times).context("no batch")?.median)
}

fn audience() -> anyhow::Result<String> {
    Ok(CLUSTER.parse::<ClusterId>()?.audience())
}

/// An issuer's key, RSA of 2048 bits.
struct Signer(RsaKeyPair);

impl Signer {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(RsaKeyPair::generate(KeySize::Rsa2048).context("an RSA key")?))
    }

    /// A verifier that knows this key from a file, so that nothing is fetched.
    fn verifier(&self, dir: &Path) -> anyhow::Result<Verifier> {
        let n = B64.encode(self.0.public_key().modulus().big_endian_without_leading_zero());
        let e = B64.encode(self.0.public_key().exponent().big_endian_without_leading_zero());
        let keys = json!({"keys": [{"kty": "RSA", "n": n, "e": e, "use": "sig", "alg": "RS256", "kid": KEY}]});
        let file = dir.join("keys.json");
        std::fs::write(&file, keys.to_string())?;
        let (name, url) = ("bench".to_owned(), ISSUER.to_owned());
        let issuer = Issuer::try_from(RawIssuer { name, url, keys_file: Some(file), ..RawIssuer::default() })?;
        Ok(Verifier::new(vec![issuer], Arc::new(Direct))?)
    }

    /// A good token of these claims; a short one is filled up to the usual length.
    fn token(&self, claims: &Value) -> anyhow::Result<String> {
        let now = unix_seconds(SystemTime::now());
        let mut all = json!({"iss": ISSUER, "aud": audience()?, "iat": now, "nbf": now, "exp": now + 3600});
        let claims = claims.as_object().context("claims are an object")?;
        claims.iter().for_each(|(name, value)| all[name] = value.clone());
        let short = USUAL_BYTES.saturating_sub(self.sign(&all)?.len());
        // Four characters of a token are three bytes; those of the claim's own name, of quotes and signs are among
        // them.
        all["fill"] = json!("x".repeat((short * 3 / 4).saturating_sub(10)));
        self.sign(&all)
    }

    fn sign(&self, claims: &Value) -> anyhow::Result<String> {
        let header = json!({"alg": "RS256", "kid": KEY, "typ": "JWT"});
        let signed = format!("{}.{}", B64.encode(header.to_string()), B64.encode(claims.to_string()));
        let mut signature = vec![0; self.0.public_modulus_len()];
        self.0
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
            .context("an RSA signature")?;
        Ok(format!("{signed}.{}", B64.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn t11_tokens_are_as_long_as_they_are_called_and_each_way_is_timed() {
        let signer = Signer::new().unwrap();
        let usual = signer.token(&json!({"sub": "ann"})).unwrap();
        assert!((1000..=1040).contains(&usual.len()), "{}", usual.len());
        let seen = measure(3).await.unwrap();
        for name in [
            "cached_1kb_us",
            "cold_rs256_us",
            "cached_300_groups_us",
            "cold_300_groups_us",
            "kept_access_certificate_us",
            "cold_access_certificate_us",
            "cold_agent_certificate_us",
        ] {
            assert!(seen.extra[name] > 0.0, "{name}: {seen:?}");
        }
        // Of the others the difference is less than what a busy machine adds to one.
        assert!(seen.extra["cached_1kb_us"] < seen.extra["cold_rs256_us"], "{seen:?}");
    }

    #[tokio::test]
    async fn a_token_of_another_key_is_no_measurement() {
        let dir = tempfile::tempdir().unwrap();
        let verifier = Signer::new().unwrap().verifier(dir.path()).unwrap();
        let other = Signer::new().unwrap();
        assert!(cold_token(&verifier, 1, |_| other.token(&json!({"sub": "ann"}))).await.is_err());
    }
}
