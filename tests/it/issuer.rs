//! The built-in issuer as clients of the Microsoft identity platform see it: Microsoft's own library signs in
//! unmodified, and a service principal's token is one user name at a cluster and nothing anywhere else.

use std::{process::Command, time::Duration};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tests::{
    case::{Needs, case},
    programs::{eventually, root, run_with_input},
    stack::{Stack, note_secret},
};

use crate::clients::python_with_clients;

pub fn tests() -> Vec<Trial> {
    vec![
        case("issuer::msal_signs_in_as_a_service_principal", Needs::Nothing, msal),
        case("issuer::a_hundred_service_principals_at_once_sign_in", Needs::Nothing, hundred),
        case("issuer::msal_signs_a_user_in_by_device_code_and_by_browser", Needs::Nothing, user),
        case("issuer::a_service_principal_works_through_the_tunnel_until_it_is_removed", Needs::Nothing, tunnel),
    ]
}

/// A service principal of a state: client id and secret.
struct Client {
    object_id: String,
    client_id: String,
    secret: String,
}

impl Client {
    fn owner(stack: &Stack) -> anyhow::Result<Self> {
        let known = &stack.info["principals"][0];
        ensure!(known["name"] == "owner" && known["clientId"] == stack.info["clientId"], "{known}");
        let object_id = known["objectId"].as_str().context("no object id")?.to_owned();
        Ok(Self { object_id, client_id: stack.text("clientId"), secret: stack.text("clientSecret") })
    }

    /// What the library gets for each scope.
    fn msal(&self, stack: &Stack, tenant: &str, scopes: &[String], times: usize) -> anyhow::Result<Vec<Value>> {
        let mut command = Command::new(python_with_clients()?);
        command.arg(root().join("tests/it/msal_client.py")).args([&stack.text("url"), tenant, &self.client_id]);
        command.arg(stack.ca()).args(scopes).env("TIMES", times.to_string());
        // The library below it takes these for more than what it was given.
        command.env_remove("REQUESTS_CA_BUNDLE").env_remove("CURL_CA_BUNDLE");
        let secret = format!("{}\n", self.secret);
        let text = run_with_input(&mut command, Some(secret.as_bytes()), Duration::from_secs(120))?.ok()?;
        let answers = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        for token in answers.iter().filter_map(|answer| answer["access_token"].as_str()) {
            note_secret(token)?;
        }
        Ok(answers)
    }

    fn token(&self, stack: &Stack, audience: &str) -> anyhow::Result<String> {
        let answers = self.msal(stack, &stack.text("tenant"), &[format!("{audience}/.default")], 0)?;
        let token = answers.first().and_then(|answer| answer["access_token"].as_str()).context("no token")?;
        Ok(token.to_owned())
    }
}

fn cluster_audience(stack: &Stack) -> anyhow::Result<String> {
    let id = stack.info["clusters"][0]["id"].as_str().context("no id")?;
    Ok(format!("towline:cluster:{id}"))
}

fn msal() -> anyhow::Result<()> {
    let (_apiserver, stack) = Stack::scripted("msal")?;
    let (owner, url, tenant) = (Client::owner(&stack)?, stack.text("url"), stack.text("tenant"));
    // `az` writes the second slash for an audience that ends in one.
    let scopes = [format!("{url}/.default"), format!("{url}//.default"), "https://elsewhere/.default".to_owned()];
    let answers = owner.msal(&stack, &tenant, &scopes, 0)?;
    for answer in &answers[..2] {
        ensure!(answer["token_type"] == "Bearer" && answer["expires_in"] == 3600, "{:?}", answer["error"]);
    }
    ensure!(answers[2]["error"] == "invalid_target", "{:?}", answers[2]["error"]);
    let wrong = Client { secret: "wrong".to_owned(), ..Client::owner(&stack)? };
    let refused = wrong.msal(&stack, &tenant, &scopes[..1], 0)?;
    ensure!(refused[0]["error"] == "invalid_client", "{}", refused[0]);
    let nowhere = owner.msal(&stack, &stack.text("subscription"), &scopes[..1], 0)?;
    ensure!(nowhere[0]["error"] == "discovery", "{}", nowhere[0]);
    Ok(())
}

fn user() -> anyhow::Result<()> {
    let (_apiserver, stack) = Stack::scripted("msal-user")?;
    let password = std::fs::read_to_string(stack.state().join("users/admin.password"))?;
    note_secret(&password)?;
    let mut command = Command::new(python_with_clients()?);
    command.arg(root().join("tests/it/msal_user.py")).args([&stack.text("url"), &stack.text("tenant")]);
    command.arg(stack.ca()).arg("admin").env_remove("REQUESTS_CA_BUNDLE").env_remove("CURL_CA_BUNDLE");
    let password = format!("{password}\n");
    let text = run_with_input(&mut command, Some(password.as_bytes()), Duration::from_secs(120))?.ok()?;
    let answers = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    for secret in ["access_token", "refresh_token", "id_token"] {
        for token in answers.iter().filter_map(|answer| answer[secret].as_str()) {
            note_secret(token)?;
        }
    }
    ensure!(answers.len() == 3 && answers.iter().all(|answer| answer["access_token"].is_string()), "not all signed in");
    ensure!(answers[..2].iter().all(|answer| answer["id_token_claims"]["preferred_username"] == "admin"));
    let token = answers[2]["access_token"].as_str().context("no token")?;
    ensure!(stack.get_with(token, "/api")?.status == 401, "a token for the API is nothing at a cluster");
    Ok(())
}

fn hundred() -> anyhow::Result<()> {
    let (_apiserver, stack) = Stack::scripted("hundred")?;
    let scope = format!("{}/.default", stack.text("url"));
    let answer = Client::owner(&stack)?.msal(&stack, &stack.text("tenant"), &[scope], 100)?;
    ensure!(answer[0]["good"] == 100, "{}", answer[0]);
    Ok(())
}

fn tunnel() -> anyhow::Result<()> {
    let (apiserver, stack) = Stack::scripted("principal")?;
    let of_cluster = cluster_audience(&stack)?;
    let owner = Client::owner(&stack)?;
    ensure!(stack.get_with(&owner.token(&stack, &of_cluster)?, "/api/as-owner")?.status == 200);
    let seen = apiserver.received().iter().map(|request| request.text().to_lowercase()).collect::<String>();
    ensure!(
        seen.contains(&format!("impersonate-user: {}\r\n", owner.object_id)),
        "a service principal is its object id"
    );
    ensure!(stack.get_with(&owner.token(&stack, &stack.text("url"))?, "/api")?.status == 401, "a token for the API");
    let of_user = stack.token_for_audience("admin", &stack.text("url"))?;
    ensure!(stack.get_with(&of_user, "/api")?.status == 401, "a user's token for the API");

    stack.towline(&["dev", "add-principal", "ci", "--grant", "dev"])?.ok()?;
    let ci = principal(&stack, "ci")?;
    let token = ci.token(&stack, &of_cluster)?;
    let status = || anyhow::Ok(stack.get_with(&token, "/api")?.status);
    eventually("the gateway takes the grant", Duration::from_secs(15), || Ok(status()? == 200))?;
    stack.towline(&["dev", "rotate-principal", "ci"])?.ok()?;
    ensure!(ci.token(&stack, &of_cluster).is_err(), "the secret from before");
    principal(&stack, "ci")?.token(&stack, &of_cluster)?;
    stack.towline(&["dev", "remove-principal", "ci"])?.ok()?;
    // The answer in which the change arrives is cut off.
    let refused = || Ok(status().is_ok_and(|status| status == 403));
    eventually("the removed one is refused", Duration::from_secs(15), refused)?;
    Ok(())
}

/// A service principal of the state, by its name.
fn principal(stack: &Stack, name: &str) -> anyhow::Result<Client> {
    let file = stack.state().join("issuer/principals.json");
    let all: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let found = all["principals"].as_array().into_iter().flatten().find(|known| known["name"] == name);
    let text = |key: &str| Some(found?[key].as_str()?.to_owned());
    let secret = std::fs::read_to_string(stack.state().join(format!("principals/{name}.secret")))?;
    note_secret(&secret)?;
    let (Some(object_id), Some(client_id)) = (text("object_id"), text("client_id")) else {
        anyhow::bail!("there is no service principal {name}")
    };
    Ok(Client { object_id, client_id, secret })
}
