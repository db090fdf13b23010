//! Signed answers to queries that were asked a moment ago, for the same request.
//!
//! Clients that do not number their queries send the same envelope again while its expiry, which
//! they round, is the same; so do many clients at once. A query whose reply is kept still costs the
//! signature over the answer. An answer of at most [`SIGNED_FOR_NANOS`] ago is given once more if
//! request and reply are the same: it states what held at its timestamp, and still does. Not if
//! that is before the newest certified state: clients that have seen a certificate of it take an
//! earlier answer for a replay, as @dfinity/agent 2 does.
//!
//! Bounds: `gateway.signed_answers` answers of at most [`SIGNED_ANSWER_BYTES`], one at the place
//! that a request's id selects. A newer one replaces it.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use limits::SIGNED_ANSWER_BYTES;
use state::{RequestId, Time};

/// How old the timestamp of an answer may be; clients accept minutes.
const SIGNED_FOR_NANOS: u64 = 100_000_000;
/// Bytes of an answer in addition to its reply and body.
const PLACE_BYTES: u64 = 128;

pub(crate) struct SignedAnswers {
    places: Mutex<Vec<Option<SignedAnswer>>>,
}

struct SignedAnswer {
    id: RequestId,
    signed_at: Time,
    reply: Box<[u8]>,
    body: Bytes,
}

impl SignedAnswers {
    /// Room for this number of answers.
    pub(crate) fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let places = std::iter::repeat_with(|| None).take(limit).collect();
        Self { places: Mutex::new(places) }
    }

    /// The body of an answer to this request with this reply that was signed a moment before `now`,
    /// and not before the newest state, of time `certified`.
    pub(crate) fn get(
        &self,
        id: &RequestId,
        reply: &[u8],
        certified: Time,
        now: Time,
    ) -> Option<Bytes> {
        self.with_place(id, |place| {
            let answer = place.as_ref()?;
            let age = now.0.checked_sub(answer.signed_at.0)?;
            let is_same = answer.id == *id && *answer.reply == *reply;
            (is_same && answer.signed_at >= certified && age <= SIGNED_FOR_NANOS)
                .then(|| answer.body.clone())
        })?
    }

    /// Keeps the body of an answer, unless it is too long.
    pub(crate) fn put(&self, id: &RequestId, reply: &[u8], signed_at: Time, body: &[u8]) {
        let bytes = PLACE_BYTES + (reply.len() + body.len()) as u64;
        if bytes > SIGNED_ANSWER_BYTES {
            return;
        }
        let (reply, body) = (reply.into(), Bytes::copy_from_slice(body));
        let answer = SignedAnswer { id: *id, signed_at, reply, body };
        // The answer before is dropped after the lock.
        let _before = self.with_place(id, |place| place.replace(answer));
    }

    fn with_place<T>(
        &self,
        id: &RequestId,
        with: impl FnOnce(&mut Option<SignedAnswer>) -> T,
    ) -> Option<T> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let number = id.0.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first));
        let count = places.len() as u64;
        let at = usize::try_from(number.checked_rem(count)?).ok()?;
        places.get_mut(at).map(with)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ID: RequestId = RequestId([7; 32]);

    #[test]
    fn same_request_and_reply_have_the_same_body_for_a_moment() {
        let answers = SignedAnswers::new(3);
        let signed_at = Time(1_000_000_000);
        answers.put(&ID, b"reply", signed_at, b"signed body");
        let at = |nanos: u64| answers.get(&ID, b"reply", Time(0), Time(nanos));
        assert_eq!(at(signed_at.0), Some(Bytes::from_static(b"signed body")));
        assert!(at(signed_at.0 + SIGNED_FOR_NANOS).is_some());
        assert_eq!(at(signed_at.0 + SIGNED_FOR_NANOS + 1), None, "it is too old");
        assert_eq!(at(signed_at.0 - 1), None, "the clock was set back");
        assert_eq!(answers.get(&ID, b"other", Time(0), signed_at), None, "the state has changed");
        let (same, later) = (signed_at, Time(signed_at.0 + 1));
        assert!(answers.get(&ID, b"reply", same, later).is_some());
        assert_eq!(answers.get(&ID, b"reply", later, later), None, "a later state is certified");
        assert_eq!(answers.get(&RequestId([4; 32]), b"reply", Time(0), signed_at), None);
    }

    #[test]
    fn places_and_bytes_are_bounded() {
        let answers = SignedAnswers::new(1);
        let other = RequestId([8; 32]);
        answers.put(&ID, b"", Time(5), b"one");
        answers.put(&other, b"", Time(5), b"two");
        assert_eq!(answers.get(&ID, b"", Time(0), Time(5)), None, "a newer one has its place");
        assert!(answers.get(&other, b"", Time(0), Time(5)).is_some());
        let long = vec![0; SIGNED_ANSWER_BYTES as usize / 2];
        answers.put(&ID, &long, Time(5), &long);
        assert_eq!(answers.get(&ID, &long, Time(0), Time(5)), None);
        assert!(answers.get(&other, b"", Time(0), Time(5)).is_some());

        let none = SignedAnswers::new(0);
        none.put(&ID, b"", Time(5), b"one");
        assert_eq!(none.get(&ID, b"", Time(0), Time(5)), None);
    }
}
