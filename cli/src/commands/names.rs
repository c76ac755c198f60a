//! Names as typed: what cannot be one is refused before anything is asked of anybody, with the rule in one sentence.

/// Characters of the name of a cluster that is made, and of one that is there: the gateway's configuration may have
/// longer ones.
const NEW_CLUSTER: usize = 63;
const NAME: usize = 90;
/// Characters of a label of DNS, which a namespace is (RFC 1123).
const LABEL: usize = 63;
/// Characters of a name of DNS.
const DOMAIN: usize = 253;
/// Characters of the reference of an image.
const IMAGE: usize = 512;
/// Characters of the name of a helm release, which that of an extension is.
const RELEASE: usize = 53;
/// Characters of the name of a configuration that Flux follows: its objects are named after it.
const CONFIGURATION: usize = 62;
/// Characters of a version and of a release train.
const WORD: usize = 64;

/// The name of a cluster that is to be made.
pub fn new_cluster(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fine = (1..=NEW_CLUSTER).contains(&text.len())
        && text.chars().all(known)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.ends_with('.');
    checked(
        text,
        fine,
        "a cluster's name has 1 to 63 of the letters a to z, digits, '-', '_' and '.', begins with a letter or digit and does not end with '.'",
    )
}

/// The name of a cluster that is there.
pub fn cluster(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '(' | ')');
    let fine = (1..=NAME).contains(&text.len()) && text.chars().all(known) && !matches!(text, "." | "..");
    checked(
        text,
        fine,
        "a cluster's name has 1 to 63 of the letters a to z, digits, '-', '_' and '.' (up to 90, and '(' and ')', where the gateway's configuration names it)",
    )
}

/// The name of a resource group, as Azure Resource Manager has it: letters and digits of any script.
pub fn group(text: &str) -> Result<String, String> {
    checked(
        text,
        types::api::id::is_group_name(text),
        "a resource group's name has 1 to 90 letters, digits, '-', '_', '.', '(' and ')', and does not end with '.'",
    )
}

/// The name of a namespace of Kubernetes.
pub fn namespace(text: &str) -> Result<String, String> {
    checked(
        text,
        is_label(text),
        "a namespace has 1 to 63 of the letters a to z in lower case, digits and '-', and begins and ends with a letter or digit",
    )
}

/// The name of an extension.
pub fn extension(text: &str) -> Result<String, String> {
    checked(
        text,
        is_label(text) && text.len() <= RELEASE,
        "an extension's name has 1 to 53 of the letters a to z in lower case, digits and '-', and begins and ends with a letter or digit",
    )
}

/// The name of a configuration that Flux follows, or of one of its kustomizations.
pub fn configuration(text: &str) -> Result<String, String> {
    checked(
        text,
        is_label(text) && text.len() <= CONFIGURATION,
        "it has 1 to 62 of the letters a to z in lower case, digits and '-', and begins and ends with a letter or digit",
    )
}

/// The name of an extension type.
pub fn extension_type(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fine = (1..=DOMAIN).contains(&text.len())
        && text.chars().all(known)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    checked(
        text,
        fine,
        "an extension type has 1 to 253 of the letters a to z, digits, '-', '_' and '.', and begins with a letter or digit, such as example.web",
    )
}

/// A version, or a release train.
pub fn word(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    let fine = (1..=WORD).contains(&text.len()) && text.chars().all(known);
    checked(text, fine, "expected 1 to 64 of the letters a to z, digits, '-', '_', '.' and '+'")
}

/// The reference of an image.
pub fn image(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@');
    let fine = (1..=IMAGE).contains(&text.len())
        && text.chars().all(known)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    checked(text, fine, "expected REPOSITORY, REPOSITORY:TAG or REPOSITORY@sha256:..., without spaces")
}

/// Where a resource is said to be.
pub fn location(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    let fine = (1..=NAME).contains(&text.len())
        && text.chars().all(known)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    checked(
        text,
        fine,
        "a location has 1 to 90 of the letters a to z, digits, '-', '_', '.' and spaces, and begins with a letter or digit, such as westeurope",
    )
}

/// Whether a text is a host's name as Kubernetes takes it (RFC 1123, in lower case).
pub fn is_host(text: &str) -> bool {
    text.len() <= DOMAIN && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=LABEL).contains(&text.len())
        && text.chars().all(|c| known(c) || c == '-')
        && text.starts_with(known)
        && text.ends_with(known)
}

fn checked(text: &str, fine: bool, rule: &str) -> Result<String, String> {
    if fine { Ok(text.to_owned()) } else { Err(rule.to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use types::ids::ClusterId;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn name_that_cannot_be_one_is_refused_with_the_rule() {
        let long = "a".repeat(64);
        for wrong in ["", "a b", "jörg", "a/b", "a%20b", "a?", "-a", "a.", ".", "..", long.as_str(), "a\u{202e}", "(a)"]
        {
            assert!(new_cluster(wrong).unwrap_err().contains("1 to 63"), "{wrong}");
        }
        for wrong in ["", "a b", "a/b", "a.", "a%", "a\n", "x".repeat(91).as_str()] {
            assert!(group(wrong).unwrap_err().contains("1 to 90"), "{wrong}");
        }
        for wrong in ["", "A", "a.b", "-a", "a-", "ns_1", "jörg", long.as_str()] {
            assert!(namespace(wrong).unwrap_err().contains("1 to 63"), "{wrong}");
        }
        for wrong in ["", "a b", " a", "a;b", "--a", "a\u{a0}b"] {
            assert!(image(wrong).is_err(), "{wrong}");
        }
        for (fine, check) in [
            ("shop-1_a.b", new_cluster as fn(&str) -> _),
            ("Édition(1)", group),
            ("东部", group),
            ("kube-system", namespace),
            ("r.example:5000/a/b@sha256:0f", image),
            ("West Europe", location),
        ] {
            assert_eq!(check(fine).unwrap(), fine);
        }
        assert!(is_host("gw.example.org") && !is_host("a_b") && !is_host("a..b") && !is_host("GW"));
    }

    /// What the gateway's configuration can name can be named here.
    #[test]
    fn cluster_of_the_configuration_can_be_named() {
        for name in
            ["edge", "edge(1)", "-a", "a.", "b".repeat(90).as_str(), "", ".", "ä", "a b", "c".repeat(91).as_str()]
        {
            let id =
                format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/{name}");
            assert_eq!(cluster(name).is_ok(), id.parse::<ClusterId>().is_ok(), "{name}");
        }
    }

    #[test]
    fn commands_refuse_names_before_anything_is_asked() {
        for line in [
            "connect|-n|a b|-g|g",
            "connect|-n|a|-g|g/h",
            "connect|-n|a|-g|g|--namespace|Shop",
            "connect|-n|a|-g|g|--image|x y",
            "connect|-n|a|-g|g|-l|a/b",
            "connect|-n|a|-g|g|--host-alias|192.0.2.7=a_b",
            "delete|-n|a%2fb|-g|g",
            "show|-n|a|-g|a b",
            "list|-g|a b",
            "update|-n|ä|-g|g",
            "troubleshoot|-n|a b|-g|g",
            "group|create|-g|a b|-l|x",
            "group|delete|-g|a/..",
            "enrolment-token|create|-g|a b",
            "enrolment-token|create|-g|g|-n|a b",
            "enrolment-token|list|-g|a b",
            "sessions|list|-n|a b|-g|g",
            "events|-g|a b",
            "role|assignment|create|--assignee|x|--role|y|-g|a b",
            "role|assignment|create|--assignee|x|--role|y|-g|g|-n|c|--namespace|A",
            "kubeconfig|-n|a b|-g|g",
            "proxy|-n|a|-g|a b",
            "extension|create|-g|g|-c|c|-n|Web|--type|t",
            "extension|create|-g|g|-c|c|-n|web|--type|a b",
            "extension|create|-g|g|-c|c|-n|web|--type|t|--version|a b",
            "extension|create|-g|g|-c|c|-n|web|--type|t|--target-namespace|Shop",
            "extension|create|-g|g|-c|c|-n|web|--type|t|--set|novalue",
            "extension|update|-g|g|-c|c|-n|web|--unset|a=b",
            "extension|delete|-g|g/h|-c|c|-n|web",
            "extension|types|show|--type|a/b",
            "flux|create|-g|g|-c|c|-n|Web|-u|https://a",
            "flux|create|-g|g|-c|c|-n|web|-u|https://a|--namespace|Shop",
            "flux|create|-g|g|-c|c|-n|web|-u|https://a|-k|name=A",
            "flux|create|-g|g|-c|c|-n|web|-u|https://a|--interval|soon",
            "flux|kustomization|delete|-g|g|-c|c|-n|web|-k|a/b",
            "enable-features|-n|a b|-g|g|--features|azure-rbac",
        ] {
            let error = Cli::try_parse_from(std::iter::once("towline").chain(line.split('|'))).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::ValueValidation, "{line}: {error}");
        }
    }
}
