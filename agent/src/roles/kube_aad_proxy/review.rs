//! Nested impersonation (`kubectl --as`): the cluster itself says, by SubjectAccessReview for the real user, whether each
//! part of what was asked may be impersonated. Only then does [`Subject::nested`] come to be (attack I1, lesson 20).

use std::{
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};

use super::{
    Refusal,
    admit::Asked,
    dial::{Apiserver, body::Outgoing},
    impersonate::{Names, Review, Subject, UpstreamHead},
};

/// The stage's name in logs, metrics and refusals.
pub const STAGE: &str = "review";

/// How long an answer is remembered. A right that is withdrawn is gone after this.
const REMEMBER: Duration = Duration::from_secs(10);
/// Answers remembered at once, of up to two kilobytes each: what has ended stays until its place is wanted.
const REMEMBERED_MAX: usize = 2048;
/// Reviews that one request may need; more groups than this cannot be asked for with `--as-group`.
const REVIEWS_MAX: usize = 64;
/// The most bytes of an answer.
const ANSWER_BYTES: usize = 256 * 1024;

/// Asks the cluster, and remembers for a short while.
pub struct Reviews {
    remembered: quick_cache::sync::Cache<(u64, Question), Answer>,
    /// With keys of this process: with known keys somebody could make up groups that hash like another user, and get that
    /// user's answers.
    hasher: RandomState,
}

/// What the cluster said, and when.
#[derive(Debug, Clone, Copy)]
struct Answer {
    allowed: bool,
    at: tokio::time::Instant,
}

/// One thing to be impersonated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    group: &'static str,
    resource: &'static str,
    subresource: Option<String>,
    namespace: Option<String>,
    name: String,
}

impl Default for Reviews {
    fn default() -> Self {
        Self { remembered: quick_cache::sync::Cache::new(REMEMBERED_MAX), hasher: RandomState::new() }
    }
}

impl Reviews {
    /// The asked subject, if the cluster lets `real` impersonate each part of it.
    pub async fn nested(
        &self,
        apiserver: &Apiserver,
        names: &Names,
        real: &Subject,
        asked: Asked,
        deadline: Instant,
    ) -> Result<Subject, Refusal> {
        Subject::may_be_asked(&asked, names)?;
        let questions = questions(&asked);
        if questions.len() > REVIEWS_MAX {
            return Err(Refusal::forbidden(STAGE, format!("more than {REVIEWS_MAX} things to impersonate at once")));
        }
        let who = self.hasher.hash_one(real);
        for question in questions {
            let key = (who, question);
            let allowed = match self.known(&key) {
                Some(allowed) => allowed,
                None => {
                    let allowed = tokio::time::timeout_at(deadline.into(), ask(apiserver, real, &key.1))
                        .await
                        .map_err(|_| unavailable("no answer in time".to_owned()))??;
                    self.remember(key.clone(), allowed);
                    allowed
                }
            };
            if !allowed {
                let Question { resource, name, .. } = &key.1;
                let user = real.user();
                return Err(Refusal::forbidden(
                    STAGE,
                    format!("user {user:?} cannot impersonate {resource} {name:?} in this cluster"),
                ));
            }
        }
        Ok(Subject::nested(asked, real))
    }

    fn known(&self, key: &(u64, Question)) -> Option<bool> {
        self.remembered.get(key).filter(|answer| answer.at.elapsed() < REMEMBER).map(|answer| answer.allowed)
    }

    fn remember(&self, key: (u64, Question), allowed: bool) {
        self.remembered.insert(key, Answer { allowed, at: tokio::time::Instant::now() });
    }
}

/// What the apiserver itself would check, part by part.
fn questions(asked: &Asked) -> Vec<Question> {
    const AUTHENTICATION: &str = "authentication.k8s.io";
    let plain = |group, resource, name: &String| Question {
        group,
        resource,
        subresource: None,
        namespace: None,
        name: name.clone(),
    };
    let account = asked.user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let mut questions = vec![match account {
        Some((namespace, name)) => {
            Question { namespace: Some(namespace.to_owned()), ..plain("", "serviceaccounts", &name.to_owned()) }
        }
        None => plain("", "users", &asked.user),
    }];
    questions.extend(asked.groups.iter().map(|group| plain("", "groups", group)));
    questions.extend(asked.uid.iter().map(|uid| plain(AUTHENTICATION, "uids", uid)));
    for (key, values) in &asked.extra {
        questions.extend(
            values
                .iter()
                .map(|value| Question { subresource: Some(key.clone()), ..plain(AUTHENTICATION, "userextras", value) }),
        );
    }
    questions
}

fn spec(real: &Subject, question: &Question) -> Value {
    // The apiserver adds this group to everybody who is authenticated; a review has to say it.
    let groups: Vec<&str> = real.groups().iter().map(String::as_str).chain(["system:authenticated"]).collect();
    let mut attributes = json!({
        "verb": "impersonate", "group": question.group, "resource": question.resource, "name": question.name,
    });
    if let Some(subresource) = &question.subresource {
        attributes["subresource"] = json!(subresource);
    }
    if let Some(namespace) = &question.namespace {
        attributes["namespace"] = json!(namespace);
    }
    let mut spec = json!({ "user": real.user(), "groups": groups, "resourceAttributes": attributes });
    if let Some(uid) = real.uid() {
        spec["uid"] = json!(uid);
    }
    if !real.extra().is_empty() {
        spec["extra"] = json!(real.extra());
    }
    json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec })
}

async fn ask(apiserver: &Apiserver, real: &Subject, question: &Question) -> Result<bool, Refusal> {
    let (status, answer) = review(apiserver, Review::Subject, &spec(real, question)).await?;
    if status != StatusCode::CREATED && status != StatusCode::OK {
        return Err(unavailable(format!("the apiserver answered {status} to a SubjectAccessReview")));
    }
    let verdict = &answer["status"];
    Ok(verdict["allowed"] == true && verdict["denied"] != true)
}

/// What the agent itself may do, for `check`: the apiserver's status and answer.
pub async fn own_review(apiserver: &Apiserver, attributes: &Value) -> Result<(StatusCode, Value), Refusal> {
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": attributes },
    });
    review(apiserver, Review::Own, &body).await
}

async fn review(apiserver: &Apiserver, kind: Review, body: &Value) -> Result<(StatusCode, Value), Refusal> {
    let body = Bytes::from(body.to_string());
    let mut head = UpstreamHead::review(kind, body.len());
    let answer =
        apiserver.send(&mut head, &Outgoing::whole(body)).await.map_err(|err| unavailable(crate::chain(&err)))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
    let body = body.map_err(|err| unavailable(format!("the answer to a review: {err}")))?.to_bytes();
    Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

fn unavailable(detail: String) -> Refusal {
    Refusal::unavailable(STAGE, "the cluster could not be asked whether this impersonation is allowed; try again")
        .because(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_remembered_for_ten_seconds() {
        let reviews = Reviews::default();
        let ask = |user: &str| Asked { user: user.to_owned(), ..Asked::default() };
        let key = |who, user| (who, questions(&ask(user)).remove(0));
        reviews.remember(key(1, "jane"), true);
        reviews.remember(key(1, "joe"), false);
        tokio::time::advance(REMEMBER - Duration::from_millis(1)).await;
        assert_eq!([key(1, "jane"), key(1, "joe")].map(|key| reviews.known(&key)), [Some(true), Some(false)]);
        assert_eq!(reviews.known(&key(2, "jane")), None, "what one may says nothing of another");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(reviews.known(&key(1, "jane")), None);
    }

    #[test]
    fn who_hashes_like_whom_cannot_be_known_outside() {
        let who = |reviews: &Reviews| reviews.hasher.hash_one("jane");
        assert_ne!(who(&Reviews::default()), who(&Reviews::default()));
    }

    #[test]
    fn each_part_is_a_question_of_its_own() {
        let asked = Asked {
            user: "system:serviceaccount:apps:web".to_owned(),
            uid: Some("u1".to_owned()),
            groups: vec!["g1".to_owned(), "g2".to_owned()],
            extra: [("scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into(),
        };
        let questions = questions(&asked);
        let shown: Vec<String> = questions
            .iter()
            .map(|q| {
                let Question { group, resource, subresource, namespace, name } = q;
                format!("{group} {resource} {subresource:?} {namespace:?} {name}")
            })
            .collect();
        assert_eq!(
            shown,
            [
                " serviceaccounts None Some(\"apps\") web",
                " groups None None g1",
                " groups None None g2",
                "authentication.k8s.io uids None None u1",
                "authentication.k8s.io userextras Some(\"scopes\") None a",
                "authentication.k8s.io userextras Some(\"scopes\") None b",
            ]
        );
    }
}
