//! Waits until a cluster has done what is wanted of an extension. Each new line of the resource's `statuses` is told as
//! it comes; how it ends, the operation says.

use serde_json::Value;

use super::NamedExtension;
use crate::{
    api::{Answer, Api, ApiError, TimedOut, Wait},
    commands::on_cluster::{followed, is_of_operation},
    failure::{Failure, Outcome},
    terminal::line,
};

/// Waits until what an answer began has ended, and reads the resource then.
pub async fn ended(
    api: &Api,
    target: &str,
    answer: Answer,
    what: &str,
    extension: &NamedExtension,
    wait: Wait,
) -> Outcome<Value> {
    if wait.none {
        return Ok(answer.body);
    }
    wait_for(api, target, &answer, what, extension, wait).await?;
    api.get(target).await
}

/// Waits until a deletion has ended.
pub async fn gone(api: &Api, target: &str, answer: &Answer, extension: &NamedExtension, wait: Wait) -> Outcome<()> {
    let what = format!("removing {}", extension.name);
    wait_for(api, target, answer, &what, extension, wait).await
}

async fn wait_for(
    api: &Api,
    target: &str,
    answer: &Answer,
    what: &str,
    extension: &NamedExtension,
    wait: Wait,
) -> Outcome<()> {
    let look = async || api.get(target).await.ok().map(|shown| lines(&shown));
    let ended = followed(api, answer, what, wait, lines(&answer.body), look).await;
    ended.map_err(|failure| {
        let show = format!("towline extension show {}", extension.options());
        TimedOut::advised(advised(failure, extension), "--timeout", &show)
    })
}

/// The statuses of an extension, oldest first, one line each.
pub fn lines(extension: &Value) -> Vec<String> {
    let statuses = extension["properties"]["statuses"].as_array().into_iter().flatten();
    let shown = |status: &Value| {
        let text = |name: &str| line(status[name].as_str().unwrap_or_default());
        let (time, level) = (text("time"), text("level"));
        let level = if level == "Information" || level.is_empty() { String::new() } else { format!("{level}: ") };
        let (short, message) = (text("displayStatus"), text("message"));
        let gap = if short.is_empty() || message.is_empty() { "" } else { ": " };
        format!("{time} {level}{short}{gap}{message}")
    };
    statuses.map(shown).rev().collect()
}

/// A failure of an extension, with where to look further.
pub fn advised(failure: Failure, extension: &NamedExtension) -> Failure {
    let code = ApiError::behind(&failure).map(|error| error.code.clone());
    let NamedExtension { on, .. } = extension;
    let (group, cluster) = (&on.resource_group, &on.cluster);
    let hint = match code.as_deref() {
        Some("ExtensionTypeNotFound" | "UnknownType") => {
            format!("see which there are: towline extension types list -g {group} -c {cluster}")
        }
        Some(
            "ReleaseTrainNotFound"
            | "ExtensionVersionNotFound"
            | "UnknownVersion"
            | "NoVersion"
            | "VersionNotSupported",
        ) => {
            format!("see which there are: towline extension types versions --type TYPE -g {group} -c {cluster}")
        }
        Some("ExtensionTypeMismatch" | "ExtensionScopeImmutable") => {
            format!("see what is there: towline extension show {}", extension.options())
        }
        // The gateway's general refusals have hints of their own.
        Some(
            "AuthorizationFailed" | "ResourceNotFound" | "ResourceGroupNotFound" | "PreconditionFailed" | "Conflict",
        ) => {
            return failure;
        }
        Some(_) if is_of_operation(&failure) => {
            format!("see what happened: towline extension events {}", extension.options())
        }
        _ => return failure,
    };
    failure.hint(hint)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn e9_statuses_are_told_oldest_first_and_steer_no_terminal() {
        let statuses = json!([
            {"code": "InstallFailed", "displayStatus": "Not ready", "level": "Error", "message": "pod\u{1b}[31m web-0", "time": "t2"},
            {"code": "Installing", "displayStatus": "Installing 1.2.3", "level": "Information", "message": "", "time": "t1"},
        ]);
        let shown = lines(&json!({"properties": {"statuses": statuses}}));
        assert_eq!(shown, ["t1 Installing 1.2.3", "t2 Error: Not ready: pod\u{fffd}[31m web-0"]);
        assert!(lines(&json!({"properties": {}})).is_empty());
    }
}
