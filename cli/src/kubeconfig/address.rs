//! How a cluster is addressed at its gateway, as `server` and `tls-server-name` of a kubeconfig say it.

use clap::ValueEnum;
use types::ids::ClusterKey;

/// How a cluster is addressed at its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AddressForm {
    /// By a TLS server name of its own (tls-server-name), which needs no DNS; not through what ends TLS before the
    /// gateway
    Name,
    /// By its key as the first segment of the path: for clients that do not know tls-server-name
    Path,
    /// By <key>.DOMAIN, where the gateway has such a domain
    Host,
}

/// How a kubeconfig's cluster is addressed at a gateway, and which cluster it is; none for an apiserver's own address.
pub fn form_of(server: &str, server_name: Option<&str>) -> Option<(AddressForm, ClusterKey)> {
    let path = server.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let host = server.split("//").nth(1).unwrap_or_default();
    let label = |host: &str| host.split(['.', ':', '/']).next().unwrap_or_default().to_ascii_lowercase();
    let key = |host: &str| ClusterKey::from_base32(label(host).as_bytes());
    let by_path = ClusterKey::from_hex(path.as_bytes()).map(|key| (AddressForm::Path, key));
    by_path.or_else(|| Some((AddressForm::Name, key(server_name?)?))).or_else(|| Some((AddressForm::Host, key(host)?)))
}
