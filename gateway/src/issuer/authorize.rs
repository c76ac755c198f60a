//! The authorization endpoint: RFC 6749 section 4.1 with PKCE (RFC 7636, S256 and nothing else), for public clients.
//!
//! What is wrong before client and address are known is said here and goes nowhere else: a redirect would be one for
//! everybody (RFC 9700 section 4.11). What is wrong behind that is told to the client.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use types::instants::unix_seconds;
use url::Url;

use super::{
    Issuer,
    clients::PublicClient,
    flows::{Code, Consent, Wish, random_code},
    form::Form,
    page::{self, Authorize, Flow, Page},
    respond::{Refusal, no_store},
};

/// Characters of a query at most: what it says comes back in a form, however much longer its spelling is there.
const QUERY_BYTES: usize = 4 * 1024;
/// Characters of a PKCE challenge: base64url of a SHA-256.
const CHALLENGE_LENGTH: usize = 43;

/// Where an answer goes, known to be a place of the client.
struct Back {
    to: Url,
    state: Option<String>,
    form_post: bool,
}

impl Issuer {
    /// Serves GET: the sign-in page.
    pub(super) fn authorize_page(&self, headers: &HeaderMap, query: &str) -> Response<Full<Bytes>> {
        let wrong = |refusal: &Refusal| {
            Page::new(StatusCode::BAD_REQUEST, "This sign-in cannot go on").fault(Some(refusal)).answer()
        };
        if query.len() > QUERY_BYTES {
            return wrong(&Refusal::Request("the request is too long"));
        }
        let form = match Form::parse(query.as_bytes()) {
            Ok(form) => form,
            Err(refusal) => return wrong(&refusal),
        };
        let (client, back) = match self.back(&form) {
            Ok(known) => known,
            Err(refusal) => return wrong(&refusal),
        };
        match self.authorize_request(&form, &client, &back) {
            Ok(request) => self.sign_in_page(&request, headers, form.get("login_hint").unwrap_or_default(), None),
            Err(refusal) => self.back_with_error(&back, &refusal),
        }
    }

    /// The client, and where it may be answered.
    fn back(&self, form: &Form) -> Result<(PublicClient, Back), Refusal> {
        let client = self.public_client(form)?;
        let uri = form.get("redirect_uri").ok_or(Refusal::Request("redirect_uri is missing"))?;
        let to = client.redirect(uri).ok_or(Refusal::Request("redirect_uri is not one of this client's"))?;
        let form_post = form.get("response_mode") == Some("form_post");
        Ok((client, Back { to, state: form.get("state").map(str::to_owned), form_post }))
    }

    fn authorize_request(&self, form: &Form, client: &PublicClient, back: &Back) -> Result<Authorize, Refusal> {
        if form.get("response_type") != Some("code") {
            return Err(Refusal::ResponseType);
        }
        if !matches!(form.get("response_mode"), None | Some("query" | "form_post")) {
            return Err(Refusal::Request("response_mode must be query or form_post"));
        }
        // Without a method it would be "plain", which protects nothing.
        if form.get("code_challenge_method") != Some("S256") {
            return Err(Refusal::Request("code_challenge_method must be S256"));
        }
        let challenge = form.get("code_challenge").filter(|text| {
            text.len() == CHALLENGE_LENGTH && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        });
        let challenge = challenge.ok_or(Refusal::Request("code_challenge is missing or is no SHA-256"))?;
        if form.get("prompt") == Some("none") {
            return Err(Refusal::LoginRequired);
        }
        Ok(Authorize {
            wish: self.wish(form, client)?,
            redirect_uri: form.get("redirect_uri").unwrap_or_default().to_owned(),
            state: back.state.clone(),
            nonce: form.get("nonce").map(str::to_owned),
            challenge: challenge.to_owned(),
            form_post: back.form_post,
        })
    }

    fn sign_in_page(
        &self,
        request: &Authorize,
        headers: &HeaderMap,
        name: &str,
        fault: Option<&Refusal>,
    ) -> Response<Full<Bytes>> {
        let client = self.client_name(&request.wish.client);
        let flow = Flow::Authorize(Box::new(request.clone()));
        Page::new(fault.map_or(StatusCode::OK, Refusal::status), "Sign in")
            .fault(fault)
            .text(&format!(
                "{client} wants to act as you at {} and its clusters. You go back to {} on this computer or to the address shown.",
                self.settings.api_audience,
                origin(&request.redirect_uri),
            ))
            .form(self.state.seals(), &flow, page::browser(headers), unix_seconds(self.now()), &page::sign_in_fields(name))
            .answer()
    }

    /// Serves POST: the form that came back.
    pub(super) async fn authorize_form<B>(&self, peer: IpAddr, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (form, headers, flow) = match self.sent_form(request).await {
            Ok(sent) => sent,
            Err(refusal) => return stale(&refusal),
        };
        let Flow::Authorize(asked) = flow else { return stale(&Refusal::Stale) };
        // Checked before the form was sealed, and again: a client may have been taken out since.
        let client = self.client(&asked.wish.client);
        let Some(to) = client.and_then(|client| client.redirect(&asked.redirect_uri)) else {
            return stale(&Refusal::Stale);
        };
        let back = Back { to, state: asked.state.clone(), form_post: asked.form_post };
        let consent = match self.decision(peer, &form).await {
            Ok(Some(consent)) => consent,
            Ok(None) => return self.back_with_error(&back, &Refusal::Denied),
            Err(refusal) => {
                let name = form.get("username").unwrap_or_default();
                return self.sign_in_page(&asked, &headers, name, Some(&refusal));
            }
        };
        match self.code(*asked, consent).await {
            Ok(code) => self.go_back(&back, &[("code", &code)]),
            Err(refusal) => self.back_with_error(&back, &refusal),
        }
    }

    /// A code for what was allowed.
    async fn code(&self, asked: Authorize, consent: Consent) -> Result<String, Refusal> {
        let code = Code {
            wish: asked.wish,
            consent,
            redirect_uri: asked.redirect_uri,
            challenge: asked.challenge,
            nonce: asked.nonce,
            family: random_code().map_err(|_| Refusal::Internal)?,
        };
        Ok(self.state.issue(code, unix_seconds(self.now())).await?)
    }

    /// A form of one of our pages: its fields, the headers it came with, and what it is about.
    pub(super) async fn sent_form<B>(&self, request: Request<B>) -> Result<(Form, HeaderMap, Flow), Refusal>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let headers = request.headers().clone();
        let form = Form::read(request).await?;
        let (sealed, browser) = (form.get("flow"), page::browser(&headers));
        let flow = sealed
            .zip(browser)
            .and_then(|(flow, browser)| self.state.seals().open(flow, browser, unix_seconds(self.now())));
        let flow = flow.ok_or(Refusal::Stale)?;
        Ok((form, headers, flow))
    }

    /// What the user decided: to agree, with name and password, or not.
    pub(super) async fn decision(&self, peer: IpAddr, form: &Form) -> Result<Option<Consent>, Refusal> {
        match form.get("decision") {
            Some("deny") => return Ok(None),
            Some("allow") => {}
            _ => return Err(Refusal::Request("there are two buttons")),
        }
        let (name, password) = form.password()?;
        let user = self.sign_in(peer, name, password).await?;
        Ok(Some(Consent { user: user.id.clone(), generation: user.generation(), at: unix_seconds(self.now()) }))
    }

    /// What a client asks for.
    pub(super) fn wish(&self, form: &Form, client: &PublicClient) -> Result<Wish, Refusal> {
        let scope = form.scope()?;
        let asked = scope.audience.or(form.get("audience"));
        let audience = asked.map_or_else(|| Some(self.settings.api_audience.clone()), |asked| self.audience(asked));
        Ok(Wish {
            client: client.id.clone(),
            audience: audience.ok_or(Refusal::Target)?,
            openid: scope.openid,
            offline: scope.offline,
        })
    }

    /// The public client that a request names.
    pub(super) fn public_client(&self, form: &Form) -> Result<PublicClient, Refusal> {
        let id = form.get("client_id").ok_or(Refusal::Request("client_id is missing"))?;
        self.client(id).ok_or(Refusal::Client { why: "there is no public client with this client_id", basic: false })
    }

    fn client(&self, id: &str) -> Option<PublicClient> {
        let known = PublicClient::built_in().into_iter().chain(self.settings.clients.iter().cloned());
        known.into_iter().find(|client| client.id == id)
    }

    /// As people are told it.
    pub(super) fn client_name(&self, id: &str) -> String {
        self.client(id).map_or_else(|| "An unknown program".to_owned(), |client| client.name)
    }

    fn back_with_error(&self, back: &Back, refusal: &Refusal) -> Response<Full<Bytes>> {
        let description = refusal.description();
        self.go_back(back, &[("error", refusal.error()), ("error_description", &description)])
    }

    /// RFC 6749 section 4.1.2, with `iss` of RFC 9207.
    fn go_back(&self, back: &Back, parameters: &[(&str, &str)]) -> Response<Full<Bytes>> {
        let mut parameters = parameters.to_vec();
        parameters.extend(back.state.as_deref().map(|state| ("state", state)));
        parameters.push(("iss", &self.settings.url));
        if back.form_post {
            return Page::new(StatusCode::OK, "Signed in").hand_over(&back.to, &parameters).answer();
        }
        let mut to = back.to.clone();
        to.query_pairs_mut().extend_pairs(&parameters);
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SEE_OTHER;
        let headers = response.headers_mut();
        // What the library serialises is ASCII without control characters.
        headers.insert(header::LOCATION, HeaderValue::try_from(to.as_str()).unwrap_or(HeaderValue::from_static("/")));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        no_store(response)
    }
}

/// A form that is nobody's, or too old.
pub(super) fn stale(refusal: &Refusal) -> Response<Full<Bytes>> {
    Page::new(StatusCode::BAD_REQUEST, "This page has run out").fault(Some(refusal)).answer()
}

fn origin(uri: &str) -> String {
    Url::parse(uri).map_or_else(|_| String::new(), |uri| uri.origin().ascii_serialization())
}
