//! Redirects of the apiserver to itself. Their `Location` names an address that only this cluster can reach; it is
//! shortened to a path, which leads there from wherever the user is.

use http::{HeaderMap, HeaderValue, header, uri::Authority};

/// Takes the apiserver's own address, which only this cluster can reach, out of a redirect to itself: `own`, and
/// `prefix`, the path that the kubeconfig's server puts before every request's. The path that is left leads there from
/// wherever the user is.
pub(super) fn shorten(headers: &mut HeaderMap, own: &Authority, prefix: &str) {
    let path = headers.get(header::LOCATION).and_then(|location| {
        let location = location.as_bytes();
        let absolute = without_authority(location, own);
        let path = absolute.as_deref().unwrap_or(location);
        match below(path, prefix) {
            Some(inner) => HeaderValue::from_bytes(&inner).ok(),
            None => absolute.and_then(|path| HeaderValue::from_bytes(&path).ok()),
        }
    });
    if let Some(path) = path {
        headers.insert(header::LOCATION, path);
    }
}

/// The absolute path of a URL at `own`; none for what is anything else.
fn without_authority(location: &[u8], own: &Authority) -> Option<Vec<u8>> {
    let (scheme, rest) = location.split_at_checked(b"https://".len())?;
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#' | b'\\')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = Authority::try_from(authority).ok()?;
    let port = |of: &Authority| of.port_u16().unwrap_or(443);
    let same = scheme.eq_ignore_ascii_case(b"https://")
        && !authority.as_str().contains('@')
        && authority.host().eq_ignore_ascii_case(own.host())
        && port(&authority) == port(own);
    if same { rooted(path) } else { None }
}

/// The absolute path behind `prefix`; none where there is no prefix, or another one.
fn below(path: &[u8], prefix: &str) -> Option<Vec<u8>> {
    let inner = path.strip_prefix(prefix.as_bytes()).filter(|_| !prefix.is_empty())?;
    if matches!(inner.first(), None | Some(b'/' | b'?' | b'#')) { rooted(inner) } else { None }
}

/// With the slash that a path begins with. Two slashes, or what browsers take for them, would name another host.
fn rooted(path: &[u8]) -> Option<Vec<u8>> {
    let slash: &[u8] = if path.starts_with(b"/") { b"" } else { b"/" };
    let other = path.starts_with(b"//") || path.contains(&b'\\');
    if other { None } else { Some([slash, path].concat()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(own: &str, prefix: &str, location: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(header::LOCATION, HeaderValue::from_str(location).unwrap());
        shorten(&mut headers, &own.parse().unwrap(), prefix);
        headers[header::LOCATION].to_str().unwrap().to_owned()
    }

    #[test]
    fn redirects_to_the_apiserver_itself_lose_its_address() {
        let located = |own: &str, location: &str| shortened(own, "", location);
        let own = "10.96.0.1:443";
        for (location, expected) in [
            ("https://10.96.0.1:443/a?b#c", "/a?b#c"),
            ("HTTPS://10.96.0.1/a", "/a"),
            ("https://10.96.0.1", "/"),
            ("https://10.96.0.1?x", "/?x"),
        ] {
            assert_eq!(located(own, location), expected, "{location}");
        }
        for location in [
            "https://10.96.0.1:6443/a",
            "https://10.96.0.10/a",
            "http://10.96.0.1:443/a",
            "https://user@10.96.0.1/a",
            "https://10.96.0.1//other.example/a",
            "https://10.96.0.1\\@other.example/a",
            "https://10.96.0.1/\\other.example",
            "https://other.example/https://10.96.0.1/",
            "/a",
            "a",
            "",
        ] {
            assert_eq!(located(own, location), location);
        }
        assert_eq!(located("[fd00::1]:6443", "https://[FD00::1]:6443/a"), "/a");
        assert_eq!(located("Kubernetes.default:443", "https://kubernetes.Default/a"), "/a");
    }

    #[test]
    fn redirects_lose_the_path_of_the_kubeconfigs_server() {
        for (location, expected) in [
            ("/k8s/c/a?b", "/a?b"),
            ("https://10.96.0.1/k8s/c/a", "/a"),
            ("/k8s/c", "/"),
            ("/k8s/c?x", "/?x"),
            ("https://10.96.0.1/a", "/a"),
            ("/k8s/cd/a", "/k8s/cd/a"),
            ("/k8s/c//other.example", "/k8s/c//other.example"),
            ("//other.example/k8s/c/a", "//other.example/k8s/c/a"),
            ("https://other.example/k8s/c/a", "https://other.example/k8s/c/a"),
            ("a", "a"),
        ] {
            assert_eq!(shortened("10.96.0.1:443", "/k8s/c", location), expected, "{location}");
        }
    }
}
