//! Where things are: the gateway's metadata, and an issuer's discovery document (OpenID Connect Discovery 1.0).

use anyhow::{Context as _, anyhow, bail};
use http::{Request, header};
use http_body_util::Full;
use serde_json::Value;

use crate::{
    account::Account,
    client::{Address, Client, Outbound},
    failure::{Failure, Outcome},
};

/// What a client of an issuer needs.
#[derive(Debug, Clone)]
pub struct Endpoints {
    /// The issuer, as its tokens name it.
    pub issuer: String,
    /// Where tokens are given.
    pub token: String,
    /// Where a device begins, if devices can sign in.
    pub device: Option<String>,
    /// Where a browser begins.
    pub authorize: Option<String>,
    /// Where a person enters a device's code; of an issuer that is not the gateway's own, what its answer says.
    pub device_page: Option<String>,
}

/// Asks the gateway who it is, which needs no sign-in, and writes it into the account.
///
/// # Errors
/// When it is not reached, is no gateway, or has another tenant than `tenant`.
pub async fn discover_gateway(account: &mut Account, tenant: Option<&str>) -> Outcome<()> {
    let address = Address::parse(&account.gateway)?;
    let outbound = Outbound::new(&account.outbound()).map_err(Failure::usage)?;
    let client = Client::new(address, &account.roots()?, None, outbound)?;
    let path = format!("{}/metadata/endpoints?api-version=2022-09-01", client.address().path);
    let no_gateway = || {
        let error = anyhow!("{} is no Towline gateway with a resource API", account.gateway);
        Failure::from(error).hint("check the address; the gateway's configuration needs a section [api]")
    };
    let said = get(&client, &path).await?.ok_or_else(no_gateway)?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (Some(audience), Some(found)) = (text(&said["resourceManager"]), text(&said["authentication"]["tenant"]))
    else {
        return Err(no_gateway());
    };
    if let Some(tenant) = tenant.filter(|tenant| !tenant.eq_ignore_ascii_case(&found)) {
        return Err(Failure::from(anyhow!(
            "there is no tenant {tenant} at {}: its tenant is {found}",
            account.gateway
        ))
        .hint("leave --tenant out, or check the address"));
    }
    account.audience = audience;
    account.tenant = found;
    Ok(())
}

/// Reads the discovery document of an issuer below `client`'s address. `expected` is the issuer's URL, where it is
/// known by another name than that of the address.
///
/// # Errors
/// When there is none, or it is another issuer's.
pub async fn discover_issuer(client: &Client, own: bool) -> Outcome<Endpoints> {
    let at = client.address().url();
    let path = format!("{}/.well-known/openid-configuration", client.address().path);
    let said = get(client, &path).await?.ok_or_else(|| {
        let error = anyhow!("there is no issuer at {at}");
        match own {
            true => Failure::from(error)
                .hint("this gateway takes another issuer's users: towline login URL --issuer URL --client-id ID"),
            false => Failure::from(error)
                .hint("--issuer is the address below which /.well-known/openid-configuration is read"),
        }
    })?;
    let text = |name: &str| said[name].as_str().map(str::to_owned);
    let issuer = text("issuer").with_context(|| format!("{at} does not say which issuer it is"))?;
    // Section 4.3: the very same address. The gateway's own may be reached by another of its names.
    if !own && issuer.trim_end_matches('/') != at {
        return Err(anyhow!("{at} says that it is the issuer {issuer}").into());
    }
    let token = text("token_endpoint").with_context(|| format!("{at} does not say where it gives tokens"))?;
    let found = Endpoints {
        issuer,
        token,
        device: text("device_authorization_endpoint"),
        authorize: text("authorization_endpoint"),
        device_page: None,
    };
    if own { Ok(found.behind(client.address())) } else { Ok(found) }
}

impl Endpoints {
    /// The gateway's own endpoints, at the address by which it is known here, whatever it says: a hostile gateway could
    /// name the pages of another issuer, and would be brought what a person signs in for there.
    fn behind(self, address: &Address) -> Self {
        let url = address.url();
        let at = |path: &str| format!("{url}/{path}");
        Self {
            token: at("token"),
            device: self.device.map(|_| at("devicecode")),
            authorize: self.authorize.map(|_| at("authorize")),
            device_page: Some(at("device")),
            ..self
        }
    }
}

/// A JSON document; none where there is no such thing.
async fn get(client: &Client, path: &str) -> anyhow::Result<Option<Value>> {
    let request = Request::get(path).header(header::ACCEPT, "application/json").body(Full::default())?;
    let answer = client.ask(request).await?;
    if answer.status().is_server_error() {
        bail!("{} answered {}", client.address().url(), answer.status());
    }
    let value = answer.status().is_success().then(|| serde_json::from_slice(answer.body()).ok()).flatten();
    Ok(value.filter(Value::is_object))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gateway that names another issuer's pages would be brought what a person signs in for there.
    #[test]
    fn a_gateways_own_pages_are_at_its_address() {
        let elsewhere = || "https://login.test/x".to_owned();
        let said = Endpoints {
            issuer: elsewhere(),
            token: elsewhere(),
            device: Some(elsewhere()),
            authorize: Some(elsewhere()),
            device_page: None,
        };
        let own = said.behind(&Address::parse("https://gateway.test/.towline/issuer").unwrap());
        let at = |path: &str| format!("https://gateway.test/.towline/issuer/{path}");
        assert_eq!(own.token, at("token"));
        assert_eq!(own.device, Some(at("devicecode")));
        assert_eq!(own.authorize, Some(at("authorize")));
        assert_eq!(own.device_page, Some(at("device")));
    }
}
