//! `[egress]`: hosts that clusters reach through this gateway (docs/gitops.md). Without it there are none.
//!
//! A name in the list says nothing of where it leads: whoever answers for the name in DNS chooses that. So addresses of
//! this machine (which `agents/egress.rs` knows beside the loopback ones), of its link and of clouds' metadata services are refused, whatever name led to them, unless the list has
//! the address itself.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use daemon::settings::{Faults, Section};

/// Entries of the list at most.
const HOSTS_MAX: usize = 1000;
/// Characters of a DNS name at most (RFC 1035).
const NAME_MAX: usize = 253;
/// Where clouds answer a machine about itself, beside the link-local addresses: Azure, Alibaba Cloud and Oracle Cloud.
const METADATA_V4: &[Ipv4Addr] =
    &[Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
/// The same of AWS.
const METADATA_V6: &[Ipv6Addr] = &[Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254)];

/// Hosts that clusters may reach through this gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Egress {
    hosts: Vec<Pattern>,
}

/// An entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    /// A host name, in lower case.
    Name(String),
    /// Every name below this one, `*.example.org`.
    Below(String),
    /// An IP address.
    Address(IpAddr),
}

/// A host and a port, as `git.example.org:443` or `[2001:db8::1]:443`. The name is in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// A name, or an address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl FromStr for Destination {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "must be host:port, such as git.example.org:443";
        let (host, port) = text.rsplit_once(':').ok_or(EXPECTED)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(EXPECTED)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().map_err(|_| EXPECTED)?.to_string(),
            None if is_name(host) => host.to_ascii_lowercase(),
            None => return Err(EXPECTED),
        };
        Ok(Self { host, port })
    }
}

impl Destination {
    /// Where a source is that is reached by TLS; `None` for every other address.
    pub fn of_url(url: &str) -> Option<Self> {
        let url = url::Url::parse(url).ok().filter(|url| matches!(url.scheme(), "https" | "oci"))?;
        let host = url.host_str()?.to_ascii_lowercase();
        format!("{host}:{}", url.port().unwrap_or(443)).parse().ok()
    }

    /// The address, where the host is one.
    fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Letters, digits, `-`, `_` and dots that begin and end nothing. IPv4 addresses are such texts too.
fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    text.len() <= NAME_MAX && text.split('.').all(label)
}

impl FromStr for Pattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "expected host:port, such as git.example.org:443, *.example.org:443, 192.0.2.7:3000 or [2001:db8::7]:443";
        if let Some(below) = text.strip_prefix("*.") {
            let Destination { host, port } = below.parse().map_err(|_| EXPECTED)?;
            let is_address = host.parse::<IpAddr>().is_ok();
            return if is_address { Err(EXPECTED) } else { Ok(Self { host: Host::Below(host), port }) };
        }
        let destination: Destination = text.parse().map_err(|_| EXPECTED)?;
        let host = destination.address().map_or_else(|| Host::Name(destination.host.clone()), Host::Address);
        Ok(Self { host, port: destination.port })
    }
}

impl Egress {
    /// Reads the table `[egress]`.
    pub fn read(mut section: Section, faults: &mut Faults) -> Self {
        let texts = section.texts("hosts", faults).unwrap_or_default();
        if texts.len() > HOSTS_MAX {
            faults.push(section.key("hosts"), format_args!("expected at most {HOSTS_MAX}"));
        }
        let mut hosts = Vec::new();
        for text in texts.iter().take(HOSTS_MAX) {
            match text.parse() {
                Ok(pattern) => hosts.push(pattern),
                Err(expected) => faults.push(section.key("hosts"), format_args!("{text:?}: {expected}")),
            }
        }
        section.end(faults);
        Self { hosts }
    }

    /// The entries in one spelling, for comparisons.
    pub fn entries(&self) -> impl Iterator<Item = String> {
        self.hosts.iter().map(|entry| format!("{entry:?}"))
    }

    /// Whether nothing can be reached.
    pub fn is_off(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Whether a destination is in the list.
    pub fn allows(&self, to: &Destination) -> bool {
        let address = to.address();
        self.hosts.iter().filter(|pattern| pattern.port == to.port).any(|pattern| match &pattern.host {
            Host::Name(name) => *name == to.host,
            Host::Below(name) => {
                address.is_none()
                    && to.host.strip_suffix(name.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            Host::Address(allowed) => address == Some(*allowed),
        })
    }

    /// Whether the list has an address itself, with its port.
    pub fn lists_address(&self, address: &SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.hosts.iter().any(|pattern| {
            pattern.port == address.port()
                && matches!(pattern.host, Host::Address(allowed) if allowed.to_canonical() == ip)
        })
    }

    /// Whether an address may be dialled that a destination of the list led to, wherever this machine is.
    pub fn allows_address(&self, address: &SocketAddr) -> bool {
        !is_special(address.ip().to_canonical()) || self.lists_address(address)
    }
}

/// Whether an address leads to this machine, to its link, to many at once, or to a metadata service.
fn is_special(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            ip.octets()[0] == 0
                || ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast()
                || METADATA_V4.contains(&ip)
        }
        IpAddr::V6(ip) => {
            ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_unicast_link_local()
                || ip.is_multicast()
                || METADATA_V6.contains(&ip)
                // Links and sites of the time before RFC 3879, and the ranges in which AWS and Google have services of the
                // machine, some of which hand out credentials.
                || ip.segments()[0] & 0xffc0 == 0xfec0
                || matches!(ip.segments(), [0xfd00, 0x0ec2, ..] | [0xfd20, 0x00ce, ..])
                || embedded(ip).is_some_and(|ip| is_special(IpAddr::V4(ip)))
        }
    }
}

/// The IPv4 address that a gateway of the network takes out of an IPv6 one: NAT64 (RFC 6052), 6to4 (RFC 3056), Teredo
/// (RFC 4380), the IPv4-translated form (RFC 2765), and the deprecated IPv4-compatible one. A prefix of NAT64 that a network
/// has chosen for itself is not known here.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match ip.segments() {
        [0x64, 0xff9b, .., high, low] | [0, 0, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0, 0, 0, 0, 0xffff, 0, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        [0x2001, 0, .., high, low] => Some(of(!high, !low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn egress(hosts: &[&str]) -> Egress {
        Egress { hosts: hosts.iter().map(|text| text.parse().unwrap()).collect() }
    }

    #[test]
    fn n1_hosts_are_listed_by_name_below_a_name_or_by_address_and_always_with_their_port() {
        let list = egress(&["git.example.org:443", "*.corp.example.org:8443", "192.0.2.7:3000", "[2001:db8::7]:443"]);
        let allows = |text: &str| list.allows(&text.parse().unwrap());
        for good in
            ["git.example.org:443", "GIT.example.org:443", "a.corp.example.org:8443", "a.b.corp.example.org:8443"]
        {
            assert!(allows(good), "{good}");
        }
        assert!(allows("192.0.2.7:3000") && allows("[2001:db8:0::7]:443"));
        for bad in [
            "git.example.org:22",
            "evil-git.example.org:443",
            "git.example.org.evil.test:443",
            "corp.example.org:8443",
            "evilcorp.example.org:8443",
            "192.0.2.7:443",
            "[2001:db8::8]:443",
        ] {
            assert!(!allows(bad), "{bad}");
        }
        assert!(!egress(&[]).allows(&"git.example.org:443".parse().unwrap()) && egress(&[]).is_off());
        for bad in ["git.example.org", "git.example.org:0", "*:443", "*.192.0.2.7:1", ":443", "a b:1", "https://a:1"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn n1_every_fault_of_the_list_is_told_with_its_text() {
        let section =
            Section::parse("hosts = [\"git.example.org:443\", \"git\", \"*\"]\nhost = 1", Path::new("/")).unwrap();
        let mut faults = Faults::default();
        let read = Egress::read(section, &mut faults);
        assert_eq!(read, egress(&["git.example.org:443"]));
        let told = format!("{faults:?}");
        assert!(told.contains("\\\"git\\\"") && told.contains("\\\"*\\\"") && told.contains("host"), "{told}");
    }

    #[test]
    fn attack_th50_a_name_that_leads_to_this_machine_or_to_metadata_is_not_dialled() {
        let list = egress(&["git.example.org:443"]);
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 443);
        for bad in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fec0::1",
            "::ffff:0:127.0.0.1",
            "2001:0:4136:e378:8000:63bf:80ff:fffe",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
        ] {
            assert!(!list.allows_address(&at(bad)), "{bad}");
        }
        for good in ["10.0.0.5", "192.168.1.1", "198.51.100.1", "fd12::1", "2001:db8::1", "64:ff9b::c633:6401"] {
            assert!(list.allows_address(&at(good)), "{good}");
        }
        // The operator named the address, with this port.
        let list = egress(&["localhost:443", "127.0.0.1:443", "[::1]:443"]);
        assert!(list.allows_address(&at("127.0.0.1")) && list.allows_address(&at("::ffff:127.0.0.1")));
        assert!(list.allows_address(&at("::1")) && !list.allows_address(&at("127.0.0.2")));
        assert!(!list.allows_address(&SocketAddr::new([127, 0, 0, 1].into(), 22)));
    }

    #[test]
    fn n1_a_sources_destination_is_its_host_and_port_where_tls_protects_it() {
        let of = |url: &str| Destination::of_url(url).map(|to| to.to_string());
        assert_eq!(of("https://Git.example.org/a.git").as_deref(), Some("git.example.org:443"));
        assert_eq!(of("https://git.example.org:8443/a.git").as_deref(), Some("git.example.org:8443"));
        assert_eq!(of("oci://registry.example.org/a").as_deref(), Some("registry.example.org:443"));
        assert_eq!(of("https://[2001:DB8::1]/a").as_deref(), Some("[2001:db8::1]:443"));
        for bad in ["http://git.example.org/a", "ssh://git@git.example.org/a", "git@git.example.org:a", "a"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
