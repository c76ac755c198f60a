//! Parameters of the operator of a source control configuration (docs/features.md G10): the options of Flux 1 that
//! `operatorParams` holds as one text, and what they are to Flux 2. The gateway refuses what is not understood; the agent
//! reads the same text again, because the gateway may have been taken over.

/// Bytes of the text, and of one value in it.
const TEXT: usize = 8192;
const VALUE: usize = 1024;
/// Paths of one configuration.
const PATHS: usize = 20;
/// Seconds of an interval or a timeout: a day.
const LONGEST: u64 = 24 * 3600;

/// What an option takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Any text.
    Text,
    /// Paths, with commas between them.
    Paths,
    /// A time such as `1h30m`.
    Time,
    /// Nothing, `true` or `false`.
    Switch,
}

/// The options that are understood.
const KNOWN: &[(&str, Takes)] = &[
    ("git-branch", Takes::Text),
    ("git-path", Takes::Paths),
    ("git-poll-interval", Takes::Time),
    ("git-timeout", Takes::Time),
    ("sync-interval", Takes::Time),
    ("sync-timeout", Takes::Time),
    ("sync-garbage-collection", Takes::Switch),
    ("sync-garbage-collection-dry", Takes::Switch),
    // These are about what Flux 1 writes into the repository. Flux 2 writes nothing there.
    ("git-readonly", Takes::Switch),
    ("git-user", Takes::Text),
    ("git-email", Takes::Text),
    ("git-label", Takes::Text),
    ("git-sync-tag", Takes::Text),
    ("git-notes-ref", Takes::Text),
    ("git-set-author", Takes::Switch),
    ("git-ci-skip", Takes::Switch),
    ("git-ci-skip-message", Takes::Text),
    // Flux 2 keeps what it has applied in its own objects.
    ("sync-state", Takes::Text),
    // Flux 2 builds a kustomization wherever there is one, and looks into no image registry.
    ("manifest-generation", Takes::Switch),
    ("registry-disable-scanning", Takes::Switch),
];

/// What the options say that Flux 2 can do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatorParams {
    /// The branch that is followed.
    pub branch: Option<String>,
    /// Folders of the repository that are applied, each without a slash at either end; none: all of it.
    pub paths: Vec<String>,
    /// Seconds between two pulls.
    pub poll_interval: Option<u64>,
    /// Seconds that a pull may take.
    pub git_timeout: Option<u64>,
    /// Seconds between two comparisons of what was applied with the cluster.
    pub sync_interval: Option<u64>,
    /// Seconds that an attempt to apply may take.
    pub sync_timeout: Option<u64>,
    /// Whether objects that left the repository are deleted.
    pub prune: bool,
}

impl OperatorParams {
    /// Reads `operatorParams`. A later option replaces an earlier one; paths come together.
    ///
    /// # Errors
    /// What is not understood, as a sentence that names the option.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > TEXT {
            return Err(format!("The operator's parameters have more than {TEXT} bytes."));
        }
        let (mut read, mut dry) = (Self::default(), false);
        let mut words = split(text)?.into_iter().peekable();
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix("--").filter(|option| !option.is_empty()) else {
                return Err(format!("'{}' is not an operator parameter; they begin with --.", shown(&word)));
            };
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (option.to_owned(), None),
            };
            let Some((_, takes)) = KNOWN.iter().find(|(known, _)| *known == name) else {
                let known: Vec<_> = KNOWN.iter().map(|(name, _)| format!("--{name}")).collect();
                let name = shown(&name);
                return Err(format!("The operator parameter '--{name}' is not known; known are {}.", known.join(", ")));
            };
            let wrong = |wanted: &str| format!("The operator parameter '--{name}' must be {wanted}.");
            if *takes == Takes::Switch {
                let is_on = match value.as_deref() {
                    None | Some("true" | "1") => true,
                    Some("false" | "0") => false,
                    Some(_) => return Err(wrong("true or false, as --NAME or --NAME=false")),
                };
                match name.as_str() {
                    "sync-garbage-collection" => read.prune = is_on,
                    "sync-garbage-collection-dry" => dry = is_on,
                    _ => {}
                }
                continue;
            }
            let value = match value {
                Some(value) => value,
                None => words.next_if(|next| !next.starts_with("--")).ok_or_else(|| wrong("given a value"))?,
            };
            if value.len() > VALUE || value.contains(char::is_control) {
                return Err(wrong(&format!("at most {VALUE} bytes without control characters")));
            }
            match takes {
                Takes::Paths => read.add_paths(&value).map_err(|wanted| wrong(&wanted))?,
                Takes::Time => {
                    let seconds =
                        seconds(&value).ok_or_else(|| wrong("a time such as 30s, 5m or 1h30m, at most 24h"))?;
                    *read.time(&name) = Some(seconds);
                }
                _ if name == "git-branch" => {
                    let odd = value.is_empty() || value.starts_with('-') || value.contains(char::is_whitespace);
                    if odd {
                        return Err(wrong("the name of a branch"));
                    }
                    read.branch = Some(value);
                }
                _ => {}
            }
        }
        read.prune &= !dry;
        Ok(read)
    }

    fn time(&mut self, name: &str) -> &mut Option<u64> {
        match name {
            "git-poll-interval" => &mut self.poll_interval,
            "git-timeout" => &mut self.git_timeout,
            "sync-interval" => &mut self.sync_interval,
            _ => &mut self.sync_timeout,
        }
    }

    fn add_paths(&mut self, value: &str) -> Result<(), String> {
        for path in value.split(',').map(str::trim) {
            let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
            if path.starts_with('/') || path.contains('\\') || parts.contains(&"..") {
                return Err("paths in the repository, relative and without '..'".to_owned());
            }
            let path = parts.join("/");
            if !self.paths.contains(&path) {
                self.paths.push(path);
            }
        }
        let holds = |outer: &str, inner: &str| {
            outer.is_empty() || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
        };
        let is_within_another = |path: &String| self.paths.iter().any(|other| other != path && holds(other, path));
        if self.paths.iter().any(is_within_another) {
            return Err("paths of which none is within another: what both have would have two owners".to_owned());
        }
        if self.paths.len() > PATHS {
            return Err(format!("at most {PATHS} paths"));
        }
        Ok(())
    }
}

/// A text of a client in a message.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// Words as a shell splits them, with quotes.
fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if matches!(c, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("A quote of the operator's parameters is not closed.".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// Seconds of a duration as Go writes it, in whole hours, minutes and seconds.
fn seconds(text: &str) -> Option<u64> {
    let (mut seconds, mut number) = (0_u64, String::new());
    for c in text.chars() {
        if c.is_ascii_digit() {
            number.push(c);
            continue;
        }
        let unit = match c {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        seconds = seconds.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        number.clear();
    }
    (number.is_empty() && (1..=LONGEST).contains(&seconds)).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g10_parameters_that_flux_2_knows_are_translated() {
        let text = "--git-branch=release --git-path=apps,./infra/ --git-path 'with blank' --git-poll-interval=1h30m \
            --git-timeout 20s --sync-interval=5m --sync-timeout=2m --sync-garbage-collection --git-readonly";
        let wanted = OperatorParams {
            branch: Some("release".to_owned()),
            paths: ["apps", "infra", "with blank"].map(str::to_owned).into(),
            poll_interval: Some(5400),
            git_timeout: Some(20),
            sync_interval: Some(300),
            sync_timeout: Some(120),
            prune: true,
        };
        assert_eq!(OperatorParams::read(text), Ok(wanted));
        assert_eq!(OperatorParams::read("  "), Ok(OperatorParams::default()));
        let last = OperatorParams::read("--git-branch a --git-branch=b --git-path=.").unwrap();
        assert_eq!((last.branch.as_deref(), last.paths.as_slice()), (Some("b"), &[String::new()][..]));
        let beside = OperatorParams::read("--git-path=app,app/,apps,web/app").unwrap();
        assert_eq!(beside.paths, ["app", "apps", "web/app"]);
        for off in ["--sync-garbage-collection=false", "--sync-garbage-collection --sync-garbage-collection-dry=1"] {
            assert!(!OperatorParams::read(off).unwrap().prune, "{off}");
        }
    }

    #[test]
    fn g10_parameters_that_mean_nothing_to_flux_2_are_accepted() {
        let text = "--git-readonly=false --git-user=flux --git-email \"flux bot@example.org\" --git-label=l --git-sync-tag=t \
            --git-notes-ref=n --git-set-author --git-ci-skip --git-ci-skip-message='[skip]' --sync-state=git \
            --manifest-generation=true --registry-disable-scanning";
        assert_eq!(OperatorParams::read(text), Ok(OperatorParams::default()));
    }

    #[test]
    fn g10_parameters_that_are_not_understood_are_named() {
        for (text, part) in [
            ("--git-url=https://elsewhere", "'--git-url' is not known; known are --git-branch,"),
            ("--git-verify-signatures", "'--git-verify-signatures' is not known"),
            ("git-branch=x", "'git-branch=x' is not an operator parameter"),
            ("--", "'--' is not an operator parameter"),
            ("--git-readonly maybe", "'maybe' is not an operator parameter"),
            ("--git-branch", "'--git-branch' must be given a value"),
            ("--git-branch --git-readonly", "'--git-branch' must be given a value"),
            ("--git-branch=", "must be the name of a branch"),
            ("--git-branch='-x y'", "must be the name of a branch"),
            ("--git-path=../x", "without '..'"),
            ("--git-path=/etc", "relative"),
            ("--git-path=apps,apps/web", "none is within another"),
            ("--git-path=apps/web --git-path=.", "none is within another"),
            ("--git-path=a\\..\\b", "relative"),
            ("--git-poll-interval=5", "a time such as"),
            ("--git-poll-interval=0s", "a time such as"),
            ("--git-poll-interval=25h", "a time such as"),
            ("--git-poll-interval=99999999999999999999h", "a time such as"),
            ("--sync-garbage-collection=yes", "true or false"),
            ("--git-user='open", "not closed"),
        ] {
            let refused = OperatorParams::read(text).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
        assert!(OperatorParams::read(&"--git-readonly ".repeat(1000)).unwrap_err().contains("8192"));
        let many: Vec<_> = (0..21).map(|n| format!("p{n}")).collect();
        assert!(OperatorParams::read(&format!("--git-path={}", many.join(","))).unwrap_err().contains("at most 20"));
        assert!(OperatorParams::read(&format!("--{}\u{7}", "x".repeat(500))).unwrap_err().len() < 600);
    }
}
