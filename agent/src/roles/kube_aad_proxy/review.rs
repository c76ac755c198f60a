//! Nested impersonation (`kubectl --as`): the cluster itself says, by SubjectAccessReview for the real user, whether
//! each part of what was asked may be impersonated. Only then does [`Subject::nested`] come to be (docs/threats.md
//! TH1).
//!
//! The verb `impersonate` on each part suffices. Where the apiserver has constrained impersonation, the rights of
//! [`constrained`] do too. Whether it has is tried out, not guessed from its version: in a cluster without it somebody
//! may hold those verbs, by a role with all verbs, and an apiserver would not let them impersonate anybody.

mod constrained;

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use auth::kubernetes::RequestInfo;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};

use self::constrained::{Mode, Step};
use super::{
    Refusal,
    admit::Asked,
    dial::{Apiserver, body::Outgoing},
    impersonate::{Names, PROBE_EXTRA, PROBE_USER, PROBE_VALUE, Review, Subject, UpstreamHead, account_of},
    target::Target,
};

/// The stage's name in logs, metrics and refusals.
pub const STAGE: &str = "review";

/// How long an answer is remembered. A right that is withdrawn is gone after this.
const REMEMBER: Duration = Duration::from_secs(10);
/// Answers remembered at once, of up to two kilobytes each: what has ended stays until its place is wanted.
const REMEMBERED_MAX: usize = 2048;
/// The longest question whose answer is remembered, in bytes: paths and selectors are as long as a caller likes.
const REMEMBERED_BYTES: usize = 2048;
/// Reviews that one request may need in one of the two ways; more groups than this cannot be asked for with
/// `--as-group`.
const REVIEWS_MAX: usize = 64;
/// The most bytes of an answer.
const ANSWER_BYTES: usize = 256 * 1024;
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Asks the cluster, and remembers for a short while.
pub struct Reviews {
    /// By who asks and what.
    remembered: quick_cache::sync::Cache<(u64, String), Answer>,
    /// Whether the apiserver has constrained impersonation.
    constrained: Mutex<Option<Answer>>,
    /// With keys of this process: with known keys somebody could make up groups that hash like another user, and get
    /// that user's answers.
    hasher: RandomState,
}

/// What the cluster said, and when.
#[derive(Debug, Clone, Copy)]
struct Answer {
    allowed: bool,
    at: tokio::time::Instant,
}

impl Answer {
    fn new(allowed: bool) -> Self {
        Self { allowed, at: tokio::time::Instant::now() }
    }

    /// Unless it is too old.
    fn known(self) -> Option<bool> {
        (self.at.elapsed() < REMEMBER).then_some(self.allowed)
    }
}

/// What somebody may or may not do, as a SubjectAccessReview asks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// `resourceAttributes` or `nonResourceAttributes`, which differ in what they hold.
    field: &'static str,
    attributes: Value,
}

impl Question {
    /// About a part of an identity.
    fn part(verb: &str, group: &str, resource: &str, name: &str) -> Self {
        let attributes = json!({ "verb": verb, "group": group, "version": "v1", "resource": resource, "name": name });
        Self { field: "resourceAttributes", attributes }
    }

    fn within(mut self, namespace: &str) -> Self {
        self.attributes["namespace"] = json!(namespace);
        self
    }

    fn below(mut self, subresource: &str) -> Self {
        self.attributes["subresource"] = json!(subresource);
        self
    }

    /// About a request for something that is no resource.
    fn path(verb: &str, path: &str) -> Self {
        Self { field: "nonResourceAttributes", attributes: json!({ "verb": verb, "path": path }) }
    }

    /// About a request for a resource, narrowed by selectors.
    fn call(verb: &str, info: &RequestInfo, name: &str, [fields, labels]: [Option<&str>; 2]) -> Self {
        let mut attributes = json!({
            "verb": verb, "group": info.api_group, "version": info.api_version, "resource": info.resource,
        });
        let texts = [("namespace", &*info.namespace), ("subresource", &*info.subresource), ("name", name)];
        for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            attributes[field] = json!(text);
        }
        for (field, selector) in [("fieldSelector", fields), ("labelSelector", labels)] {
            if let Some(selector) = selector {
                attributes[field] = json!({ "rawSelector": selector });
            }
        }
        Self { field: "resourceAttributes", attributes }
    }
}

impl Default for Reviews {
    fn default() -> Self {
        Self {
            remembered: quick_cache::sync::Cache::new(REMEMBERED_MAX),
            constrained: Mutex::default(),
            hasher: RandomState::new(),
        }
    }
}

/// Somebody who asks to be another user for one request.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// The user that the token proves.
    pub real: &'a Subject,
    /// The request's method.
    pub method: &'a Method,
    /// Its path and query.
    pub target: &'a Target,
    /// When the answer must be there.
    pub deadline: Instant,
}

impl Reviews {
    /// The asked subject, if the cluster lets the real user impersonate it in this request.
    pub async fn nested(
        &self,
        apiserver: &Apiserver,
        names: &Names,
        asking: Asking<'_>,
        asked: Asked,
    ) -> Result<Subject, Refusal> {
        Subject::may_be_asked(&asked, names)?;
        let reviewing = Reviewing { reviews: self, apiserver, who: self.hasher.hash_one(asking.real), asking };
        let mode = Mode::of(&asked);
        // What an apiserver prefers: it makes a node of who is impersonated in that way.
        if mode == Some(Mode::Node) && reviewing.constrained(Mode::Node, &asked).await? {
            return Ok(Subject::nested_node(asked, asking.real));
        }
        let plain = questions(&asked);
        let Some(refused) = reviewing.first_refused(&plain).await? else {
            return Ok(Subject::nested(asked, asking.real));
        };
        if let Some(mode) = mode.filter(|mode| *mode != Mode::Node)
            && reviewing.constrained(mode, &asked).await?
        {
            return Ok(Subject::nested(asked, asking.real));
        }
        let (resource, name) = (&refused.attributes["resource"], &refused.attributes["name"]);
        let resource = resource.as_str().unwrap_or_default();
        let user = asking.real.user();
        Err(Refusal::forbidden(STAGE, format!("user {user:?} cannot impersonate {resource} {name} in this cluster")))
    }

    fn constrained(&self) -> MutexGuard<'_, Option<Answer>> {
        self.constrained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, key: &(u64, String)) -> Option<bool> {
        self.remembered.get(key).and_then(Answer::known)
    }

    fn remember(&self, key: (u64, String), allowed: bool) {
        if key.1.len() <= REMEMBERED_BYTES {
            self.remembered.insert(key, Answer::new(allowed));
        }
    }
}

/// The questions of one request.
struct Reviewing<'a> {
    reviews: &'a Reviews,
    apiserver: &'a Apiserver,
    who: u64,
    asking: Asking<'a>,
}

impl Reviewing<'_> {
    /// Whether somebody may be impersonated in this request by the rights of constrained impersonation, in a cluster
    /// that has it.
    async fn constrained(&self, mode: Mode, asked: &Asked) -> Result<bool, Refusal> {
        let Some(steps) = mode.steps(asked, self.asking.method, self.asking.target) else { return Ok(false) };
        if !self.has_constrained().await? {
            return Ok(false);
        }
        for Step { for_all, each } in &steps {
            if let Some(question) = for_all
                && self.first_refused(std::slice::from_ref(question)).await?.is_none()
            {
                continue;
            }
            if self.first_refused(each).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn has_constrained(&self) -> Result<bool, Refusal> {
        if let Some(known) = self.reviews.constrained().and_then(Answer::known) {
            return Ok(known);
        }
        let has = self.in_time(has_constrained(self.apiserver)).await?;
        *self.reviews.constrained() = Some(Answer::new(has));
        Ok(has)
    }

    /// The first of them that the real user may not.
    async fn first_refused<'q>(&self, questions: &'q [Question]) -> Result<Option<&'q Question>, Refusal> {
        if questions.len() > REVIEWS_MAX {
            return Err(Refusal::forbidden(STAGE, format!("more than {REVIEWS_MAX} things to impersonate at once")));
        }
        for question in questions {
            let key = (self.who, question.attributes.to_string());
            let allowed = match self.reviews.known(&key) {
                Some(allowed) => allowed,
                None => {
                    let allowed = self.in_time(ask(self.apiserver, self.asking.real, question)).await?;
                    self.reviews.remember(key, allowed);
                    allowed
                }
            };
            if !allowed {
                return Ok(Some(question));
            }
        }
        Ok(None)
    }

    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        let answer = tokio::time::timeout_at(self.asking.deadline.into(), answer).await;
        answer.map_err(|_| unavailable("no answer in time".to_owned()))?
    }
}

/// What the apiserver itself would check for the verb `impersonate`, part by part.
fn questions(asked: &Asked) -> Vec<Question> {
    let part = |group, resource, name: &str| Question::part("impersonate", group, resource, name);
    let mut questions = vec![match account_of(&asked.user) {
        Some((namespace, name)) => part("", "serviceaccounts", name).within(namespace),
        None => part("", "users", &asked.user),
    }];
    questions.extend(asked.groups.iter().map(|group| part("", "groups", group)));
    questions.extend(asked.uid.iter().map(|uid| part(AUTHENTICATION, "uids", uid)));
    for (key, values) in &asked.extra {
        questions.extend(values.iter().map(|value| part(AUTHENTICATION, "userextras", value).below(key)));
    }
    questions
}

fn spec(real: &Subject, question: &Question) -> Value {
    // The apiserver adds this group to everybody who is authenticated; a review has to say it.
    let groups: Vec<&str> = real.groups().iter().map(String::as_str).chain(["system:authenticated"]).collect();
    let mut spec = json!({ "user": real.user(), "groups": groups });
    spec[question.field] = question.attributes.clone();
    if let Some(uid) = real.uid() {
        spec["uid"] = json!(uid);
    }
    if !real.extra().is_empty() {
        spec["extra"] = json!(real.extra());
    }
    json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec })
}

/// Whether the apiserver has constrained impersonation. The agent's ClusterRole gives it the constrained rights to be
/// one user with one extra in one harmless call, and not the verb `impersonate` on that extra: so the call succeeds
/// where constrained impersonation is in force, and nowhere else. An agent that may impersonate the extra anyway cannot
/// tell, and takes it for missing.
async fn has_constrained(apiserver: &Apiserver) -> Result<bool, Refusal> {
    let plain = json!({
        "verb": "impersonate", "group": AUTHENTICATION, "resource": "userextras", "subresource": PROBE_EXTRA,
        "name": PROBE_VALUE,
    });
    let (status, answer) = own_review(apiserver, &plain).await?;
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Err(unavailable(format!("the apiserver answered {status} to a SelfSubjectAccessReview")));
    }
    if answer["status"]["allowed"] != false {
        tracing::debug!("the agent may impersonate anybody, so it cannot find out about constrained impersonation");
        return Ok(false);
    }
    let body = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let (status, answer) = review(apiserver, Review::Probe, &body).await?;
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Err(unavailable(format!("the apiserver answered {status} to a SelfSubjectReview")));
    }
    Ok(status == StatusCode::CREATED && answer["status"]["userInfo"]["username"] == PROBE_USER)
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
        let key = |who, user| (who, questions(&ask(user)).remove(0).attributes.to_string());
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
            .map(|Question { attributes, .. }| {
                let text = |field: &str| attributes.get(field).map(|text| text.as_str().unwrap());
                let [group, resource, name] = ["group", "resource", "name"].map(|field| text(field).unwrap());
                format!("{group} {resource} {:?} {:?} {name}", text("subresource"), text("namespace"))
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
