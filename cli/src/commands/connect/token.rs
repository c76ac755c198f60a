//! A one-time token in place of a sign-in (features row R14): whoever holds one may create one cluster, and reads nothing.

use anyhow::{Context as _, anyhow};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{Method, StatusCode};
use proto::{
    agent_api::{ENROLMENT_PREFIX, TokenEnrolled, TokenEnrolment, enrolment_paths},
    api::{ResourceId, id::RESOURCE_GROUPS},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::precheck::Prepared;
use crate::{
    api::Call,
    args::{ConnectArgs, ContextArgs, EnrolmentArgs},
    context::{Account, Context, Folder},
    credential::read_secret,
    environment,
    failure::{Failure, Outcome},
};

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
    pub fn read(args: &ConnectArgs) -> Outcome<Option<Self>> {
        let secret = match (&args.enrolment.token, &args.enrolment.token_file) {
            (Some(token), _) => SecretString::from(token.trim()),
            (None, Some(file)) => read_secret(file).context("--token-file").map_err(Failure::usage)?,
            (None, None) => return Ok(None),
        };
        let group = group_of(secret.expose_secret()).ok_or_else(|| {
            Failure::usage(anyhow!("--token: this is no enrolment token"))
                .hint("who may connect clusters makes one: towline enrolment-token create -g GROUP")
        })?;
        let typed = args.cluster.resource_group.as_deref();
        if let Some(typed) = typed.filter(|typed| !typed.eq_ignore_ascii_case(group.name())) {
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
    pub async fn enrol(&self, prepared: &Prepared, args: &ConnectArgs, public_key: &str) -> Outcome<Value> {
        let asked = TokenEnrolment {
            token: self.secret.expose_secret().to_owned(),
            name: prepared.id.name().to_owned(),
            public_key: public_key.to_owned(),
            location: prepared.location.clone(),
            tags: args.tags.json().and_then(|tags| tags.as_object().cloned()).unwrap_or_default(),
        };
        let asked = serde_json::to_value(asked)?;
        let target = format!("{ENROLMENT_PREFIX}{}", enrolment_paths::ENROL);
        let call = Call::new(Method::POST, &target).json(&asked).without_token();
        let answer = prepared.api.send(&call).await.map_err(|failure| explain(failure, &self.group))?;
        let made: TokenEnrolled =
            serde_json::from_value(answer.body).context("what the gateway says of the cluster")?;
        if !made.cluster_id.eq_ignore_ascii_case(prepared.id.as_str()) {
            return Err(anyhow!("the gateway made {} instead of {}", made.cluster_id, prepared.id).into());
        }
        Ok(json!({
            "id": made.cluster_id,
            "name": prepared.id.name(),
            "identity": {"type": "SystemAssigned", "principalId": made.principal_id, "tenantId": made.tenant_id},
            "properties": {},
        }))
    }
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
    let Some(status) = failure.api().map(|error| error.status) else { return failure };
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
