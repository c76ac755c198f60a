//! `towline token`: a token for one cluster, from the built-in issuer, over HTTPS.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::anyhow;
use gateway::files;
use secrecy::ExposeSecret;
use serde_json::json;
use types::instants::rfc3339_seconds;

use super::{
    login, print,
    target::{AccessArgs, Target, sign_in},
};
use crate::{
    client::{self, Outbound},
    credential::{ExecVersion, Source, exec_credential},
    environment,
    failure::{Failure, Outcome},
    oauth::Refused,
    output::{self, Format, OutputArgs},
    secret::read_secret,
    token::{Token, claims},
};

/// A cached token is reused while at least this much of its life is left, and at least a quarter of it.
const KEEP_AT_LEAST: Duration = Duration::from_secs(300);

/// Print a token for a cluster from the built-in issuer
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which cluster, as whom, and how to get there.
    #[command(flatten)]
    pub at: AccessArgs,
    /// Print a JSON object with the token and when it expires
    #[arg(long, conflicts_with_all = ["exec_credential", "output", "query"])]
    pub json: bool,
    /// Print an ExecCredential for kubectl. With --state a token is kept and shown again while it is good for long
    /// enough
    #[arg(long, conflicts_with_all = ["output", "query"])]
    pub exec_credential: bool,
    /// How token and end are printed; as a table it is the token alone.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Prints a token and nothing else.
pub async fn run(args: Args) -> Outcome {
    let (source, kept) = source(&args).await?;
    let token = if args.exec_credential { kept.as_ref().and_then(Kept::read) } else { None };
    let token = match token {
        Some(token) => token,
        None => {
            let token = match (source.obtain().await, &source) {
                (Err(error), Source::Account { context, .. }) if args.exec_credential && is_signed_out(&error) => {
                    login::again(context).await?;
                    source.obtain().await?
                }
                (result, _) => result?,
            };
            if let (true, Some(kept)) = (args.exec_credential, &kept) {
                kept.write(&token);
            }
            token
        }
    };
    let as_it_is = args.output.query.is_none() && args.output.output == Format::Table;
    if !as_it_is {
        let value = json!({"token": token.secret.expose_secret(), "expires": token.expires.map(rfc3339_seconds)});
        output::print(&value, &args.output, &[("Token", "/token"), ("Expires", "/expires")])?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = if args.exec_credential {
        let version = ExecVersion::asked(environment::exec_info().as_deref());
        let version = version.map_err(|asked| {
            Failure::from(anyhow!("kubectl asks for a credential in the form of {asked}; known are v1 and v1beta1 of client.authentication.k8s.io"))
        })?;
        exec_credential(version, &token)?.to_string()
    } else if args.json {
        let expires = token.expires.map(rfc3339_seconds);
        json!({ "token": token.secret.expose_secret(), "expires": expires }).to_string()
    } else {
        token.secret.expose_secret().to_owned()
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether signing in again helps, and somebody is there to do it: kubectl shows what its plugin says to standard
/// error.
fn is_signed_out(error: &anyhow::Error) -> bool {
    use std::io::IsTerminal;
    let over = error.chain().any(|cause| cause.downcast_ref::<Refused>().is_some_and(Refused::is_over));
    over && std::io::stderr().is_terminal()
}

/// An issuer and an audience suffice: no gateway needs to be named.
async fn source(args: &Args) -> Outcome<(Source, Option<Kept>)> {
    if let (Some(issuer), Some(audience), None) =
        (&args.at.user.issuer, &args.at.user.audience, &args.at.cluster.server)
    {
        let roots = client::roots(args.at.cluster.ca.as_deref())?;
        let outbound = Outbound::new(&args.at.outbound).map_err(Failure::usage)?;
        let sign_in = sign_in(&args.at.user, issuer, &roots, outbound, audience.clone(), None)?;
        return Ok((Source::SignIn(sign_in), None));
    }
    if let (Some(issuer), None, None) = (&args.at.user.issuer, &args.at.user.audience, &args.at.cluster.server) {
        // The cluster's id alone tells the audience; the issuer stands in for the gateway.
        let mut at = args.at.clone();
        at.cluster.server = Some(issuer.trim_end_matches(gateway::issuer::MOUNT).to_owned());
        let target = Target::new(&at).await?;
        return Ok((Source::SignIn(target.sign_in(&args.at.user)?), None));
    }
    let target = Target::new(&args.at).await?;
    if target.context.is_some() {
        // Its account keeps tokens itself.
        return Ok((target.account_source()?, None));
    }
    let sign_in = target.sign_in(&args.at.user)?;
    let kept =
        target.state.as_ref().filter(|_| args.at.user.ttl.is_none() && args.at.user.audience.is_none()).map(|state| {
            Kept {
                file: state.path("tokens").join(format!("{}.{}", target.key.hex(), file_part(&sign_in.user))),
                issuer: state.issuer_url(),
                password: state.password_file(&sign_in.user),
            }
        });
    Ok((Source::SignIn(sign_in), kept))
}

fn file_part(user: &str) -> String {
    types::ids::hex(user.as_bytes())
}

/// A token kept between calls of kubectl, so that not every one of them signs in. As secret as the password beside it.
struct Kept {
    file: PathBuf,
    issuer: String,
    password: PathBuf,
}

impl Kept {
    fn read(&self) -> Option<Token> {
        let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|data| data.modified()).ok();
        let obtained = modified(&self.file)?;
        // A new password, perhaps with other groups: sign in again.
        if modified(&self.password).is_some_and(|changed| changed >= obtained) {
            return None;
        }
        let token = Token::new(read_secret(&self.file).ok()?, obtained);
        let claims = claims(token.secret.expose_secret())?;
        if claims["iss"].as_str() != Some(self.issuer.as_str()) {
            return None;
        }
        let expires = token.expires?;
        let life = expires.duration_since(obtained).ok()?;
        let left = expires.duration_since(SystemTime::now()).ok()?;
        (left >= KEEP_AT_LEAST.max(life / 4)).then_some(token)
    }

    /// Without a place to keep it the next call signs in again.
    fn write(&self, token: &Token) {
        let kept = self.file.parent().is_some_and(|folder| files::create_private_dir(folder).is_ok())
            && files::write_private(&self.file, token.secret.expose_secret().as_bytes()).is_ok();
        if !kept {
            tracing::debug!("the token could not be kept for the next call");
        }
    }
}
