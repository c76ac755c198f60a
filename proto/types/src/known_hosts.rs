//! Keys by which SSH servers are known: texts of `known_hosts` (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"), and the keys of
//! Git hosts that everybody knows. Arc's Flux knows those by itself too, so that a configuration that works there works
//! here.

use crate::agent_api::decode;

/// Lines of `known_hosts` as the hosts' owners publish them. Each was compared with its published fingerprint, which the
/// test has. The RSA key of bitbucket.org is left out: its two other keys serve every client of today.
///
/// - GitHub: <https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/githubs-ssh-key-fingerprints>
/// - GitLab: <https://docs.gitlab.com/user/gitlab_com/#ssh-host-keys-fingerprints>
/// - Bitbucket: <https://support.atlassian.com/bitbucket-cloud/docs/configure-ssh-and-two-step-verification/>
/// - Azure DevOps, which has one key for both of its names: <https://learn.microsoft.com/azure/devops/repos/git/use-ssh-keys-to-authenticate>
const BUILT_IN: &str = include_str!("known_hosts/built_in");

/// The lines for the host of a repository's address (`ssh://git@github.com/org/repo` or `git@github.com:org/repo`), if it
/// is one of those that are built in, at the usual port.
pub fn built_in(url: &str) -> Option<String> {
    let host = match url.strip_prefix("ssh://") {
        Some(rest) => {
            let authority = rest.split(['/', '?', '#']).next()?;
            let at = authority.rsplit('@').next()?;
            at.strip_suffix(":22").unwrap_or(at)
        }
        None if url.contains("://") => return None,
        None => url.split_once(':')?.0.rsplit('@').next()?,
    };
    let is_for = |line: &&str| line.split(' ').next().is_some_and(|name| name.eq_ignore_ascii_case(host));
    let lines: Vec<&str> = BUILT_IN.lines().filter(is_for).collect();
    (!lines.is_empty()).then(|| lines.iter().flat_map(|line| [*line, "\n"]).collect())
}

/// Whether a text is one of `known_hosts`, with one key at least.
///
/// # Errors
/// What is wrong with it.
pub fn check(text: &str) -> Result<(), String> {
    let mut keys = 0;
    for (place, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if !is_key(line) {
            return Err(format!("its line {} is not a host, a type of key and a key of that type", place + 1));
        }
        keys += 1;
    }
    if keys == 0 { Err("it has no key".to_owned()) } else { Ok(()) }
}

fn is_key(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace().peekable();
    if words.peek().is_some_and(|word| word.starts_with('@')) {
        let marker = words.next();
        if !matches!(marker, Some("@cert-authority" | "@revoked")) {
            return false;
        }
    }
    let (Some(_), Some(kind), Some(key)) = (words.next(), words.next(), words.next()) else { return false };
    // A key begins with its type again: its length in four bytes, and itself.
    let Some(key) = decode(key) else { return false };
    let Some((length, rest)) = key.split_first_chunk::<4>() else { return false };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    rest.len() > length && rest.get(..length) == Some(kind.as_bytes())
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest;

    use super::*;
    use crate::agent_api::encode;

    #[test]
    fn g1_hosts_that_everybody_knows_have_the_keys_that_they_publish() {
        let fingerprint = |line: &str| {
            let mut words = line.split(' ');
            let (host, kind) = (words.next().unwrap(), words.next().unwrap());
            let key = decode(words.next().unwrap()).unwrap();
            let digest = encode(digest::digest(&digest::SHA256, &key).as_ref());
            format!("{host} {kind} {}", digest.trim_end_matches('='))
        };
        let all: Vec<_> = BUILT_IN.lines().map(fingerprint).collect();
        assert_eq!(
            all,
            [
                "github.com ssh-ed25519 +DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU",
                "github.com ecdsa-sha2-nistp256 p2QAMXNIC1TJYWeIOttrVc98/R1BUFWu3/LiyKgUfQM",
                "github.com ssh-rsa uNiVztksCsDhcc0u9e8BujQXVUpKZIDTMczCvj3tD2s",
                "gitlab.com ssh-ed25519 eUXGGm1YGsMAS7vkcx6JOJdOGHPem5gQp4taiCfCLB8",
                "gitlab.com ecdsa-sha2-nistp256 HbW3g8zUjNSksFbqTiUWPWg2Bq1x8xdGUrliXFzSnUw",
                "gitlab.com ssh-rsa ROQFvPThGrW4RuWLoL9tq9I9zJ42fK4XywyRtbOz/EQ",
                "bitbucket.org ssh-ed25519 ybgmFkzwOSotHTHLJgHO0QN8L0xErw6vd0VhFA9m3SM",
                "bitbucket.org ecdsa-sha2-nistp256 FC73VB6C4OQLSCrjEayhMp9UMxS97caD/Yyi2bhW/J0",
                "ssh.dev.azure.com ssh-rsa ohD8VZEXGWo6Ez8GSEJQ9WpafgLFsOfLOtGGQCQo6Og",
                "vs-ssh.visualstudio.com ssh-rsa ohD8VZEXGWo6Ez8GSEJQ9WpafgLFsOfLOtGGQCQo6Og",
            ]
        );
        assert_eq!(check(BUILT_IN), Ok(()));
    }

    #[test]
    fn g1_hosts_are_found_in_every_form_of_an_address() {
        for good in [
            "git@github.com:org/repo",
            "git@GitHub.com:org/repo",
            "ssh://git@github.com/org/repo",
            "ssh://git@github.com:22/org/repo",
        ] {
            assert_eq!(built_in(good).unwrap().lines().count(), 3, "{good}");
        }
        assert!(built_in("git@ssh.dev.azure.com:v3/org/project/repo").unwrap().ends_with('\n'));
        for bad in [
            "https://github.com/org/repo",
            "ssh://git@github.com:2222/org/repo",
            "ssh://git@github.com.evil.test/org/repo",
            "ssh://github.com@evil.test/org/repo",
            "git@evil.test:github.com/repo",
            "git@:x",
            "",
        ] {
            assert_eq!(built_in(bad), None, "{bad}");
        }
    }

    #[test]
    fn g1_text_of_known_hosts_is_told_from_others() {
        let line = BUILT_IN.lines().next().unwrap();
        let key = line.split_once(' ').unwrap().1;
        for good in [
            line.to_owned(),
            format!("# keys\n\n{line} a comment\n"),
            format!("[git.test]:2222,10.0.0.1 {key}"),
            format!("@revoked * {key}\n@cert-authority *.test {key}"),
        ] {
            assert_eq!(check(&good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "# none",
            "\u{0}\u{0}\u{2}",
            "git.test",
            "git.test ssh-ed25519",
            "git.test ssh-ed25519 AAAA",
            "git.test ssh-ed25519 no-base64!",
            &line.replace("ssh-ed25519", "ssh-rsa"),
            &format!("@unknown git.test {key}"),
            &format!("{line}\nx"),
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
