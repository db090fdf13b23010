//! Sends requests to a program at a fixed rate, and records the delay of each answer after the
//! moment at which the request was due: an answer that delays the next request is late for both
//! (open loop).
//!
//! Bounds: [`IN_FLIGHT_MAX`] requests in flight, [`TIMEOUT`] for each; further ones that fall due
//! meanwhile are misses.

mod target;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};

pub(crate) use self::target::Target;
use crate::lateness::Samples;

/// Questions without an answer at any moment.
const IN_FLIGHT_MAX: usize = 256;
/// How long an answer is waited for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks until `stop` turns true; what it noted is in `samples`.
pub(crate) async fn ask(
    target: Arc<Target>,
    per_second: f64,
    samples: Arc<Mutex<Samples>>,
    mut stop: watch::Receiver<bool>,
) {
    let period = Duration::from_secs_f64(1.0 / per_second.clamp(0.01, 10_000.0));
    let mut due = interval_at(Instant::now() + period, period);
    // Missed requests are sent at once, and count from when they were due.
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let free = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut asked = JoinSet::new();
    loop {
        let at = tokio::select! {
            at = due.tick() => at,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while asked.try_join_next().is_some() {}
        let Ok(permit) = free.clone().try_acquire_owned() else {
            record_answer(
                &samples,
                Err(format!("{IN_FLIGHT_MAX} questions are without an answer")),
            );
            continue;
        };
        let (target, samples) = (target.clone(), samples.clone());
        asked.spawn(async move {
            let answer = tokio::time::timeout(TIMEOUT, target.ask()).await;
            let late = at.elapsed().as_secs_f64() * 1_000.0;
            record_answer(
                &samples,
                match answer {
                    Ok(Ok(())) => Ok(late),
                    Ok(Err(why)) => Err(why),
                    Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
                },
            );
            drop(permit);
        });
    }
    // Answers that are still awaited: the program is alive yet, and gets as long as its goal may
    // take.
    let _ =
        tokio::time::timeout(TIMEOUT, async { while asked.join_next().await.is_some() {} }).await;
}

fn record_answer(samples: &Mutex<Samples>, answer: Result<f64, String>) {
    let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
    match answer {
        Ok(millis) => samples.record_delay(millis),
        Err(why) => samples.record_miss(&why),
    }
}
