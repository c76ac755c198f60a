//! What must not leave where it was logged: private keys, tokens, passwords. Programs of ours log none of them; what
//! others log is not known, so that more is taken out than has to be.

/// Words before a secret, in lower case.
const NAMES: &[&str] = &[
    "authorization",
    "password",
    "passwd",
    "client_secret",
    "clientsecret",
    "access_token",
    "refresh_token",
    "id_token",
    "set-cookie",
    "cookie",
    "private_token",
    "private-token",
    "accountkey",
];
/// What a query of an address has in it, in lower case, where whoever has the address may do what it is for: the signed
/// addresses of storage, and tokens.
const SIGNED: &[&str] = &[
    "sig=",
    "signature",
    "x-amz-",
    "x-goog-",
    "token=",
    "private_token",
    "secret",
    "accountkey",
    "sig%3d",
    "token%3d",
];
/// HTTP's authentication schemes, in lower case.
const SCHEMES: &[&str] = &["bearer ", "basic ", "negotiate ", "digest ", "pop ", "ntlm "];
/// How a token of ours that enrols a cluster begins.
const ENROLMENT: &str = "towline-enrol.";
/// Shorter words behind a scheme are words.
const WORD: usize = 8;
const TAKEN: &str = "(a secret was here)";

/// The text without them.
pub fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut within_key = false;
    for line in text.split_inclusive('\n') {
        let begins = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY");
        let ends = line.contains("-----END ") && line.contains("PRIVATE KEY");
        match (begins || within_key, within_key) {
            (true, false) => out.push_str("(a private key was here)\n"),
            (true, true) => {}
            (false, _) => {
                let line = without_tokens(&without_queries(line));
                out.push_str(&without_schemes(&without_named(&without_credentials(&line))));
            }
        }
        within_key = (within_key || begins) && !ends;
    }
    out
}

/// A token begins with the base64 of `{"`; one that enrols a cluster by its name.
fn without_tokens(line: &str) -> String {
    let end_of = |text: &str| text.find(|c: char| !is_token(c)).unwrap_or(text.len());
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = [rest.find("eyJ"), rest.find(ENROLMENT)].into_iter().flatten().min() {
        let end = at + end_of(&rest[at..]);
        out.push_str(&rest[..at]);
        out.push_str(if end - at > 20 { "(a token was here)" } else { &rest[at..end] });
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.~+/=".contains(c)
}

/// Queries of addresses that have a secret in them, as a whole: what else is in them is a part of it, or means nothing
/// without it.
fn without_queries(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let is_end = |(at, c): &(usize, char)| {
            // JSON that was written by Go has `&` as \u0026.
            c.is_whitespace() || "\"'`<>".contains(*c) || (*c == '\\' && !after[at + 1..].starts_with('u'))
        };
        let end = after.char_indices().find(is_end).map_or(after.len(), |(at, _)| at);
        let query = after[..end].find('?').map_or(end, |at| at + 1);
        let lower = after[query..end].to_ascii_lowercase();
        if SIGNED.iter().any(|name| lower.contains(name)) {
            out.push_str(&after[..query]);
            out.push_str(TAKEN);
            rest = &after[end..];
        } else {
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// `user:password@` of addresses.
fn without_credentials(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "\"'`<>\\".contains(c)).unwrap_or(after.len());
        // A password may have a slash in it that should have been encoded; a host and port before one is just an
        // address.
        let sign = after[..end].rfind('@').filter(|sign| !is_host(after[..*sign].split(['/', '?', '#']).next()));
        match sign {
            Some(sign) => {
                out.push_str("(credentials were here)");
                rest = &after[sign..];
            }
            None => rest = after,
        }
    }
    out.push_str(rest);
    out
}

/// Whether what is before a path is a host with a port or without, and a path follows.
fn is_host(authority: Option<&str>) -> bool {
    let Some(authority) = authority.filter(|authority| !authority.contains('@')) else { return false };
    let name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.[]".contains(c));
    match authority.rsplit_once(':') {
        Some((host, port)) => name(host) && !port.is_empty() && port.chars().all(|c| c.is_ascii_digit()),
        None => name(authority) && authority.contains('.'),
    }
}

/// Values behind names such as `password=` and `"authorization": `.
fn without_named(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let (mut out, mut from) = (String::with_capacity(line.len()), 0);
    while let Some((at, name)) =
        NAMES.iter().filter_map(|name| Some((from + lower[from..].find(name)?, *name))).min_by_key(|(at, _)| *at)
    {
        let behind = at + name.len();
        let value = value_of(&line[behind..], name);
        let (begin, end) = value.map_or((behind, behind), |(begin, end)| (behind + begin, behind + end));
        out.push_str(&line[from..begin]);
        if end > begin {
            out.push_str(TAKEN);
        }
        from = end;
    }
    out.push_str(&line[from..]);
    out
}

/// Where the value behind a name begins and ends.
fn value_of(text: &str, name: &str) -> Option<(usize, usize)> {
    let is_quote = |c: char| "\"'\\".contains(c);
    let sign = text.find(|c: char| !is_quote(c) && c != ' ')?;
    if !text[sign..].starts_with([':', '=']) {
        return None;
    }
    let begin = sign + 1 + text[sign + 1..].find(|c: char| !is_quote(c) && c != ' ')?;
    let before = &text[sign + 1..begin];
    if let Some(at) = before.rfind(['"', '\'']) {
        let escapes = before[..at].bytes().rev().take_while(|byte| *byte == b'\\').count();
        return Some((begin, begin + end_of_quoted(&text[begin..], before.as_bytes()[at], escapes)));
    }
    // A header's value goes to its line's end, other values to where a word ends.
    let is_header = name.ends_with("authorization") || name.ends_with("cookie");
    let ends = |c: char| match is_header {
        true => matches!(c, '\r' | '\n'),
        false => is_quote(c) || c.is_whitespace() || ",;&}".contains(c),
    };
    let end = begin + text[begin..].find(ends).unwrap_or(text.len() - begin);
    Some((begin, end))
}

/// The end of a text that begins behind a quote with `level` backslashes before it: at the next such quote that is not
/// escaped within it, or with the line.
fn end_of_quoted(text: &str, quote: u8, level: usize) -> usize {
    let mut escapes = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\r' | b'\n' => return at,
            b'\\' => escapes += 1,
            _ if byte == quote && (escapes <= level || (level == 0 && escapes % 2 == 0)) => {
                return at - escapes.min(level);
            }
            _ => escapes = 0,
        }
    }
    text.len()
}

/// What stands behind the name of a scheme and is no plain word.
fn without_schemes(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let (mut out, mut from) = (String::with_capacity(line.len()), 0);
    while let Some(begin) = SCHEMES.iter().filter_map(|name| Some(from + lower[from..].find(name)? + name.len())).min()
    {
        let end = begin + line[begin..].find(|c: char| !is_token(c)).unwrap_or(line.len() - begin);
        let word = &line[begin..end];
        let is_word = word.len() < WORD || word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-' || b == b'.');
        out.push_str(&line[from..begin]);
        out.push_str(if is_word { word } else { TAKEN });
        from = end;
    }
    out.push_str(&line[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_keys_and_tokens_are_taken_out() {
        let text = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nbearer eyJhbGciOiJSUzI1NiIsImtpZCI6.e.s end\neyJx\n";
        assert_eq!(redact(text), "a\n(a private key was here)\nbearer (a token was here) end\neyJx\n");
        assert_eq!(
            redact("k: \"-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----\\n\"\nb\n"),
            "(a private key was here)\nb\n"
        );
    }

    #[test]
    fn b1_passwords_headers_and_enrolment_tokens_are_taken_out() {
        for (text, secret) in [
            ("proxy http://me:geheim@proxy.example.org:3128 refused", "geheim"),
            ("{\"url\":\"https://me:ge%40heim@proxy/\"}", "heim"),
            ("HTTPS_PROXY=http://me:a/geheim@proxy:1", "geheim"),
            ("http://geheim@proxy:1/x", "geheim"),
            ("Authorization: Basic bWU6Z2VoZWlt", "bWU6"),
            ("> proxy-authorization: Digest username=\"me\", response=\"6629fae49393\"", "6629fae"),
            ("{\"authorization\":\"Negotiate YIIgeheim==\",\"x\":1}", "YII"),
            ("{\\\"Authorization\\\": \\\"PoP geheim\\\"}", "geheim"),
            ("sent Basic bWU6Z2VoZWlt to proxy", "bWU6"),
            ("using bearer a1b2c3d4e5f6", "a1b2c3"),
            ("towline connect --token towline-enrol.L3N1YnNjcmlwdGlvbnM.YWJj.ZGVm -n x", "YWJj"),
            ("grant_type=password&username=me&password=geheim&x=y", "geheim"),
            ("client_secret: geheim", "geheim"),
            ("password = \"ge heim\"", "heim"),
            ("password = \"ge'heim\"", "heim"),
            ("password = 'ge\"heim'", "heim"),
            ("{\"password\":\"ge\\\"heim\"}", "heim"),
            ("{\\\"password\\\":\\\"ge\\\\\\\"heim\\\"}", "heim"),
            ("password = \"ge' heim", "heim"),
            ("{\"authorization\":\"Digest username=\\\"me\\\", response=\\\"geheim\\\"\"}", "heim"),
            ("Set-Cookie: session=geheim; Secure", "geheim"),
            ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=geheim==;EndpointSuffix=x", "geheim"),
            ("PRIVATE-TOKEN: geheim", "geheim"),
        ] {
            let shown = redact(text);
            assert!(!shown.contains(secret), "{text} -> {shown}");
        }
        let shown = redact("a http://me:geheim@proxy:3128/ b password=x&y=z\n");
        assert_eq!(shown, "a http://(credentials were here)@proxy:3128/ b password=(a secret was here)&y=z\n");
        for (text, wanted) in [
            ("{\"password\":\"ge\\\"heim\",\"x\":1}\n", "{\"password\":\"(a secret was here)\",\"x\":1}\n"),
            ("{\\\"password\\\":\\\"geheim\\\",1}", "{\\\"password\\\":\\\"(a secret was here)\\\",1}"),
            ("password = \"ge' heim\nb\n", "password = \"(a secret was here)\nb\n"),
        ] {
            assert_eq!(redact(text), wanted);
        }
    }

    #[test]
    fn b1_queries_of_signed_addresses_are_taken_out_whole() {
        for query in [
            "sv=2024-01-01&sig=geheim%2F",
            "X-Amz-Credential=geheim&X-Amz-Signature=geheim",
            "a=b\\u0026X-Goog-Signature=geheim",
            "token=geheim",
            "x=1&private_token=geheim",
            "client_secret=geheim",
            "AccountKey=geheim",
            "to=https%3A%2F%2Fa%2F%3Fsig%3Dgeheim",
        ] {
            let shown = redact(&format!("Get \"https://a.example.org/c?{query}\": dial tcp: no such host"));
            assert_eq!(shown, "Get \"https://a.example.org/c?(a secret was here)\": dial tcp: no such host", "{query}");
        }
        let shown = redact("https://me:geheim@a.example.org/c?sig=geheim and https://b.example.org/?page=2");
        assert_eq!(
            shown,
            "https://(credentials were here)@a.example.org/c?(a secret was here) and https://b.example.org/?page=2"
        );
    }

    #[test]
    fn b1_what_is_no_secret_stays() {
        for text in [
            "https://gateway.example.org:443/a?mail=me@example.org",
            "https://gateway.example.org/x@y",
            "https://gateway.example.org/secret/token?service=git-upload-pack",
            "apiGroup: rbac.authorization.k8s.io",
            "--authorization-mode=Node,RBAC",
            "password_file = \"/etc/towline-proxy/password\"",
            "the bearer token was refused; basic authentication is off",
            "ärger über https://ö",
            "authorization",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
