//! What users do all the time.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::replicas::{Replicas, Site};

/// How long a client tries again what was not answered, or with 503.
const PATIENCE: Duration = Duration::from_secs(5);
/// The role Azure Arc Enabled Kubernetes Viewer, which lets its holder in.
const ROLE: &str = "/providers/Microsoft.Authorization/roleDefinitions/00493d72-78f6-4148-b6c5-d3ce8e4799dd";
const PRINCIPALS: &str = "/providers/Microsoft.Authorization/servicePrincipals";

/// What came of it.
#[derive(Default)]
pub struct Tally {
    /// Requests that were answered as they should be.
    pub good: u64,
    /// Of these, those that were answered at another try.
    pub again: u64,
    /// What went wrong.
    pub failed: Vec<String>,
    /// Users that came and went.
    pub came: u64,
}

/// Users of one cluster.
pub struct Load<'a> {
    /// The gateways that the users call.
    pub replicas: &'a Replicas,
    /// The cluster that they reach.
    pub site: &'a Site,
    /// Whether all is over.
    pub stop: &'a AtomicBool,
    /// What came of it.
    pub told: &'a Mutex<Tally>,
}

impl Load<'_> {
    /// Waits for a time, and whether it goes on then.
    pub fn waits_until(&self, time: Instant) -> bool {
        while !self.stop.load(Ordering::Relaxed) {
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::park_timeout(left.min(Duration::from_millis(200)));
        }
        false
    }

    /// Notes what went wrong.
    pub fn failed(&self, what: &str) {
        self.told.lock().unwrap().failed.push(what.to_owned());
    }

    /// Requests at a rate until all is over, with tokens that are replaced.
    pub fn requests(&self, number: u32, rate: f64, new_token: Duration) {
        let front = self.replicas.front.address.to_string();
        let each = Duration::from_secs_f64(1.0 / rate.max(0.1));
        let (mut next, mut token, mut since) = (Instant::now() + each * number / 4, String::new(), None);
        while self.waits_until(next) {
            next += each;
            if since.is_none_or(|since: Instant| since.elapsed() > new_token) {
                match self.tried(|| self.replicas.owner_for(&self.site.id.audience())) {
                    Ok(new) => (token, since) = (new, Some(Instant::now())),
                    Err(error) => self.failed(&format!("a token: {error:#}")),
                }
            }
            let asked = self.tried(|| {
                let answer = self.replicas.get(&front, self.site, &token, "/api")?;
                ensure!(answer.status == 200, "{}", answer.head.lines().next().unwrap_or_default());
                Ok(())
            });
            match asked {
                Ok(()) => self.told.lock().unwrap().good += 1,
                Err(error) => self.failed(&format!("a request: {error:#}")),
            }
        }
    }

    /// Until it holds or patience is over, as clients do.
    fn tried<T>(&self, act: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            let error = match act() {
                Ok(value) => {
                    self.told.lock().unwrap().again += u64::from(tries > 0);
                    return Ok(value);
                }
                Err(error) => error,
            };
            tries += 1;
            if begun.elapsed() > PATIENCE {
                return Err(error.context(format!("{tries} tries")));
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// A service principal is made, let in, used at each replica, shut out, and deleted.
    pub fn comes_and_goes(&self) -> anyhow::Result<()> {
        let replicas = self.replicas;
        let (at, owner) = (replicas.front.address.to_string(), self.tried(|| replicas.owner())?);
        let call = |method: &str, path: &str, body: &Value, good: &[u16]| {
            self.tried(|| {
                let answer = replicas.call(&at, &owner, method, path, body)?;
                ensure!(good.contains(&answer.status), "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
                Ok(answer)
            })
        };
        let path = format!("{PRINCIPALS}?api-version=2022-04-01");
        let made = call("POST", &path, &json!({"displayName": "comes-and-goes"}), &[200, 201])?.json()?;
        let text = |key: &str| made[key].as_str().map(str::to_owned).with_context(|| format!("no {key}"));
        let (client, secret, object) = (text("clientId")?, text("clientSecret")?, text("objectId")?);
        crate::stack::note_secret(&secret)?;
        let given = json!({"properties": {
            "roleDefinitionId": ROLE, "principalId": object, "principalType": "ServicePrincipal",
        }});
        // Its own id is as good a name as any for what it is given.
        let path = format!(
            "{}/providers/Microsoft.Authorization/roleAssignments/{object}?api-version=2022-04-01",
            self.site.id.as_str()
        );
        call("PUT", &path, &given, &[200, 201])?;
        let token = self.tried(|| replicas.token_of(&at, (&client, &secret), &self.site.id.audience()))?;
        let everywhere = |wanted: u16| {
            (0..replicas.count()).try_for_each(|number| {
                self.tried(|| {
                    let answer = replicas.get(replicas.address(number), self.site, &token, "/version")?;
                    let what = format!("{} says {} in place of {wanted}", replicas.name(number), answer.status);
                    ensure!(answer.status == wanted, "{what}");
                    Ok(())
                })
            })
        };
        everywhere(200)?;
        call("DELETE", &path, &Value::Null, &[200, 204])?;
        everywhere(403)?;
        call("DELETE", &format!("{PRINCIPALS}/{object}?api-version=2022-04-01"), &Value::Null, &[200, 204, 404])?;
        self.told.lock().unwrap().came += 1;
        Ok(())
    }
}
