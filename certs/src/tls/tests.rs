use std::{sync::Arc, time::SystemTime};

use rustls::{ClientConnection, HandshakeKind, ServerConnection};

use super::*;
use crate::{Authority, PeerIdentity, Validity};

const ID: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/edge-1";

/// Both ends without a socket: what each has to say goes to the other until neither has.
fn shake(
    client: &Arc<ClientConfig>,
    name: &'static str,
    server: &Arc<ServerConfig>,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let mut client = ClientConnection::new(client.clone(), name.try_into().unwrap()).unwrap();
    let mut server = ServerConnection::new(server.clone()).unwrap();
    while client.wants_write() || server.wants_write() {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets()?;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
        }
    }
    Ok((client, server))
}

struct Site {
    authority: Authority,
    roots: Roots,
    certificate: Arc<ServerCertificate>,
    agent: Credentials,
}

fn site() -> Site {
    let authority = Authority::create("ca", Validity::days(1)).unwrap();
    let server = authority.issue_server(&["gateway.test", "127.0.0.1"], Validity::days(1)).unwrap();
    let agent = authority.issue_agent(ID, Validity::days(1)).unwrap().credentials().clone();
    Site {
        roots: authority.roots().unwrap(),
        certificate: ServerCertificate::new(server.credentials()),
        authority,
        agent,
    }
}

#[test]
fn the_public_listener_serves_with_and_without_a_client_certificate() {
    let site = site();
    let server = Arc::new(server_public(site.certificate.clone(), Some(&site.roots)).unwrap());
    let plain = Arc::new(client_https(&site.roots).unwrap());
    let (client, at_server) = shake(&plain, "gateway.test", &server).unwrap();
    assert_eq!(client.alpn_protocol(), Some(ALPN_HTTP11));
    assert!(at_server.peer_certificates().is_none());

    let agent = Arc::new(client_tunnel(&site.roots, &site.agent, &[ALPN_TUNNEL]).unwrap());
    let (client, at_server) = shake(&agent, "127.0.0.1", &server).unwrap();
    assert_eq!(client.alpn_protocol(), Some(ALPN_TUNNEL));
    let chain = at_server.peer_certificates().unwrap();
    assert_eq!(PeerIdentity::from_der(chain, &site.roots, SystemTime::now()).unwrap().agent(), Ok(ID));
}

#[test]
fn the_tunnel_listener_requires_a_certificate_and_its_alpn() {
    let site = site();
    let server = Arc::new(server_tunnel(site.certificate.clone(), &site.roots).unwrap());
    let agent = Arc::new(client_tunnel(&site.roots, &site.agent, &[ALPN_TUNNEL]).unwrap());
    shake(&agent, "gateway.test", &server).unwrap();
    let mut without = client_https(&site.roots).unwrap();
    without.alpn_protocols = vec![ALPN_TUNNEL.to_vec()];
    assert!(shake(&Arc::new(without), "gateway.test", &server).is_err());
    let user_alpn = Arc::new(client_tunnel(&site.roots, &site.agent, &[ALPN_H2]).unwrap());
    assert!(shake(&user_alpn, "gateway.test", &server).is_err());
}

#[test]
fn presented_certificate_is_kept_and_ends_the_handshake() {
    let issued = site().authority.issue_server(&["gateway.test"], Validity::days(1)).unwrap();
    let server = Arc::new(server_public(ServerCertificate::new(issued.credentials()), None).unwrap());
    let presented = Arc::new(crate::presented::Presented::default());
    assert!(shake(&Arc::new(presented.client().unwrap()), "another.test", &server).is_err());
    assert_eq!(presented.take().as_ref(), issued.credentials().chain().first());
    assert_eq!(presented.take(), None);
}

/// Before anybody has looked for a path in it.
#[test]
fn client_chain_that_is_too_long_ends_the_handshake() {
    let site = site();
    let server = Arc::new(server_public(site.certificate.clone(), Some(&site.roots)).unwrap());
    let (own, more) = (site.agent.chain()[0].clone(), site.authority.certificate().clone());
    let with = |certificates: usize| {
        let mut chain = vec![own.clone()];
        chain.resize(certificates, more.clone());
        let agent = Credentials::from_der(chain, site.agent.key()).unwrap();
        shake(&Arc::new(client_tunnel(&site.roots, &agent, &[ALPN_TUNNEL]).unwrap()), "gateway.test", &server)
    };
    with(CHAIN).unwrap();
    let refused = with(CHAIN + 1).err().unwrap().to_string();
    assert!(refused.contains(&format!("more than {CHAIN}")), "{refused}");
}

#[test]
fn certificates_of_other_authorities_end_the_handshake_on_either_side() {
    let (site, other) = (site(), self::site());
    let server = Arc::new(server_public(site.certificate.clone(), Some(&site.roots)).unwrap());
    let foreign_agent = Arc::new(client_tunnel(&site.roots, &other.agent, &[ALPN_TUNNEL]).unwrap());
    assert!(shake(&foreign_agent, "gateway.test", &server).is_err());
    let foreign_roots = Arc::new(client_https(&other.roots).unwrap());
    assert!(shake(&foreign_roots, "gateway.test", &server).is_err());
}

#[test]
fn a_server_under_another_name_is_refused() {
    let site = site();
    let server = Arc::new(server_public(site.certificate.clone(), None).unwrap());
    let client = Arc::new(client_https(&site.roots).unwrap());
    assert!(shake(&client, "gateway.test.evil.test", &server).is_err());
    assert!(shake(&client, "127.0.0.2", &server).is_err());
    assert!(shake(&client, "gateway.test", &server).is_ok());
}

#[test]
fn a_client_certificate_does_not_serve() {
    let site = site();
    let agent_as_server = ServerCertificate::new(&site.agent);
    let server = Arc::new(server_public(agent_as_server, None).unwrap());
    assert!(shake(&Arc::new(client_https(&site.roots).unwrap()), "gateway.test", &server).is_err());
}

#[test]
fn no_session_is_resumed_on_any_version() {
    let site = site();
    let server = Arc::new(server_public(site.certificate.clone(), Some(&site.roots)).unwrap());
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let client = client(versions, &site.roots, None, &[ALPN_H2]).unwrap();
        let client = Arc::new(client);
        for _ in 0..3 {
            let (client, _) = shake(&client, "gateway.test", &server).unwrap();
            assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full));
            assert!(!client.is_early_data_accepted());
        }
    }
}

#[test]
fn a_tunnel_is_tls_13_only() {
    let site = site();
    let server = Arc::new(server_tunnel(site.certificate.clone(), &site.roots).unwrap());
    let old = Arc::new(client(&[&TLS12], &site.roots, Some(&site.agent), &[ALPN_TUNNEL]).unwrap());
    assert!(shake(&old, "gateway.test", &server).is_err());
}

#[test]
fn a_replaced_certificate_is_shown_from_the_next_handshake_on() {
    let site = site();
    let server = Arc::new(server_public(site.certificate.clone(), None).unwrap());
    let client = Arc::new(client_https(&site.roots).unwrap());
    assert!(shake(&client, "second.test", &server).is_err());
    let next = site.authority.issue_server(&["second.test"], Validity::days(2)).unwrap();
    site.certificate.replace(next.credentials());
    shake(&client, "second.test", &server).unwrap();
    assert_eq!(site.certificate.not_after(), next.credentials().not_after());
}
