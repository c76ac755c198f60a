//! Signing in a device that has no browser: RFC 8628. The device shows a short code, the user types it into a page on
//! any other machine, is told who asked and from where, and decides.

use std::{net::IpAddr, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use types::instants::unix_seconds;

use super::{
    Issuer, MOUNT,
    authorize::stale,
    flows::{DEVICE_SECONDS, NotBegun, POLL_SECONDS, user_code_of},
    form::Form,
    page::{self, Flow, Page},
    respond::Refusal,
};

/// Under this name wrong user codes are counted; no user is called so.
const USER_CODE: &str = "user:code";

impl From<NotBegun> for Refusal {
    fn from(not: NotBegun) -> Self {
        match not {
            NotBegun::Full => Self::TryLater("too many sign-ins are under way", Duration::from_secs(30)),
            NotBegun::Away => Self::Away,
            NotBegun::Random => Self::Internal,
        }
    }
}

impl Issuer {
    /// Serves the device's first request.
    pub(super) async fn device_code<B>(&self, peer: IpAddr, request: Request<B>) -> Result<Value, Refusal>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let form = Form::read(request).await?;
        let client = self.public_client(&form)?;
        let wish = self.wish(&form, &client)?;
        let (device_code, user_code) = self.state.begin_device(wish, peer, unix_seconds(self.now())).await?;
        let page = format!("{}{MOUNT}/device", self.base);
        Ok(json!({
            "device_code": device_code,
            "user_code": user_code,
            "verification_uri": page,
            "verification_uri_complete": format!("{page}?user_code={user_code}"),
            "expires_in": DEVICE_SECONDS,
            "interval": POLL_SECONDS,
            // What clients of the Microsoft identity platform show as it is.
            "message": format!("To sign in, open {page} in a browser and enter the code {user_code}."),
        }))
    }

    /// Serves GET of the users' page.
    pub(super) fn device_page(&self, headers: &HeaderMap, query: &str) -> Response<Full<Bytes>> {
        let form = Form::parse(query.as_bytes()).ok();
        let code = form.as_ref().and_then(|form| user_code_of(form.get("user_code")?));
        self.ask_code(headers, &code.unwrap_or_default(), None)
    }

    fn ask_code(&self, headers: &HeaderMap, code: &str, fault: Option<&Refusal>) -> Response<Full<Bytes>> {
        Page::new(fault.map_or(StatusCode::OK, Refusal::status), "Sign in a device")
            .fault(fault)
            .text("Enter a code only if you started this sign-in yourself, a moment ago.")
            .form(
                self.state.seals(),
                &Flow::AskCode,
                page::browser(headers),
                unix_seconds(self.now()),
                &page::code_fields(code),
            )
            .answer()
    }

    /// Serves POST of the users' page: the code, then the decision.
    pub(super) async fn device_form<B>(&self, peer: IpAddr, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (form, headers, flow) = match self.sent_form(request).await {
            Ok(sent) => sent,
            Err(refusal) => return stale(&refusal),
        };
        match flow {
            Flow::AskCode => match self.typed_code(peer, &form).await {
                Ok(code) => self.confirm_page(&headers, &code, "", None).await,
                Err(refusal) => self.ask_code(&headers, "", Some(&refusal)),
            },
            Flow::Device(code) => match self.decision(peer, &form).await {
                Ok(consent) => {
                    let allowed = consent.is_some();
                    match self.state.decide(&code, consent, unix_seconds(self.now())).await {
                        Ok(true) => {}
                        Ok(false) => return stale(&Refusal::Stale),
                        Err(away) => return self.ask_code(&headers, &code, Some(&away.into())),
                    }
                    let (title, text) = match allowed {
                        true => ("Signed in", "Your device goes on by itself. You can close this page."),
                        false => ("Refused", "Your device was told so. You can close this page."),
                    };
                    Page::new(StatusCode::OK, title).text(text).answer()
                }
                Err(refusal) => {
                    let name = form.get("username").unwrap_or_default();
                    self.confirm_page(&headers, &code, name, Some(&refusal)).await
                }
            },
            Flow::Authorize(_) => stale(&Refusal::Stale),
        }
    }

    /// A code that waits for a decision. Wrong ones are counted: there are not many letters in it. Each is counted before
    /// it is looked up, and taken back if it is right: many that are typed at once do not slip past the count.
    async fn typed_code(&self, peer: IpAddr, form: &Form) -> Result<String, Refusal> {
        self.one_try(peer, USER_CODE).await?;
        let now = unix_seconds(self.now());
        if let Some(code) = form.get("user_code").and_then(user_code_of)
            && self.state.find_device(&code, now).await?.is_some()
        {
            self.state.take_back(peer, USER_CODE).await?;
            return Ok(code);
        }
        Err(Refusal::Request(
            "there is no device with this code, or it has expired; start the sign-in again on the device",
        ))
    }

    async fn confirm_page(
        &self,
        headers: &HeaderMap,
        code: &str,
        name: &str,
        fault: Option<&Refusal>,
    ) -> Response<Full<Bytes>> {
        let now = unix_seconds(self.now());
        let (wish, peer) = match self.state.find_device(code, now).await {
            Ok(Some(asks)) => asks,
            Ok(None) => return stale(&Refusal::Stale),
            Err(away) => return self.ask_code(headers, code, Some(&away.into())),
        };
        Page::new(fault.map_or(StatusCode::OK, Refusal::status), "Sign in a device")
            .fault(fault)
            .text(&format!(
                "{} wants to act as you at {} and its clusters. It asked from the address {peer} and shows the code {code}. \
                 Refuse if that is not your device.",
                self.client_name(&wish.client),
                self.settings.api_audience
            ))
            .form(
                self.state.seals(),
                &Flow::Device(code.to_owned()),
                page::browser(headers),
                now,
                &page::sign_in_fields(name),
            )
            .answer()
    }
}
