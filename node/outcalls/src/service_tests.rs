#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicU32;

use limits::Limits;
use state::{CallbackId, Origin, OutcallMethod, Time};

use super::*;
use crate::Allowed;

/// Ends every transform with the configured result.
struct Told(NotTransformed, AtomicU32);

impl Transform for Told {
    fn transform(
        &self,
        (_, since): (CanisterId, Height),
        _: &str,
        _: &[u8],
    ) -> Result<Vec<u8>, NotTransformed> {
        assert_eq!(since, Height(1));
        self.1.fetch_add(1, Relaxed);
        Err(self.0.clone())
    }
}

struct Nobody;

impl Answers for Nobody {
    fn answer(&self, _: OutcallAnswer, _: Reservation) {}

    fn make_room(&self, _: u64) {}
}

/// Keeps the answers, and releases its extra memory when a request needs it.
#[derive(Default)]
struct Kept {
    answers: Mutex<Vec<OutcallAnswer>>,
    besides: Mutex<Option<Reservation>>,
}

impl Answers for Kept {
    fn answer(&self, answer: OutcallAnswer, _: Reservation) {
        self.answers.lock().unwrap().push(answer);
    }

    fn make_room(&self, _: u64) {
        drop(self.besides.lock().unwrap().take());
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
        node: None,
        height: Height(1),
    }
}

fn service(transform: Arc<dyn Transform>, in_flight: u64, room: Pool) -> Service {
    service_for(Arc::new(Nobody), transform, in_flight, room)
}

fn service_for(
    answers: Arc<dyn Answers>,
    transform: Arc<dyn Transform>,
    in_flight: u64,
    room: Pool,
) -> Service {
    let client = Client::new(Allowed::default()).unwrap();
    let mut limits = Limits::derive(512 << 20).unwrap().outcalls;
    limits.in_flight = in_flight;
    Service::new(client, (transform, answers), (limits, room), Principal::anonymous())
}

fn idle() -> Arc<dyn Transform> {
    Arc::new(Told(NotTransformed::Trouble("none".into()), AtomicU32::new(0)))
}

fn open(callers: &[u8]) -> Open {
    let numbered = (0..).map(OutcallId).zip(callers);
    numbered.map(|(id, number)| (id, Shared::new(outcall(*number)))).collect()
}

/// Callers of started requests. None of them runs before this task waits.
fn begun(begins: &Begins) -> Vec<u8> {
    begins.begun.values().map(|begun| begun.caller.as_slice()[0]).collect()
}

// Promise: P12 - A canister has at most a quarter of the places.
#[tokio::test]
async fn a_canister_has_a_quarter_of_the_places_and_each_its_turn() {
    let service = service(idle(), 8, Pool::standalone("outcalls", 1 << 30));
    let mut begins = Begins::default();
    // The first asked before all others, and for more than there is.
    assert!(!service.begin(&open(&[1, 1, 1, 1, 1, 1, 1, 1, 1]), &mut begins));
    assert_eq!(begun(&begins), [1, 1]);
    let open = open(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4, 5, 5]);
    assert!(!service.begin(&open, &mut begins));
    assert_eq!(begun(&begins), [1, 1, 2, 2, 3, 4, 5, 5]);
}

#[tokio::test]
async fn a_canister_has_a_quarter_of_the_room_while_others_wait() {
    let one = bytes_held(&outcall(1));
    let service = service(idle(), 100, Pool::standalone("outcalls", 8 * one));
    let mut begins = Begins::default();
    service.begin(&open(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3]), &mut begins);
    let [first, second, third] =
        [1, 2, 3].map(|number| begun(&begins).iter().filter(|caller| **caller == number).count());
    assert_eq!((first, second, third), (2, 2, 1));
    let few = Pool::standalone("outcalls", one);
    let service = self::service(idle(), 1, few);
    let mut begins = Begins::default();
    service.begin(&open(&[1, 1, 2]), &mut begins);
    assert_eq!(begun(&begins), [1], "one in any case");
}

// Promise: P12 - A request starts only with its memory reserved.
#[tokio::test]
async fn a_request_takes_the_room_of_what_can_go() {
    let one = bytes_held(&outcall(1));
    let room = Pool::standalone("outcalls", one);
    let answers = Arc::new(Kept::default());
    *answers.besides.lock().unwrap() = Some(room.try_reserve(1).unwrap());
    let service = service_for(answers, idle(), 4, room);
    let mut begins = Begins::default();
    assert!(service.begin(&open(&[1]), &mut begins));
    assert_eq!(begun(&begins), [1]);
}

#[tokio::test]
async fn a_failure_with_a_long_name_is_an_answer() {
    let room = Pool::standalone("outcalls", 1 << 20);
    let answers = Arc::new(Kept::default());
    let service = service_for(answers.clone(), idle(), 4, room.clone());
    let place = Place::take(service.0.clone(), Arc::default());
    let mut long = outcall(1);
    long.url = format!("https://{}", "a".repeat(state::OUTCALL_REJECT_BYTES_MAX - 8));
    place.make(OutcallId(1), &Shared::new(long), room.try_reserve(1 << 20).unwrap()).await;
    let answers = answers.answers.lock().unwrap();
    let state::Payload::Reject(reject) = &answers[0].payload else { panic!("a reply") };
    assert!(answers[0].is_within(0), "{} bytes", reject.message.len());
    assert!(reject.message.starts_with("Connecting to aaa"), "{}", &reject.message[..40]);
}

/// Meets a defect.
struct Panics;

impl Transform for Panics {
    fn transform(
        &self,
        _: (CanisterId, Height),
        _: &str,
        _: &[u8],
    ) -> Result<Vec<u8>, NotTransformed> {
        panic!("as configured")
    }
}

#[tokio::test]
async fn a_transform_that_meets_a_defect_is_no_answer_and_keeps_its_memory() {
    let room = Pool::standalone("outcalls", 1 << 20);
    let service = service(Arc::new(Panics), 4, room.clone());
    let place = Place::take(service.0.clone(), Arc::default());
    let transform = OutcallTransform { method_name: "t".into(), context: vec![] };
    let mut held = room.try_reserve(100).unwrap();
    let arg: Arc<[u8]> = vec![].into();
    let result = place.transform(OutcallId(1), &outcall(1), &transform, arg, &mut held).await;
    assert_eq!((result, held.bytes(), room.used_bytes()), (None, 100, 100));
}

#[tokio::test]
async fn a_transform_whose_workers_end_twice_is_no_answer_and_is_not_tried_again() {
    let told = Arc::new(Told(NotTransformed::Died("killed".into()), AtomicU32::new(0)));
    let room = Pool::standalone("outcalls", 1 << 20);
    let service = service(told.clone(), 4, room.clone());
    let place = Place::take(service.0.clone(), Arc::default());
    let transform = OutcallTransform { method_name: "t".into(), context: vec![] };
    let mut held = room.try_reserve(100).unwrap();
    let arg: Arc<[u8]> = vec![].into();
    let result = place.transform(OutcallId(1), &outcall(1), &transform, arg, &mut held).await;
    assert_eq!((result, told.1.load(Relaxed)), (None, DEATHS_MAX));
    assert_eq!(held.bytes(), 100);
}
