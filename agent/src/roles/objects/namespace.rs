//! Namespaces in which nothing is made for a gateway, whatever it wants.

/// How the names of the cluster's own namespaces begin.
const RESERVED: &str = "kube-";
/// Characters of a namespace's name (RFC 1123).
const NAME_CHARS: usize = 63;

/// Why nothing may be made in a namespace, as the end of a sentence that begins with its name; none: it may. `own` is
/// the namespace of the agents.
pub fn refusal(namespace: &str, own: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = (1..=NAME_CHARS).contains(&namespace.len())
        && namespace.bytes().all(plain)
        && !namespace.starts_with('-')
        && !namespace.ends_with('-');
    if !is_label {
        Some("is not a name of a namespace")
    } else if namespace == own {
        Some("is the agents' own")
    } else if namespace.starts_with(RESERVED) {
        Some("is the cluster's own")
    } else {
        None
    }
}
