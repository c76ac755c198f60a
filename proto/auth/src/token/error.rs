//! Why a token is refused: one variant per check. `Display` is for logs and `towline whoami`; nothing in it comes from
//! the token but numbers and words of a closed list, so that it is safe to log and never holds a credential.

use std::time::Duration;

/// Bytes of one document at most.
pub const DOCUMENT_BYTES: usize = 512 * 1024;
/// How long discovery and key set together may take.
pub const FETCH_DEADLINE: Duration = Duration::from_secs(10);
/// Keys in one set at most.
pub(super) const KEYS: usize = 100;
/// Characters of a `kid` at most.
pub(super) const KID_BYTES: usize = 256;

/// Why a token was refused. Never holds the token or a text out of it; a user's 401 says no more than Kubernetes does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Larger than [`types::limits::TOKEN_BYTES`].
    #[error("the token has {size} bytes, more than {limit} (limit: token bytes)")]
    TooLarge {
        /// Bytes of the token.
        size: usize,
        /// The largest token that is read, in bytes.
        limit: usize,
    },
    /// A space, a line break or another character that no token has.
    #[error("the token has a character that no token has")]
    BadCharacter,
    /// No JWT: perhaps a token that the cluster knows.
    #[error("the token is no JWT")]
    Opaque,
    /// A JWT of no configured issuer: perhaps a service account's.
    #[error("the token's issuer is not configured here")]
    UnknownIssuer,
    /// The three parts are there but do not read.
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    /// One key twice in an object, so that two readers could read two tokens.
    #[error("the token's {0} has a key twice")]
    DuplicateKey(&'static str),
    /// JWE, or compressed.
    #[error("the token is encrypted or compressed, which is not accepted")]
    Encrypted,
    /// A token within the token.
    #[error("the token holds another token (cty), which is not accepted")]
    Nested,
    /// `crit` is there; none is understood.
    #[error("the token's header has crit; no critical extension is understood")]
    Critical,
    /// `b64` is there (RFC 7797).
    #[error("the token's header has b64; unencoded payloads are not accepted")]
    Unencoded,
    /// `alg` is not in the issuer's list; `none` and `HS*` are in no list.
    #[error("the token's algorithm {0} is not accepted for this issuer")]
    Algorithm(&'static str),
    /// `kid` is no short plain text.
    #[error("the token's key id is not plain text of at most {limit} characters", limit = KID_BYTES)]
    BadKeyId,
    /// No `kid`, and several keys fit.
    #[error("the token names no key and several of the issuer's keys fit")]
    NoKeyId,
    /// No key of that id, also after asking the issuer as often as is allowed.
    #[error("the issuer has no such key")]
    UnknownKey,
    /// The key is for another algorithm.
    #[error("the token's key is not for its algorithm")]
    KeyAlgorithm,
    /// The signature does not hold.
    #[error("the token's signature does not hold")]
    Signature,
    /// The key was replaced before the token can have been issued.
    #[error("the token's key was replaced, and the token expires later than any that the key has signed")]
    RetiredKey,
    /// The keys of the issuer could not be read.
    #[error("the issuer's keys are not available: {0}")]
    KeysUnavailable(FetchError),
    /// `typ` of the header or the payload is of another kind of token.
    #[error("the token is of another kind than an id or access token")]
    Kind,
    /// An id token where access tokens are wanted, or the reverse.
    #[error("the token is {found} token, the issuer is configured for {wanted} tokens")]
    Use {
        /// The kind of the token, with its article.
        found: &'static str,
        /// The kind that the issuer is configured for.
        wanted: &'static str,
    },
    /// A claim that must be there.
    #[error("the token has no claim {0}")]
    MissingClaim(String),
    /// A claim of the wrong type or out of range.
    #[error("the token's claim {claim} is not {wanted}")]
    BadClaim {
        /// The claim's configured or standard name.
        claim: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// The current time is after `exp`.
    #[error("the token expired {seconds} s ago")]
    Expired {
        /// Seconds since its end.
        seconds: u64,
    },
    /// The current time is before `nbf`.
    #[error("the token is not valid for another {seconds} s; check the clocks")]
    NotYetValid {
        /// Seconds until its beginning.
        seconds: u64,
    },
    /// `iat` lies ahead.
    #[error("the token was issued {seconds} s in the future; check the clocks")]
    IssuedInFuture {
        /// Seconds until then.
        seconds: u64,
    },
    /// No `aud` is accepted here.
    #[error("the token is for another audience")]
    Audience,
    /// Several audiences, some not ours, or a configured list of parties, and `azp` is not in it.
    #[error("the token was issued to a party (azp) that is not accepted")]
    AuthorizedParty,
    /// A claim that the issuer's configuration requires differs.
    #[error("the token's claim {0} has not the required value")]
    RequiredClaim(String),
    /// The issuer left groups out because there are too many; never read as "no groups".
    #[error("{}", overage_text(*.service_principal))]
    GroupsOverage {
        /// Whether the token is a service principal's.
        service_principal: bool,
    },
    /// More groups than [`types::limits::GROUPS`].
    #[error("the token has {count} groups, more than {limit} (limit: groups)")]
    TooManyGroups {
        /// Groups in the token.
        count: usize,
        /// The largest number of groups that is accepted.
        limit: usize,
    },
    /// A user or group name that is empty, too long, or has characters that change its meaning.
    #[error("the token's {0} is empty, too long, or has control characters or spaces at an end")]
    BadName(&'static str),
    /// A user or group name that begins with `system:` and is not allowed for this issuer.
    #[error("the token's {0} is reserved (system:) and not allowed for this issuer")]
    Reserved(&'static str),
    /// A user or group name, or an object id, that begins with the prefix of another configured issuer.
    #[error("the token's {0} begins with the prefix of another issuer, whose names this one may not give")]
    OthersName(&'static str),
    /// The token is bound to a key and was shown without its proof, or the issuer's configuration requires one.
    #[error("the token needs a proof of possession and none was shown")]
    PopRequired,
    /// A proof of possession was shown; the issuer's configuration has it off.
    #[error("proof-of-possession tokens are off for this issuer")]
    PopOff,
    /// The proof of possession does not hold.
    #[error("the proof of possession is refused: {0}")]
    Pop(#[from] PopError),
}

/// Why an issuer's keys could not be read. Holds nothing that the issuer sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// Not asked yet, or not again so soon.
    #[error("they were not read yet")]
    NotYet,
    /// No connection, and which hop failed.
    #[error("cannot connect to the issuer: {0}")]
    Connect(String),
    /// TLS failed: usually a certificate that is not trusted.
    #[error("no TLS with the issuer: {0}")]
    Tls(String),
    /// The connection broke during the exchange, or the answer is not HTTP.
    #[error("the issuer's answer was cut off, or is not HTTP")]
    Http,
    /// Another status than 200.
    #[error("the issuer answered with status {0}")]
    Status(u16),
    /// A redirect; none is followed.
    #[error("the issuer answered with a redirect, which is not followed")]
    Redirect,
    /// More than [`DOCUMENT_BYTES`].
    #[error("the issuer's document has more than {DOCUMENT_BYTES} bytes (limit: issuer document bytes)")]
    TooLarge,
    /// Longer than [`FETCH_DEADLINE`].
    #[error("the issuer did not answer within {} s", FETCH_DEADLINE.as_secs())]
    Timeout,
    /// The discovery document is not acceptable.
    #[error("the issuer's discovery document is not acceptable: {0}")]
    Discovery(&'static str),
    /// The key set is not acceptable.
    #[error("the issuer's key set is not acceptable: {0}")]
    KeySet(#[from] KeySetError),
}

/// Why a text is no key set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// No JSON, or a key of an object is there twice.
    #[error("it is not a JSON object, or an object in it has a key twice")]
    Json,
    /// The array `keys` is missing or has other members than objects.
    #[error("it has no array `keys` of objects")]
    Shape,
    /// More than 100 keys.
    #[error("it has more than {KEYS} keys (limit: keys of an issuer)")]
    TooMany,
}

/// Why a proof of possession is refused: one variant per check (docs/features.md A5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PopError {
    /// No `kid` in its header.
    #[error("its header has no kid")]
    NoKeyId,
    /// `alg` is not `RS256`.
    #[error("its algorithm is not RS256")]
    Algorithm,
    /// No `ts`, or no number.
    #[error("its ts is missing or no time")]
    Timestamp,
    /// `ts` is too old.
    #[error("it is older than allowed")]
    Expired,
    /// `ts` lies ahead.
    #[error("its ts is in the future; check the clocks")]
    Future,
    /// No `u`, or another cluster's.
    #[error("its u is not this cluster")]
    Host,
    /// No `cnf.jwk` with an RSA key of 2048 bits or more.
    #[error("its cnf.jwk is missing or no RSA key of at least 2048 bits")]
    Key,
    /// The claim `at` is missing.
    #[error("its at (the access token) is missing")]
    AccessToken,
    /// `cnf.kid` of the access token is not the thumbprint of `cnf.jwk`.
    #[error("the access token is bound to another key")]
    Binding,
    /// The signature by `cnf.jwk` does not hold.
    #[error("its signature does not hold")]
    Signature,
    /// The access token in it is itself a proof.
    #[error("the access token in it is a proof again")]
    Nested,
}

fn overage_text(service_principal: bool) -> &'static str {
    if service_principal {
        "Overage claim (users with more than 200 group membership) for SPN is currently not supported. For \
         troubleshooting, please refer to aka.ms/overageclaimtroubleshoot"
    } else {
        "the issuer left the user's groups out of the token because there are too many (groups overage), and nothing \
         here can look them up"
    }
}

impl TokenError {
    /// Whether the token is of no issuer of ours: no JWT, or a JWT of an unknown issuer. Such a token may be a service
    /// account's, which only the cluster can judge (docs/features.md A6). Every other refusal is final.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Opaque | Self::UnknownIssuer)
    }

    /// Whether the fault is neither the token's nor the user's: the issuer's keys could not be read.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::KeysUnavailable(_))
    }

    /// A stable word for audit records and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "token_too_large",
            Self::BadCharacter => "bad_character",
            Self::Opaque => "opaque",
            Self::UnknownIssuer => "unknown_issuer",
            Self::Malformed(_) => "malformed",
            Self::DuplicateKey(_) => "duplicate_key",
            Self::Encrypted => "encrypted",
            Self::Nested => "nested",
            Self::Critical => "critical_header",
            Self::Unencoded => "unencoded_payload",
            Self::Algorithm(_) => "algorithm",
            Self::BadKeyId => "bad_key_id",
            Self::NoKeyId => "no_key_id",
            Self::UnknownKey => "unknown_key",
            Self::KeyAlgorithm => "key_algorithm",
            Self::RetiredKey => "retired_key",
            Self::Signature => "signature",
            Self::KeysUnavailable(_) => "keys_unavailable",
            Self::Kind => "kind",
            Self::Use { .. } => "use",
            Self::MissingClaim(_) => "missing_claim",
            Self::BadClaim { .. } => "bad_claim",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::IssuedInFuture { .. } => "issued_in_future",
            Self::Audience => "audience",
            Self::AuthorizedParty => "authorized_party",
            Self::RequiredClaim(_) => "required_claim",
            Self::GroupsOverage { .. } => "groups_overage",
            Self::TooManyGroups { .. } => "too_many_groups",
            Self::BadName(_) => "bad_name",
            Self::Reserved(_) => "reserved_name",
            Self::OthersName(_) => "others_name",
            Self::PopRequired => "pop_required",
            Self::PopOff => "pop_off",
            Self::Pop(error) => error.code(),
        }
    }
}

impl PopError {
    fn code(self) -> &'static str {
        match self {
            Self::NoKeyId => "pop_no_key_id",
            Self::Algorithm => "pop_algorithm",
            Self::Timestamp => "pop_timestamp",
            Self::Expired => "pop_expired",
            Self::Future => "pop_future",
            Self::Host => "pop_host",
            Self::Key => "pop_key",
            Self::AccessToken => "pop_access_token",
            Self::Binding => "pop_binding",
            Self::Signature => "pop_signature",
            Self::Nested => "pop_nested",
        }
    }
}
