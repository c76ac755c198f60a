//! Challenge, hello, welcome or refusal, on the control stream.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout};
use types::{
    limits, random,
    version::{Features, Version},
};

use super::{
    AgentSide, GatewaySide, HelloError, Presented, SessionOptions,
    driver::{self, ControlStream},
    messages::Messages,
    state::{Shared, Side},
    tunnel::SessionTunnel,
};
use crate::{
    transport::{
        TunnelHandle, TunnelInfo,
        carrier::{Carrier, RawError, RawStream},
    },
    wire::{
        close::CloseCode,
        hello::{Answer, Challenge, Hello, Proof, Refuse, Welcome, proof_message},
    },
};

/// The agent's end of the hello.
pub async fn connect(carrier: Carrier, agent: AgentSide) -> Result<TunnelHandle, HelloError> {
    let options = agent.options.clone();
    let deadline = options.hello_deadline;
    match timeout(deadline, connect_untimed(&carrier, agent)).await {
        Ok(Ok((control, info, rtt))) => Ok(establish(Side::Agent, carrier, control, info, rtt, &options)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(HelloError::Timeout),
    }
}

async fn connect_untimed(
    carrier: &Carrier,
    agent: AgentSide,
) -> Result<(ControlStream, TunnelInfo, Duration), HelloError> {
    let RawStream { mut send, recv } = lost(carrier, carrier.link.accept().await).await?;
    send.prioritise();
    let mut messages = Messages::new(recv);
    let challenge = Challenge::decode(next(&mut messages, carrier).await?)?;
    let version = challenge.newest.min(Version::NEWEST);
    if version < challenge.oldest || version < Version::OLDEST {
        return Err(HelloError::Version);
    }
    let proof = if challenge.proof_needed {
        Some((agent.prove)(&proof_message(&challenge.nonce, &agent.instance)).map_err(HelloError::Proof)?)
    } else {
        None
    };
    let offered = Features::OFFERED.union(agent.features);
    let hello = Hello {
        version,
        features: offered,
        agent_version: agent.agent_version.clone(),
        instance: agent.instance,
        proof,
        held: agent.held,
    };
    let sent = Instant::now();
    lost(carrier, send.send_all(hello.encode().freeze()).await).await?;
    let welcome = match Answer::decode(next(&mut messages, carrier).await?)? {
        Answer::Welcome(welcome) => welcome,
        Answer::Refuse(refuse) => return Err(refused(refuse)),
    };
    let info = TunnelInfo {
        carrier: carrier.facts.kind,
        peer: carrier.facts.peer,
        version,
        features: offered.intersection(welcome.features),
        session: welcome.session,
        instance: agent.instance,
        agent_version: agent.agent_version,
        replica: welcome.replica.map(Box::new),
    };
    Ok((ControlStream { send, messages }, info, sent.elapsed()))
}

/// The gateway's end of the hello: the tunnel and what `authenticate` gave.
pub async fn accept<F, A, T>(carrier: Carrier, gateway: GatewaySide<F>) -> Result<(TunnelHandle, T), HelloError>
where
    F: FnOnce(Presented) -> A,
    A: Future<Output = Result<T, Refuse>>,
{
    let options = gateway.options.clone();
    match timeout(options.hello_deadline, accept_untimed(&carrier, gateway)).await {
        Ok(Ok((control, info, rtt, who))) => Ok((establish(Side::Gateway, carrier, control, info, rtt, &options), who)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(HelloError::Timeout),
    }
}

async fn accept_untimed<F, A, T>(
    carrier: &Carrier,
    gateway: GatewaySide<F>,
) -> Result<(ControlStream, TunnelInfo, Duration, T), HelloError>
where
    F: FnOnce(Presented) -> A,
    A: Future<Output = Result<T, Refuse>>,
{
    let RawStream { mut send, recv } = lost(carrier, carrier.link.open().await).await?;
    send.prioritise();
    let mut messages = Messages::new(recv);
    let nonce = random::bytes().map_err(|_| HelloError::Lost("no random bytes".to_owned()))?;
    let challenge = Challenge {
        oldest: Version::OLDEST,
        newest: Version::NEWEST,
        features: Features::TAKEN,
        nonce,
        proof_needed: carrier.facts.certificates.is_empty(),
    };
    let sent = Instant::now();
    lost(carrier, send.send_all(challenge.encode().freeze()).await).await?;
    let hello = Hello::decode(next(&mut messages, carrier).await?)?;
    let rtt = sent.elapsed();
    let features = Features::TAKEN.intersection(hello.features);
    let info = TunnelInfo {
        carrier: carrier.facts.kind,
        peer: carrier.facts.peer,
        version: hello.version,
        features,
        session: gateway.session,
        instance: hello.instance,
        agent_version: hello.agent_version.clone(),
        replica: gateway.replica.clone().map(Box::new),
    };
    let judged = match judge(carrier, &nonce, hello) {
        Ok(presented) => (gateway.authenticate)(presented).await,
        Err(refuse) => Err(refuse),
    };
    let who = match judged {
        Ok(who) => who,
        Err(refuse) => {
            // Best effort: the peer may be gone already. It closes once it has read why.
            if send.send_all(refuse.encode().freeze()).await.is_ok() {
                send.finish();
                let _ = timeout(limits::CLOSE_LINGER, carrier.link.closed()).await;
            }
            carrier.link.close(refuse.code, &refuse.message);
            return Err(if refuse.code == CloseCode::Version { HelloError::Version } else { refused(refuse) });
        }
    };
    let probe_period_ms = u64::try_from(gateway.options.probe_period.as_millis()).unwrap_or(u64::MAX);
    let welcome = Welcome { features, session: gateway.session, probe_period_ms, replica: gateway.replica };
    lost(carrier, send.send_all(welcome.encode().freeze()).await).await?;
    Ok((ControlStream { send, messages }, info, rtt, who))
}

/// What the peer has proved, before anyone is asked whether it is trusted.
fn judge(carrier: &Carrier, nonce: &[u8; 32], hello: Hello) -> Result<Presented, Refuse> {
    let refuse =
        |code, message: &str| Refuse { code, message: message.to_owned(), retry_after_ms: None, replicas: None };
    if hello.version < Version::OLDEST || hello.version > Version::NEWEST {
        return Err(refuse(CloseCode::Version, "this version was not offered"));
    }
    let by_proof = carrier.facts.certificates.is_empty();
    let chain = if by_proof {
        let Some(proof) = &hello.proof else {
            return Err(refuse(CloseCode::Unauthorised, "neither a client certificate nor a signed challenge"));
        };
        if !proof_holds(proof, &proof_message(nonce, &hello.instance)) {
            return Err(refuse(CloseCode::Unauthorised, "the challenge's signature is wrong"));
        }
        proof.chain.iter().map(|der| CertificateDer::from(der.to_vec())).collect()
    } else {
        carrier.facts.certificates.clone()
    };
    let Hello { instance, agent_version, held, .. } = hello;
    Ok(Presented { chain, by_proof, instance, agent_version, held })
}

/// Whether the leaf's key (ECDSA P-256) signed `message`. Says nothing of trust in the leaf.
fn proof_holds(proof: &Proof, message: &[u8]) -> bool {
    let Some(leaf) = proof.chain.first() else { return false };
    let Ok((rest, leaf)) = x509_parser::parse_x509_certificate(leaf) else { return false };
    let key = &leaf.public_key().subject_public_key.data;
    rest.is_empty() && UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key).verify(message, &proof.signature).is_ok()
}

fn refused(refuse: Refuse) -> HelloError {
    match refuse.code {
        CloseCode::Version => HelloError::Version,
        code => HelloError::Refused {
            code,
            message: refuse.message,
            retry_after: refuse.retry_after_ms.map(Duration::from_millis),
            replicas: refuse.replicas,
        },
    }
}

/// Names why the connection is gone: a carrier that carries codes tells more than "lost".
async fn lost<T>(carrier: &Carrier, result: Result<T, RawError>) -> Result<T, HelloError> {
    match result {
        Ok(done) => Ok(done),
        Err(RawError::Lost) => {
            let closed = carrier.link.closed().await;
            Err(match closed.code {
                CloseCode::Unauthorised | CloseCode::Overloaded | CloseCode::Deleted | CloseCode::Outdated => {
                    HelloError::Refused {
                        code: closed.code,
                        message: closed.message,
                        retry_after: None,
                        replicas: None,
                    }
                }
                CloseCode::Version => HelloError::Version,
                _ => HelloError::Lost(closed.to_string()),
            })
        }
        Err(error) => Err(HelloError::Lost(format!("{error:?}"))),
    }
}

fn establish(
    side: Side,
    carrier: Carrier,
    control: ControlStream,
    info: TunnelInfo,
    rtt: Duration,
    options: &SessionOptions,
) -> TunnelHandle {
    let shared = Arc::new(Shared::new(side, rtt, carrier.link.remembers_resets()));
    let link = Arc::new(carrier.link);
    let accepted = driver::spawn(side, shared.clone(), link.clone(), control, options.clone());
    Arc::new(SessionTunnel::new(info, shared, link, accepted))
}

/// The next message, or why there is none.
async fn next(messages: &mut Messages, carrier: &Carrier) -> Result<Bytes, HelloError> {
    match messages.read().await {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => lost(carrier, Err(error)).await,
    }
}
