//! What an operator renews: the certificate that `init` made for the gateway, and the owner's secret. Says in time what
//! ends.

use std::time::{Duration, SystemTime};

use certs::{Authority, AuthorityError, Credentials, LoadError, Roots, Validity};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use types::instants::rfc3339;

use crate::{
    config::Config,
    init::SERVER_DAYS,
    issuer::{
        KeptError, PrincipalsError,
        principals::{SECRET_LIFE, SECRETS_MAX},
    },
    issuer_state,
};

/// How long before the end of a certificate or of the owner's last secret it is spoken of.
pub const NOTICE: Duration = Duration::from_secs(30 * 86_400);

/// Why nothing was renewed; nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    /// The configuration has no authority to issue with.
    #[error(
        "[agents] has no authority_dir: the certificate comes from elsewhere; have it renewed there and replace the files of [tls]"
    )]
    NoAuthority,
    /// The certificate is another authority's.
    #[error(
        "the certificate of [tls] is not of the authority in [agents] authority_dir: have it renewed where it comes from and replace the files"
    )]
    Foreign,
    /// One authority follows another.
    #[error(
        "one authority follows another: clusters that have not renewed do not know the new one yet; `towline-gateway roll-over finish` renews the certificate too"
    )]
    UnderWay,
    /// There is no owner here.
    #[error(
        "the configuration has no [issuer] with a service principal that is one of [api] owners; the owner signs in elsewhere"
    )]
    NoOwner,
    /// Files of certificates.
    #[error("cannot read or write the certificates")]
    Certificates(#[from] LoadError),
    /// The authority cannot issue the certificate.
    #[error("cannot issue a certificate")]
    Authority(#[from] AuthorityError),
    /// What has the owner's service principal.
    #[error("cannot renew the owner's service principal")]
    Kept(#[from] KeptError),
    /// The service principal of the owner cannot be read or changed.
    #[error("cannot renew the owner's service principal")]
    Principals(#[from] PrincipalsError),
}

/// Replaces the certificate and key of `[tls]` by new ones of the same names and authority, for 825 days or as long as
/// the authority lives. A running gateway takes them by itself.
///
/// # Errors
/// [`RenewError`].
pub fn certificate(config: &Config, now: SystemTime) -> Result<Value, RenewError> {
    let authority = config.agents.authority.as_ref().ok_or(RenewError::NoAuthority)?.load()?;
    let old = Credentials::load(&config.tls.certificate_file, &config.tls.key_file)?;
    if !authority.is_issuer_of(&old) {
        let followed = config.agents.authority.as_ref().map(|files| Roots::load(&files.certificate)).transpose()?;
        let ours = followed.is_some_and(|roots| roots.vouch_for_server(&old));
        return Err(if ours { RenewError::UnderWay } else { RenewError::Foreign });
    }
    reissue(config, &authority, &old, now)
}

/// The same, whatever authority the certificate is of.
///
/// # Errors
/// [`RenewError`].
pub fn reissue(
    config: &Config,
    authority: &Authority,
    old: &Credentials,
    now: SystemTime,
) -> Result<Value, RenewError> {
    let (certificate_file, key_file) = (&config.tls.certificate_file, &config.tls.key_file);
    let names = old.server_names();
    if names.is_empty() {
        return Err(RenewError::Foreign);
    }
    let days = Duration::from_secs(u64::from(SERVER_DAYS) * 86_400);
    let mut validity = Validity::at(now, days, days);
    validity.not_after = validity.not_after.min(authority.not_after());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let new = authority.issue_server(&names, validity)?;
    new.save(certificate_file, key_file)?;
    Ok(json!({"certificate": certificate_file, "names": names, "expires": rfc3339(new.credentials().not_after())}))
}

/// Gives the owner another secret, good for a year, which is in the answer alone. Where there are as many as there may
/// be, the oldest goes.
///
/// # Errors
/// [`RenewError`].
pub async fn owner_secret(config: &Config, now: SystemTime) -> Result<Value, RenewError> {
    let (Some(api), Some(issuer)) = (&config.api, &config.issuer) else { return Err(RenewError::NoOwner) };
    let documents = issuer_state::documents(config, issuer).await?;
    let owners = api.owners.clone();
    let made = documents.edit_principals(move |all| {
        let owner = all.iter().find(|one| owners.iter().any(|id| id.eq_ignore_ascii_case(&one.object_id))).cloned();
        let Some(owner) = owner else { return Ok(None) };
        if owner.secrets.len() >= SECRETS_MAX
            && let Some(oldest) = owner.secrets.iter().min_by_key(|secret| secret.created)
        {
            all.remove_secret(&owner.object_id, &oldest.id)?;
        }
        let secret = all.add_secret(&owner.object_id, SECRET_LIFE, now)?;
        Ok(Some((owner.client_id, secret)))
    });
    let made = made.await;
    documents.close().await;
    let (client_id, secret) = made?.ok_or(RenewError::NoOwner)?;
    Ok(json!({
        "clientId": client_id,
        "clientSecret": secret.secret.expose_secret(),
        "secretExpiresInDays": SECRET_LIFE.as_secs() / 86_400,
    }))
}

/// What ends within [`NOTICE`], and what to do.
pub async fn warnings(config: &Config, now: SystemTime) -> Vec<String> {
    let owners_end = owners_end(config).await;
    let mut found = Vec::new();
    let mut say = |what: &str, end: SystemTime, then: &str| {
        if end < now + NOTICE {
            let word = if end <= now { "ended" } else { "ends" };
            found.push(format!("{what} {word} on {}: {then}", rfc3339(end)));
        }
    };
    let authority = config.agents.authority.as_ref().and_then(|files| files.load().ok());
    let followed = config.agents.authority.as_ref().and_then(|files| Roots::load(&files.certificate).ok());
    if let Ok(own) = Credentials::load(&config.tls.certificate_file, &config.tls.key_file) {
        let ours = authority.as_ref().is_some_and(|authority| authority.is_issuer_of(&own));
        let then = if ours {
            "`towline-gateway renew-certificate`"
        } else if followed.is_some_and(|roots| roots.vouch_for_server(&own)) {
            "`towline-gateway roll-over finish`"
        } else {
            "have it renewed where it comes from, and replace the files"
        };
        say("the certificate of [tls]", own.not_after(), then);
    }
    if let Some(authority) = &authority {
        say(
            "the authority of clusters' certificates",
            authority.not_after(),
            "`towline-gateway roll-over begin` has another follow it (OPERATING.md, Certificates)",
        );
    }
    if let Some(end) = owners_end {
        say("the last secret of the owner", end, "`towline-gateway renew-owner-secret`");
    }
    found
}

/// When the owner who can sign in longest cannot any more.
async fn owners_end(config: &Config) -> Option<SystemTime> {
    let (api, issuer) = (config.api.as_ref()?, config.issuer.as_ref()?);
    let documents = issuer_state::documents(config, issuer).await.ok()?;
    let all = documents.principals().await;
    documents.close().await;
    let all = all.ok()?;
    let owners = all.iter().filter(|one| api.owners.iter().any(|id| id.eq_ignore_ascii_case(&one.object_id)));
    let end = owners.flat_map(|one| one.secrets.iter().map(|secret| secret.expires)).max()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        init::{CONFIG_FILE, Plan, init},
        issuer::{PRINCIPALS_FILE, Principals},
    };

    fn made(dir: &std::path::Path) -> Config {
        let plan = Plan {
            directory: dir.to_owned(),
            url: "https://gateway.example.org:8443".to_owned(),
            listen: "0.0.0.0:8443".parse().unwrap(),
            admin: "127.0.0.1:9090".parse().unwrap(),
            certificate: None,
        };
        init(&plan).unwrap();
        Config::load(&dir.join(CONFIG_FILE)).unwrap()
    }

    fn days(n: u64) -> Duration {
        Duration::from_secs(n * 86_400)
    }

    #[test]
    fn the_gateways_certificate_is_renewed_with_the_same_names() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(&dir.path().join("g"));
        let old = Credentials::load(&config.tls.certificate_file, &config.tls.key_file).unwrap();
        assert_eq!(old.server_names(), ["gateway.example.org", "127.0.0.1"]);
        let later = SystemTime::now() + days(800);
        certificate(&config, later).unwrap();
        let new = Credentials::load(&config.tls.certificate_file, &config.tls.key_file).unwrap();
        assert_eq!(new.server_names(), old.server_names());
        assert!(new.not_after() > old.not_after() + days(700) && new.chain() != old.chain());
        crate::checks::files(&config).unwrap();
        // Never past the end of the authority.
        certificate(&config, SystemTime::now() + days(3400)).unwrap();
        let new = Credentials::load(&config.tls.certificate_file, &config.tls.key_file).unwrap();
        assert!(new.not_after() <= SystemTime::now() + days(3650));
    }

    #[tokio::test]
    async fn a_certificate_of_another_authority_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(&dir.path().join("g"));
        let other = Authority::create("other", Validity::days(9)).unwrap();
        let issued = other.issue_server(&["gateway.example.org"], Validity::days(9)).unwrap();
        issued.save(&config.tls.certificate_file, &config.tls.key_file).unwrap();
        assert!(matches!(certificate(&config, SystemTime::now()), Err(RenewError::Foreign)));
        let kept = std::fs::read_to_string(&config.tls.certificate_file).unwrap();
        assert_eq!(kept, issued.certificate_pem);
        let told = warnings(&config, SystemTime::now()).await;
        assert!(told.len() == 1 && told[0].contains("where it comes from"), "{told:?}");
    }

    #[tokio::test]
    async fn what_ends_within_a_month_is_told_before() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(&dir.path().join("g"));
        let at = async |n| warnings(&config, SystemTime::now() + days(n)).await;
        assert_eq!(at(300).await, [""; 0]);
        let owner = at(340).await;
        assert!(owner[0].contains("renew-owner-secret") && owner.len() == 1);
        let certificate = at(800).await;
        assert!(certificate[0].contains("renew-certificate") && certificate.len() == 2);
        let authority = at(3630).await;
        assert!(authority[1].contains("authority"), "{authority:?}");
    }

    #[tokio::test]
    async fn the_owner_gets_another_secret_also_when_there_is_no_room_or_none_is_good_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(&dir.path().join("g"));
        let mut last = Value::Null;
        for n in 0..=SECRETS_MAX as u64 {
            last = owner_secret(&config, SystemTime::now() + days(n)).await.unwrap();
        }
        let path = config.issuer.as_ref().unwrap().state_dir.join(PRINCIPALS_FILE);
        let check = |said: &Value, now: SystemTime| {
            let all = Principals::parse(&path, &std::fs::read(&path).unwrap()).unwrap();
            let (id, secret) = (said["clientId"].as_str().unwrap(), said["clientSecret"].as_str().unwrap());
            all.check(id, secret, now).is_ok()
        };
        assert!(check(&last, SystemTime::now()));
        let late = SystemTime::now() + days(900);
        assert!(!check(&last, late));
        let said = owner_secret(&config, late).await.unwrap();
        assert!(check(&said, late));
    }
}
