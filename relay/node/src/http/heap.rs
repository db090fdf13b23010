//! `/debug/heap`: the memory profile, as addresses; `thimble-relay heap` names them.
//!
//! Refused unless the node was started to sample its allocations. [`heap_profiler::Sampler`] has
//! its bounds; the answer is charged to the pool `responses`.

use heap_profiler::{ANSWER_TIME, ProfileError, off};
use http_server::Outgoing;
use hyper::StatusCode;
use tokio::{task::spawn_blocking, time::timeout};

use super::{
    answer,
    service::{HttpResult, Service},
};

impl Service {
    /// `GET /debug/heap`: sampled allocations as addresses; 404 when none are sampled.
    pub(crate) async fn heap(&self) -> HttpResult {
        let Some(sampler) = self.sampler.clone() else {
            return Err(answer::not_found(off("thimble-relay")));
        };
        let failed = |words: String| answer::refusal(StatusCode::INTERNAL_SERVER_ERROR, words);
        let made = timeout(ANSWER_TIME, spawn_blocking(move || sampler.answer())).await;
        let made = made.map_err(|_| {
            let words =
                format!("an answer was not made within {} s; try again", ANSWER_TIME.as_secs());
            answer::busy(StatusCode::SERVICE_UNAVAILABLE, words)
        })?;
        let made = made.map_err(|error| failed(format!("an answer was not made: {error}")))?;
        let bytes = made.map_err(|refused| match refused {
            ProfileError::Busy => {
                answer::busy(StatusCode::SERVICE_UNAVAILABLE, refused.to_string())
            }
            ProfileError::Failed(words) => failed(words),
        })?;
        let body = Outgoing::charged(bytes, &self.responses).map_err(answer::no_room)?;
        Ok(answer::answer(StatusCode::OK, "application/octet-stream", body))
    }
}
