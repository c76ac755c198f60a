//! What is the same for all kinds that the agents of a cluster follow (docs/features.md E1, G1).

use http::StatusCode;
use serde_json::{Value, json};
use types::{agent_api::ObjectState, api::ResourceId, instants::instant};

use super::{Showing, Writing};
use crate::{
    api_error::{ApiError, QUOTA_EXCEEDED},
    control::{
        objects::{Followed, OF_A_CLUSTER},
        work::converge::AGENT_MISSING,
    },
    store::statuses::ReportedStatus,
};

/// ARM's word for how far it is. `was_there`: it was in the cluster before, as another generation of it.
pub fn provisioning_state(
    told: Option<&ReportedStatus>,
    generation: i64,
    deleting: bool,
    was_there: bool,
) -> &'static str {
    if deleting {
        return "Deleting";
    }
    let under_way = if was_there { "Updating" } else { "Creating" };
    let Some(told) = told.filter(|told| told.generation == generation) else { return under_way };
    match serde_json::from_value(told.status["state"].clone()) {
        Ok(ObjectState::Succeeded) => "Succeeded",
        Ok(ObjectState::Failed) => "Failed",
        Ok(ObjectState::Updating) => "Updating",
        Ok(ObjectState::Creating) => "Creating",
        _ => under_way,
    }
}

/// A line of `statuses` of what nobody in its cluster does, though the cluster is connected.
pub fn nobody(id: &str, kind: &Followed, showing: &Showing<'_>) -> Option<Value> {
    let generation = showing.object.generation;
    if showing.told.is_some_and(|told| told.generation >= generation) {
        return None;
    }
    let id = ResourceId::parse(id).ok()?;
    let (_, why) = showing.control.nobody_follows(id.parent_key(), kind, showing.now_ms)?;
    Some(json!({
        "code": AGENT_MISSING, "displayStatus": "Nobody does it", "level": "Warning", "message": why,
        // The instant of the write, so that the line stays the same from one question to the next.
        "time": instant(generation.min(showing.now_ms)),
    }))
}

/// Refuses a new one where its cluster has as many of its kind as it may. `plural`: what they are called.
pub async fn room(writing: &Writing<'_>, kind: &str, plural: &str) -> Result<(), ApiError> {
    if writing.old.is_some() || writing.has_room(kind, OF_A_CLUSTER).await? {
        return Ok(());
    }
    let message = format!(
        "The cluster has {OF_A_CLUSTER} {plural}, the limit; delete one first. One that is being deleted counts until it is gone."
    );
    Err(ApiError::of(StatusCode::CONFLICT, QUOTA_EXCEEDED, message))
}

/// A refusal of another source for secrets that are kept: who does not know them would have clusters send them there.
pub fn aimed_elsewhere(before: Option<&str>, now: Option<&str>) -> ApiError {
    let [before, now] = [before, now].map(|place| place.unwrap_or("nowhere"));
    let message = format!(
        "The keys and passwords that are kept were given for {before}, and the source is at {now} now: give configurationProtectedSettings (and what else is secret) again, or {{}} to use none."
    );
    ApiError::bad_request("InvalidCredentials", message).at("properties.configurationProtectedSettings")
}

/// A label as Kubernetes has it (RFC 1123), of so many characters at most.
pub fn is_label(text: &str, longest: usize) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = |b: Option<&u8>| b.is_some_and(|b| plain(*b));
    let bytes = text.as_bytes();
    text.len() <= longest && ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|b| plain(*b) || *b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_how_far_it_is_follows_from_what_the_cluster_told_last() {
        let told = |generation, state: &str| ReportedStatus { generation, told_ms: 0, status: json!({"state": state}) };
        let state = |told: Option<ReportedStatus>, was_there| provisioning_state(told.as_ref(), 2, false, was_there);
        assert_eq!(state(None, false), "Creating");
        assert_eq!(state(Some(told(1, "Failed")), false), "Creating");
        assert_eq!(state(Some(told(1, "Succeeded")), true), "Updating");
        assert_eq!(state(Some(told(2, "Succeeded")), true), "Succeeded");
        assert_eq!(state(Some(told(2, "Failed")), false), "Failed");
        assert_eq!(provisioning_state(Some(&told(2, "Succeeded")), 2, true, true), "Deleting");
    }
}
