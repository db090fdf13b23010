#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicU32;

use limits::Limits;
use state::{CallbackId, Origin, OutcallMethod, Time};

use super::*;
use crate::AccessPolicy;

/// Ends every transform with the configured result.
struct FailingTransform(NotTransformed, AtomicU32);

impl Transform for FailingTransform {
    fn transform(
        &self,
        (_, since): (CanisterId, Height),
        _: &str,
        _: Vec<u8>,
    ) -> Result<Vec<u8>, NotTransformed> {
        assert_eq!(since, Height(1));
        self.1.fetch_add(1, Relaxed);
        Err(self.0.clone())
    }
}

struct DiscardedAnswers;

impl AnswerSink for DiscardedAnswers {
    fn answer(&self, _: OutcallAnswer, _: Reservation) {}

    fn make_room(&self, _: u64) {}
}

/// Keeps the answers, and releases its extra memory when a request needs it.
#[derive(Default)]
struct AnswerRecorder {
    answers: Mutex<Vec<OutcallAnswer>>,
    extra_memory: Mutex<Option<Reservation>>,
}

impl AnswerSink for AnswerRecorder {
    fn answer(&self, answer: OutcallAnswer, _: Reservation) {
        self.answers.lock().unwrap().push(answer);
    }

    fn make_room(&self, _: u64) {
        drop(self.extra_memory.lock().unwrap().take());
    }
}

fn caller(number: u8) -> CanisterId {
    CanisterId::from_slice(&[number])
}

fn outcall(number: u8) -> Outcall {
    Outcall {
        origin: Origin::Canister {
            caller: caller(number),
            callback: CallbackId(1),
            deadline: None,
        },
        cycles: 0,
        url: String::new(),
        method: OutcallMethod::Get,
        headers: vec![],
        body: vec![],
        response_bytes_asked: Some(1_000),
        transform: None,
        until: Time(1),
        askers: state::Askers::All,
        height: Height(1),
    }
}

fn service(transform: Arc<dyn Transform>, in_flight: u64, room: Pool) -> Service {
    service_for(Arc::new(DiscardedAnswers), transform, in_flight, room)
}

fn service_for(
    answers: Arc<dyn AnswerSink>,
    transform: Arc<dyn Transform>,
    in_flight: u64,
    room: Pool,
) -> Service {
    let client = Client::new(AccessPolicy::default()).unwrap();
    let mut limits = Limits::derive(512 << 20).unwrap().outcalls;
    limits.in_flight = in_flight;
    Service::new(client, (transform, answers), (limits, room), Principal::anonymous())
}

fn idle() -> Arc<dyn Transform> {
    Arc::new(FailingTransform(NotTransformed::Trouble("none".into()), AtomicU32::new(0)))
}

fn open(callers: &[u8]) -> Open {
    let numbered = (0..).map(OutcallId).zip(callers);
    numbered.map(|(id, number)| (id, StateArc::new(outcall(*number)))).collect()
}

/// Callers of started requests. None of them runs before this task waits.
fn active_callers(active: &ActiveRequests) -> Vec<u8> {
    active.requests.values().map(|request| request.caller.as_slice()[0]).collect()
}

// Promise: P12 - A canister has at most a quarter of the slots.
#[tokio::test]
async fn canister_has_at_most_a_quarter_of_the_slots() {
    let service = service(idle(), 8, Pool::standalone("outcalls", 1 << 30));
    let mut active = ActiveRequests::default();
    // The first asked before all others, and for more than there is.
    assert!(!service.start_requests(&open(&[1, 1, 1, 1, 1, 1, 1, 1, 1]), &mut active));
    assert_eq!(active_callers(&active), [1, 1]);
    let open = open(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4, 5, 5]);
    assert!(!service.start_requests(&open, &mut active));
    assert_eq!(active_callers(&active), [1, 1, 2, 2, 3, 4, 5, 5]);
}

#[tokio::test]
async fn canister_has_at_most_a_quarter_of_the_memory_while_others_wait() {
    let one = bytes_held(&outcall(1));
    let service = service(idle(), 100, Pool::standalone("outcalls", 8 * one));
    let mut active = ActiveRequests::default();
    service.start_requests(&open(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3]), &mut active);
    let [first, second, third] = [1, 2, 3]
        .map(|number| active_callers(&active).iter().filter(|caller| **caller == number).count());
    assert_eq!((first, second, third), (2, 2, 1));
    let few = Pool::standalone("outcalls", one);
    let service = self::service(idle(), 1, few);
    let mut active = ActiveRequests::default();
    service.start_requests(&open(&[1, 1, 2]), &mut active);
    assert_eq!(active_callers(&active), [1], "one in any case");
}

// Promise: P12 - A request starts only with its memory reserved.
#[tokio::test]
async fn request_without_memory_starts_after_the_sink_releases_some() {
    let one = bytes_held(&outcall(1));
    let room = Pool::standalone("outcalls", one);
    let answers = Arc::new(AnswerRecorder::default());
    *answers.extra_memory.lock().unwrap() = Some(room.try_reserve(1).unwrap());
    let service = service_for(answers, idle(), 4, room);
    let mut active = ActiveRequests::default();
    assert!(service.start_requests(&open(&[1]), &mut active));
    assert_eq!(active_callers(&active), [1]);
}

#[tokio::test]
async fn reject_with_a_long_host_name_is_within_the_agreed_size() {
    let room = Pool::standalone("outcalls", 1 << 20);
    let answers = Arc::new(AnswerRecorder::default());
    let service = service_for(answers.clone(), idle(), 4, room.clone());
    let slot = RequestSlot::acquire(service.0.clone(), Arc::default());
    let mut long = outcall(1);
    long.url = format!("https://{}", "a".repeat(state::OUTCALL_REJECT_BYTES_MAX - 8));
    slot.run(OutcallId(1), &StateArc::new(long), room.try_reserve(1 << 20).unwrap()).await;
    let answers = answers.answers.lock().unwrap();
    let state::Payload::Reject(reject) = &answers[0].payload else { panic!("a reply") };
    assert!(answers[0].is_within(0), "{} bytes", reject.message.len());
    assert!(reject.message.starts_with("Connecting to aaa"), "{}", &reject.message[..40]);
}

/// Meets a defect.
struct PanickingTransform;

impl Transform for PanickingTransform {
    fn transform(
        &self,
        _: (CanisterId, Height),
        _: &str,
        _: Vec<u8>,
    ) -> Result<Vec<u8>, NotTransformed> {
        panic!("as configured")
    }
}

#[tokio::test]
async fn a_transform_that_meets_a_defect_is_no_answer_and_keeps_its_memory() {
    let room = Pool::standalone("outcalls", 1 << 20);
    let service = service(Arc::new(PanickingTransform), 4, room.clone());
    let slot = RequestSlot::acquire(service.0.clone(), Arc::default());
    let transform = OutcallTransform { method_name: "t".into(), context: vec![] };
    let mut held = room.try_reserve(100).unwrap();
    let result = slot.transform(OutcallId(1), &outcall(1), &transform, vec![], &mut held).await;
    assert_eq!((result, held.bytes(), room.used_bytes()), (None, 100, 100));
}

#[tokio::test]
async fn a_transform_whose_workers_end_twice_is_no_answer_and_is_not_tried_again() {
    let failing =
        Arc::new(FailingTransform(NotTransformed::Died("killed".into()), AtomicU32::new(0)));
    let room = Pool::standalone("outcalls", 1 << 20);
    let service = service(failing.clone(), 4, room.clone());
    let slot = RequestSlot::acquire(service.0.clone(), Arc::default());
    let transform = OutcallTransform { method_name: "t".into(), context: vec![] };
    let mut held = room.try_reserve(100).unwrap();
    let result = slot.transform(OutcallId(1), &outcall(1), &transform, vec![], &mut held).await;
    assert_eq!((result, failing.1.load(Relaxed)), (None, DEATHS_MAX));
    assert_eq!(held.bytes(), 100);
}
