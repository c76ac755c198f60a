//! Long answers of the resource API, until their readers have taken them. A reader who opens no window makes the gateway
//! hold what it has asked for: so all of it together has a bound, and who asks has a share of what is free.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream};
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use crate::{
    answers::{Body, Live},
    api_error::ApiError,
};

/// Bytes of an answer that is not counted here: how many of these a connection may leave unread is bounded elsewhere
/// ([`crate::admission::limit`]).
pub const SHORT_BYTES: usize = 32 * 1024;
/// Bytes of all others together.
const ALL_BYTES: usize = 64 * 1024 * 1024;
/// One party has at most one part in `PART` of what is free, or a single answer.
const PART: usize = 8;
/// Bytes that are handed out at once. They are copied: what a connection still has to send keeps nothing else of the
/// answer.
const PIECE_BYTES: usize = 16 * 1024;
/// After this time without a piece that was taken, an answer gives way to another one.
const STILL: Duration = Duration::from_secs(30);

/// The long answers that nobody has read yet.
#[derive(Default, Clone)]
pub struct Unread(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    next: u64,
    bytes: usize,
    answers: HashMap<u64, Answer>,
}

struct Answer {
    party: String,
    text: Bytes,
    /// How far it was handed out,
    at: usize,
    /// and when.
    moved: Instant,
}

/// An answer as its reader takes it; forgotten when it is dropped.
struct Pieces {
    number: u64,
    held: Unread,
}

impl Unread {
    /// Goes on only where there is room for one more answer of a party: before work that makes one.
    ///
    /// # Errors
    /// 429 where the party has its share.
    pub fn room(&self, party: &str) -> Result<(), ApiError> {
        self.locked().make_room(party, SHORT_BYTES)
    }

    /// Holds an answer for its reader, if it is a long one that is whole. Whether there is room for it is asked only where
    /// nothing has been done yet but reading.
    ///
    /// # Errors
    /// 429 where the party has its share.
    pub fn hold(&self, party: &str, response: Response<Body>, has_read: bool) -> Result<Response<Body>, ApiError> {
        let (head, body) = response.into_parts();
        let body = match body {
            Body::Full(body) if http_body::Body::size_hint(&body).lower() > SHORT_BYTES as u64 => {
                let text = body.collect().now_or_never().and_then(Result::ok).unwrap_or_default().to_bytes();
                let length = text.len() as u64;
                let number = {
                    let mut held = self.locked();
                    if has_read {
                        held.make_room(party, text.len())?;
                    }
                    held.insert(party, text)
                };
                let pieces = Pieces { number, held: self.clone() };
                Body::Live(Box::new(Live::new(pieces).whole(length)))
            }
            body => body,
        };
        Ok(Response::from_parts(head, body))
    }

    fn locked(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn insert(&mut self, party: &str, text: Bytes) -> u64 {
        let number = self.next;
        self.next += 1;
        self.bytes += text.len();
        self.answers.insert(number, Answer { party: party.to_owned(), text, at: 0, moved: Instant::now() });
        number
    }

    fn remove(&mut self, number: u64) {
        if let Some(answer) = self.answers.remove(&number) {
            self.bytes -= answer.text.len();
        }
    }

    fn of(&self, party: &str) -> usize {
        self.answers.values().filter(|answer| answer.party == party).map(|answer| answer.text.len()).sum()
    }

    /// Whether a party may have so many bytes more: a share, or one answer.
    fn has_room(&self, party: &str, bytes: usize) -> bool {
        let (free, own) = (ALL_BYTES.saturating_sub(self.bytes), self.of(party));
        bytes <= free && (own == 0 || own + bytes <= free / PART)
    }

    /// What nobody has read on for long goes, if it is in the way. Who has nothing gets a place of whoever has most.
    fn make_room(&mut self, party: &str, bytes: usize) -> Result<(), ApiError> {
        if self.has_room(party, bytes) {
            return Ok(());
        }
        let now = Instant::now();
        let still: Vec<u64> = self.still(|answer| now.duration_since(answer.moved) >= STILL);
        still.into_iter().for_each(|number| self.remove(number));
        while bytes <= ALL_BYTES && !self.has_room(party, bytes) && self.of(party) == 0 {
            let Some(heaviest) = self.heaviest() else { break };
            let Some(&first) = self.still(|answer| answer.party == heaviest).first() else { break };
            self.remove(first);
        }
        if self.has_room(party, bytes) { Ok(()) } else { Err(full()) }
    }

    /// Of these answers the numbers, first of that which has stood still for longest.
    fn still(&self, wanted: impl Fn(&Answer) -> bool) -> Vec<u64> {
        let mut found: Vec<_> = self.answers.iter().filter(|(_, answer)| wanted(answer)).collect();
        found.sort_by_key(|(number, answer)| (answer.moved, **number));
        found.into_iter().map(|(number, _)| *number).collect()
    }

    fn heaviest(&self) -> Option<String> {
        let mut parties: HashMap<&str, usize> = HashMap::new();
        for answer in self.answers.values() {
            *parties.entry(&answer.party).or_default() += answer.text.len();
        }
        parties.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(party, _)| party.to_owned())
    }
}

fn full() -> ApiError {
    let message = format!(
        "Answers of yours of more than {SHORT_BYTES} bytes wait to be read, as many as you may have; read them, or ask for \
         smaller pages ($top), and try again."
    );
    ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "1")
}

impl Stream for Pieces {
    type Item = Bytes;

    /// Nothing more where the answer had to give way: its length was announced, so that its reader knows.
    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut held = self.held.locked();
        let Some(answer) = held.answers.get_mut(&self.number) else { return Poll::Ready(None) };
        let end = answer.text.len().min(answer.at + PIECE_BYTES);
        let piece = Bytes::copy_from_slice(&answer.text[answer.at..end]);
        (answer.at, answer.moved) = (end, Instant::now());
        if end == answer.text.len() {
            held.remove(self.number);
        }
        Poll::Ready(Some(piece))
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.held.locked().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers;

    fn answer(bytes: usize) -> Response<Body> {
        answers::written(vec![b'x'; bytes]).map(Body::Full)
    }

    async fn read(response: Response<Body>) -> usize {
        response.into_body().collect().await.unwrap().to_bytes().len()
    }

    const MIB: usize = 1024 * 1024;

    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_holds_a_share_and_keeps_nobody_else_out() {
        let unread = Unread::default();
        let mut held = Vec::new();
        let refused = loop {
            match unread.hold("slow", answer(MIB), true) {
                Ok(answer) => held.push(answer),
                Err(refused) => break refused,
            }
        };
        assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (429, "TooManyRequests"));
        assert!((4..=8).contains(&held.len()), "{}", held.len());
        assert!(unread.hold("slow", answer(SHORT_BYTES), true).is_ok(), "a short one is never refused");
        assert_eq!(read(unread.hold("other", answer(9 * MIB), true).unwrap()).await, 9 * MIB, "and others go on");
        assert_eq!(read(held.remove(0)).await, MIB);
        held.push(unread.hold("slow", answer(MIB), true).unwrap());
        drop(held);
        assert_eq!(unread.locked().bytes, 0);
        assert!(unread.locked().answers.is_empty());
    }

    /// However many parties there are, all of them together hold no more than there is room for.
    #[tokio::test(start_paused = true)]
    async fn all_together_are_bounded_and_a_newcomer_gets_a_place_of_who_has_most() {
        let unread = Unread::default();
        let mut held = Vec::new();
        for party in 0..64 {
            for _ in 0..4 {
                held.extend(unread.hold(&party.to_string(), answer(MIB), true).ok());
            }
            assert!(unread.locked().bytes <= ALL_BYTES);
        }
        let newcomer = unread.hold("ann", answer(4 * MIB), true).unwrap();
        assert!(unread.locked().bytes <= ALL_BYTES);
        assert_eq!(read(newcomer).await, 4 * MIB);
        let before = unread.locked().bytes;
        assert!(unread.hold("bob", answer(ALL_BYTES + 1), true).is_err());
        assert_eq!(unread.locked().bytes, before, "nothing gives way to what has no room anyway");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_gives_way_and_its_reader_knows() {
        let unread = Unread::default();
        let mut first = unread.hold("slow", answer(6 * MIB), true).unwrap();
        let piece = first.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece.len(), PIECE_BYTES);
        assert!(unread.hold("slow", answer(6 * MIB), true).is_err());
        tokio::time::advance(STILL).await;
        assert_eq!(read(unread.hold("slow", answer(6 * MIB), true).unwrap()).await, 6 * MIB);
        assert_eq!(http_body::Body::size_hint(first.body()).exact(), Some(6 * MIB as u64));
        assert_eq!(read(first).await, 0, "less than was announced");
        // What was written is answered in any case.
        let held: Vec<_> = (0..20).map(|_| unread.hold("slow", answer(MIB), false).unwrap()).collect();
        assert_eq!(unread.room("slow").err().unwrap().status.as_u16(), 429);
        drop(held);
        assert!(unread.room("slow").is_ok());
    }
}
