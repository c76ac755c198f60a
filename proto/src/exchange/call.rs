//! The opener's end of an exchange.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body::Body;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{Counters, StreamBody, half::Sender, send::pump};
use crate::{
    limits,
    process::TaskGroup,
    transport::{MessageError, OpenError, RecvStream, SendStream, Stream, StreamError, Tunnel},
    wire::{
        close::StreamCode,
        error::WireError,
        head::{RequestHead, ResponseHead},
    },
};

/// What the steps of one exchange share.
#[derive(Clone, Debug)]
pub struct Call {
    /// Owns the task that sends the request body.
    pub tasks: TaskGroup,
    /// By when the head of the answer must be there. Bodies have no deadline.
    pub deadline: Instant,
    /// Body bytes of this exchange.
    pub counters: Arc<Counters>,
}

/// The answer to an upgrade request.
pub struct Upgraded {
    /// A 101, or the refusal.
    pub head: ResponseHead,
    /// After a 101: both directions, for [`super::splice`]. After anything else `recv` is the body and `send` has been
    /// finished.
    pub stream: Stream,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The request's head is over a limit of the wire. The user's doing; nothing was sent.
    #[error("the request's head cannot be sent")]
    Head(#[source] WireError),
    /// No stream could be opened. Nothing was sent.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No answer began in time; the stream was given up.
    #[error("no answer in time")]
    Deadline,
    /// The stream broke off or ended before an answer.
    #[error("no answer: {0}")]
    Broken(MessageError),
    /// The peer answered with what is no answer.
    #[error("unreadable answer")]
    Answer(#[source] WireError),
    /// A 101 to a request that did not ask for one.
    #[error("an upgrade that was not asked for")]
    Unasked,
}

impl ExchangeError {
    /// Whether no role of the peer has seen any of the request, so that it may be sent elsewhere.
    pub fn unseen(&self) -> bool {
        match self {
            Self::Head(_) | Self::Open(_) => true,
            Self::Broken(MessageError::Stream(StreamError::Reset(code))) => *code == StreamCode::Draining,
            _ => false,
        }
    }
}

impl Call {
    /// One call with counters of its own.
    pub fn new(tasks: &TaskGroup, deadline: Instant) -> Self {
        Self { tasks: tasks.clone(), deadline, counters: Arc::default() }
    }

    /// Opens a stream and sends `head` on it. An error here means that nothing reached a role of the peer.
    pub async fn open(&self, tunnel: &dyn Tunnel, head: &RequestHead) -> Result<Stream, ExchangeError> {
        let head = head.encode().map_err(ExchangeError::Head)?.freeze();
        match timeout_at(self.deadline, tunnel.open(head)).await {
            Ok(stream) => Ok(stream?),
            Err(_) => Err(ExchangeError::Deadline),
        }
    }

    /// Sends `body` and waits for the head of the answer. The answer may come before the body has ended: both then go on,
    /// until the peer stops the one or the caller drops the other. A caller that drops the answer's body early breaks
    /// the whole exchange off.
    pub async fn exchange<B>(
        &self,
        stream: Stream,
        method: &Method,
        body: B,
    ) -> Result<(ResponseHead, StreamBody), ExchangeError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Send,
    {
        let Stream { send, mut recv, .. } = stream;
        let mut upload = Upload { tell: self.upload(send, body), code: StreamCode::Cancelled };
        let head = match self.answer(&mut recv).await {
            Ok(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => Err(ExchangeError::Unasked),
            other => other,
        };
        let head = head.inspect_err(|error| {
            upload.code = code_of(error);
            recv.stop(upload.code);
        })?;
        let body = StreamBody::of_response(recv, method, head.status, &head.headers);
        Ok((head, body.counted(self.counters.clone()).with_upload(upload.keep())))
    }

    /// Waits for the head of the answer to a request that asks for an upgrade; such a request has no body.
    pub async fn upgrade(&self, stream: Stream) -> Result<Upgraded, ExchangeError> {
        let Stream { id, mut send, mut recv } = stream;
        let head = self.answer(&mut recv).await.inspect_err(|error| {
            recv.stop(code_of(error));
            send.reset(code_of(error));
        })?;
        if head.status != StatusCode::SWITCHING_PROTOCOLS {
            let _ = send.finish();
        }
        Ok(Upgraded { head, stream: Stream { id, send, recv } })
    }

    async fn answer(&self, recv: &mut RecvStream) -> Result<ResponseHead, ExchangeError> {
        let message = timeout_at(self.deadline, recv.recv_message(limits::HEAD_BYTES)).await;
        match message.map_err(|_| ExchangeError::Deadline)? {
            Ok(message) => ResponseHead::decode(message).map_err(ExchangeError::Answer),
            Err(MessageError::Wire(error)) => Err(ExchangeError::Answer(error)),
            Err(error) => Err(ExchangeError::Broken(error)),
        }
    }

    /// Sends the request body in a task of its own, so that it goes on while nobody reads the answer. Most requests have
    /// none and need no task.
    fn upload<B>(&self, mut send: SendStream, body: B) -> Option<oneshot::Sender<StreamCode>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Send,
    {
        if body.is_end_stream() {
            let _ = send.finish();
            return None;
        }
        let (tell, told) = oneshot::channel();
        let counters = self.counters.clone();
        self.tasks.spawn("request body", async move {
            upload_until(&mut send, body, &counters, told).await;
        });
        Some(tell)
    }
}

/// Sends `body` until it ends, the reader stops it, the stream breaks off, or the owner tells a code to break off with.
/// Each is an end that the answer's side sees or does not need to see.
async fn upload_until<S, B>(send: &mut S, body: B, counters: &Counters, told: oneshot::Receiver<StreamCode>)
where
    S: Sender,
    B: Body<Data = Bytes> + Unpin,
{
    // The sender is dropped untold once the answer was taken whole; the body may go on.
    let told = async {
        match told.await {
            Ok(code) => code,
            Err(_) => std::future::pending().await,
        }
    };
    let code = tokio::select! {
        biased;
        code = told => code,
        _ = pump(send, body, counters) => return,
    };
    send.reset(code);
}

/// Breaks the upload off when an exchange ends, or is dropped, before its answer.
struct Upload {
    tell: Option<oneshot::Sender<StreamCode>>,
    code: StreamCode,
}

impl Upload {
    fn keep(mut self) -> Option<oneshot::Sender<StreamCode>> {
        self.tell.take()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(self.code);
        }
    }
}

fn code_of(error: &ExchangeError) -> StreamCode {
    match error {
        ExchangeError::Deadline => StreamCode::Deadline,
        ExchangeError::Answer(_) | ExchangeError::Unasked => StreamCode::BadHead,
        _ => StreamCode::NoMore,
    }
}
