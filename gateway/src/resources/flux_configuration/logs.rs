//! The log lines of Flux's controllers about a configuration (docs/features.md D5): what an action lists, and the last
//! error beside the status of the object that it is about.

use serde_json::{Map, Value, json};
use types::agent_api::LogLevel;

use crate::{api_error::ApiError, control::objects::Logged, resources::Acting, store::logs::Part, stored::last_name};

/// Name of the action that lists the lines.
pub const LIST: &str = "listLogs";
/// The condition that shows the last error.
const LAST_ERROR: &str = "LastError";
/// How its errors are added to what is told of its objects.
pub const LOGGED: Logged = Logged { wanted, add };

/// What is asked for.
struct Question {
    after: i64,
    level: LogLevel,
    /// The name of the Kustomization.
    object: Option<String>,
    newest: usize,
}

fn question(body: &Map<String, Value>, configuration: &str) -> Result<Question, ApiError> {
    let wrong = |at: &str, expected: &str| {
        let message = format!("'{at}' must be {expected}.");
        ApiError::bad_request("InvalidRequestContent", message).at(at)
    };
    let number = |at: &str| match body.get(at) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().filter(|n| *n >= 0).map(Some).ok_or_else(|| wrong(at, "a whole number")),
    };
    let (after, newest) = (number("after")?.unwrap_or_default(), number("newest")?);
    let level = match body.get("level") {
        None | Some(Value::Null) => LogLevel::Debug,
        Some(level) => match serde_json::from_value(level.clone()) {
            Ok(level) => level,
            Err(_) => return Err(wrong("level", "debug, info or error")),
        },
    };
    let object = match body.get("kustomization") {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(format!("{configuration}-{name}")),
        Some(_) => return Err(wrong("kustomization", "the name of a kustomization")),
    };
    let newest = newest.map_or(usize::MAX, |newest| usize::try_from(newest).unwrap_or(usize::MAX));
    Ok(Question { after, level, object, newest })
}

fn level(line: &Value) -> LogLevel {
    serde_json::from_value(line["level"].clone()).unwrap_or(LogLevel::Info)
}

/// Lines behind a number, the oldest first, and the number of the last of all of them.
pub async fn list(acting: &Acting<'_>) -> Result<Value, ApiError> {
    let asked = question(acting.body, last_name(&acting.resource.id))?;
    // The newest of one object are chosen among those of all.
    let newest = if asked.object.is_none() { u32::try_from(asked.newest).unwrap_or(u32::MAX) } else { u32::MAX };
    let part = Part { after: asked.after, level: asked.level, newest };
    let (lines, last) = acting.control.lines_of(&acting.resource.key, part).await?;
    let is_wanted = |(_, line): &(i64, Value)| {
        let is_of = |object: &String| line["kind"] == "Kustomization" && line["name"] == object.as_str();
        asked.object.as_ref().is_none_or(is_of)
    };
    let mut value: Vec<Value> = lines.into_iter().filter(is_wanted).map(numbered).collect();
    value.drain(..value.len().saturating_sub(asked.newest));
    Ok(json!({"value": value, "last": last}))
}

fn numbered((number, mut line): (i64, Value)) -> Value {
    line["number"] = number.into();
    line
}

/// What the action takes and answers.
pub fn describe() -> (Value, Value) {
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let level = json!({"type": "string", "enum": ["debug", "info", "error"]});
    let question = json!({"type": "object", "properties": {
        "after": number, "level": level, "kustomization": text, "newest": number,
    }});
    let line = json!({"type": "object", "properties": {
        "number": number, "time": {"type": "string", "format": "date-time"}, "level": level, "controller": text,
        "kind": text, "namespace": text, "name": text, "message": text, "leftOut": number,
    }});
    let answer = json!({"type": "object", "properties": {"value": {"type": "array", "items": line}, "last": number}});
    (question, answer)
}

fn complies(status: &Value) -> bool {
    status["complianceState"] != types::agent_api::compliance::NON_COMPLIANT
}

/// Whether any of these does not comply.
fn wanted(statuses: &[Value]) -> bool {
    !statuses.iter().all(complies)
}

/// Adds the last error that was logged of each object that does not comply, as one more condition: clients of ARM show
/// conditions as they are.
fn add(statuses: &mut [Value], lines: &[(i64, Value)]) {
    for status in statuses.iter_mut().filter(|status| !complies(status)) {
        let is_of = |line: &Value| ["kind", "namespace", "name"].iter().all(|part| line[part] == status[part]);
        let mut errors = lines.iter().rev().map(|(_, line)| line).filter(|line| level(line) == LogLevel::Error);
        let Some(line) = errors.find(|line| is_of(line)) else { continue };
        let condition = json!({
            "type": LAST_ERROR, "status": "True", "reason": line["controller"], "message": line["message"],
            "lastTransitionTime": line["time"],
        });
        match status["statusConditions"].as_array_mut() {
            Some(conditions) => conditions.push(condition),
            None => status["statusConditions"] = json!([condition]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_last_error_is_beside_the_object_that_it_is_about() {
        let line = |number: i64, level: &str, name: &str, message: &str| {
            let line = json!({"kind": "Kustomization", "namespace": "n", "name": name, "level": level,
                "controller": "kustomize-controller", "message": message, "time": "t"});
            (number, line)
        };
        let status = |name: &str, state: &str| json!({"kind": "Kustomization", "namespace": "n", "name": name, "complianceState": state});
        let mut statuses = [status("a", "Non-Compliant"), status("b", "Compliant"), status("c", "Non-Compliant")];
        assert!(wanted(&statuses) && !wanted(&statuses[1..2]));
        let lines = [
            line(1, "error", "a", "old"),
            line(2, "error", "a", "new"),
            line(3, "info", "a", "i"),
            line(4, "error", "b", "b"),
        ];
        add(&mut statuses, &lines);
        let condition = &statuses[0]["statusConditions"][0];
        assert_eq!((&condition["type"], &condition["message"]), (&json!("LastError"), &json!("new")));
        assert!(statuses[1].get("statusConditions").is_none() && statuses[2].get("statusConditions").is_none());
    }

    #[test]
    fn d5_question_of_the_wrong_type_is_refused_by_name() {
        for (body, at) in [
            (json!({"after": "1"}), "after"),
            (json!({"newest": -1}), "newest"),
            (json!({"level": "loud"}), "level"),
            (json!({"kustomization": 1}), "kustomization"),
        ] {
            let Value::Object(body) = body else { unreachable!() };
            assert_eq!(question(&body, "shop").err().and_then(|err| err.detail.target), Some(at.to_owned()));
        }
        let asked = question(&Map::new(), "shop").ok().unwrap();
        assert_eq!((asked.after, asked.level, asked.newest), (0, LogLevel::Debug, usize::MAX));
    }
}
