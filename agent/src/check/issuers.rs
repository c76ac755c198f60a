//! The issuers: whether their keys can be read from here. Without them every user's token is refused, however well the
//! tunnel works.

use std::sync::Arc;

use auth::token::{FetchError, Probe};

use super::Finding;
use crate::{chain, config::Config, tunnel::connect::Connector};

/// Every issuer of the configuration.
pub(super) async fn issuers(config: &Config, connector: &Arc<Connector>, findings: &mut Vec<Finding>) {
    if config.issuers.is_empty() {
        let detail = "none: users' tokens are refused, only the cluster's own service-account tokens work";
        return findings.push(Finding::failed("issuers", detail, "add [[issuers]] as at the gateway").warning());
    }
    match crate::roles::parts::verifier(config, connector) {
        Ok(verifier) => findings.extend(verifier.probe().await.into_iter().map(finding)),
        Err(err) => findings.push(Finding::failed("issuers", chain(&err), "correct their ca_file")),
    }
}

fn finding(probe: Probe) -> Finding {
    let Probe { issuer, url, fixed, pinned, keys } = probe;
    let check = format!("issuer {issuer}");
    let error = match keys {
        Ok(0) => {
            let remedy = "see that the issuer publishes keys for RS256 or ES256 and, where pinned_keys_file is set, that \
                          they descend from those";
            return Finding::failed(check, format!("{url} has no key that can be used"), remedy);
        }
        Ok(keys) if fixed => {
            return Finding::passed(check, format!("{keys} key(s) of keys_file; the issuer is not asked"));
        }
        Ok(keys) => return Finding::passed(check, format!("{keys} key(s) read from {url}")),
        Err(error) => error,
    };
    let remedy = match error {
        FetchError::Connect(_) | FetchError::Timeout => {
            "let the agent reach the issuer over HTTPS, or set proxy.url, or give its keys as keys_file"
        }
        FetchError::Tls(_) => {
            "correct ca_file of the issuer: the authority of its certificate, or of what intercepts it"
        }
        _ => "correct url or jwks_url of the issuer",
    };
    let failed = Finding::failed(check, format!("{url}: {error}"), remedy);
    if !pinned {
        return failed;
    }
    let detail = format!("{}; tokens of pinned keys are accepted, those of newer keys are not", failed.detail);
    Finding { detail, ..failed }.warning()
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    fn found(pinned: bool, fixed: bool, keys: Result<usize, FetchError>) -> Finding {
        finding(Probe { issuer: "x".to_owned(), url: "https://x".to_owned(), fixed, pinned, keys })
    }

    #[test]
    fn an_issuer_whose_keys_cannot_be_read_fails_unless_some_are_pinned() {
        let down = || Err(FetchError::Connect("connection refused".to_owned()));
        assert_eq!(found(false, false, Ok(1)).verdict, Verdict::Passed);
        assert_eq!(found(false, true, Ok(1)).verdict, Verdict::Passed);
        assert_eq!(found(true, false, Ok(0)).verdict, Verdict::Failed);
        assert_eq!(found(true, false, down()).verdict, Verdict::Warning);
        let failed = found(false, false, down());
        assert_eq!(failed.verdict, Verdict::Failed);
        assert!(failed.detail.contains("https://x") && failed.detail.contains("refused"), "{failed:?}");
        assert!(failed.remedy.unwrap().contains("proxy.url"));
    }

    #[tokio::test]
    async fn an_issuer_with_another_authority_is_told_before_a_user_meets_a_401() {
        let dir = tempfile::tempdir().unwrap();
        let authority = certs::Authority::create("ours", certs::Validity::days(1)).unwrap();
        let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/a";
        let issued = authority.issue_agent(id, certs::Validity::days(1)).unwrap();
        issued.save(&dir.path().join("tls.crt"), &dir.path().join("tls.key")).unwrap();
        std::fs::write(dir.path().join("ca.crt"), authority.certificate_pem()).unwrap();
        let other = certs::Authority::create("theirs", certs::Validity::days(1)).unwrap();
        let server = other.issue_server(&["localhost"], certs::Validity::days(1)).unwrap();
        let tls = certs::tls::server_public(certs::ServerCertificate::new(server.credentials()), None).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = format!(
            "[gateway]\nurl = \"https://localhost:{port}\"\ncertificate_file = \"tls.crt\"\nkey_file = \"tls.key\"\n\
             [[issuers]]\nname = \"x\"\nurl = \"https://localhost:{port}/i\"\nca_file = \"ca.crt\"\n"
        );
        let config = Config::parse(&text, dir.path()).unwrap();
        let connector = Arc::new(Connector::new(&config, &Default::default()).unwrap());
        let mut findings = Vec::new();
        let accept = async {
            let (io, _) = listener.accept().await.unwrap();
            let _ = tokio_rustls::TlsAcceptor::from(Arc::new(tls)).accept(io).await;
        };
        tokio::join!(issuers(&config, &connector, &mut findings), accept);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].verdict, Verdict::Failed, "{findings:?}");
        assert!(findings[0].remedy.as_deref().unwrap().contains("ca_file of the issuer"), "{findings:?}");
    }
}
