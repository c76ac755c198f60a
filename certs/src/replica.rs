//! TLS between replicas of the gateway. Both ends show a certificate of role `urn:towline:gateway:<replica>`, which is
//! one for clients: so it is nothing to an agent or a user that trusts the same authority, wherever a replica shows it.
//! The replica that dials knows the name of the one that it means to reach, and refuses a certificate with another
//! name.

use std::{sync::Arc, time::SystemTime};

use rustls::{
    ClientConfig, DistinguishedName, Error, ServerConfig,
    client::{
        Resumption,
        danger::{ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use crate::{
    credentials::Credentials,
    peer::Peer,
    provider::provider,
    roots::Roots,
    server_certificate::ServerCertificate,
    signatures::signatures_by,
    tls::{self, ALPN_REPLICA, ONLY_13, TlsError},
};

/// The listener for other replicas: TLS 1.3, and the certificate of a replica is required. One of another role fails in
/// the handshake.
///
/// # Errors
/// When rustls refuses the roots.
pub fn server(own: &Credentials, roots: &Roots) -> Result<ServerConfig, TlsError> {
    let verifier = Arc::new(Role::new(roots, None)?);
    tls::server(ONLY_13, verifier, ServerCertificate::new(own), &[ALPN_REPLICA])
}

/// The side of the replica that dials: TLS 1.3 with its own certificate, and the other end has to be the replica of
/// this name.
///
/// # Errors
/// When rustls refuses the roots or the credentials.
pub fn client(own: &Credentials, roots: &Roots, replica: &str) -> Result<ClientConfig, TlsError> {
    let verifier = Arc::new(Role::new(roots, Some(replica.to_owned()))?);
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(ONLY_13)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(own.chain().to_vec(), own.key())?;
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config.alpn_protocols = vec![ALPN_REPLICA.to_vec()];
    Ok(config)
}

/// Takes certificates of replicas alone, at either end.
#[derive(Debug)]
struct Role {
    /// For what is the same of all clients: the hints, and the signatures of the handshake.
    clients: Arc<dyn ClientCertVerifier>,
    roots: Roots,
    /// The one replica that it may be; `None`: any.
    name: Option<String>,
}

impl Role {
    fn new(roots: &Roots, name: Option<String>) -> Result<Self, TlsError> {
        Ok(Self { clients: tls::client_verifier(roots, false)?, roots: roots.clone(), name })
    }

    fn judge(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let refused = |why: String| Error::General(format!("the replica's certificate is refused: {why}"));
        let chain: Vec<_> = std::iter::once(own).chain(intermediates).cloned().collect();
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(now.as_secs());
        let peer = Peer::verify(&chain, &self.roots, now).map_err(|error| refused(error.to_string()))?;
        let found = peer.identity.gateway().map_err(|error| refused(error.to_string()))?;
        match &self.name {
            Some(wanted) if wanted != found => Err(refused(format!("it is of {found:?}, not of {wanted:?}"))),
            _ => Ok(()),
        }
    }
}

impl ClientCertVerifier for Role {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.judge(own, intermediates, now).map(|()| ClientCertVerified::assertion())
    }

    signatures_by!(clients);
}

impl ServerCertVerifier for Role {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge(own, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    signatures_by!(clients);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::{ClientConnection, ServerConnection};

    use super::*;
    use crate::{Authority, Issued, Validity};

    const ID: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/edge-1";

    fn authority() -> Authority {
        Authority::create("test", Validity::days(400)).unwrap()
    }

    /// One end's error, if the handshake fails.
    fn handshake(client: ClientConfig, server: ServerConfig) -> Result<(), String> {
        let name = ServerName::try_from("replica.test").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().map_err(|error| format!("server: {error}"))?;
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets().map_err(|error| format!("client: {error}"))?;
        }
        Ok(())
    }

    /// One replica dials another, named `b`: it presents the certificate `own`, and the other one presents `shown`.
    fn dial(authority: &Authority, own: &Issued, shown: &Issued) -> Result<(), String> {
        let roots = authority.roots().unwrap();
        let client = client(own.credentials(), &roots, "b").unwrap();
        handshake(client, server(shown.credentials(), &roots).unwrap())
    }

    #[test]
    fn t12_two_replicas_know_each_other_and_no_other_role_is_taken_for_one() {
        let authority = authority();
        let day = || Validity::days(1);
        let (a, b) = (authority.issue_gateway("a", day()).unwrap(), authority.issue_gateway("b", day()).unwrap());
        dial(&authority, &a, &b).unwrap();
        let agent = authority.issue_agent(ID, day()).unwrap();
        let access = authority.issue_access(ID, "ann", day()).unwrap();
        let plain = authority.issue_server(&["replica.test"], day()).unwrap();
        let client = authority.issue_client("ann", day()).unwrap();
        for (other, why) in
            [(&agent, "role agent"), (&access, "role access"), (&plain, "usage"), (&client, "alternative name")]
        {
            let dialled = dial(&authority, other, &b).unwrap_err();
            assert!(dialled.starts_with("server: ") && dialled.contains(why), "{dialled}");
            let answered = dial(&authority, &a, other).unwrap_err();
            assert!(answered.starts_with("client: ") && answered.contains(why), "{answered}");
        }
    }

    #[test]
    fn t12_another_replica_than_the_one_that_is_dialled_is_refused() {
        let authority = authority();
        let a = authority.issue_gateway("a", Validity::days(1)).unwrap();
        let c = authority.issue_gateway("c", Validity::days(1)).unwrap();
        let error = dial(&authority, &a, &c).unwrap_err();
        assert!(error.contains(r#"it is of "c", not of "b""#), "{error}");
    }

    #[test]
    fn a_replica_of_another_authority_or_time_is_refused() {
        let (authority, other) = (authority(), authority());
        let a = authority.issue_gateway("a", Validity::days(1)).unwrap();
        let b = authority.issue_gateway("b", Validity::days(1)).unwrap();
        let foreign = other.issue_gateway("a", Validity::days(1)).unwrap();
        assert!(dial(&authority, &foreign, &b).unwrap_err().contains("no trusted authority"));
        let now = SystemTime::now();
        let past = Validity { not_before: now - Duration::from_secs(7200), not_after: now - Duration::from_secs(3600) };
        let old = authority.issue_gateway("a", past).unwrap();
        assert!(dial(&authority, &old, &b).unwrap_err().contains("expired"));
        assert!(dial(&authority, &a, &authority.issue_gateway("b", past).unwrap()).unwrap_err().contains("expired"));
    }

    #[test]
    fn names_of_replicas_are_labels() {
        let authority = authority();
        for name in ["", "A", "a b", "a/b", "a%41", "ü", &"x".repeat(64)] {
            assert!(authority.issue_gateway(name, Validity::days(1)).is_err(), "{name:?}");
        }
        for name in ["a", "towline-0", "gw.eu-1", &"x".repeat(63)] {
            assert!(authority.issue_gateway(name, Validity::days(1)).is_ok(), "{name:?}");
        }
    }
}
