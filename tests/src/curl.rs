//! curl, for what is to go over one version of HTTP and no other: many requests at once, each answer with its version.

use std::{process::Command, time::Duration};

use anyhow::{Context, ensure};

use crate::{
    programs::{run_with_input, scratch},
    stack::Stack,
};

/// The versions that the gateway speaks.
pub const VERSIONS: [Version; 2] = [Version::Http1, Version::Http2];

/// A version of HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// HTTP/1.1, as `--http1.1` asks for it.
    Http1,
    /// HTTP/2, as curl's options ask for it.
    Http2,
}

impl Version {
    const fn option(self) -> &'static str {
        match self {
            Self::Http1 => "http1.1",
            Self::Http2 => "http2",
        }
    }

    /// As curl writes it.
    const fn shown(self) -> &'static str {
        match self {
            Self::Http1 => "1.1",
            Self::Http2 => "2",
        }
    }
}

/// An HTTP answer, as curl printed it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// The body in bytes.
    pub body: Vec<u8>,
}

impl Answer {
    /// All values of a header, in their order.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }
}

/// Asks for all `paths` at the same time; with `post` each is a POST of this JSON. The answers are in the paths' order,
/// and each came over `version`.
pub fn curl(
    stack: &Stack,
    version: Version,
    token: &str,
    paths: &[String],
    post: Option<&str>,
) -> anyhow::Result<Vec<Answer>> {
    ask(stack, version, token, paths, if post.is_some() { "POST" } else { "GET" }, post)
}

/// As [`curl`], with any method.
pub fn ask(
    stack: &Stack,
    version: Version,
    token: &str,
    paths: &[String],
    method: &str,
    json: Option<&str>,
) -> anyhow::Result<Vec<Answer>> {
    let dir = scratch("curl");
    let mut config = format!(
        "{}\nsilent\nshow-error\ninclude\nparallel\nparallel-max = 50\nmax-time = 120\ncacert = \"{}\"\n\
         header = \"Authorization: Bearer {token}\"\n\
         write-out = \"%{{filename_effective}} %{{response_code}} %{{http_version}}\\n\"\n",
        version.option(),
        stack.ca().display()
    );
    if let Some(body) = json {
        let file = dir.join("body.json");
        std::fs::write(&file, body)?;
        config += &format!("header = \"Content-Type: application/json\"\ndata-binary = \"@{}\"\n", file.display());
    }
    for (number, path) in paths.iter().enumerate() {
        let (authority, key, file) = (stack.authority(), stack.key(), dir.join(number.to_string()));
        config += &format!(
            "request = \"{method}\"\nurl = \"https://{authority}/{key}{path}\"\noutput = \"{}\"\n",
            file.display()
        );
    }
    // By standard input, so that the token is no argument that others see.
    let lines = run_with_input(
        Command::new("curl").args(["--config", "-"]),
        Some(config.as_bytes()),
        Duration::from_secs(150),
    )?
    .ok()?;
    let mut answers = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let file = dir.join(number.to_string()).display().to_string();
        let line = lines.lines().find_map(|line| line.strip_prefix(&format!("{file} "))).context("no answer")?;
        let (status, spoken) = line.split_once(' ').context("no version")?;
        ensure!(spoken == version.shown(), "{path}: over HTTP/{spoken}");
        let bytes = std::fs::read(&file)?;
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("no head")? + 4;
        let (head, body) = bytes.split_at(head);
        answers.push(Answer {
            status: status.parse()?,
            head: String::from_utf8_lossy(head).into_owned(),
            body: body.to_vec(),
        });
    }
    std::fs::remove_dir_all(dir)?;
    Ok(answers)
}
