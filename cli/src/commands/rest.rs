//! `towline rest`: one request as it is, signed in.

use std::{io::Read, process::ExitCode};

use anyhow::{Context as _, anyhow};
use http::Method;
use serde_json::Value;

use super::CommonArgs;
use crate::{
    api::{Api, Call},
    context::Context,
    failure::{Failure, Outcome},
    output::{self, Format, OutputArgs},
};

/// Bytes of a body at most.
const BODY_BYTES: u64 = 4 * 1024 * 1024;

/// Send one request to the resource API
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The method
    #[arg(short = 'm', long, value_name = "METHOD", default_value = "GET", ignore_case = true,
        value_parser = ["GET", "HEAD", "PUT", "PATCH", "POST", "DELETE"])]
    pub method: String,
    /// Path and query, or a URL of the gateway; {subscription} stands for the subscription's id
    #[arg(short = 'u', long, value_name = "PATH")]
    pub url: String,
    /// JSON; @FILE reads it from a file, @- from standard input
    #[arg(short = 'b', long, value_name = "JSON")]
    pub body: Option<String>,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Sends it, and prints the answer as JSON unless something else is asked for.
pub async fn run(args: Args) -> Outcome {
    let method: Method = args.method.to_ascii_uppercase().parse().context("--method").map_err(Failure::usage)?;
    let body = args.body.as_deref().map(body).transpose()?;
    let context = Context::open(&args.common.context).await?;
    let url = match args.url.contains("{subscription}") {
        true => args.url.replace("{subscription}", context.subscription()?.name()),
        false => args.url,
    };
    if !url.starts_with('/') && !url.starts_with("https://") {
        return Err(Failure::usage(anyhow!("--url begins with / or https://"))
            .hint("such as /subscriptions?api-version=2022-12-01"));
    }
    let call = Call { body: body.as_ref(), ..Call::new(method, &url) };
    let answer = Api::of(&context)?.send(&call).await?;
    // There is no table of what is not known.
    let form = if args.common.output.output == Format::Table { Format::Json } else { args.common.output.output };
    if answer.body != Value::Null {
        output::print(&answer.body, &OutputArgs { output: form, ..args.common.output }, &[])?;
    }
    Ok(ExitCode::SUCCESS)
}

fn body(text: &str) -> Outcome<Value> {
    let text = match text.strip_prefix('@') {
        None => text.to_owned(),
        Some(file) => read(file).with_context(|| format!("--body: cannot read {file}")).map_err(Failure::usage)?,
    };
    serde_json::from_str(&text).context("--body is not valid JSON").map_err(Failure::usage)
}

/// A text file of a bounded length; - is standard input.
pub fn read(file: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    match file {
        "-" => std::io::stdin().lock().take(BODY_BYTES).read_to_string(&mut text)?,
        file => std::fs::File::open(file)?.take(BODY_BYTES).read_to_string(&mut text)?,
    };
    Ok(text)
}
