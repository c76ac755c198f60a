//! `[replicas]`: several gateways that share one PostgreSQL store and one address (docs/replicas.md).

use std::{net::SocketAddr, time::Duration};

use daemon::settings::{Faults, Section};

use super::api::{Api, StoreAt};

/// Settings of one gateway of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicas {
    /// Name of this gateway among the others. Two that run at the same time must not share one.
    pub name: String,
    /// Where other replicas connect to this one.
    pub listen: SocketAddr,
    /// The host and port that other replicas dial; `None` only if `listen` has no address that they could dial.
    pub address: Option<String>,
    /// How long this replica continues with what it knows once its lease has ended and it cannot renew it. Zero: not
    /// at all.
    pub stale_for: Duration,
}

/// Where other replicas connect by default.
pub const LISTEN: &str = "0.0.0.0:8444";
/// [`Replicas::stale_for`] where the configuration does not say.
pub const STALE_FOR: Duration = Duration::from_secs(5 * 60);
/// The longest [`Replicas::stale_for`].
const LONGEST_STALE: Duration = Duration::from_secs(24 * 3600);
/// Longest name of a replica, that of a DNS label.
const NAME_BYTES: usize = 63;
/// Longest `address`: a DNS name and a port.
const ADDRESS_BYTES: usize = 260;

const NAME_RULE: &str = "must be 1 to 63 characters of a-z, 0-9, - and ., with a letter or digit first and last";
const ADDRESS_RULE: &str = "must be a host and port that other replicas can dial, such as 10.0.0.7:8444";

impl Replicas {
    /// Reads `[replicas]` beside an `[api]`; of one with faults of its own it is not known what its store is.
    pub fn read(mut section: Section, api: Option<Option<&Api>>, faults: &mut Faults) -> Option<Self> {
        if !matches!(api, Some(None) | Some(Some(Api { store: StoreAt::Postgres { .. }, .. }))) {
            faults.push(
                "replicas",
                "needs a store that several gateways can share: [api] with postgres_url_file. Remove [replicas] to run one gateway",
            );
        }
        let name = section.parsed("name", faults, name).or_else(|| {
            let host = host_name();
            name(&host)
                .map_err(|rule| {
                    faults.push(
                        section.key("name"),
                        format_args!("is missing, and the host name {host:?} cannot be used: it {rule}"),
                    )
                })
                .ok()
        });
        let listen = section.parsed("listen", faults, |text| {
            text.parse().map_err(|_| "must be an address and port such as \"0.0.0.0:8444\" or \"[::]:8444\"")
        });
        let listen: SocketAddr = listen.unwrap_or_else(|| LISTEN.parse().expect("it is an address"));
        let address = section.parsed("address", faults, address);
        let stale_for = section.duration("stale_for", Duration::ZERO..=LONGEST_STALE, faults).unwrap_or(STALE_FOR);
        section.end(faults);
        let address = address.or_else(|| (!listen.ip().is_unspecified()).then(|| listen.to_string()));
        Some(Self { name: name?, listen, address, stale_for })
    }

    /// Replaces name and address by those of the command line.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub fn set(&mut self, named: Option<&str>, dialled: Option<&str>) -> Result<(), String> {
        if let Some(named) = named {
            self.name = name(named).map_err(|rule| format!("--replica-name {rule}"))?;
        }
        if let Some(dialled) = dialled {
            self.address = Some(address(dialled).map_err(|rule| format!("--replica-address {rule}"))?);
        }
        Ok(())
    }
}

/// Whether it can be the name of a replica.
pub fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    bytes.len() <= NAME_BYTES
        && plain(first)
        && plain(last)
        && bytes.iter().all(|b| plain(b) || matches!(b, b'-' | b'.'))
}

fn name(text: &str) -> Result<String, &'static str> {
    if is_name(text) { Ok(text.to_owned()) } else { Err(NAME_RULE) }
}

fn address(text: &str) -> Result<String, &'static str> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        let fine = !address.ip().is_unspecified() && address.port() != 0;
        return if fine { Ok(text.to_owned()) } else { Err(ADDRESS_RULE) };
    }
    let (host, port) = text.rsplit_once(':').ok_or(ADDRESS_RULE)?;
    let label =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    let fine =
        text.len() <= ADDRESS_BYTES && port.parse::<u16>().is_ok_and(|port| port != 0) && host.split('.').all(label);
    if fine { Ok(text.to_owned()) } else { Err(ADDRESS_RULE) }
}

/// The machine's name, in small letters; in a pod that is the pod's. Empty where the system does not tell it so.
fn host_name() -> String {
    let told = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    told.trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> (Option<Replicas>, Vec<String>) {
        let mut faults = Faults::default();
        let section = Section::parse(text, Path::new("/nonexistent")).unwrap();
        let read = Replicas::read(section, None, &mut faults);
        // Without a store of PostgreSQL, which another test looks at.
        let faults = faults.0.into_iter().filter(|fault| fault.key != "replicas");
        (read, faults.map(|fault| fault.to_string()).collect())
    }

    #[test]
    fn t12_address_of_a_replica_defaults_to_a_specific_listener() {
        let (read_one, faults) = read("name = \"a\"\nlisten = \"10.0.0.7:9000\"");
        assert_eq!(faults, Vec::<String>::new());
        let one = read_one.unwrap();
        assert_eq!((one.address.as_deref(), one.stale_for), (Some("10.0.0.7:9000"), STALE_FOR));
        let (other, _) = read("name = \"a\"");
        let mut other = other.unwrap();
        assert_eq!((other.address.as_deref(), other.listen), (None, LISTEN.parse().unwrap()));
        other.set(Some("gateway-0"), Some("10.0.0.8:8444")).unwrap();
        assert_eq!((other.name.as_str(), other.address.as_deref()), ("gateway-0", Some("10.0.0.8:8444")));
        assert!(other.set(Some("Gateway"), None).is_err() && other.set(None, Some("0.0.0.0:8444")).is_err());
    }

    #[test]
    fn t12_replica_names_and_addresses_that_cannot_be_used_are_refused() {
        for bad in ["", "A", "-a", "a.", "a b", "a/b", &"a".repeat(64)] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(is_name("towline-gateway-6d4cf56db6-abcde") && is_name("host.example.org"));
        for bad in ["", "host", "host:0", "host:70000", ":8444", "ho st:1", "[::]:8444", "https://host:1"] {
            assert!(address(bad).is_err(), "{bad:?}");
        }
        assert!(["[2001:db8::1]:8444", "gateway-0.peers:8444"].into_iter().all(|fine| address(fine).is_ok()));
        let (_, faults) = read("name = \"A\"\nstale_for = \"25h\"\nsurprise = 1");
        assert_eq!(faults.len(), 3, "{faults:?}");
    }
}
