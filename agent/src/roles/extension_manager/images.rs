//! Images of charts from a registry that the operator of the cluster named (docs/features.md X5): helm gives all that it
//! renders, hooks included, to this program as its post-renderer. Only the image's text is changed in place, because
//! another YAML writer would take `yes` and `1e3` for other things than the apiserver does.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, symlink},
    path::{Path, PathBuf},
};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use crate::config::is_registry;

/// The hidden command of the agent's program that helm runs.
pub const COMMAND: &str = "rewrite-images";
/// The post-renderer, as helm's plugin.
pub const PLUGIN: &str = "towline-images";
/// The program in the plugin's folder: by this name it is the agent.
const PROGRAM: &str = "towline-agent";
/// Bytes that are read at most; a release is kept in a Secret of 1 MiB, compressed.
const BYTES: u64 = 32 * 1024 * 1024;
/// Lists and maps in each other at most.
const DEPTH: usize = 200;
/// Lists of containers in a pod, also in a template of one, in objects of whatever kind.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Where images come from.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Rules {
    /// In place of an image's own registry, such as `registry.example.com:5000/mirror`.
    #[arg(long)]
    pub registry: String,
    /// Images below these stay as they are.
    #[arg(long)]
    pub keep: Vec<String>,
}

/// How helm calls this program.
#[derive(Debug, clap::Args)]
pub struct Called {
    #[command(flatten)]
    rules: Rules,
    /// Where a failure is written down: helm keeps what its plugins say to itself.
    #[arg(long)]
    why: PathBuf,
}

impl Rules {
    /// For helm, which gives them to the plugin. A failure of that is written to `why`.
    pub fn arguments(&self, why: &Path) -> Vec<String> {
        let keep = self.keep.iter().map(|keep| format!("--keep={keep}"));
        let first = [format!("--registry={}", self.registry), format!("--why={}", why.display())];
        let all = first.into_iter().chain(keep);
        let given = all.map(|one| format!("--post-renderer-args={one}"));
        [format!("--post-renderer={PLUGIN}")].into_iter().chain(given).collect()
    }

    /// Where this image comes from; none if that is where it says.
    fn of(&self, image: &str) -> Option<String> {
        let is_of = |place: &String| image.strip_prefix(place.as_str()).is_some_and(|rest| rest.starts_with('/'));
        let is_part = |char: char| char.is_ascii_alphanumeric() || "._-/:@".contains(char);
        // What no registry can have stays, and the kubelet says so.
        if image.is_empty() || !image.chars().all(is_part) || is_of(&self.registry) || self.keep.iter().any(is_of) {
            return None;
        }
        let (host, path) = match image.split_once('/') {
            Some((host, path)) if is_registry(host) => (host, path),
            _ => ("docker.io", image),
        };
        let is_official = matches!(host, "docker.io" | "index.docker.io") && !path.contains('/');
        let library = if is_official { "library/" } else { "" };
        Some(format!("{}/{library}{path}", self.registry))
    }
}

/// Why images cannot be rewritten.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// More than is read.
    #[error("the chart renders more than {} MiB", BYTES / 1024 / 1024)]
    TooLarge,
    /// The text is not YAML.
    #[error("what the chart renders cannot be read: line {line}: {reason}")]
    Unread {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A file, or an end of a pipe.
    #[error("{what}: {source}")]
    File {
        /// What was done.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// What helm runs: from standard input to standard output.
///
/// # Errors
/// See [`ImagesError`]. helm installs nothing then.
pub fn run(called: &Called) -> Result<(), ImagesError> {
    pipe(&called.rules).inspect_err(|err| drop(std::fs::write(&called.why, err.to_string())))
}

fn pipe(rules: &Rules) -> Result<(), ImagesError> {
    let file = |what| move |source| ImagesError::File { what, source };
    let mut text = String::new();
    let read = std::io::stdin().take(BYTES + 1).read_to_string(&mut text);
    if read.map_err(file("what helm rendered cannot be read"))? as u64 > BYTES {
        return Err(ImagesError::TooLarge);
    }
    let text = rewrite(&text, rules)?;
    std::io::stdout().write_all(text.as_bytes()).map_err(file("helm does not take what was rewritten"))
}

/// Makes the plugin in a folder of plugins.
///
/// # Errors
/// When the file system refuses.
pub fn write_plugin(plugins: &Path) -> std::io::Result<()> {
    let folder = plugins.join(PLUGIN);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let program = folder.join(PROGRAM);
    let _ = std::fs::remove_file(&program);
    symlink(std::env::current_exe()?, &program)?;
    let plugin = serde_json::json!({
        "apiVersion": "v1", "type": "postrenderer/v1", "name": PLUGIN, "version": "1.0.0", "runtime": "subprocess",
        "runtimeConfig": {"platformCommand": [{"command": program, "args": [COMMAND]}]},
    });
    // JSON is YAML.
    std::fs::write(folder.join("plugin.yaml"), plugin.to_string())
}

/// What a part of an object is, as far as images are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Other,
    Containers,
    Container,
    Volumes,
    Volume,
    VolumeImage,
    Image,
}

impl Role {
    fn of_key(self, key: &str) -> Self {
        match (self, key) {
            (Self::Container, "image") | (Self::VolumeImage, "reference") => Self::Image,
            (Self::Volume, "image") => Self::VolumeImage,
            // A merge: what it merges is of the same kind.
            (Self::Container | Self::Volume | Self::VolumeImage, "<<") => self,
            (_, "volumes") => Self::Volumes,
            (_, key) if CONTAINERS.contains(&key) => Self::Containers,
            _ => Self::Other,
        }
    }

    fn of_item(self) -> Self {
        match self {
            Self::Containers => Self::Container,
            Self::Volumes => Self::Volume,
            // A merge of several: each is of the same kind.
            Self::Container | Self::Volume | Self::VolumeImage => self,
            _ => Self::Other,
        }
    }
}

/// A list or a map that has begun.
struct Open {
    role: Role,
    /// Of a map: the key of what comes next; empty before a key.
    key: Option<String>,
    is_map: bool,
}

/// What an alias may stand for.
enum Anchored {
    Text(String),
    Node(Role),
}

/// Where the next part stands.
enum Place {
    Key,
    Value(Role),
}

/// The manifests with their images from elsewhere.
///
/// # Errors
/// When they are no YAML, or an image cannot be found for sure.
pub fn rewrite(text: &str, rules: &Rules) -> Result<String, ImagesError> {
    let mut open: Vec<Open> = Vec::new();
    let mut anchors: HashMap<usize, Anchored> = HashMap::new();
    let mut out = Spliced { text, out: String::with_capacity(text.len() + 1024), byte: 0, char: 0, copied: 0 };
    let mut parser = Parser::new_from_str(text);
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|error| unread(*error.marker(), error.info()))?;
        match event {
            Event::DocumentStart(_) => {
                open.clear();
                anchors.clear();
            }
            Event::Scalar(value, style, anchor, _) => {
                match place(&mut open) {
                    Place::Key => note_key(&mut open, &value),
                    Place::Value(Role::Image) => {
                        if let Some(image) = rules.of(&value) {
                            out.replace(span, &value, style, &image)?;
                        }
                    }
                    Place::Value(_) => {}
                }
                if anchor > 0 {
                    anchors.insert(anchor, Anchored::Text(value.into_owned()));
                }
            }
            Event::Alias(of) => match (place(&mut open), anchors.get(&of)) {
                (Place::Key, Some(Anchored::Text(key))) => note_key(&mut open, key),
                (Place::Key, _) => note_key(&mut open, ""),
                (Place::Value(Role::Other), _) => {}
                (Place::Value(Role::Image), Some(Anchored::Text(image))) => {
                    if let Some(image) = rules.of(image) {
                        out.replace_alias(span, &image)?;
                    }
                }
                (Place::Value(role), Some(Anchored::Node(is))) if role == *is => {}
                _ => return Err(unread(span.start, "an alias stands where a container, a volume or an image is")),
            },
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                let role = match place(&mut open) {
                    Place::Key => {
                        note_key(&mut open, "");
                        Role::Other
                    }
                    Place::Value(role) => role,
                };
                if anchor > 0 {
                    anchors.insert(anchor, Anchored::Node(role));
                }
                if open.len() >= DEPTH {
                    return Err(unread(span.start, "lists and maps are too deep in each other"));
                }
                let is_map = matches!(event, Event::MappingStart(..));
                open.push(Open { role, key: None, is_map });
            }
            Event::SequenceEnd | Event::MappingEnd => drop(open.pop()),
            _ => {}
        }
    }
    Ok(out.end())
}

/// Where a part that begins stands; the value of a key uses it up.
fn place(open: &mut [Open]) -> Place {
    let Some(last) = open.last_mut() else { return Place::Value(Role::Other) };
    if !last.is_map {
        return Place::Value(last.role.of_item());
    }
    last.key.take().map_or(Place::Key, |key| Place::Value(last.role.of_key(&key)))
}

fn note_key(open: &mut [Open], key: &str) {
    if let Some(last) = open.last_mut() {
        last.key = Some(key.to_owned());
    }
}

fn unread(at: Marker, reason: impl Into<String>) -> ImagesError {
    ImagesError::Unread { line: at.line(), reason: reason.into() }
}

/// How long an anchor and a tag before a value are, with the spaces behind them.
fn properties(text: &str) -> usize {
    let mut rest = text;
    while rest.starts_with(['&', '!']) {
        rest = rest.trim_start_matches(|char: char| !char.is_whitespace()).trim_start();
    }
    text.len() - rest.len()
}

/// The text with other pieces in some places. The parser counts characters, and always forward.
struct Spliced<'a> {
    text: &'a str,
    out: String,
    byte: usize,
    char: usize,
    /// Bytes of the text that are in `out`, or were replaced.
    copied: usize,
}

impl Spliced<'_> {
    /// The byte of a character.
    fn byte_of(&mut self, char: usize) -> usize {
        let rest = &self.text[self.byte..];
        let step = rest.char_indices().nth(char.saturating_sub(self.char)).map_or(rest.len(), |(at, _)| at);
        self.byte += step;
        self.char = self.char.max(char);
        self.byte
    }

    fn replace(&mut self, span: Span, value: &str, style: ScalarStyle, image: &str) -> Result<(), ImagesError> {
        let start = self.byte_of(span.start.index());
        let start = start + properties(&self.text[start..]);
        let (before, after) = match style {
            ScalarStyle::Plain => ("", ""),
            ScalarStyle::SingleQuoted => ("'", "'"),
            ScalarStyle::DoubleQuoted => ("\"", "\""),
            _ => return Err(unread(span.start, "an image is written as a block of lines")),
        };
        self.splice(start, &format!("{before}{value}{after}"), image, span.start)
    }

    fn replace_alias(&mut self, span: Span, image: &str) -> Result<(), ImagesError> {
        let start = self.byte_of(span.start.index());
        let rest = &self.text[start..];
        let end = rest.find(|char: char| char.is_whitespace() || ",]}".contains(char)).unwrap_or(rest.len());
        let alias = rest[..end].to_owned();
        if !alias.starts_with('*') {
            return Err(unread(span.start, "an alias is not where it was read"));
        }
        self.splice(start, &alias, image, span.start)
    }

    /// What stands there must be what was read, or another place would be changed.
    fn splice(&mut self, start: usize, old: &str, new: &str, at: Marker) -> Result<(), ImagesError> {
        if start < self.copied || !self.text[start..].starts_with(old) {
            return Err(unread(at, "an image is written in a way that cannot be changed in place"));
        }
        self.out.push_str(&self.text[self.copied..start]);
        self.out.push('"');
        self.out.push_str(new);
        self.out.push('"');
        self.copied = start + old.len();
        Ok(())
    }

    fn end(mut self) -> String {
        self.out.push_str(&self.text[self.copied..]);
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(keep: &[&str]) -> Rules {
        let keep = keep.iter().map(|one| (*one).to_owned()).collect();
        Rules { registry: "registry.test:5000/mirror".to_owned(), keep }
    }

    #[test]
    fn x5_images_keep_their_path_tag_and_digest() {
        let digest = format!("quay.io/a/b@sha256:{}", "1".repeat(64));
        let moved = format!("registry.test:5000/mirror/a/b@sha256:{}", "1".repeat(64));
        for (image, expected) in [
            ("nginx", Some("registry.test:5000/mirror/library/nginx")),
            ("docker.io/nginx:1", Some("registry.test:5000/mirror/library/nginx:1")),
            ("team/web:1.2", Some("registry.test:5000/mirror/team/web:1.2")),
            ("localhost/web", Some("registry.test:5000/mirror/web")),
            ("gcr.io:443/x/y:2", Some("registry.test:5000/mirror/x/y:2")),
            (digest.as_str(), Some(moved.as_str())),
            ("registry.test:5000/mirror/team/web", None),
            ("registry.test:5000/mirrored/web", Some("registry.test:5000/mirror/mirrored/web")),
            ("agents.test/towline-agent:1", None),
            ("", None),
            ("no image", None),
            ("{{ x }}", None),
        ] {
            assert_eq!(rules(&["agents.test"]).of(image).as_deref(), expected, "{image}");
        }
    }

    /// All kinds of places and of quotes, with letters that take more than a byte before them.
    #[test]
    fn x5_images_of_pods_and_templates_are_rewritten_and_nothing_else_is() {
        let text = r#"# nur für Tests: image: nginx
apiVersion: v1
kind: Pod
metadata: {name: "ä", annotations: {on: yes, image: docker.io/a, postrenderer.helm.sh/postrender-filename: 'c/a.yaml'}}
spec: {containers: [{name: a, image: "docker.io/x:1"}, {image: 'a/b', name: image}], volumes: [{name: v, image: {reference: quay.io/v:1}}]}
---
kind: ConfigMap
data:
  image: nginx
  pod.yaml: |
    containers:
    - image: nginx
  one: 1e3
---
kind: CronJob
spec:
  containers: none
  jobTemplate: {spec: {template: {spec: {
    initContainers: [{image: &image nginx:1, args: [image, nginx]}],
    containers: [{image: *image}, {image: !!str &b nginx:2}]}}}}
---
- containers:
  -   name: é
      env: [{name: image, value: nginx}]
      image: nginx   # a word
"#;
        let expected = text
            .replace("\"docker.io/x:1\"", "\"registry.test:5000/mirror/library/x:1\"")
            .replace("'a/b'", "\"registry.test:5000/mirror/a/b\"")
            .replace("reference: quay.io/v:1", "reference: \"registry.test:5000/mirror/v:1\"")
            .replace("&image nginx:1", "&image \"registry.test:5000/mirror/library/nginx:1\"")
            .replace("!!str &b nginx:2", "!!str &b \"registry.test:5000/mirror/library/nginx:2\"")
            .replace("{image: *image}", "{image: \"registry.test:5000/mirror/library/nginx:1\"}")
            .replace("image: nginx   # a", "image: \"registry.test:5000/mirror/library/nginx\"   # a");
        assert_eq!(rewrite(text, &rules(&[])).unwrap(), expected);
        // Twice is once.
        assert_eq!(rewrite(&expected, &rules(&[])).unwrap(), expected);
        assert_eq!(rewrite("", &rules(&[])).unwrap(), "");
    }

    #[test]
    fn x5_images_that_cannot_be_found_for_sure_are_refused() {
        for text in [
            "x: &base {image: nginx}\ncontainers: [{<<: *base, name: a}]",
            "x: &list [{image: nginx}]\ncontainers: *list",
            "containers:\n- image: >-\n    nginx",
            "containers: [{image: \"\\x6eginx\"}]",
            "a: [",
            &"[".repeat(100_000),
        ] {
            let refused = rewrite(text, &rules(&[])).unwrap_err();
            assert!(matches!(refused, ImagesError::Unread { .. }), "{text}: {refused}");
        }
        let merged = "containers: [&base {image: a.test/x, name: a}, {<<: *base, name: b}]";
        let expected = merged.replace("a.test/x", "\"registry.test:5000/mirror/x\"");
        assert_eq!(rewrite(merged, &rules(&[])).unwrap(), expected);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_rewritten_or_refused(text in "[ -~\né]{0,200}", image in "[a-z./:*&{}\\[\\], -]{0,30}") {
            let _ = rewrite(&text, &rules(&[]));
            let _ = rewrite(&format!("containers:\n- image: {image}\n  name: é\n"), &rules(&[]));
        }
    }
}
