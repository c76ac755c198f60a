//! Sign-ins under way: device codes (RFC 8628) and authorization codes (RFC 6749 section 4.1), and tables of them in
//! memory, bounded. No clock and no socket here. Codes are kept as hashes.

use std::{
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use daemon::shares::{Shared, address, network};
use serde::{Deserialize, Serialize};
use types::random;

use super::principals::hash;
use crate::guid::NoRandom;

/// Sign-ins of devices under way at most; of more the oldest gives way of the network that has most.
pub const DEVICES_MAX: usize = 4096;
/// The same that one address began.
pub const DEVICES_PER_ADDRESS: usize = 128;
/// How long a device code is good for, in seconds.
pub const DEVICE_SECONDS: u64 = 900;
/// How often a device may ask, in seconds.
pub const POLL_SECONDS: u64 = 5;
/// Authorization codes at most; each stands for a user who showed their password, and of more the oldest gives way of
/// the user who has most.
pub const CODES_MAX: usize = 4096;
/// How long an authorization code is good for, in seconds.
pub const CODE_SECONDS: u64 = 60;
/// How long it is remembered behind that, to know it when it comes again.
pub const CODE_REMEMBERED_SECONDS: u64 = 600;
/// RFC 8628 section 6.1: no vowels, so no words; nothing that looks like a digit. 20^8 are 34 bits.
const LETTERS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";
/// Letters of a user code.
const USER_CODE_LETTERS: usize = 8;

/// What a client asks for in a user's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// Id of the client that asks.
    pub client: String,
    /// The audience that tokens are wanted for.
    pub audience: String,
    /// Whether it wants an ID token.
    pub openid: bool,
    /// Whether it wants a refresh token.
    pub offline: bool,
}

/// A user who agreed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consent {
    /// Their stable id.
    pub user: String,
    /// Of their sign-ins; a later one is another right.
    pub generation: u64,
    /// When they showed their password, in seconds since 1970.
    pub at: u64,
}

/// 256 random bits as text.
pub fn random_code() -> Result<String, NoRandom> {
    Ok(BASE64.encode(random::bytes::<32>()?))
}

fn locked<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a flow did not begin.
#[derive(Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// Too many are under way.
    Full,
    /// It cannot be kept now.
    Away,
    /// The operating system gave no random bytes.
    Random,
}

impl From<NoRandom> for NotBegun {
    fn from(_: NoRandom) -> Self {
        Self::Random
    }
}

#[derive(Serialize, Deserialize)]
enum Decision {
    Pending,
    Denied,
    Allowed(Consent),
}

/// A sign-in of a device.
#[derive(Serialize, Deserialize)]
pub struct Device {
    wish: Wish,
    user_code: String,
    peer: IpAddr,
    expires: u64,
    ask_again: u64,
    interval: u64,
    decision: Decision,
}

impl Device {
    /// One that begins now at an address, as [`address`] spells it.
    pub fn new(wish: Wish, user_code: String, peer: IpAddr, now: u64) -> Self {
        Self {
            wish,
            user_code,
            peer,
            expires: now + DEVICE_SECONDS,
            ask_again: now,
            interval: POLL_SECONDS,
            decision: Decision::Pending,
        }
    }

    /// When it began and when it ends, in seconds since 1970.
    pub fn times(&self) -> (u64, u64) {
        (self.expires.saturating_sub(DEVICE_SECONDS), self.expires)
    }

    /// What it asks for and from where it did; while nobody has decided.
    pub fn asks(&self, now: u64) -> Option<(Wish, IpAddr)> {
        self.is_undecided(now).then(|| (self.wish.clone(), self.peer))
    }

    fn is_undecided(&self, now: u64) -> bool {
        self.expires > now && matches!(self.decision, Decision::Pending)
    }

    fn waits(&self, user_code: &str, now: u64) -> bool {
        self.user_code == user_code && self.is_undecided(now)
    }

    /// The user's decision. Says whether there was something to decide.
    pub fn decide(&mut self, consent: Option<Consent>, now: u64) -> bool {
        let waits = self.is_undecided(now);
        if waits {
            self.decision = consent.map_or(Decision::Denied, Decision::Allowed);
        }
        waits
    }

    /// RFC 8628 section 3.5. Says too whether the device may ask again.
    pub fn poll(&mut self, client: &str, now: u64) -> (Poll, bool) {
        if self.wish.client != client {
            return (Poll::Unknown, true);
        }
        if self.expires <= now {
            return (Poll::Expired, false);
        }
        if now < self.ask_again {
            self.interval += POLL_SECONDS;
            self.ask_again = now + self.interval;
            return (Poll::SlowDown, true);
        }
        // A second less: a device that waits exactly as told must not be told that it is too soon.
        self.ask_again = now + self.interval - 1;
        match &self.decision {
            Decision::Pending => (Poll::Pending, true),
            Decision::Denied => (Poll::Denied, false),
            Decision::Allowed(consent) => (Poll::Allowed(self.wish.clone(), consent.clone()), false),
        }
    }
}

/// What a device learns when it asks.
#[derive(Debug, PartialEq, Eq)]
pub enum Poll {
    /// No such code, or another client's.
    Unknown,
    /// Its time is over.
    Expired,
    /// The user has not decided.
    Pending,
    /// It asked too soon, and must from now on wait longer.
    SlowDown,
    /// The user said no.
    Denied,
    /// The user agreed. Once.
    Allowed(Wish, Consent),
}

/// Devices whose users are about to sign in.
pub struct Devices(Mutex<Shared<[u8; 32], Device>>);

impl Default for Devices {
    fn default() -> Self {
        Self(Mutex::new(Shared::new(DEVICES_MAX)))
    }
}

impl Devices {
    /// A new device code and user code for a client at `peer`.
    pub fn begin(&self, wish: Wish, peer: IpAddr, now: u64) -> Result<(String, String), NotBegun> {
        let (device_code, of, peer) = (random_code()?, network(peer), address(peer));
        let mut devices = locked(&self.0);
        devices.expire(&of, |device| device.expires <= now);
        if devices.of(&of).filter(|device| device.peer == peer).count() >= DEVICES_PER_ADDRESS {
            return Err(NotBegun::Full);
        }
        let user_code = loop {
            let code = user_code()?;
            if devices.iter().all(|(_, device)| device.user_code != code) {
                break code;
            }
        };
        let device = Device::new(wish, user_code.clone(), peer, now);
        devices.insert(of, hash(&[], &device_code), device);
        Ok((device_code, user_code))
    }

    /// What the device with this user code asks for, and from where it did; while nobody has decided.
    pub fn find(&self, user_code: &str, now: u64) -> Option<(Wish, IpAddr)> {
        let devices = locked(&self.0);
        let mut waiting = devices.iter().map(|(_, device)| device).filter(|device| device.waits(user_code, now));
        waiting.next().and_then(|device| device.asks(now))
    }

    /// The user's decision. Says whether there was something to decide.
    pub fn decide(&self, user_code: &str, consent: Option<Consent>, now: u64) -> bool {
        let mut devices = locked(&self.0);
        let waiting = devices.iter().find(|(_, device)| device.waits(user_code, now)).map(|(key, _)| *key);
        waiting.and_then(|key| devices.get_mut(&key)).is_some_and(|device| device.decide(consent, now))
    }

    /// RFC 8628 section 3.5.
    pub fn poll(&self, device_code: &str, client: &str, now: u64) -> Poll {
        let mut devices = locked(&self.0);
        let key = hash(&[], device_code);
        let Some((said, stays)) = devices.get_mut(&key).map(|device| device.poll(client, now)) else {
            return Poll::Unknown;
        };
        if !stays {
            devices.remove(&key);
        }
        said
    }
}

/// A user code in its one spelling, however it was typed; `None` for what is none.
pub fn user_code_of(typed: &str) -> Option<String> {
    let letters: String = typed.chars().filter(char::is_ascii_alphabetic).collect();
    let letters = letters.to_ascii_uppercase();
    let fits = letters.len() == USER_CODE_LETTERS && letters.bytes().all(|letter| LETTERS.contains(&letter));
    let (front, back) = letters.split_at_checked(USER_CODE_LETTERS / 2)?;
    fits.then(|| format!("{front}-{back}"))
}

/// A new user code.
pub fn user_code() -> Result<String, NoRandom> {
    let mut letters = String::new();
    while letters.len() < USER_CODE_LETTERS {
        // 240 is a multiple of 20: what is above would make some letters likelier.
        let byte = random::bytes::<1>()?[0];
        if byte < 240 {
            letters.push(char::from(LETTERS[usize::from(byte) % LETTERS.len()]));
        }
    }
    let (front, back) = letters.split_at(USER_CODE_LETTERS / 2);
    Ok(format!("{front}-{back}"))
}

/// A code's terms.
#[derive(Clone, Serialize, Deserialize)]
pub struct Code {
    /// What it is worth.
    pub wish: Wish,
    /// The user who agreed, and when they entered their password.
    pub consent: Consent,
    /// Where it was sent, as the client spelled it.
    pub redirect_uri: String,
    /// RFC 7636: base64url of the SHA-256 of the verifier.
    pub challenge: String,
    /// OpenID Connect Core 1.0 section 3.1.2.1.
    pub nonce: Option<String>,
    /// The refresh tokens that come of it, so that they end when it comes again.
    pub family: String,
}

/// A code as it is kept.
#[derive(Serialize, Deserialize)]
pub struct Issued {
    code: Code,
    expires: u64,
    used: bool,
    /// Whether it came again while it was being used, or later.
    pub replayed: bool,
}

impl Issued {
    /// One that is good from now on.
    pub fn new(code: Code, now: u64) -> Self {
        Self { code, expires: now + CODE_SECONDS, used: false, replayed: false }
    }

    /// Uses it, whatever comes of it.
    pub fn take(&mut self, now: u64) -> Taken {
        if self.used {
            self.replayed = true;
            return Taken::Replayed(self.code.family.clone());
        }
        self.used = true;
        if self.expires <= now { Taken::Unknown } else { Taken::Good(Box::new(self.code.clone())) }
    }
}

/// What comes of a code.
pub enum Taken {
    /// It was never one, or is forgotten.
    Unknown,
    /// It was used before: what came of it, this family of refresh tokens, must end (RFC 6749 section 4.1.2).
    Replayed(String),
    /// For the first time.
    Good(Box<Code>),
}

/// Authorization codes on their way.
pub struct Codes(Mutex<Shared<[u8; 32], Issued, String>>);

impl Default for Codes {
    fn default() -> Self {
        Self(Mutex::new(Shared::new(CODES_MAX)))
    }
}

impl Codes {
    /// A new code.
    pub fn issue(&self, code: Code, now: u64) -> Result<String, NotBegun> {
        let text = random_code()?;
        let mut codes = locked(&self.0);
        let user = code.consent.user.clone();
        codes.expire(&user, |issued| issued.expires + CODE_REMEMBERED_SECONDS <= now);
        codes.insert(user, hash(&[], &text), Issued::new(code, now));
        Ok(text)
    }

    /// Uses a code, whatever comes of it.
    pub fn take(&self, text: &str, now: u64) -> Taken {
        let mut codes = locked(&self.0);
        codes.get_mut(&hash(&[], text)).map_or(Taken::Unknown, |issued| issued.take(now))
    }

    /// Whether a code came again while it was being used.
    pub fn was_replayed(&self, text: &str) -> bool {
        locked(&self.0).get(&hash(&[], text)).is_some_and(|issued| issued.replayed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn wish() -> Wish {
        Wish { client: "c".to_owned(), audience: "a".to_owned(), openid: true, offline: true }
    }

    fn consent() -> Consent {
        Consent { user: "u".to_owned(), generation: 0, at: 1 }
    }

    #[test]
    fn a_device_waits_for_its_user_at_the_pace_it_was_told() {
        let devices = Devices::default();
        let (device, user) = devices.begin(wish(), HERE, 0).unwrap();
        assert_eq!(user_code_of(&user.to_lowercase().replace('-', " ")), Some(user.clone()));
        assert_eq!(devices.poll(&device, "c", 0), Poll::Pending);
        assert_eq!(devices.poll(&device, "c", 1), Poll::SlowDown);
        assert_eq!(devices.poll(&device, "c", 1 + 2 * POLL_SECONDS), Poll::Pending);
        assert_eq!(devices.poll(&device, "other", 100), Poll::Unknown, "a code is its client's");
        assert!(!devices.decide("BBBB-BBBB", Some(consent()), 100));
        assert!(devices.decide(&user, Some(consent()), 100) && !devices.decide(&user, None, 100), "once");
        assert!(devices.find(&user, 100).is_none());
        assert_eq!(devices.poll(&device, "c", 100), Poll::Allowed(wish(), consent()));
        assert_eq!(devices.poll(&device, "c", 200), Poll::Unknown, "a device code is good once");
    }

    #[test]
    fn a_device_code_ends_and_a_denied_one_is_told() {
        let devices = Devices::default();
        let (device, user) = devices.begin(wish(), HERE, 0).unwrap();
        assert!(devices.find(&user, DEVICE_SECONDS - 1).is_some() && devices.find(&user, DEVICE_SECONDS).is_none());
        assert_eq!(devices.poll(&device, "c", DEVICE_SECONDS), Poll::Expired);
        let (device, user) = devices.begin(wish(), HERE, 0).unwrap();
        assert!(devices.decide(&user, None, 1));
        assert_eq!(devices.poll(&device, "c", 1), Poll::Denied);
    }

    #[test]
    fn devices_are_bounded_by_address_and_make_room_with_time() {
        let devices = Devices::default();
        for _ in 0..DEVICES_PER_ADDRESS {
            devices.begin(wish(), HERE, 0).unwrap();
        }
        assert_eq!(devices.begin(wish(), HERE, 1).err(), Some(NotBegun::Full));
        devices.begin(wish(), [192, 0, 2, 1].into(), 1).unwrap();
        devices.begin(wish(), HERE, DEVICE_SECONDS).unwrap();
    }

    /// 32 addresses took all codes, and nobody else could sign a device in.
    #[test]
    fn many_addresses_of_few_networks_keep_nobody_from_signing_in() {
        let devices = Devices::default();
        let mut held = Vec::new();
        for n in 0..DEVICES_MAX + 100 {
            let peer = IpAddr::from([198, 51, (n % 4) as u8, (n / 4 % 64) as u8]);
            held.extend(devices.begin(wish(), peer, 0));
        }
        let (device, user) = devices.begin(wish(), HERE, 0).unwrap();
        for n in 0..500 {
            held.extend(devices.begin(wish(), IpAddr::from([198, 51, (n % 4) as u8, 200]), 0));
        }
        assert!(devices.find(&user, 1).is_some(), "who came last stays");
        assert_eq!(devices.poll(&device, "c", 0), Poll::Pending);
        assert!(devices.0.lock().unwrap().len() <= DEVICES_MAX);
    }

    #[test]
    fn one_user_keeps_no_other_from_a_code() {
        let codes = Codes::default();
        let of = |user: &str| Code {
            wish: wish(),
            consent: Consent { user: user.to_owned(), ..consent() },
            redirect_uri: String::new(),
            challenge: String::new(),
            nonce: None,
            family: user.to_owned(),
        };
        let ann = codes.issue(of("ann"), 0).unwrap();
        for _ in 0..=CODES_MAX {
            codes.issue(of("bob"), 0).unwrap();
        }
        assert!(matches!(codes.take(&ann, 1), Taken::Good(_)));
    }

    #[test]
    fn a_code_is_good_once_and_for_a_minute() {
        let code = || Code {
            wish: wish(),
            consent: consent(),
            redirect_uri: String::new(),
            challenge: String::new(),
            nonce: None,
            family: "f".to_owned(),
        };
        let codes = Codes::default();
        let text = codes.issue(code(), 0).unwrap();
        assert!(matches!(codes.take("x", 0), Taken::Unknown));
        assert!(matches!(codes.take(&text, CODE_SECONDS - 1), Taken::Good(_)) && !codes.was_replayed(&text));
        assert!(matches!(codes.take(&text, CODE_SECONDS - 1), Taken::Replayed(family) if family == "f"));
        assert!(codes.was_replayed(&text));
        let late = codes.issue(code(), 0).unwrap();
        assert!(matches!(codes.take(&late, CODE_SECONDS), Taken::Unknown));
        codes.issue(code(), CODE_SECONDS + CODE_REMEMBERED_SECONDS).unwrap();
        assert!(matches!(codes.take(&text, CODE_SECONDS), Taken::Unknown), "forgotten");
    }

    #[test]
    fn a_user_code_is_read_however_it_is_typed() {
        assert_eq!(user_code_of("wdjb mjht").as_deref(), Some("WDJB-MJHT"));
        for bad in ["", "WDJB-MJH", "WDJB-MJHTT", "AEIO-UAEI", "\u{212a}DJB-MJHT"] {
            assert_eq!(user_code_of(bad), None, "{bad}");
        }
    }
}
