//! The hops to the gateway: name, proxy, TCP, TLS (and who ends it), each carrier to the end of its hello, the clock.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use certs::{PeerIdentity, presented::Presented};
use rustls::ClientConfig;
use time::{OffsetDateTime, format_description::well_known::Rfc2822};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use tunnel::transport::{
    CarrierKind,
    dial::{self, DialError, Target},
};
use types::instants::rfc3339;

use super::{Finding, Verdict};
use crate::{
    chain,
    config::{CarrierChoice, Config, Endpoint},
    tunnel::connect::{Connect as _, Connector},
};

/// How long one hop may take.
const HOP_DEADLINE: Duration = Duration::from_secs(10);
/// A clock that is off by more makes tokens fail.
const SKEW_MAX: Duration = Duration::from_secs(30);
/// The most bytes of the answer that the clock is read from.
const ANSWER_BYTES: usize = 16 * 1024;
/// Bytes of a certificate's name in a finding.
const NAME_BYTES: usize = 300;

/// The agent's own certificate. One that holds for less than this is nearly over; what renews it is late.
const OWN_SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// The agent's own certificate.
pub(super) fn identity(connector: &Connector, findings: &mut Vec<Finding>) {
    let Some(own) = connector.credentials() else {
        let remedy =
            "see the log of the controller-manager, which gets it; or connect the cluster with `towline connect`";
        return findings.push(Finding::failed("own certificate", "this cluster has none yet", remedy));
    };
    let remedy = "install the certificate that was issued to this cluster's agent";
    let cluster = match PeerIdentity::claimed(own.chain()).as_ref().map(|peer| peer.agent().map(str::to_owned)) {
        Ok(Ok(cluster)) => cluster,
        Ok(Err(err)) => return findings.push(Finding::failed("own certificate", chain(&err), remedy)),
        Err(err) => return findings.push(Finding::failed("own certificate", chain(err), remedy)),
    };
    let until = rfc3339(own.not_after());
    let now = SystemTime::now();
    findings.push(if own.not_after() <= now {
        let remedy = "have a new one issued, or set this machine's clock if it is wrong";
        Finding::failed("own certificate", format!("of {cluster}, expired {until}"), remedy)
    } else if own.not_after() <= now + OWN_SOON {
        Finding::failed("own certificate", format!("of {cluster}, until {until}"), "have a new one issued soon")
            .warning()
    } else {
        Finding::passed("own certificate", format!("of {cluster}, until {until}"))
    });
}

/// One address of the gateway.
pub(super) async fn endpoint(
    config: &Config,
    connector: &Connector,
    index: usize,
    endpoint: &Endpoint,
    findings: &mut Vec<Finding>,
) {
    let gateway = endpoint.authority();
    let target = match connector.credentials() {
        Some(_) => connector.target(index, CarrierKind::Http2),
        None => connector.target_of_nobody(index),
    };
    let target = match target {
        Ok(target) => target,
        Err(err) => {
            let remedy = "correct gateway.url or gateway.server_name";
            return findings.push(Finding::failed(format!("{gateway} settings"), chain(&err), remedy));
        }
    };
    let proxied = target.proxy.is_some();
    let known = name(&gateway, endpoint, proxied, findings).await;
    let mut way = Way { known, tcp: known && tcp(&gateway, &target, findings).await, trusted: true };
    if way.tcp {
        match tls(&gateway, connector, &target, findings).await {
            Some(settings) => clock(&gateway, &settings, &target, findings).await,
            None => way.trusted = false,
        }
    }
    let mut up = 0;
    for carrier in [CarrierKind::Quic, CarrierKind::Http2, CarrierKind::WebSocket] {
        up += usize::from(carrier_up(config, connector, index, carrier, way, findings).await);
    }
    // One carrier is enough.
    if up > 0 && config.gateway.carrier == CarrierChoice::Auto {
        let checks =
            [CarrierKind::Quic, CarrierKind::Http2, CarrierKind::WebSocket].map(|kind| format!("{gateway} {kind}"));
        for finding in findings.iter_mut().filter(|finding| checks.contains(&finding.check)) {
            if finding.verdict == Verdict::Failed {
                *finding = finding.clone().warning();
            }
        }
    }
}

/// How far the way to the gateway goes.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Its name is known, or somebody else looks it up.
    known: bool,
    /// TCP reaches it.
    tcp: bool,
    /// Its certificate is trusted.
    trusted: bool,
}

async fn name(gateway: &str, endpoint: &Endpoint, proxied: bool, findings: &mut Vec<Finding>) -> bool {
    let check = format!("{gateway} DNS");
    if !endpoint.addresses.is_empty() {
        findings.push(Finding::skipped(check, format!("gateway.addresses says {:?}", endpoint.addresses)));
        return true;
    }
    let looked = tokio::time::timeout(HOP_DEADLINE, tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)));
    let cause = match looked.await {
        Ok(Ok(found)) => {
            let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
            findings.push(Finding::passed(check, format!("{found:?}")));
            return true;
        }
        Ok(Err(err)) => err.to_string(),
        Err(_) => format!("no answer within {} s", HOP_DEADLINE.as_secs()),
    };
    let remedy = "ask for the gateway's name in this network's DNS, or set gateway.addresses";
    let finding = Finding::failed(check, cause, remedy);
    // A proxy looks the name up itself.
    findings.push(if proxied { finding.warning() } else { finding });
    proxied
}

async fn tcp(gateway: &str, target: &Target, findings: &mut Vec<Finding>) -> bool {
    let check = match &target.proxy {
        Some(proxy) => format!("{gateway} TCP through proxy {}:{}", proxy.host, proxy.port),
        None => format!("{gateway} TCP"),
    };
    match dial::open_tcp(target, &dial::DialOptions::default()).await {
        Ok(_) => {
            findings.push(Finding::passed(check, "connected"));
            true
        }
        Err(err) => {
            findings.push(Finding::failed(check, chain(&err), tcp_remedy(&err, target.proxy.is_some())));
            false
        }
    }
}

fn tcp_remedy(err: &DialError, proxied: bool) -> &'static str {
    match err {
        DialError::Resolve { .. } | DialError::Connect { .. } if proxied => {
            "correct proxy.url, or let the agent reach the proxy; where none is needed, remove [proxy] or name the gateway \
             in proxy.no_proxy"
        }
        DialError::ProxyTls { .. } => {
            "correct proxy.ca_file, or proxy.url if the proxy is spoken to without TLS (http://)"
        }
        DialError::ProxyAuthentication { .. } => "correct proxy.username_file and proxy.password_file",
        _ if proxied => "have the proxy allow CONNECT to the gateway's host and port, or correct proxy.url",
        _ => "allow outbound TCP to the gateway's port in the firewall, or set proxy.url",
    }
}

/// TLS with the gateway, and which protocol came of it. Gives back settings that reach it for plain HTTPS.
async fn tls(
    gateway: &str,
    connector: &Connector,
    target: &Target,
    findings: &mut Vec<Finding>,
) -> Option<Arc<ClientConfig>> {
    let check = format!("{gateway} TLS");
    let offered = [certs::tls::ALPN_TUNNEL, certs::tls::ALPN_HTTP11];
    let (roots, own) = (connector.roots(), connector.credentials());
    let plain = || match &own {
        Some(own) => certs::tls::client_https_with(&roots, own, &[certs::tls::ALPN_HTTP11]),
        None => certs::tls::client_https(&roots),
    };
    // Who has no certificate yet speaks no tunnel, and gets one by HTTPS.
    let settings = match &own {
        Some(own) => certs::tls::client_https_with(&roots, own, &offered).ok()?,
        None => plain().ok()?,
    };
    match handshake(target, Arc::new(settings)).await {
        Ok(alpn) => {
            findings.push(Finding::passed(check, "the gateway's certificate holds"));
            if own.is_none() {
                return plain().ok().map(Arc::new);
            }
            let check = format!("{gateway} ALPN");
            findings.push(if alpn.as_deref() == Some(certs::tls::ALPN_TUNNEL) {
                Finding::passed(check, "towline/1")
            } else {
                let found = alpn.map_or("nothing".to_owned(), |alpn| String::from_utf8_lossy(&alpn).into_owned());
                let remedy =
                    "something between here and the gateway ends the TLS: only the websocket carrier passes it";
                Finding::failed(check, format!("{found} instead of towline/1"), remedy).warning()
            });
            plain().ok().map(Arc::new)
        }
        Err(cause) => {
            let presented = Arc::new(Presented::default());
            let _ = handshake(target, Arc::new(presented.client().ok()?)).await;
            let issuer = presented.take().and_then(|certificate| issuer(&certificate));
            let who = issuer.map_or(String::new(), |issuer| format!("; the certificate shown is issued by {issuer}"));
            findings.push(Finding::failed(check, format!("{cause}{who}"), tls_remedy(&cause)));
            None
        }
    }
}

/// What rustls calls a certificate's fault is part of its text.
fn tls_remedy(cause: &str) -> String {
    let clock = rfc3339(SystemTime::now());
    match cause {
        _ if cause.contains("NotValidForName") || cause.contains("not valid for name") => {
            "correct gateway.url, or set gateway.server_name to a name of the gateway's certificate".to_owned()
        }
        _ if cause.contains("xpired") => {
            format!("renew the gateway's certificate, or set this machine's clock (NTP), which says {clock}")
        }
        _ if cause.contains("NotValidYet") || cause.contains("not valid yet") => {
            format!("set this machine's clock (NTP), which says {clock}, or the clock of who issued the certificate")
        }
        _ => "if that issuer is a proxy that intercepts TLS, exempt the gateway there or add its CA as \
              gateway.extra_ca_file; else correct gateway.ca_file"
            .to_owned(),
    }
}

async fn handshake(target: &Target, settings: Arc<ClientConfig>) -> Result<Option<Vec<u8>>, String> {
    let io = dial::open_tcp(target, &dial::DialOptions::default()).await.map_err(|err| chain(&err))?;
    let connector = TlsConnector::from(settings);
    let stream = tokio::time::timeout(HOP_DEADLINE, connector.connect(target.server_name.clone(), io)).await;
    let stream = stream.map_err(|_| "no answer".to_owned())?.map_err(|err| err.to_string())?;
    Ok(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
}

/// The gateway's clock, from the `Date` of an answer.
async fn clock(gateway: &str, settings: &Arc<ClientConfig>, target: &Target, findings: &mut Vec<Finding>) {
    let check = format!("{gateway} clock");
    let Some(theirs) = tokio::time::timeout(HOP_DEADLINE, date(settings, target)).await.ok().flatten() else {
        return findings.push(Finding::skipped(check, "the gateway does not tell the time"));
    };
    let ours = OffsetDateTime::now_utc();
    let skew = (ours - theirs).abs();
    findings.push(if skew > SKEW_MAX {
        let ahead = if ours > theirs { "ahead of" } else { "behind" };
        let detail = format!("this machine's clock is {} s {ahead} the gateway's", skew.whole_seconds());
        Finding::failed(check, detail, "set the clock (NTP): tokens and certificates are judged by it")
    } else {
        Finding::passed(check, format!("within {} s of the gateway's", SKEW_MAX.as_secs()))
    });
}

async fn date(settings: &Arc<ClientConfig>, target: &Target) -> Option<OffsetDateTime> {
    let io = dial::open_tcp(target, &dial::DialOptions::default()).await.ok()?;
    let mut stream = TlsConnector::from(settings.clone()).connect(target.server_name.clone(), io).await.ok()?;
    let host = &target.host;
    stream.write_all(format!("HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") && answer.len() < ANSWER_BYTES {
        if stream.read_buf(&mut answer).await.ok()? == 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let line =
        text.lines().find_map(|line| line.to_ascii_lowercase().starts_with("date:").then(|| line[5..].trim()))?;
    OffsetDateTime::parse(&line.replace("GMT", "+0000"), &Rfc2822).ok()
}

async fn carrier_up(
    config: &Config,
    connector: &Connector,
    index: usize,
    carrier: CarrierKind,
    way: Way,
    findings: &mut Vec<Finding>,
) -> bool {
    let check = format!("{} {carrier}", config.gateway.endpoints[index].authority());
    let quic = carrier == CarrierKind::Quic;
    if let CarrierChoice::Pinned(pinned) = config.gateway.carrier
        && pinned != carrier
    {
        findings.push(Finding::skipped(check, format!("gateway.carrier says {pinned}")));
        return false;
    }
    if quic && connector.proxied(index) {
        findings.push(Finding::skipped(check, "QUIC cannot go through an HTTP proxy"));
        return false;
    }
    if connector.credentials().is_none() {
        findings.push(Finding::skipped(check, "there is no certificate to prove the cluster with"));
        return false;
    }
    if !way.known {
        findings.push(Finding::skipped(check, "no address"));
        return false;
    }
    if !quic && !way.tcp {
        findings.push(Finding::skipped(check, "no TCP connection"));
        return false;
    }
    match connector.check(index, carrier).await {
        Ok(tunnel) => {
            tunnel.close(tunnel::wire::close::CloseCode::Shutdown, "a check");
            findings.push(Finding::passed(check, "a tunnel came up"));
            true
        }
        Err(err) => {
            let remedy = carrier_remedy(carrier, &err.reason, way);
            findings.push(Finding::failed(check, err.reason, remedy));
            false
        }
    }
}

fn carrier_remedy(carrier: CarrierKind, reason: &str, way: Way) -> &'static str {
    // An alert of the peer's (RFC 8446 section 6.2) or what QUIC makes of one: it does not like what we showed.
    let alert =
        reason.contains("received fatal alert") || reason.contains("aborted by peer: the cryptographic handshake");
    let refused = alert && ["ertificate", "UnknownCA", "UnknownIssuer"].iter().any(|word| reason.contains(word));
    match carrier {
        _ if !way.trusted => "see TLS above",
        _ if reason.contains("own certificate") => "see own certificate above",
        _ if refused => {
            "the gateway refuses the agent's certificate: have one issued by the authority of the gateway's agents.ca_file, \
             and see that both clocks are right"
        }
        _ if reason.contains("refused") && !reason.contains("Connection refused") => {
            "do what the refusal says; the gateway's log says more"
        }
        CarrierKind::Quic if !way.tcp => "allow outbound UDP or TCP to the gateway's port: one of them is enough",
        CarrierKind::Quic => "allow outbound UDP to the gateway's port; without it the agent uses TCP",
        CarrierKind::WebSocket => "let proxies and balancers on the way pass WebSocket upgrades",
        _ => "let proxies on the way pass TLS unopened; else the agent uses the websocket carrier",
    }
}

/// The issuer of a certificate, for people.
fn issuer(certificate: &[u8]) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let issuer: String = parsed.issuer().to_string().chars().filter(|c| !c.is_control()).take(NAME_BYTES).collect();
    Some(format!("{issuer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b2_a_remedy_is_for_the_hop_that_failed() {
        let way = Way { known: true, tcp: true, trusted: true };
        let alert = "TLS with gw: received fatal alert: CertificateUnknown";
        for carrier in [CarrierKind::Quic, CarrierKind::Http2, CarrierKind::WebSocket] {
            assert!(carrier_remedy(carrier, alert, way).contains("the gateway refuses the agent's certificate"));
            assert_eq!(carrier_remedy(carrier, "anything", Way { trusted: false, ..way }), "see TLS above");
            assert_eq!(
                carrier_remedy(carrier, "this agent's own certificate expired", way),
                "see own certificate above"
            );
        }
        assert!(carrier_remedy(CarrierKind::Quic, "the carrier's handshake took too long", way).contains("without it"));
        let shut =
            carrier_remedy(CarrierKind::Quic, "the carrier's handshake took too long", Way { tcp: false, ..way });
        assert!(!shut.contains("without it"), "where TCP fails, too, the agent has no other way: {shut}");
        let down = DialError::Connect { address: "p:1".to_owned(), proxy: true, reason: "refused".to_owned() };
        assert!(tcp_remedy(&down, true).contains("let the agent reach the proxy"));
        assert!(tcp_remedy(&down, false).contains("firewall"));
        let wants = DialError::ProxyAuthentication { proxy: "p:1".to_owned(), credentials_sent: false };
        assert!(tcp_remedy(&wants, true).contains("proxy.username_file"));
        assert!(tls_remedy("invalid peer certificate: Expired").contains("clock"));
        assert!(tls_remedy("invalid peer certificate: NotValidForName").contains("gateway.server_name"));
    }
}
