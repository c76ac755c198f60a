//! The words as typed.

mod account;
mod connect;
mod identities;
mod names;
mod resources;
mod role;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand};
use daemon::settings::positive_duration;

pub use self::{account::*, connect::*, identities::*, resources::*, role::*};
use crate::{client::OutboundArgs, context::ContextArgs, kubeconfig::AddressForm, output::OutputArgs};

/// As long as `gateway::issuer::principals::SECRET_LIFE`.
const SECRET_TTL: &str = "8760h";

/// Kubernetes clusters behind firewalls, reached through a gateway.
#[derive(Debug, Parser)]
#[command(
    name = "towline",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 failed; 2 the command was typed wrongly; 130 ended by Ctrl+C; 141 nobody reads\n\
        its output any more.\n\
        Results go to standard output, all else to standard error."
)]
pub struct Args {
    /// What to log to standard error: a level, or target=level,...; info without this, and of libraries errors alone
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// Log JSON instead of text.
    #[arg(long, global = true)]
    pub log_json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a complete gateway for one machine, with an issuer and users of its own
    Dev(DevArgs),
    /// Print a token for a cluster from the built-in issuer
    Token(TokenArgs),
    /// Tell what gateway and agent each make of a token, and why not
    Whoami(WhoamiArgs),
    /// Write or merge a kubeconfig for a cluster
    Kubeconfig(KubeconfigArgs),
    /// Sign in at a gateway
    Login(LoginArgs),
    /// Forget an account
    Logout(LogoutArgs),
    /// The accounts that are signed in, and the subscription to work in
    Account(AccountArgs),
    /// Resource groups
    Group(GroupArgs),
    /// One-time tokens, with which a cluster is connected without an account
    EnrolmentToken(EnrolmentTokenArgs),
    /// Connected clusters
    List(ListArgs),
    /// One connected cluster
    Show(ShowArgs),
    /// Change a connected cluster: tags, what it runs on
    Update(UpdateArgs),
    /// Connect a Kubernetes cluster: make its resource and install its agents
    Connect(ConnectArgs),
    /// Delete a connected cluster, and remove its agents
    Delete(DeleteArgs),
    /// Find out why a cluster is not connected, and pack what was found
    Troubleshoot(TroubleshootArgs),
    /// Turn features of a cluster on
    EnableFeatures(FeaturesArgs),
    /// Turn features of a cluster off
    DisableFeatures(FeaturesArgs),
    /// Who may do what: role definitions and assignments
    Role(RoleArgs),
    /// Service principals: what automation signs in as
    Sp(SpArgs),
    /// What is open through the gateway
    Sessions(SessionsArgs),
    /// What happens to clusters
    Events(EventsArgs),
    /// Send one request to the resource API
    Rest(RestArgs),
    /// Print what makes a shell complete these commands
    Completion(CompletionArgs),
    /// Serve a cluster at https://127.0.0.1:<port>, with a token that refreshes itself
    Proxy(ProxyArgs),
}

/// `towline dev`.
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DevArgs {
    /// Edit the state of a running or stopped `towline dev`.
    #[command(subcommand)]
    pub edit: Option<DevEdit>,
    /// Options of the gateway itself.
    #[command(flatten)]
    pub run: DevRun,
}

/// `towline dev --state DIR`.
#[derive(Debug, ClapArgs)]
pub struct DevRun {
    /// Folder of the state; made if it is not there, used again if it is
    #[arg(long, value_name = "DIR", required = true)]
    pub state: Option<PathBuf>,
    /// Where users and agents connect, TCP and UDP. Port 0 picks one that is free and keeps it for later starts.
    /// Without this: as at the last start, at first 127.0.0.1:8443 or, if that is taken, another port
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// Where health, metrics and sessions are served; 127.0.0.1 and a kept free port without this
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub admin_listen: Option<SocketAddr>,
    /// A further name or address of the gateway, for its certificate; the first one is part of its URL
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// Serve clusters at <key>.DOMAIN too
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// A cluster's name, or its whole ARM id; repeat for more. At the first start `dev` without this
    #[arg(long = "cluster", value_name = "NAME")]
    pub clusters: Vec<String>,
    /// How long tokens live, such as 1h or 30s
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub token_ttl: Option<Duration>,
    /// The kubeconfig by which agents outside of a cluster reach it; without this `kubeconfig` in the agent's folder
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A setting of the gateway's configuration, such as sessions.reauthorise_every=1s; repeat for more
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub gateway_settings: Vec<(String, String)>,
    /// A setting of the agents' configuration, such as sessions.outlive_token=0s; repeat for more
    #[arg(long = "agent-set", value_name = "KEY=VALUE", value_parser = setting)]
    pub agent_settings: Vec<(String, String)>,
    /// Print one JSON line on standard output once ready, and nothing else
    #[arg(long)]
    pub json: bool,
}

/// `towline dev <edit> --state DIR`.
#[derive(Debug, Subcommand)]
pub enum DevEdit {
    /// Add a cluster, write its agent's files and grant it to admin and viewer
    AddCluster {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name or whole ARM id
        name: String,
    },
    /// Add a user with a generated password, or give an existing one new groups and a new password
    AddUser {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name
        name: String,
        /// A group; repeat for more
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// A cluster that the user may reach, or * for all; repeat for more
        #[arg(long = "grant", value_name = "CLUSTER")]
        grants: Vec<String>,
        /// Read the password from this file instead of making one; - is standard input
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Disable a user: no tokens, and open sessions end
    DisableUser {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name
        name: String,
    },
    /// Enable a user again
    EnableUser {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name
        name: String,
    },
    /// Add a service principal; its secret is kept in the state's folder
    AddPrincipal {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name
        name: String,
        /// A cluster that it may reach, or * for all; repeat for more
        #[arg(long = "grant", value_name = "CLUSTER")]
        grants: Vec<String>,
        /// How long the secret is good for
        #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = SECRET_TTL)]
        ttl: Duration,
    },
    /// Remove a service principal: no tokens, and open sessions end
    RemovePrincipal {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name, object id or client id
        name: String,
    },
    /// Give a service principal a new secret, instead of those that it has
    RotatePrincipal {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name, object id or client id
        name: String,
        /// Leave the present ones good as well; a further rotation without this ends them
        #[arg(long)]
        append: bool,
        /// How long the secret is good for
        #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = SECRET_TTL)]
        ttl: Duration,
    },
    /// Let a user or a group reach a cluster
    Grant(DevGrant),
    /// Take that right back: open sessions end
    Revoke(DevGrant),
    /// Sign tokens with a new key from now on, which the present one vouches for
    RotateKeys {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
    },
}

/// Which state is edited.
#[derive(Debug, ClapArgs)]
pub struct StateArgs {
    /// Folder of the state
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
}

/// Who may reach what.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("who").required(true).args(["user", "group"]))]
pub struct DevGrant {
    /// Of which state.
    #[command(flatten)]
    pub at: StateArgs,
    /// Name or ARM id of the cluster, or * for all
    #[arg(long)]
    pub cluster: String,
    /// A user, or a service principal by its object id
    #[arg(long)]
    pub user: Option<String>,
    /// A group
    #[arg(long)]
    pub group: Option<String>,
}

/// Which cluster, and at which gateway.
#[derive(Debug, ClapArgs, Clone)]
pub struct ClusterArgs {
    /// Folder of a `towline dev`: tells gateway, authority, issuer and clusters
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The gateway, such as https://gateway.example.org
    #[arg(long, value_name = "URL", conflicts_with = "state")]
    pub server: Option<String>,
    /// The cluster: its ARM id or its key of 64 hex digits; with --state also its name
    #[arg(long, value_name = "ID|KEY|NAME")]
    pub cluster: Option<String>,
    /// PEM file of the authority of the gateway's certificate; the system's without this
    #[arg(long, value_name = "FILE", conflicts_with = "state")]
    pub ca: Option<PathBuf>,
    /// The cluster by its name, at the gateway that `towline login` signed in at
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster, requires = "resource_group", conflicts_with_all = ["state", "server", "cluster"])]
    pub name: Option<String>,
    /// Its resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, requires = "name")]
    pub resource_group: Option<String>,
    /// As which account.
    #[command(flatten)]
    pub context: ContextArgs,
}

/// Who signs in, and where.
#[derive(Debug, ClapArgs, Clone)]
pub struct UserArgs {
    /// The user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// File with the password; - is standard input. Without this TOWLINE_PASSWORD, or the state's file
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The issuer, such as https://gateway.example.org/.towline/issuer
    #[arg(long, value_name = "URL", conflicts_with = "state")]
    pub issuer: Option<String>,
    /// The audience, instead of the cluster's own
    #[arg(long, value_name = "TEXT")]
    pub audience: Option<String>,
    /// How long the token is to live; never longer than the issuer allows
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub ttl: Option<Duration>,
}

/// Which cluster, as whom, and how to get there: what all commands but `dev` have in common.
#[derive(Debug, ClapArgs, Clone)]
pub struct AccessArgs {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Who signs in.
    #[command(flatten)]
    pub user: UserArgs,
    /// How to get there.
    #[command(flatten)]
    pub outbound: OutboundArgs,
}

/// The right to reach a cluster with one of its service-account tokens.
#[derive(Debug, ClapArgs, Clone)]
pub struct CertificateArgs {
    /// PEM file of an access certificate, for service-account tokens; with --state one is made
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_certificate: Option<PathBuf>,
    /// PEM file of its private key
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    pub client_key: Option<PathBuf>,
}

/// `towline token`.
#[derive(Debug, ClapArgs)]
pub struct TokenArgs {
    /// Which cluster, as whom, and how to get there.
    #[command(flatten)]
    pub at: AccessArgs,
    /// Print a JSON object with the token and when it expires
    #[arg(long, conflicts_with_all = ["exec_credential", "output", "query"])]
    pub json: bool,
    /// Print an ExecCredential for kubectl. With --state a token is kept and shown again while it is good for long enough
    #[arg(long, conflicts_with_all = ["output", "query"])]
    pub exec_credential: bool,
    /// How token and end are printed; as a table it is the token alone.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `towline whoami`.
#[derive(Debug, ClapArgs)]
pub struct WhoamiArgs {
    /// Which cluster, as whom, and how to get there. Without a cluster: who is signed in.
    #[command(flatten)]
    pub at: AccessArgs,
    /// Ask about the token in this file; - is standard input
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The right to come with a service-account token.
    #[command(flatten)]
    pub certificate: CertificateArgs,
    /// Print the answer as it came
    #[arg(long, conflicts_with_all = ["output", "query"])]
    pub json: bool,
    /// How the answer is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Which file a kubeconfig goes to.
#[derive(Debug, ClapArgs, Clone)]
pub struct KubeconfigFileArgs {
    /// The kubeconfig to merge into; - prints it. Without this the first of KUBECONFIG, or ~/.kube/config
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Name of the context
    #[arg(long, value_name = "NAME")]
    pub kube_context: Option<String>,
}

/// `towline kubeconfig`.
#[derive(Debug, ClapArgs)]
pub struct KubeconfigArgs {
    /// Which cluster, as whom, and how to get there.
    #[command(flatten)]
    pub at: AccessArgs,
    /// Where to.
    #[command(flatten)]
    pub file: KubeconfigFileArgs,
    /// Put a token into the kubeconfig instead of the command that gets one
    #[arg(long, conflicts_with = "service_account_token")]
    pub embed_token: bool,
    /// Use the cluster's own service-account token in this file (- is standard input), with a short-lived certificate
    /// as the right to reach the cluster
    #[arg(long, value_name = "FILE")]
    pub service_account_token: Option<PathBuf>,
    /// How long that certificate is good for
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "12h")]
    pub access_ttl: Duration,
    /// Version of the exec plugin's interface; v1beta1 is known to every kubectl since 1.11
    #[arg(long, value_name = "VERSION", value_parser = ["v1", "v1beta1"], default_value = "v1beta1")]
    pub exec_api_version: String,
    /// How the cluster is addressed.
    #[command(flatten)]
    pub address: AddressArgs,
}

/// How a cluster is addressed at its gateway.
#[derive(Debug, ClapArgs, Clone, Copy)]
pub struct AddressArgs {
    /// How the cluster is addressed at the gateway. Without this by name if that works, else by path
    #[arg(long, value_name = "FORM")]
    pub address: Option<AddressForm>,
}

/// `towline proxy`.
#[derive(Debug, ClapArgs)]
pub struct ProxyArgs {
    /// Which cluster, as whom, and how to get there.
    #[command(flatten)]
    pub at: AccessArgs,
    /// Where the kubeconfig goes.
    #[command(flatten)]
    pub file: KubeconfigFileArgs,
    /// The local port. Without this 47011 or the next one that is free
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Use this token of a service account of the cluster. Others on this machine can read command lines: --token-file
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["token_file", "user", "password_file", "issuer"])]
    pub token: Option<String>,
    /// Use the token in this file, which is read again when it changes, instead of signing in
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "password_file", "issuer"])]
    pub token_file: Option<PathBuf>,
    /// The right to come with a service-account token.
    #[command(flatten)]
    pub certificate: CertificateArgs,
    /// How the cluster is addressed.
    #[command(flatten)]
    pub address: AddressArgs,
}

/// Reads an address to listen at. A port alone does not say who may connect.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    Err(match (port.parse::<u16>(), host) {
        (Ok(port), "" | "localhost" | "*") => format!(
            "expected ADDRESS:PORT: 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} or [::]:{port} for all its addresses"
        ),
        (Ok(port), host) if host.parse::<IpAddr>().is_ok() => format!("expected ADDRESS:PORT, such as [{host}]:{port}"),
        _ => "expected ADDRESS:PORT with an IP address of this machine and a port up to 65535, such as 127.0.0.1:8443"
            .to_owned(),
    })
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !key.contains(' ') => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as sessions.reauthorise_every=1s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn an_edit_needs_no_option_of_the_gateway_and_a_gateway_needs_its_state() {
        let parse = |line: &str| Args::try_parse_from(line.split(' '));
        assert!(parse("towline dev --state x --json --cluster a --cluster b").is_ok());
        assert!(parse("towline dev add-cluster --state x a").is_ok());
        assert!(parse("towline dev rotate-keys --state x").is_ok());
        assert!(parse("towline dev add-principal --state x ci --grant a --ttl 30m").is_ok());
        assert!(parse("towline dev rotate-principal --state x ci --append").is_ok());
        assert_eq!(positive_duration(SECRET_TTL), Ok(gateway::issuer::principals::SECRET_LIFE));
        assert!(parse("towline dev grant --state x --cluster a --user b").is_ok());
        assert!(parse("towline dev grant --state x --cluster a").is_err());
        assert!(parse("towline dev").is_err());
    }

    #[test]
    fn an_address_to_listen_at_is_asked_for_in_the_words_that_were_typed() {
        assert!(address("127.0.0.1:8443").is_ok() && address("[::1]:0").is_ok());
        for port in ["8443", ":8443", "localhost:8443", "*:8443"] {
            let error = address(port).unwrap_err();
            assert!(error.contains("127.0.0.1:8443 for this machine alone, 0.0.0.0:8443"), "{port}: {error}");
        }
        assert!(address("::1:8443").unwrap_err().contains("[::1]:8443"));
        for bad in ["", "x", "host.example.org:8443", "1.2.3.4", "1.2.3.4:99999"] {
            assert!(address(bad).unwrap_err().contains("such as 127.0.0.1:8443"), "{bad}");
        }
    }
}
