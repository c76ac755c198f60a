//! A browser on this machine: authorization code with PKCE, sent back to a port of the loopback interface (RFC 8252).

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, anyhow};
use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use types::random::{self, NoRandom};

use super::{Answer, Asked, Endpoints, Grant, TokenEndpoint};
use crate::{
    environment,
    failure::{Failure, Outcome},
    terminal::{line, say},
};

/// How long the person may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long one connection may take to ask, and what it may ask with.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_BYTES: usize = 16 * 1024;

/// Signs a person in with a browser, by an authorization code with PKCE (RFC 7636).
///
/// `prompt` is what the page is to ask once more (OpenID Connect Core section 3.1.2.1).
///
/// # Errors
/// When the person refuses, or takes too long.
pub async fn sign_in(
    endpoints: &Endpoints,
    tokens: &TokenEndpoint,
    Asked { client_id, scope, audience }: Asked<'_>,
    prompt: Option<&str>,
) -> Outcome<Answer> {
    let authorize = endpoints.authorize.as_deref().context("the issuer has no page to sign in at")?;
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen for the browser's answer")?;
    let redirect_uri = format!("http://127.0.0.1:{}/", listener.local_addr()?.port());
    let (verifier, state) = (random_text()?, random_text()?);
    let challenge = BASE64.encode(digest(&SHA256, verifier.as_bytes()));
    let mut page = url::Url::parse(authorize).context("the issuer's authorization_endpoint is not an address")?;
    page.query_pairs_mut()
        .append_pair("response_type", "code")
        .append_pair("client_id", client_id)
        .append_pair("redirect_uri", &redirect_uri)
        .append_pair("scope", scope)
        .append_pair("state", &state)
        .append_pair("code_challenge", &challenge)
        .append_pair("code_challenge_method", "S256");
    if let Some(prompt) = prompt {
        page.query_pairs_mut().append_pair("prompt", prompt);
    }
    say(&format!("Sign in with the browser. If none opens, go to\n{page}"));
    show(page.as_str());
    let back = timeout(PATIENCE, wait(&listener, &state, &endpoints.issuer)).await;
    let code = back.map_err(|_| {
        Failure::from(anyhow!("the sign-in was not completed within {PATIENCE:?}"))
            .hint("on a machine without a browser: --device-code")
    })??;
    let grant = Grant::Code { client_id, code: &code, verifier: &verifier, redirect_uri: &redirect_uri };
    Ok(tokens.redeem(&grant, audience).await?)
}

fn random_text() -> Result<String, NoRandom> {
    Ok(BASE64.encode(random::bytes::<32>()?))
}

/// Opens the page; a person without a browser here has been told the address.
fn show(page: &str) {
    let program = environment::browser()
        .unwrap_or_else(|| if cfg!(target_os = "macos") { "open" } else { "xdg-open" }.to_owned());
    let started = tokio::process::Command::new(&program)
        .arg(page)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    if let Err(error) = started {
        tracing::debug!(%error, program, "no browser was started");
    }
}

/// The code that the browser brings. What does not know `state` is turned away and changes nothing.
async fn wait(listener: &TcpListener, state: &str, issuer: &str) -> Outcome<String> {
    loop {
        let (mut stream, _) = listener.accept().await.context("cannot take the browser's answer")?;
        let Ok(Some(target)) = timeout(HEAD_TIMEOUT, target(&mut stream)).await else { continue };
        let url = url::Url::parse("http://127.0.0.1/").and_then(|base| base.join(&target));
        let Ok(url) = url else { continue };
        let find = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        if url.path() != "/" || find("state").as_deref() != Some(state) {
            answer(&mut stream, "404 Not Found", "Not here.").await;
            continue;
        }
        // RFC 9207: an answer of another issuer is none.
        if find("iss").is_some_and(|iss| iss != issuer) {
            answer(&mut stream, "400 Bad Request", "This answer is of another issuer.").await;
            return Err(anyhow!("the browser brought an answer of another issuer").into());
        }
        return match find("code") {
            Some(code) => {
                answer(&mut stream, "200 OK", "You are signed in. You can close this page.").await;
                Ok(code)
            }
            None => {
                answer(&mut stream, "200 OK", "You are not signed in. You can close this page.").await;
                let plain = |text: String| line(&text).chars().take(300).collect::<String>();
                let (error, why) = (find("error").map(plain), find("error_description").map(plain));
                Err(anyhow!("the sign-in failed: {}: {}", error.unwrap_or_default(), why.unwrap_or_default()).into())
            }
        };
    }
}

/// The target of a GET.
async fn target(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES || stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let line = std::str::from_utf8(&head).ok()?.lines().next()?.to_owned();
    Some(line.strip_prefix("GET ")?.split(' ').next()?.to_owned())
}

async fn answer(stream: &mut TcpStream, status: &str, text: &str) {
    let body = format!("<!doctype html><html lang=en><meta charset=utf-8><title>towline</title><p>{text}</p></html>");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n\r\n",
        body.len()
    );
    // A browser that has gone needs no answer.
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
    let _ = stream.shutdown().await;
}
