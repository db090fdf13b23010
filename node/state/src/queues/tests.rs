//! Order, time and bytes of queues, and that they are restored from their records unchanged.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{CallbackId, CanisterState, Payload, RequestId, Settings};

fn canister(number: u8) -> Principal {
    Principal::from_slice(&[number, 1])
}

fn request(sender: u8, number: u64, deadline: Option<Time>) -> StateArc<CallRequest> {
    request_of(sender, number, deadline, 10)
}

fn request_of(
    sender: u8,
    number: u64,
    deadline: Option<Time>,
    bytes: usize,
) -> StateArc<CallRequest> {
    StateArc::new(CallRequest {
        sender: canister(sender),
        sender_version: 0,
        receiver: canister(0),
        callback: CallbackId(number),
        method_name: "m".into(),
        arg: vec![number as u8; bytes],
        cycles: 0,
        deadline,
    })
}

fn response(number: u64, bytes: usize) -> StateArc<CallResponse> {
    StateArc::new(CallResponse {
        originator: canister(0),
        callback: CallbackId(number),
        payload: Payload::Reply(vec![3; bytes]),
        refund: 0,
        deadline: None,
    })
}

fn ingress(number: u64, expiry: u64, bytes: usize) -> StateArc<Ingress> {
    StateArc::new(Ingress {
        request_id: RequestId(crate::tree::leaf_digest(&number.to_le_bytes())),
        sender: Principal::anonymous(),
        canister_id: canister(0),
        effective_canister_id: canister(0),
        method_name: "m".into(),
        arg: vec![1; bytes],
        ingress_expiry: Time(expiry),
        sender_info: None,
    })
}

/// Puts payloads into files that are never read.
fn store(queues: &mut InputQueues) {
    let write = |number: u64, parts: [&[u8]; 2]| {
        let bytes = (parts[0].len() + parts[1].len()) as u64;
        let leaves = vec![[parts[1][0]; 32]; bytes.div_ceil(256 << 10) as usize];
        let name_bytes = parts[0].len() as u32;
        Ok::<_, ()>(StateArc::new(StoredPayload { number, bytes, name_bytes, leaves }))
    };
    queues.store_payloads(write).unwrap();
}

/// The canister's record, and those of messages apart.
fn stored(queues: &InputQueues) -> (Vec<u8>, BTreeMap<u64, Vec<u8>>) {
    let mut canister = CanisterState::new(canister(0), vec![], Settings::default(), 0, Time(1));
    canister.queues = queues.clone();
    let record = postcard::to_stdvec(&canister).unwrap();
    let apart =
        queues.apart_from(0).map(|(number, message)| (number, message.encode(number).unwrap()));
    (record, apart.collect())
}

fn loaded(record: &[u8], apart: &BTreeMap<u64, Vec<u8>>) -> Result<InputQueues, MessageError> {
    let mut queues = postcard::from_bytes::<CanisterState>(record).unwrap().queues;
    for number in queues.missing().collect::<Vec<_>>() {
        let bytes = apart.get(&number).ok_or(MessageError::Missing(number))?;
        queues.load_record(&canister(0), number, bytes)?;
    }
    queues.finish_loading(u64::MAX, &canister(0))?;
    Ok(queues)
}

#[test]
fn classes_and_senders_are_served_in_turn() {
    let mut queues = InputQueues::default();
    for number in 0..2 {
        queues.push_request(number, request(1, number, None));
    }
    queues.push_request(2, request(2, 10, None));
    queues.push_response(3, response(20, 3));
    queues.push_response(4, response(21, 3));
    let mut order = Vec::new();
    while let Some(input) = queues.pop() {
        order.push(match input {
            Input::Request(request) => request.message().callback.0,
            Input::Response(response) => response.message().callback.0,
            Input::Ingress(_) => unreachable!(),
        });
    }
    assert_eq!(order, [20, 0, 21, 10, 1]);
    assert!(queues.is_empty());
    assert_eq!(queues.guaranteed_bytes, 0);
}

#[test]
fn expired_requests_leave_and_take_their_bytes_along() {
    let mut queues = InputQueues::default();
    queues.push_request(0, request(1, 0, Some(Time(5))));
    queues.push_request(1, request(1, 1, Some(Time(50))));
    queues.push_request(2, request(2, 2, Some(Time(5))));
    queues.push_request(3, request(3, 3, None));
    assert_eq!(queues.remove_expired_requests(Time(6)).len(), 2);
    assert_eq!(queues.best_effort_bytes, request(1, 1, None).accounted_bytes());
    assert_eq!(queues.len(), 2);
    queues.check(&canister(0), 4);
    assert!(
        matches!(queues.pop(), Some(Input::Request(request)) if request.message().callback.0 == 1)
    );
    assert!(
        matches!(queues.pop(), Some(Input::Request(request)) if request.message().callback.0 == 3)
    );
    assert!(queues.pop().is_none());
}

#[test]
fn large_messages_and_what_a_record_has_no_room_for_are_apart() {
    let mut queues = InputQueues::default();
    queues.push_request(0, request_of(1, 0, None, 1 << 20));
    queues.push_request(1, request(1, 1, None));
    queues.push_response(2, response(2, 9_000));
    queues.push_ingress(3, ingress(3, 5, 20_000));
    assert_eq!(queues.apart().map(|gone| gone.0).collect::<Vec<_>>(), [3, 2, 0]);
    assert_eq!(queues.loose_bytes, 20_001 + 9_000 + (1 << 20) + 1);
    store(&mut queues);
    assert_eq!((queues.loose_bytes, queues.payloads().count()), (0, 3));
    for number in 4..1_000 {
        queues.push_request(number, request(1, number, None));
    }
    let (record, apart) = stored(&queues);
    assert!(record.len() < 300_000, "{}", record.len());
    assert!(apart.len() > 10 && apart.len() < 200, "{}", apart.len());
    // Which it is stays when room comes.
    for _ in 0..4 {
        queues.pop().unwrap();
    }
    let before: Vec<_> = queues.apart().collect();
    queues.push_request(1_000, request(1, 1_000, None));
    assert_eq!(queues.apart().collect::<Vec<_>>(), before);
    let gone = [(2, Some(9_000)), (3, Some(20_001)), (0, Some((1 << 20) + 1))];
    assert_eq!(queues.take_gone(), gone);
    queues.check(&canister(0), 1_001);
}

#[test]
fn records_that_do_not_fit_are_refused() {
    let mut queues = InputQueues::default();
    queues.push_request(0, request_of(1, 0, None, 10_000));
    queues.push_response(1, response(2, 9_000));
    store(&mut queues);
    let (record, apart) = stored(&queues);
    loaded(&record, &apart).unwrap().check(&canister(0), 2);
    let with = |number, bytes: Vec<u8>| {
        let mut other = apart.clone();
        other.insert(number, bytes);
        loaded(&record, &other).unwrap_err()
    };
    assert!(matches!(with(0, vec![]), MessageError::Undecodable(0, _)));
    assert_eq!(with(0, apart[&1].clone()), MessageError::Foreign(0));
    let longer = [apart[&1].as_slice(), &[0]].concat();
    assert!(matches!(with(1, longer), MessageError::Undecodable(1, _)));
    fn record_of(request: &CallRequest, payload: Option<&StoredPayload>) -> Vec<u8> {
        WaitingMessage { kind: MessageKind::Request(request), payload }.encode(0).unwrap()
    }
    let foreign = CallRequest { receiver: canister(9), ..(*request(1, 0, None)).clone() };
    assert_eq!(with(0, record_of(&foreign, None)), MessageError::Foreign(0));
    assert_eq!(with(0, record_of(&request(2, 0, None), None)), MessageError::Turns);
    // A payload that is here and in a file, too large to be here, too small for a file, or of
    // another number, name or count of leaves.
    let right = StoredPayload { number: 0, bytes: 9_000, name_bytes: 1, leaves: vec![[7; 32]] };
    let empty = request(1, 0, None).emptied();
    assert!(
        loaded(&record, &{
            let mut other = apart.clone();
            other.insert(0, record_of(&empty, Some(&right)));
            other
        })
        .is_ok()
    );
    assert_eq!(with(0, record_of(&request(1, 0, None), Some(&right))), MessageError::Payload(0));
    let large = request_of(1, 0, None, 9_000);
    assert_eq!(with(0, record_of(&large, None)), MessageError::Payload(0));
    for wrong in [
        StoredPayload { bytes: 7_000, ..right.clone() },
        StoredPayload { number: 1, ..right.clone() },
        StoredPayload { name_bytes: 9_001, ..right.clone() },
        StoredPayload { leaves: vec![[7; 32]; 2], ..right.clone() },
    ] {
        assert_eq!(with(0, record_of(&empty, Some(&wrong))), MessageError::Payload(0));
    }
    let mut less = apart.clone();
    less.remove(&1);
    assert_eq!(loaded(&record, &less).unwrap_err(), MessageError::Missing(1));
    let mut queues = loaded(&record, &apart).unwrap();
    assert_eq!(queues.finish_loading(2, &canister(0)), Ok(()));
    assert_eq!(queues.finish_loading(1, &canister(0)), Err(MessageError::NotGiven(1)));
    assert_eq!(queues.load_record(&canister(0), 7, &apart[&1]), Err(MessageError::Unknown(7)));
}

#[test]
fn small_messages_of_another_and_numbers_yet_to_be_given_are_damage() {
    let pushes: [fn(&mut InputQueues); 3] = [
        |queues| queues.push_request(7, request(1, 0, None)),
        |queues| queues.push_response(7, response(1, 10)),
        |queues| queues.push_ingress(7, ingress(1, 5, 10)),
    ];
    for push in pushes {
        let mut queues = InputQueues::default();
        push(&mut queues);
        let (record, apart) = stored(&queues);
        assert!(apart.is_empty());
        let queues = loaded(&record, &apart).unwrap();
        assert_eq!(queues.finish_loading(8, &canister(0)), Ok(()));
        assert_eq!(queues.finish_loading(7, &canister(0)), Err(MessageError::NotGiven(7)));
        assert_eq!(queues.finish_loading(8, &canister(1)), Err(MessageError::Foreign(7)));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(u8, Option<u64>, usize),
    Response(usize),
    Ingress(u64, usize),
    Pop,
    PopCall,
    Expire(u64),
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![Just(10usize), Just(3_000), Just(9_000)];
    let deadline = prop::option::of(0u64..20);
    prop_oneof![
        4 => (0u8..4, deadline, bytes()).prop_map(|(who, deadline, bytes)| Step::Request(who, deadline, bytes)),
        2 => bytes().prop_map(Step::Response),
        2 => (0u64..20, bytes()).prop_map(|(expiry, bytes)| Step::Ingress(expiry, bytes)),
        3 => Just(Step::Pop),
        1 => Just(Step::PopCall),
        1 => (0u64..20).prop_map(Step::Expire),
        1 => Just(Step::Reload),
    ]
}

proptest! {
    /// A queue that was stored and loaded at any moments continues like one that was not.
    #[test]
    fn a_loaded_queue_goes_on_like_the_one_that_was_stored(
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let (mut stays, mut reloaded) = (InputQueues::default(), InputQueues::default());
        for (step, number) in steps.into_iter().zip(0u64..) {
            let mut both = |work: &dyn Fn(&mut InputQueues) -> Vec<Input>| {
                assert_eq!(work(&mut stays), work(&mut reloaded));
            };
            match step {
                Step::Request(who, deadline, bytes) => both(&|queues| {
                    queues.push_request(number, request_of(who, number, deadline.map(Time), bytes));
                    store(queues);
                    vec![]
                }),
                Step::Response(bytes) => both(&|queues| {
                    queues.push_response(number, response(number, bytes));
                    store(queues);
                    vec![]
                }),
                Step::Ingress(expiry, bytes) => both(&|queues| {
                    queues.push_ingress(number, ingress(number, expiry, bytes));
                    store(queues);
                    vec![]
                }),
                Step::Pop => both(&|queues| queues.pop().into_iter().collect()),
                Step::PopCall => both(&|queues| queues.pop_call().into_iter().collect()),
                Step::Expire(now) => both(&|queues| {
                    let requests = queues.remove_expired_requests(Time(now)).into_iter();
                    let ingress = queues.remove_expired_ingress(Time(now)).into_iter();
                    fn taken<T>(message: StateArc<T>) -> PoppedMessage<T> {
                        PoppedMessage { number: 0, message, payload: None }
                    }
                    let requests = requests.map(taken).map(Input::Request);
                    requests.chain(ingress.map(taken).map(Input::Ingress)).collect()
                }),
                Step::Reload => {
                    let (record, apart) = stored(&reloaded);
                    prop_assert_eq!((&record, &apart), (&stored(&stays).0, &stored(&stays).1));
                    reloaded = loaded(&record, &apart).unwrap();
                }
            }
            stays.check(&canister(0), number + 1);
            reloaded.check(&canister(0), number + 1);
        }
    }
}
