//! Where others in the cluster ask for tokens of its identity (docs/features.md R9).

use std::{net::SocketAddr, path::PathBuf};

use daemon::settings::{
    Faults, Section,
    reference::{Key, Table},
};

use super::{
    RoleSet,
    deployment::{Deployment, is_for},
};

/// The most names that the token listener has.
const SERVER_NAMES_MAX: usize = 16;

/// In the reference.
pub(super) const TABLE: Table = Table::once(
    "identity_tokens",
    false,
    "Gives others in the cluster tokens of its identity; only where controller-manager runs.",
    &[
        Key::required("listen", "\"0.0.0.0:8443\"", "Address and port."),
        Key::required(
            "server_names",
            "[\"cluster-identity.towline.svc\"]",
            "Names of the certificate that it makes itself.",
        ),
        Key::example(
            "directory",
            "\"/var/lib/towline/serving\"",
            "The folder that the certificate is kept in; without it Secret towline-serving-certificate.",
        ),
    ],
);

/// Where others in the cluster ask for tokens of its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenListener {
    /// Address and port of the HTTPS listener.
    pub listen: SocketAddr,
    /// Names of the certificate that it makes itself.
    pub server_names: Vec<String>,
    /// Where that is kept; none: in a Secret.
    pub directory: Option<PathBuf>,
}

pub(super) fn read(mut section: Section, roles: RoleSet, out: &mut Faults) -> Option<TokenListener> {
    let listen = section.required_parsed("listen", "an address and a port such as 0.0.0.0:8443", out, |text| {
        text.parse::<SocketAddr>().map_err(|_| "expected an address and a port such as 0.0.0.0:8443")
    });
    let server_names = section.texts("server_names", out).unwrap_or_default();
    if server_names.is_empty() || server_names.len() > SERVER_NAMES_MAX {
        let expected = format!("expected 1 to {SERVER_NAMES_MAX} names, such as cluster-identity.towline.svc");
        out.push(section.key("server_names"), expected);
    }
    for name in &server_names {
        if rustls::pki_types::ServerName::try_from(name.as_str()).is_err() {
            out.push(section.key("server_names"), format_args!("{name:?}: expected a host name or an address"));
        }
    }
    let directory = section.path("directory", out);
    if !roles.manages() {
        out.push(section.key("listen"), is_for(Deployment::ControllerManager, "they have the cluster's identity"));
    }
    section.end(out);
    Some(TokenListener { listen: listen?, server_names, directory })
}
