//! A one-time token in place of a sign-in: whoever holds one may create one cluster, and reads nothing.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::{Value, json};
use types::{
    agent_api::{
        Challenge, ChallengeRequest, ENROLMENT_PREFIX, EnrolledQuestion, TokenEnrolled, TokenEnrolment,
        enrolled_message, enrolment_paths,
    },
    api::{
        ResourceId,
        id::{RESOURCE_GROUPS, is_same},
    },
    ids::ClusterId,
};

use super::{Args, key::OnboardingKey};
use crate::{
    account::Account,
    api::{Answer, Api, ApiError, Call},
    context::{Context, ContextArgs, Folder},
    environment,
    failure::{Failure, Outcome},
    secret::read_secret,
};

/// A one-time token in place of a sign-in (docs/features.md R14).
#[derive(Debug, clap::Args, Clone)]
#[command(next_help_heading = "One-time token")]
pub struct EnrolmentArgs {
    /// A token of `towline enrolment-token create`, instead of a sign-in. Others on this machine can read command
    /// lines: --token-file
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["token_file", "existing", "account"])]
    pub token: Option<String>,
    /// File with it; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["existing", "account"])]
    pub token_file: Option<PathBuf>,
    /// The gateway, such as https://gateway.example.org; TOWLINE_GATEWAY, or that of the account that is signed in,
    /// without this
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// PEM file of the authority of the gateway's certificate; TOWLINE_CA_FILE, or the system's, without this
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

const PREFIX: &str = "towline-enrol.";

/// A token and the group that it is for. Does not print.
pub struct OneTime {
    secret: SecretString,
    group: ResourceId,
}

impl OneTime {
    /// That of the options, if there is one.
    ///
    /// # Errors
    /// When it cannot be one, or `--resource-group` is another than its own.
    pub fn read(args: &Args) -> Outcome<Option<Self>> {
        let secret = match (&args.enrolment.token, &args.enrolment.token_file) {
            (Some(token), _) => SecretString::from(token.trim()),
            (None, Some(file)) => read_secret(file).context("--token-file").map_err(Failure::usage)?,
            (None, None) => return Ok(None),
        };
        let group = group_of(secret.expose_secret()).ok_or_else(|| {
            Failure::usage(anyhow!("--token: this is not an enrolment token"))
                .hint("ask a user with the right to connect clusters for one: towline enrolment-token create -g GROUP")
        })?;
        let typed = args.cluster.resource_group.as_deref();
        if let Some(typed) = typed.filter(|typed| !is_same(typed, group.name())) {
            let error = anyhow!("the enrolment token is for resource group {}, not {typed}", group.name());
            return Err(Failure::usage(error).hint("leave out --resource-group"));
        }
        Ok(Some(Self { secret, group }))
    }

    /// The gateway, as nobody: of the options, the environment, or the account that is signed in.
    pub fn context(&self, args: &EnrolmentArgs, context: &ContextArgs) -> Outcome<Context> {
        let from = environment::automation();
        let ca = args.ca.as_deref().or(from.ca_file.as_deref());
        let account = match args.server.as_deref().or(from.gateway.as_deref()) {
            Some(server) => Account::at(server, ca)?,
            None => known(ca)?,
        };
        let mut context = context.clone();
        context.subscription = Some(self.group.subscription().to_owned());
        Context::of_nobody(account, &context)
    }

    /// The group in which it creates a cluster.
    pub fn group(&self) -> &ResourceId {
        &self.group
    }

    /// Creates the cluster, which uses up the token; returns what is known of it.
    pub async fn enrol(
        &self,
        api: &Api,
        id: &ResourceId,
        location: &str,
        args: &Args,
        public_key: &str,
    ) -> Outcome<Value> {
        let asked = TokenEnrolment {
            token: self.secret.expose_secret().to_owned(),
            name: id.name().to_owned(),
            public_key: public_key.to_owned(),
            location: location.to_owned(),
            tags: args.tags.json().and_then(|tags| tags.as_object().cloned()).unwrap_or_default(),
        };
        let answer = ask(api, enrolment_paths::ENROL, &asked).await;
        known_as(answer.map_err(|failure| explain(failure, &self.group))?, id)
    }
}

/// Whether the gateway has this cluster with this key, which an earlier run left in Kubernetes: what is known of it, as
/// [`OneTime::enrol`] returns it. None where the cluster is not there, or has another key.
///
/// # Errors
/// When the gateway does not say.
pub async fn enrolled(api: &Api, id: &ResourceId, key: &OnboardingKey) -> Outcome<Option<Value>> {
    match question(api, id, key).await {
        Ok(answer) => known_as(answer, id).map(Some),
        // A gateway of before does not know the question.
        Err(failure) if is_no(&failure) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Whether the gateway says that this cluster, of this key, is deleted. That it knows no such cluster with this key
/// says less: the cluster may have another key.
pub async fn is_deleted(api: &Api, id: &ResourceId, key: &OnboardingKey) -> bool {
    let gone = |failure: Failure| ApiError::behind(&failure).is_some_and(|error| error.status == StatusCode::GONE);
    question(api, id, key).await.is_err_and(gone)
}

async fn question(api: &Api, id: &ResourceId, key: &OnboardingKey) -> Outcome<Answer> {
    let cluster: ClusterId = id.as_str().parse().with_context(|| format!("{id} is not a cluster"))?;
    let named = ChallengeRequest { cluster_id: id.as_str().to_owned() };
    let fresh = ask(api, enrolment_paths::CHALLENGE, &named).await?;
    let fresh: Challenge = serde_json::from_value(fresh.body).context("cannot read the gateway's challenge")?;
    let signature = key.sign(&enrolled_message(&cluster, &fresh.challenge))?;
    let question = EnrolledQuestion { cluster_id: named.cluster_id, challenge: fresh.challenge, signature };
    ask(api, enrolment_paths::ENROLLED, &question).await
}

fn is_no(failure: &Failure) -> bool {
    let refusals = [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND, StatusCode::GONE];
    ApiError::behind(failure).is_some_and(|error| refusals.contains(&error.status))
}

/// Whether a request may have been done all the same: nothing was answered, or not by who decides.
pub fn is_doubtful(failure: &Failure) -> bool {
    ApiError::behind(failure).is_none_or(|error| error.status.is_server_error())
}

async fn ask(api: &Api, path: &str, message: &impl Serialize) -> Outcome<Answer> {
    let (target, message) = (format!("{ENROLMENT_PREFIX}{path}"), serde_json::to_value(message)?);
    api.send(&Call::new(Method::POST, &target).json(&message).without_token()).await
}

/// As the resource API shows a cluster, of what who reads nothing is told.
fn known_as(answer: Answer, id: &ResourceId) -> Outcome<Value> {
    let made: TokenEnrolled =
        serde_json::from_value(answer.body).context("cannot read what the gateway says of the cluster")?;
    if !is_same(&made.cluster_id, id.as_str()) {
        return Err(anyhow!("the gateway made {} instead of {id}", made.cluster_id).into());
    }
    Ok(json!({
        "id": made.cluster_id,
        "name": id.name(),
        "identity": {"type": "SystemAssigned", "principalId": made.principal_id, "tenantId": made.tenant_id},
        "properties": {},
    }))
}

/// The group that is named in a token; none if it is none.
fn group_of(token: &str) -> Option<ResourceId> {
    let group = token.strip_prefix(PREFIX)?.split('.').next()?;
    let group = String::from_utf8(URL_SAFE_NO_PAD.decode(group).ok()?).ok()?;
    ResourceId::parse(&group).ok().filter(|group| group.is(RESOURCE_GROUPS))
}

/// The gateway of the account that is signed in, without who that is.
fn known(ca: Option<&std::path::Path>) -> Outcome<Account> {
    let missing = |_| {
        let error = anyhow!("which gateway is the enrolment token for?");
        Failure::usage(error).hint("--server https://GATEWAY [--ca FILE], or TOWLINE_GATEWAY and TOWLINE_CA_FILE")
    };
    let kept = Folder::open().and_then(|folder| folder.account(None)).map_err(missing)?;
    let mut account = Account::at(&kept.gateway, ca)?;
    account.ca = account.ca.or_else(|| kept.ca.clone());
    account.set_outbound(&kept.outbound());
    Ok(account)
}

fn explain(failure: Failure, group: &ResourceId) -> Failure {
    let Some(status) = ApiError::behind(&failure).map(|error| error.status) else { return failure };
    match status {
        StatusCode::UNAUTHORIZED => failure.hint(format!(
            "a token is good for one cluster and for a time; who may connect clusters makes a new one: towline enrolment-token create -g {}",
            group.name()
        )),
        StatusCode::CONFLICT => failure.hint("choose another name: -n NAME; the token is still good"),
        StatusCode::FORBIDDEN => failure.hint("the token was made for one name: type that as -n NAME; it is still good"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r14_a_token_tells_its_group_and_what_is_none_is_told() {
        let encode = |text: &str| format!("{PREFIX}{}.a.b", URL_SAFE_NO_PAD.encode(text));
        let group = "/subscriptions/11111111-1111-4111-8111-111111111111/resourceGroups/g";
        assert_eq!(group_of(&encode(group)).unwrap().name(), "g");
        for wrong in ["", "towline-enrol.", "x.y.z", &encode("/subscriptions/x"), &encode("g"), "towline-enrol.%.a.b"] {
            assert!(group_of(wrong).is_none(), "{wrong}");
        }
    }
}
