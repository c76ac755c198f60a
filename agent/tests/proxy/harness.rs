//! A gateway that does as the test says, a tunnel in memory, and the agent's real roles behind it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use agent::{
    config,
    roles::{
        Roles,
        echo::{self, Echo},
        kube_aad_proxy::{
            self, KubeAadProxy,
            authenticate::Authenticator,
            authorize::Authorizer,
            dial::{Apiserver as Upstream, access::Access},
            impersonate::Names,
        },
        refresh::{self, Refresh},
        serve::Server,
        sessions::Sessions,
        whoami::{self, Whoami},
    },
};
use auth::token::testing::TestIssuer;
use bytes::{Bytes, BytesMut};
use daemon::TaskGroup;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tunnel::{
    transport::{MessageError, RecvStream, Stream, StreamError, TunnelHandle, memory},
    wire::{
        close::StreamCode,
        head::{REQUEST, RequestHead, ResponseHead},
        message::Writer,
    },
};
use types::{
    ids::{ClusterId, RequestId},
    limits,
};

pub const CLUSTER: &str = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
pub const ISSUER: &str = "https://issuer.test";

pub struct Harness {
    pub gateway: TunnelHandle,
    pub issuer: TestIssuer,
    pub upstream: Arc<Upstream>,
    pub server: Server,
    pub authorizer: Arc<Authorizer>,
    _tasks: [TaskGroup; 2],
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub refused_by: Option<String>,
    pub body: String,
    pub end: Result<(), StreamError>,
}

impl Harness {
    pub async fn new(access: Access) -> Self {
        Self::with(access, Duration::from_secs(8 * 3600), 64).await
    }

    pub async fn with(access: Access, outlive_token: Duration, streams_max: usize) -> Self {
        let issuer = TestIssuer::new(ISSUER);
        let authenticator = Arc::new(Authenticator::new(issuer.verifier(), CLUSTER.parse().unwrap()));
        Self::of(access, outlive_token, streams_max, issuer, authenticator).await
    }

    /// Whose answers may hold `bytes` while nobody reads them, and a little for each beyond that.
    pub async fn with_bytes_unread(access: Access, bytes: u64) -> Self {
        let issuer = TestIssuer::new(ISSUER);
        let authenticator = Arc::new(Authenticator::new(issuer.verifier(), CLUSTER.parse().unwrap()));
        let connections = TaskGroup::new("connections");
        let upstream = Upstream::with_bytes_unread(access, connections.clone(), bytes).unwrap();
        Self::over(upstream, connections, Duration::from_secs(3600), 4096, issuer, authenticator).await
    }

    /// With tokens judged by `authenticator`.
    pub async fn of(
        access: Access,
        outlive_token: Duration,
        streams_max: usize,
        issuer: TestIssuer,
        authenticator: Arc<Authenticator>,
    ) -> Self {
        let connections = TaskGroup::new("connections");
        let upstream = Upstream::new(access, connections.clone()).unwrap();
        Self::over(upstream, connections, outlive_token, streams_max, issuer, authenticator).await
    }

    async fn over(
        upstream: Upstream,
        connections: TaskGroup,
        outlive_token: Duration,
        streams_max: usize,
        issuer: TestIssuer,
        authenticator: Arc<Authenticator>,
    ) -> Self {
        let upstream = Arc::new(upstream);
        let names = Names::new(&config::Impersonation::default());
        let sessions = Sessions::new(outlive_token, authenticator.verifier().clone());
        let authorizer = Authorizer::new(authenticator.clone(), Some("test".to_owned()));
        let roles = vec![
            kube_aad_proxy::ENTRY.named(Arc::new(KubeAadProxy::new(
                authenticator.clone(),
                authorizer.clone(),
                upstream.clone(),
                names.clone(),
                sessions.clone(),
            ))),
            whoami::ENTRY.named(Arc::new(Whoami::new(authenticator.clone(), names))),
            refresh::ENTRY.named(Arc::new(Refresh::new(authenticator, sessions))),
            echo::ENTRY.named(Arc::new(Echo)),
        ];
        let server = Server::new(Roles::new(roles), streams_max);
        let (gateway, agent) = memory::pair().await;
        let tasks = TaskGroup::new("agent");
        let serving = server.clone();
        tasks.spawn("serve", async move {
            serving.serve(&agent).await;
        });
        Self { gateway, issuer, upstream, server, authorizer, _tasks: [tasks, connections] }
    }

    pub fn token(&self, user: &str, groups: &[&str]) -> String {
        let cluster: ClusterId = CLUSTER.parse().unwrap();
        self.issuer.token(user, groups, &cluster.audience(), SystemTime::now())
    }

    /// A good credential of `jane`.
    pub fn jane(&self) -> String {
        format!("Bearer {}", self.token("jane", &["dev"]))
    }

    /// Opens a stream with a head as given and leaves the request body open.
    pub async fn open(&self, head: &RequestHead) -> Stream {
        self.gateway.open(head.encode().unwrap().freeze()).await.unwrap()
    }

    /// Opens a stream as a hostile gateway would: with a head that no honest one encodes.
    pub async fn open_hostile(&self, head: &RequestHead) -> Stream {
        let mut writer = Writer::begin(BytesMut::new(), REQUEST);
        writer.bytes(head.role.as_bytes()).bytes(&head.request_id.0).bytes(head.method.as_str().as_bytes());
        writer.bytes(&head.target).integer(head.headers.len() as u64);
        for (name, value) in &head.headers {
            writer.bytes(name.as_str().as_bytes()).bytes(value.as_bytes());
        }
        self.gateway.open(writer.finish().freeze()).await.unwrap()
    }

    /// A whole exchange with such a head; `None` if the stream was reset instead of answered.
    pub async fn send_hostile(&self, head: &RequestHead) -> Option<Answer> {
        let mut stream = self.open_hostile(head).await;
        let _ = stream.send.finish();
        let message = stream.recv.recv_message(limits::HEAD_BYTES).await;
        if let Err(MessageError::Stream(StreamError::Reset(StreamCode::BadHead))) = message {
            return None;
        }
        let head = ResponseHead::decode(message.expect("an answer")).unwrap();
        let (body, end) = rest(&mut stream.recv).await;
        let refused_by = head.refused_by.map(|stage| String::from_utf8(stage.to_vec()).unwrap());
        Some(Answer { status: head.status.as_u16(), headers: head.headers, refused_by, body, end })
    }

    /// A whole exchange with a body.
    pub async fn send(&self, head: &RequestHead, body: &'static [u8]) -> Answer {
        let mut stream = self.open(head).await;
        if !body.is_empty() {
            let _ = stream.send.send(Bytes::from_static(body)).await;
        }
        let _ = stream.send.finish();
        answer(&mut stream.recv).await
    }

    /// GET as jane.
    pub async fn get(&self, target: &str, headers: &[(&str, &str)]) -> Answer {
        let jane = self.jane();
        let mut all = vec![("authorization", jane.as_str())];
        all.extend(headers);
        self.send(&head("GET", target, &all), b"").await
    }

    /// An upgrade as jane; the stream stays open.
    pub async fn upgrade(&self, target: &str, protocol: &str, headers: &[(&str, &str)]) -> (ResponseHead, Stream) {
        let jane = self.jane();
        let mut all = vec![("authorization", jane.as_str()), ("connection", "Upgrade"), ("upgrade", protocol)];
        all.extend(headers);
        let mut stream = self.open(&head("POST", target, &all)).await;
        let head = response_head(&mut stream.recv).await;
        (head, stream)
    }
}

pub fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> RequestHead {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    RequestHead {
        role: "kube-aad-proxy".to_owned(),
        request_id: RequestId([7; 16]),
        method: Method::from_bytes(method.as_bytes()).unwrap(),
        target: Bytes::copy_from_slice(target.as_bytes()),
        headers: map,
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    }
}

pub async fn response_head(recv: &mut RecvStream) -> ResponseHead {
    let message = recv.recv_message(limits::HEAD_BYTES).await.expect("an answer");
    ResponseHead::decode(message).unwrap()
}

pub async fn answer(recv: &mut RecvStream) -> Answer {
    let head = response_head(recv).await;
    let (body, end) = rest(recv).await;
    Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        refused_by: head.refused_by.map(|stage| String::from_utf8(stage.to_vec()).unwrap()),
        body,
        end,
    }
}

pub async fn rest(recv: &mut RecvStream) -> (String, Result<(), StreamError>) {
    let mut body = Vec::new();
    loop {
        match recv.recv().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return (String::from_utf8_lossy(&body).into_owned(), Ok(())),
            Err(err) => return (String::from_utf8_lossy(&body).into_owned(), Err(err)),
        }
    }
}

/// The lines of a raw request whose header has this name, in lower case.
pub fn lines<'a>(raw: &'a str, name: &str) -> Vec<&'a str> {
    raw.split("\r\n")
        .filter(|line| line.split(':').next().is_some_and(|front| front.eq_ignore_ascii_case(name)))
        .map(|line| line.split_once(':').unwrap().1.trim())
        .collect()
}
