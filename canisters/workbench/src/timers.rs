//! Timers by `ic-cdk-timers`, that is by the global timer and a self-call for each firing.

use ic_cdk::{query, update};
use ic_cdk_timers::TimerId;
use std::{cell::RefCell, time::Duration};

thread_local! {
    static TIMERS: RefCell<Vec<TimerId>> = const { RefCell::new(Vec::new()) };
}

async fn count() {
    crate::state::with(|state| state.timer_count += 1);
}

/// Counts once after the delay. Timers do not survive an upgrade; the count does.
#[update]
fn start_timer(delay_ns: u64) {
    let timer = ic_cdk_timers::set_timer(Duration::from_nanos(delay_ns), count());
    TIMERS.with_borrow_mut(|timers| timers.push(timer));
}

/// Counts again and again until `stop_timers`.
#[update]
fn start_interval(interval_ns: u64) {
    let timer = ic_cdk_timers::set_timer_interval(Duration::from_nanos(interval_ns), count);
    TIMERS.with_borrow_mut(|timers| timers.push(timer));
}

#[update]
fn stop_timers() {
    for timer in TIMERS.take() {
        ic_cdk_timers::clear_timer(timer);
    }
}

/// How often a timer has fired.
#[query]
fn timer_count() -> u64 {
    crate::state::with(|state| state.timer_count)
}
