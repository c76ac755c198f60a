//! The first exchange of a tunnel, on its control stream: challenge, hello, then welcome or refusal.
//!
//! The agent's identity comes from its client certificate: from mutual TLS, or, where a middlebox ends the TLS, from
//! [`Proof`] over the gateway's challenge. No field of hello says who the cluster is.

use bytes::{Bytes, BytesMut};
use types::version::{Features, Version};

use super::{
    close::CloseCode,
    error::WireError,
    message::{Reader, Writer, extension_u64, word},
};

/// Kind number of a [`Challenge`].
pub const CHALLENGE: u8 = 1;
/// Kind number of a [`Hello`].
pub const HELLO: u8 = 2;
/// Kind number of a [`Welcome`].
pub const WELCOME: u8 = 3;
/// Kind number of a [`Refuse`].
pub const REFUSE: u8 = 4;

const EXT_PROOF: u64 = 2;
const EXT_HELD: u64 = 4;
const EXT_REPLICA: u64 = 2;
const EXT_RETRY_AFTER_MS: u64 = 2;
const EXT_REPLICAS: u64 = 4;
const CERTIFICATES_MAX: u64 = 8;

/// Most replicas that one agent keeps tunnels to, and that a [`Hello`] can name.
pub const HELD_MAX: usize = 8;

/// From the gateway: what it speaks, and what a proof must sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The oldest version that the gateway speaks.
    pub oldest: Version,
    /// The newest version that the gateway speaks.
    pub newest: Version,
    /// What the gateway can do.
    pub features: Features,
    /// Fresh random bytes; a proof signs them.
    pub nonce: [u8; 32],
    /// Whether a [`Proof`] is needed: the carrier's TLS showed no client certificate.
    pub proof_needed: bool,
}

/// Possession of the private key of the agent's certificate, shown over the gateway's nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// DER certificates, the agent's own first.
    pub chain: Vec<Bytes>,
    /// ECDSA P-256 with SHA-256 (ASN.1) over [`proof_message`].
    pub signature: Bytes,
}

/// The agent's answer to a [`Challenge`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version that the agent chose from the gateway's range.
    pub version: Version,
    /// What the agent can do.
    pub features: Features,
    /// The agent program's version, for people.
    pub agent_version: String,
    /// Identifies this agent process (a replica), so that a new tunnel of the same one can replace an old one.
    pub instance: [u8; 16],
    /// Present where [`Challenge::proof_needed`].
    pub proof: Option<Proof>,
    /// Names of the replicas of the gateway that this agent has tunnels to already, at most [`HELD_MAX`]. One of these
    /// refuses with [`CloseCode::Elsewhere`].
    pub held: Vec<Bytes>,
}

/// Which of several replicas of a gateway answers, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its name: 1 to [`super::message::WORD_BYTES`] visible ASCII characters.
    pub name: Bytes,
    /// Replicas that are alive, with this one.
    pub of: u32,
}

/// From the gateway: the tunnel is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The features of both.
    pub features: Features,
    /// The gateway's name of this tunnel, for logs and for a later resumption.
    pub session: [u8; 16],
    /// Period of probes in milliseconds.
    pub probe_period_ms: u64,
    /// Where several gateways share one address; none from a single gateway.
    pub replica: Option<Replica>,
}

/// From the gateway: no tunnel, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// Why the gateway refuses the tunnel.
    pub code: CloseCode,
    /// A sentence for people.
    pub message: String,
    /// When to try again, in milliseconds; none: as the agent sees fit.
    pub retry_after_ms: Option<u64>,
    /// Replicas of the gateway that are alive; none from a single gateway.
    pub replicas: Option<u32>,
}

/// What a [`Proof`] signs: a label, so that the signature means nothing elsewhere, and the nonce and instance, so that
/// it means nothing later.
pub fn proof_message(nonce: &[u8; 32], instance: &[u8; 16]) -> Vec<u8> {
    [b"towline tunnel proof v1\0".as_slice(), nonce, instance].concat()
}

impl Challenge {
    /// Encodes with the length prefix.
    pub fn encode(&self) -> BytesMut {
        let mut writer = Writer::begin(BytesMut::new(), CHALLENGE);
        writer
            .integer(u64::from(self.oldest.0))
            .integer(u64::from(self.newest.0))
            .integer(self.features.0)
            .bytes(&self.nonce)
            .integer(u64::from(self.proof_needed));
        writer.finish()
    }

    /// Decodes a message given without its length prefix.
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::expect(message, CHALLENGE)?;
        let this = Self {
            oldest: version(&mut reader)?,
            newest: version(&mut reader)?,
            features: Features(reader.integer("features")?),
            nonce: array(&mut reader, "nonce")?,
            proof_needed: flag(&mut reader, "proof needed")?,
        };
        if this.oldest > this.newest {
            return Err(WireError::Field("version"));
        }
        reader.end()?;
        Ok(this)
    }
}

impl Hello {
    /// Encodes with the length prefix.
    pub fn encode(&self) -> BytesMut {
        let mut writer = Writer::begin(BytesMut::new(), HELLO);
        writer
            .integer(u64::from(self.version.0))
            .integer(self.features.0)
            .line(&self.agent_version)
            .bytes(&self.instance);
        if let Some(proof) = &self.proof {
            let mut value = BytesMut::new();
            super::varint::put(&mut value, proof.chain.len() as u64);
            for part in proof.chain.iter().chain([&proof.signature]) {
                super::varint::put(&mut value, part.len() as u64);
                value.extend_from_slice(part);
            }
            writer.extension(EXT_PROOF, &value);
        }
        if !self.held.is_empty() {
            let mut value = BytesMut::new();
            super::varint::put(&mut value, self.held.len() as u64);
            for name in &self.held {
                super::varint::put(&mut value, name.len() as u64);
                value.extend_from_slice(name);
            }
            writer.extension(EXT_HELD, &value);
        }
        writer.finish()
    }

    /// Decodes a message given without its length prefix.
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::expect(message, HELLO)?;
        let mut this = Self {
            version: version(&mut reader)?,
            features: Features(reader.integer("features")?),
            agent_version: reader.line("agent version")?,
            instance: array(&mut reader, "instance")?,
            proof: None,
            held: Vec::new(),
        };
        reader.extensions(|tag, value| {
            match tag {
                EXT_PROOF => this.proof = Some(Proof::decode(value)?),
                EXT_HELD => this.held = held(value)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(this)
    }
}

impl Proof {
    fn decode(value: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::nested(value);
        let count = reader.integer("certificates")?;
        if count == 0 || count > CERTIFICATES_MAX {
            return Err(WireError::Field("certificates"));
        }
        let chain = (0..count).map(|_| reader.bytes("certificate")).collect::<Result<_, _>>()?;
        let signature = reader.bytes("signature")?;
        if reader.at_end() { Ok(Self { chain, signature }) } else { Err(WireError::Trailing) }
    }
}

impl Welcome {
    /// Encodes with the length prefix.
    pub fn encode(&self) -> BytesMut {
        let mut writer = Writer::begin(BytesMut::new(), WELCOME);
        writer.integer(self.features.0).bytes(&self.session).integer(self.probe_period_ms);
        if let Some(Replica { name, of }) = &self.replica {
            writer.extension(EXT_REPLICA, name).extension(EXT_REPLICAS, &u64::from(*of).to_be_bytes());
        }
        writer.finish()
    }
}

impl Refuse {
    /// Encodes with the length prefix.
    pub fn encode(&self) -> BytesMut {
        let mut writer = Writer::begin(BytesMut::new(), REFUSE);
        writer.integer(u64::from(self.code.number())).line(&self.message);
        if let Some(ms) = self.retry_after_ms {
            writer.extension(EXT_RETRY_AFTER_MS, &ms.to_be_bytes());
        }
        if let Some(replicas) = self.replicas {
            writer.extension(EXT_REPLICAS, &u64::from(replicas).to_be_bytes());
        }
        writer.finish()
    }
}

/// The gateway's answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The tunnel is up.
    Welcome(Welcome),
    /// The gateway refuses the tunnel.
    Refuse(Refuse),
}

impl Answer {
    /// Decodes a message given without its length prefix.
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(message)?;
        match reader.kind {
            WELCOME => {
                let mut welcome = Welcome {
                    features: Features(reader.integer("features")?),
                    session: array(&mut reader, "session")?,
                    probe_period_ms: reader.integer("probe period")?,
                    replica: None,
                };
                let (mut name, mut of) = (None, None);
                reader.extensions(|tag, value| {
                    match tag {
                        EXT_REPLICA => name = Some(word(value, "replica")?),
                        EXT_REPLICAS => of = Some(replicas(&value)?),
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                // One says nothing without the other.
                welcome.replica = match (name, of) {
                    (Some(name), Some(of)) => Some(Replica { name, of }),
                    (None, None) => None,
                    // Neither says anything without the other.
                    _ => return Err(WireError::Field("replica")),
                };
                Ok(Self::Welcome(welcome))
            }
            REFUSE => {
                let code = u32::try_from(reader.integer("code")?).map_err(|_| WireError::Field("code"))?;
                let message = reader.line("message")?;
                let mut refuse =
                    Refuse { code: CloseCode::from_number(code), message, retry_after_ms: None, replicas: None };
                reader.extensions(|tag, value| {
                    match tag {
                        EXT_RETRY_AFTER_MS => refuse.retry_after_ms = Some(extension_u64(&value, "retry after")?),
                        EXT_REPLICAS => refuse.replicas = Some(replicas(&value)?),
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                Ok(Self::Refuse(refuse))
            }
            other => Err(WireError::Kind(other)),
        }
    }
}

fn held(value: Bytes) -> Result<Vec<Bytes>, WireError> {
    let mut reader = Reader::nested(value);
    let count = usize::try_from(reader.integer("replicas held")?).unwrap_or(usize::MAX);
    if count == 0 || count > HELD_MAX {
        return Err(WireError::Field("replicas held"));
    }
    let names = (0..count).map(|_| word(reader.bytes("replica")?, "replica")).collect::<Result<_, _>>()?;
    if reader.at_end() { Ok(names) } else { Err(WireError::Trailing) }
}

fn replicas(value: &[u8]) -> Result<u32, WireError> {
    u32::try_from(extension_u64(value, "replicas")?).map_err(|_| WireError::Field("replicas"))
}

fn version(reader: &mut Reader) -> Result<Version, WireError> {
    u16::try_from(reader.integer("version")?).map(Version).map_err(|_| WireError::Field("version"))
}

fn flag(reader: &mut Reader, name: &'static str) -> Result<bool, WireError> {
    match reader.integer(name)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Field(name)),
    }
}

fn array<const N: usize>(reader: &mut Reader, name: &'static str) -> Result<[u8; N], WireError> {
    reader.bytes(name)?.as_ref().try_into().map_err(|_| WireError::Field(name))
}
