//! Sign-in pages: plain HTML that works without scripts and with a screen reader, and the seal on their forms.
//!
//! Nobody stays signed in: each form carries name and password itself, so that a page elsewhere has nothing to ride on.
//! What a form is about is sealed to the flow and to the browser that was shown it (a `__Host-` cookie), and is good
//! for a short time.

use aws_lc_rs::{
    digest::{SHA256, digest},
    hmac,
    rand::SystemRandom,
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{
    clients::csp_source,
    flows::{Wish, random_code},
    respond::{Refusal, no_store},
};
use crate::guid::NoRandom;

/// The cookie that ties a form to a browser; no secret of anybody, and it opens nothing.
const COOKIE: &str = "__Host-towline-form";
/// How long a form may be looked at, in seconds.
const FORM_SECONDS: u64 = 900;
const STYLE: &str = "body{font:1.1rem/1.5 system-ui,sans-serif;margin:0;color:#111;background:#fff}\
main{max-width:26rem;margin:3rem auto;padding:0 1rem}h1{font-size:1.4rem}label{display:block;margin:1rem 0 .2rem}\
input{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;border:1px solid #555;border-radius:.3rem}\
button{font:inherit;padding:.6rem 1.2rem;margin:1.2rem .6rem 0 0;border:2px solid #0b57d0;border-radius:.3rem;\
background:#0b57d0;color:#fff}button.no{background:#fff;color:#0b57d0}:focus-visible{outline:3px solid #f29900;\
outline-offset:2px}.wrong{border-left:.3rem solid #b3261e;padding-left:.7rem}code{font-size:1.2em}\
@media(prefers-color-scheme:dark){body{color:#eee;background:#111}input{background:#222;color:#eee}\
button.no{background:#111;color:#a8c7fa}}";

/// What a form is about.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub enum Flow {
    /// RFC 6749 section 4.1.1, checked.
    Authorize(Box<Authorize>),
    /// The page that asks for a user code.
    AskCode,
    /// The device with this user code.
    Device(String),
}

/// A checked authorization request.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Authorize {
    /// What the client asks for.
    pub wish: Wish,
    /// Where it wants the code, as it spelled it.
    pub redirect_uri: String,
    /// The client's `state`, returned to it unchanged with the code (RFC 6749 section 4.1.1).
    pub state: Option<String>,
    /// Its own, for the ID token.
    pub nonce: Option<String>,
    /// RFC 7636, method S256.
    pub challenge: String,
    /// `response_mode=form_post` (OAuth 2.0 Form Post Response Mode), else the query.
    pub form_post: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    flow: Flow,
    expires: u64,
}

/// The key of the seals: a new one at each start, or that of several gateways.
pub struct Seals(hmac::Key);

impl Seals {
    /// A key of its own.
    pub fn new() -> Result<Self, NoRandom> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map(Self).map_err(|_| NoRandom)
    }

    /// With a key that others have too.
    pub fn of(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    fn seal(&self, flow: &Flow, browser: &str, now: u64) -> String {
        let sealed = Sealed { flow: flow.clone(), expires: now + FORM_SECONDS };
        // Texts and numbers alone: there is nothing in it that JSON could not hold.
        let text = BASE64.encode(serde_json::to_vec(&sealed).unwrap_or_default());
        let tag = hmac::sign(&self.0, format!("{browser}.{text}").as_bytes());
        format!("{text}.{}", BASE64.encode(tag))
    }

    /// What a form is about, if this browser was shown it not long ago.
    pub fn open(&self, sealed: &str, browser: &str, now: u64) -> Option<Flow> {
        let (text, tag) = sealed.split_once('.')?;
        hmac::verify(&self.0, format!("{browser}.{text}").as_bytes(), &BASE64.decode(tag).ok()?).ok()?;
        let sealed: Sealed = serde_json::from_slice(&BASE64.decode(text).ok()?).ok()?;
        (sealed.expires > now).then_some(sealed.flow)
    }
}

/// Which browser it is: its cookie. Only the first one counts, and only if it is of our making.
pub fn browser(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == COOKIE)?;
    (value.len() == 43 && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')).then_some(value)
}

/// A page in the making.
pub struct Page<'a> {
    status: StatusCode,
    title: &'a str,
    body: String,
    form_to: Vec<String>,
    cookie: Option<String>,
}

impl<'a> Page<'a> {
    /// A page with a headline.
    pub fn new(status: StatusCode, title: &'a str) -> Self {
        Self { status, title, body: String::new(), form_to: Vec::new(), cookie: None }
    }

    /// Adds a paragraph; the text is escaped for HTML.
    pub fn text(mut self, text: &str) -> Self {
        self.body.push_str(&format!("<p>{}</p>", escape(text)));
        self
    }

    /// What went wrong, read out at once.
    pub fn fault(mut self, fault: Option<&Refusal>) -> Self {
        if let Some(fault) = fault {
            self.body.push_str(&format!("<p class=\"wrong\" role=\"alert\">{}</p>", escape(&fault.description())));
        }
        self
    }

    /// A form that comes back to this page, about `flow`. `fields` is HTML.
    pub fn form(mut self, seals: &Seals, flow: &Flow, browser: Option<&str>, now: u64, fields: &str) -> Self {
        let browser = match browser {
            Some(known) => known.to_owned(),
            None => {
                // Without random bytes the form is one that cannot be sent.
                let fresh = random_code().unwrap_or_default();
                self.cookie = Some(fresh.clone());
                fresh
            }
        };
        if let Flow::Authorize(request) = flow {
            self.form_to.extend(Url::parse(&request.redirect_uri).ok().as_ref().map(csp_source));
        }
        self.form_to.push("'self'".to_owned());
        let sealed = seals.seal(flow, &browser, now);
        self.body.push_str(&format!(
            "<form method=\"post\" action=\"?\"><input type=\"hidden\" name=\"flow\" value=\"{sealed}\">{fields}</form>"
        ));
        self
    }

    /// A form that goes to a client, with a button: OAuth 2.0 Form Post Response Mode without a script.
    pub fn hand_over(mut self, to: &Url, parameters: &[(&str, &str)]) -> Self {
        self.form_to.push(csp_source(to));
        let hidden: String = parameters
            .iter()
            .map(|(name, value)| format!("<input type=\"hidden\" name=\"{name}\" value=\"{}\">", escape(value)))
            .collect();
        self.body.push_str(&format!(
            "<form method=\"post\" action=\"{}\">{hidden}<button autofocus>Continue</button></form>",
            escape(to.as_str())
        ));
        self
    }

    /// The page as an answer in HTTP.
    pub fn answer(self) -> Response<Full<Bytes>> {
        let html = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} - Towline</title>\
             <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\
             <body><main><h1>{title}</h1>{body}</main></body></html>",
            title = escape(self.title),
            body = self.body,
        );
        let form_to = if self.form_to.is_empty() { "'none'".to_owned() } else { self.form_to.join(" ") };
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; form-action {form_to}; frame-ancestors 'none'; base-uri 'none'",
            STANDARD.encode(digest(&SHA256, STYLE.as_bytes()))
        );
        let cookie = self.cookie.map(|value| format!("{COOKIE}={value}; Path=/; Secure; HttpOnly; SameSite=Strict"));
        let mut response = Response::new(Full::new(Bytes::from(html)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        for (name, value) in [
            (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::REFERRER_POLICY, "no-referrer"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if let Ok(policy) = HeaderValue::try_from(policy) {
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        }
        if let Some(Ok(cookie)) = cookie.map(HeaderValue::try_from) {
            headers.insert(header::SET_COOKIE, cookie);
        }
        no_store(response)
    }
}

/// Name, password and the two decisions.
pub fn sign_in_fields(name: &str) -> String {
    format!(
        "<label for=\"username\">User name</label>\
         <input id=\"username\" name=\"username\" value=\"{}\" autocomplete=\"username\" autocapitalize=\"none\" spellcheck=\"false\" autofocus>\
         <label for=\"password\">Password</label>\
         <input id=\"password\" name=\"password\" type=\"password\" autocomplete=\"current-password\">\
         <button name=\"decision\" value=\"allow\">Sign in and allow</button>\
         <button class=\"no\" name=\"decision\" value=\"deny\">Refuse</button>",
        escape(name)
    )
}

/// The user code.
pub fn code_fields(code: &str) -> String {
    format!(
        "<label for=\"user_code\">The code that your device shows</label>\
         <input id=\"user_code\" name=\"user_code\" value=\"{}\" autocomplete=\"off\" autocapitalize=\"characters\" spellcheck=\"false\" required autofocus>\
         <button>Continue</button>",
        escape(code)
    )
}

/// A text that stays one in HTML, in an attribute too.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_form_is_good_for_its_browser_and_its_time() {
        let (seals, flow) = (Seals::new().unwrap(), Flow::Device("WDJB-MJHT".to_owned()));
        let sealed = seals.seal(&flow, "one", 0);
        assert_eq!(seals.open(&sealed, "one", FORM_SECONDS - 1), Some(flow.clone()));
        assert_eq!(seals.open(&sealed, "other", 0), None);
        assert_eq!(seals.open(&sealed, "one", FORM_SECONDS), None);
        assert_eq!(Seals::new().unwrap().open(&sealed, "one", 0), None);
        let (text, tag) = sealed.split_once('.').unwrap();
        let other = seals.seal(&Flow::AskCode, "one", 0);
        for bad in ["", ".", text, &format!("{text}."), &format!("{}.{tag}", other.split('.').next().unwrap())] {
            assert_eq!(seals.open(bad, "one", 0), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_becomes_markup(text in ".{0,60}") {
            let page = Page::new(StatusCode::OK, "t").text(&text).answer();
            let escaped = escape(&text);
            prop_assert!(!escaped.contains(['<', '>', '"', '\'']) && !escaped.contains(char::is_control));
            prop_assert_eq!(page.status(), 200);
            prop_assert!(!sign_in_fields(&text).replace(&escaped, "").contains("<script"));
        }
    }
}
