//! Who is signed in where, and how results are printed: what commands of the resource API have in common.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Subcommand};
use daemon::settings::positive_duration;

use crate::{api::Wait, client::OutboundArgs, context::ContextArgs, output::OutputArgs};

/// What every command of the resource API takes.
#[derive(Debug, ClapArgs, Clone, Default)]
pub struct CommonArgs {
    /// As which account.
    #[command(flatten)]
    pub context: ContextArgs,
    /// How results are printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How long to wait for what takes its time.
#[derive(Debug, ClapArgs, Clone)]
pub struct WaitArgs {
    /// Do not wait until it has ended
    #[arg(long)]
    pub no_wait: bool,
    /// Wait for so long at most, such as 90s or 20m
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "20m")]
    pub timeout: Duration,
}

impl WaitArgs {
    /// As the API's client takes it.
    pub fn wait(&self) -> Wait {
        Wait { none: self.no_wait, limit: self.timeout }
    }
}

/// `towline login`.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Automation needs no login: with TOWLINE_GATEWAY, TOWLINE_CLIENT_ID and TOWLINE_CLIENT_SECRET (or \
    TOWLINE_CLIENT_SECRET_FILE), and if needed TOWLINE_CA_FILE, TOWLINE_TENANT and TOWLINE_SUBSCRIPTION, every command \
    signs in as that service principal and keeps nothing.\n\nAccounts are kept in TOWLINE_CONFIG_DIR, else \
    $XDG_CONFIG_HOME/towline or ~/.config/towline, for you alone (0600)."
)]
pub struct LoginArgs {
    /// The gateway, such as https://gateway.example.org; that of the current account without this
    #[arg(value_name = "URL")]
    pub gateway: Option<String>,
    /// PEM file of the authority of the gateway's certificate; the system's without this
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The tenant that is expected there
    #[arg(long, value_name = "ID")]
    pub tenant: Option<String>,
    /// Sign in as a service principal
    #[arg(long, requires = "username", conflicts_with_all = ["device_code", "browser", "issuer"])]
    pub service_principal: bool,
    /// The service principal's client id
    #[arg(short = 'u', long, value_name = "ID", requires = "service_principal")]
    pub username: Option<String>,
    /// Its secret. Everybody on this machine can read command lines: --secret-file, or TOWLINE_CLIENT_SECRET, is better
    #[arg(short = 'p', long, value_name = "SECRET", requires = "service_principal", hide_short_help = true)]
    pub password: Option<String>,
    /// File with its secret; - is standard input
    #[arg(long, value_name = "FILE", requires = "service_principal", conflicts_with = "password")]
    pub secret_file: Option<PathBuf>,
    /// Show a code to enter in a browser on any machine; this is what happens without an option
    #[arg(long)]
    pub device_code: bool,
    /// Open a browser on this machine
    #[arg(long, conflicts_with = "device_code")]
    pub browser: bool,
    /// Another issuer than the gateway's own, whose users the gateway takes
    #[arg(long, value_name = "URL", requires = "client_id")]
    pub issuer: Option<String>,
    /// The id of this program at that issuer
    #[arg(long, value_name = "ID", requires = "issuer")]
    pub client_id: Option<String>,
    /// What is asked of that issuer
    #[arg(long, value_name = "SCOPES", requires = "issuer", default_value = "openid profile email offline_access")]
    pub scope: String,
    /// What its page is to ask once more, such as consent: some issuers let nobody stay signed in without it
    #[arg(long, value_name = "WORD", requires_all = ["issuer", "browser"])]
    pub prompt: Option<String>,
    /// PEM file of the authority of that issuer's certificate; the gateway's without this
    #[arg(long, value_name = "FILE", requires = "issuer")]
    pub issuer_ca: Option<PathBuf>,
    /// How the account is called; <user>@<gateway> without this
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The subscription to work in; the first one without this
    #[arg(long, value_name = "ID")]
    pub subscription: Option<String>,
    /// How to get there.
    #[command(flatten)]
    pub outbound: OutboundArgs,
    /// How the account is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `towline logout`.
#[derive(Debug, ClapArgs)]
pub struct LogoutArgs {
    /// The account; the current one without this
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// All accounts
    #[arg(long, conflicts_with = "name")]
    pub all: bool,
}

/// `towline account`.
#[derive(Debug, ClapArgs)]
pub struct AccountArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: AccountAction,
    /// Which account, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline account <action>`.
#[derive(Debug, Subcommand)]
pub enum AccountAction {
    /// The accounts that are signed in; with --all also every subscription that the current one sees
    List {
        /// Ask the gateway for all subscriptions of the current account
        #[arg(long)]
        all: bool,
    },
    /// The current account
    Show,
    /// Use another account, or another subscription, from now on
    Set {
        /// The account
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Print a token for the gateway's resource API, for other programs
    Token,
}
