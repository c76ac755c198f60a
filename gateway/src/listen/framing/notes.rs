//! What the reader of a connection and the service that answers its requests in turn tell each other.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use http_body::{Frame, SizeHint};

use super::Faulty;

/// What the reader notes of a head.
#[derive(Debug, PartialEq, Eq)]
pub enum Note {
    /// All of it was given on.
    Fine,
    /// The head was refused.
    Faulty(Faulty),
    /// Its target was given on without the query; this is all of it. Holds its place among the long ones.
    Long(bytes::Bytes),
}

/// What was noted of the requests of one connection.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

#[derive(Default)]
pub(super) struct Noted {
    pub(super) heads: VecDeque<Note>,
    /// Requests that the service has begun with.
    served: u64,
    /// Requests whose turn is over.
    over: u64,
    /// The request under way that Kubernetes calls long running.
    long_running: Option<u64>,
    /// The latest request answered, and whether it changed protocols.
    answered: Option<(u64, bool)>,
    /// Whether the answer that goes out is the gateway's own.
    own: bool,
    waker: Option<Waker>,
}

impl Notes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is noted, then wakes the reader, with no lock held: what that drops may note something itself.
    fn change(&self, change: impl FnOnce(&mut Noted)) {
        let mut noted = self.lock();
        change(&mut noted);
        let waker = noted.waker.take();
        drop(noted);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The service begins with the next request: its turn, and what was noted of its head.
    pub fn next(&self) -> (Turn, Note) {
        let mut noted = self.lock();
        let number = noted.served;
        noted.served += 1;
        noted.own = false;
        let note = noted.heads.pop_front().unwrap_or(Note::Fine);
        drop(noted);
        (Turn { notes: self.clone(), number }, note)
    }

    pub(super) fn own(&self) -> bool {
        self.lock().own
    }

    /// Whether the request of this number changed protocols, once that is known.
    pub(super) fn decision(&self, number: u64, cx: &Context<'_>) -> Option<bool> {
        let mut noted = self.lock();
        match noted.answered {
            Some((answered, switched)) if answered >= number => Some(switched && answered == number),
            _ => {
                noted.waker = Some(cx.waker().clone());
                None
            }
        }
    }

    /// Whether one of the first `heads` requests still waits for its answer, so that the end of the user's side is no
    /// reason to stop.
    pub(super) fn still_answering(&self, heads: u64, cx: &Context<'_>) -> bool {
        let mut noted = self.lock();
        let waits = noted.over < heads && noted.long_running != Some(noted.over);
        if waits {
            noted.waker = Some(cx.waker().clone());
        }
        waits
    }
}

/// One request's turn on its connection: from the call of the service to the last byte of the answer. Over when
/// dropped.
pub struct Turn {
    notes: Notes,
    number: u64,
}

impl Turn {
    /// It is one that Kubernetes calls long running: a user whose side of the connection has ended does not wait for
    /// it.
    pub fn long_running(&self) {
        self.notes.change(|noted| noted.long_running = Some(self.number));
    }

    /// It is answered: by a change of protocols, by an answer of our own, or by one that is relayed.
    pub fn answered(&self, switched: bool, own: bool) {
        self.notes.change(|noted| {
            noted.answered = Some((self.number, switched));
            noted.own = own && !switched;
        });
    }

    /// A body that lasts as long as the turn.
    pub fn body<B>(self, body: B) -> InTurn<B> {
        InTurn { body, _turn: self }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.notes.change(|noted| noted.over = self.number + 1);
    }
}

/// An answer's body with its turn.
pub struct InTurn<B> {
    body: B,
    _turn: Turn,
}

impl<B: http_body::Body + Unpin> http_body::Body for InTurn<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
