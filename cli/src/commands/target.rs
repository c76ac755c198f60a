//! Which cluster, at which gateway, as whom: from a state's folder or from options of their own.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use certs::{Credentials, Roots, Validity};
use proto::ids::{ClusterId, ClusterKey};
use secrecy::ExposeSecret;

use crate::{
    args::{AccessArgs, CertificateArgs, UserArgs},
    client::{self, Address, Client, Outbound},
    credential::{self, SignIn, Source, claims},
    environment,
    failure::{Failure, Outcome},
    state::State,
};

/// A cluster at a gateway.
pub struct Target {
    /// The state that told, if one did.
    pub state: Option<State>,
    /// The gateway.
    pub server: Address,
    /// The cluster's address there.
    pub key: ClusterKey,
    /// Its id, if known: a key alone does not tell.
    pub id: Option<ClusterId>,
    /// A short name for people and for entries of a kubeconfig.
    pub name: String,
    /// The authority of the gateway's certificate; none for the system's.
    pub ca_file: Option<PathBuf>,
    /// How to get there.
    pub outbound: Outbound,
}

impl Target {
    /// Of `--state` and `--cluster`, or of `--server`, `--cluster` and `--ca`.
    pub fn new(at: &AccessArgs) -> Outcome<Self> {
        let outbound = Outbound::new(&at.outbound).map_err(Failure::usage)?;
        let args = &at.cluster;
        if let Some(dir) = &args.state {
            let state = State::open(dir)?;
            let cluster = state.cluster(args.cluster.as_deref())?;
            let (id, name) = (cluster.cluster_id()?, cluster.name.clone());
            return Ok(Self {
                server: Address::parse(&state.url())?,
                key: id.key(),
                id: Some(id),
                name,
                ca_file: Some(state.ca_file()),
                outbound,
                state: Some(state),
            });
        }
        let Some(server) = &args.server else {
            return Err(Failure::usage(anyhow!("which gateway? --state DIR of a towline dev, or --server URL")));
        };
        let server = Address::parse(server).map_err(Failure::usage)?;
        let Some(cluster) = args.cluster.as_deref() else {
            return Err(Failure::usage(anyhow!(
                "which cluster? --cluster with its ARM id or its key of 64 hex digits"
            )));
        };
        let (key, id, name) = match (ClusterKey::from_hex(cluster.as_bytes()), cluster.parse::<ClusterId>()) {
            (Some(key), _) => (key, None, cluster[..12].to_owned()),
            (None, Ok(id)) => (id.key(), Some(id.clone()), id.name().to_owned()),
            (None, Err(error)) => {
                return Err(Failure::usage(
                    anyhow!(error).context("--cluster is neither a key of 64 hex digits nor an id"),
                ));
            }
        };
        Ok(Self { state: None, server, key, id, name, ca_file: args.ca.clone(), outbound })
    }

    /// Whom to trust.
    pub fn roots(&self) -> anyhow::Result<Roots> {
        client::roots(self.ca_file.as_deref())
    }

    /// Talks to the gateway.
    pub fn client(&self, credentials: Option<&Credentials>) -> anyhow::Result<Client> {
        Client::new(self.server.clone(), &self.roots()?, credentials, self.outbound.clone())
    }

    /// URL of the cluster at the gateway.
    pub fn cluster_url(&self) -> String {
        format!("{}/{}", self.server.url(), self.key.hex())
    }

    /// Signs in as `--user` for this cluster.
    pub fn sign_in(&self, args: &UserArgs) -> Outcome<SignIn> {
        let audience = match (&args.audience, &self.id) {
            (Some(audience), _) => audience.clone(),
            (None, Some(id)) => id.audience(),
            (None, None) => {
                return Err(Failure::usage(anyhow!(
                    "a key does not tell the audience: give --cluster with the ARM id, or --audience"
                )));
            }
        };
        let issuer = match (&args.issuer, &self.state) {
            (Some(issuer), _) => issuer.clone(),
            (None, Some(state)) => state.issuer_url(),
            (None, None) => format!("{}{}", self.server.url(), gateway::issuer::MOUNT),
        };
        sign_in(args, &issuer, &self.roots()?, self.outbound.clone(), audience, self.state.as_ref())
    }

    /// A new certificate as the right to reach this cluster with a service-account token (features row A6). `person` is
    /// what audit records say.
    pub fn issue_access(&self, person: &str, ttl: Duration) -> Outcome<certs::Issued> {
        let (Some(state), Some(id)) = (&self.state, &self.id) else {
            return Err(Failure::usage(anyhow!(
                "a certificate of access comes from the gateway's authority: only --state DIR can make one here"
            )));
        };
        Ok(state.authority()?.issue_access(id.as_str(), person, Validity::for_duration(ttl))?)
    }

    /// The certificate of the options; for a service-account token of a state one is made, good for `ttl`.
    pub async fn credentials(
        &self,
        files: &CertificateArgs,
        source: &Source,
        ttl: Duration,
    ) -> Outcome<Option<Credentials>> {
        if let (Some(certificate), Some(key)) = (&files.client_certificate, &files.client_key) {
            return Ok(Some(Credentials::load(certificate, key)?));
        }
        let (Some(state), Source::File(_) | Source::Fixed(_)) = (&self.state, source) else { return Ok(None) };
        let token = source.obtain().await?;
        let token = token.secret.expose_secret();
        let issuer = claims(token).and_then(|claims| Some(claims["iss"].as_str()?.to_owned()));
        if issuer.is_some_and(|issuer| issuer == state.issuer_url()) {
            return Ok(None);
        }
        Ok(Some(self.issue_access(&service_account_name(token), ttl)?.credentials().clone()))
    }

    /// The token of `--token-file`, or a sign-in.
    pub fn source(&self, token_file: Option<&Path>, user: &UserArgs) -> Outcome<Source> {
        match token_file {
            Some(file) => Ok(Source::file(file)?),
            None => Ok(Source::SignIn(self.sign_in(user)?)),
        }
    }
}

/// Signs in at `issuer`, with the password of the file, the environment or the state.
pub fn sign_in(
    args: &UserArgs,
    issuer: &str,
    roots: &Roots,
    outbound: Outbound,
    audience: String,
    state: Option<&State>,
) -> Outcome<SignIn> {
    let Some(user) = args.user.clone() else {
        return Err(Failure::usage(anyhow!("as whom? --user NAME; a towline dev has admin, viewer and stranger")));
    };
    let kept = state.map(|state| state.password_file(&user)).filter(|file| file.exists());
    let password = match (&args.password_file, environment::password(), kept) {
        (Some(file), _, _) => credential::read_secret(file)?,
        (None, Some(password), _) => password,
        (None, None, Some(file)) => credential::read_secret(&file)?,
        (None, None, None) => {
            let error = anyhow!("there is no password for {user}");
            return Err(Failure::usage(error).hint(format!(
                "--password-file FILE (- for standard input) or the environment variable {}{}",
                environment::PASSWORD,
                state.map_or_else(String::new, |state| format!(
                    "; or make the user: towline dev add-user --state {} {user}",
                    state.dir().display()
                ))
            )));
        }
    };
    let address = Address::parse(issuer).map_err(Failure::usage)?;
    let client = Client::new(address, roots, None, outbound).context("the issuer's address")?;
    Ok(SignIn { client, user, password, audience, ttl: args.ttl })
}

/// What audit records call the holder: the token's `sub`, which is not verified here and gives no rights.
pub fn service_account_name(token: &str) -> String {
    let sub = claims(token).and_then(|claims| Some(claims["sub"].as_str()?.to_owned()));
    let plain = sub.filter(|sub| sub.len() <= 64 && !sub.is_empty() && sub.bytes().all(|b| b.is_ascii_graphic()));
    plain.unwrap_or_else(|| "service-account".to_owned())
}
