#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;
use crate::{ErrorCode, RejectCode};

const SECOND: u64 = NANOS_PER_SECOND;

fn id(number: u64) -> RequestId {
    RequestId(crate::tree::leaf_digest(&number.to_le_bytes()))
}

fn call(number: u64, expiry_seconds: u64) -> Ingress {
    Ingress {
        request_id: id(number),
        sender: Principal::self_authenticating([1; 44]),
        canister_id: Principal::from_slice(&[1, 1]),
        effective_canister_id: Principal::from_slice(&[1, 1]),
        method_name: "go".into(),
        arg: vec![],
        ingress_expiry: Time(expiry_seconds * SECOND + 5),
        sender_info: None,
    }
}

fn reject() -> Reject {
    Reject {
        code: RejectCode::CanisterReject,
        message: "not today".into(),
        error_code: ErrorCode(406),
    }
}

fn limits(bytes_max: u64) -> HistoryLimits {
    HistoryLimits { bytes_max, unfinished_max: 50 }
}

fn at(seconds: u64) -> Time {
    Time(seconds * SECOND)
}

fn status(history: &IngressHistory, number: u64) -> Option<&'static str> {
    history.get(&id(number)).map(|entry| entry.status.name())
}

#[test]
fn a_call_goes_forward_only() {
    let mut history = IngressHistory::new(limits(1 << 20));
    history.receive(&call(1, 100), at(1)).unwrap();
    assert_eq!(history.receive(&call(1, 100), at(1)), Err(HistoryError::Known(id(1))));
    assert_eq!(history.unfinished(), 1);
    history.processing(&id(1));
    assert_eq!(status(&history, 1), Some("processing"));
    assert!(history.finish(&id(1), Ok(vec![1, 2]), at(2)));
    assert!(!history.finish(&id(1), Err(reject()), at(3)), "already answered");
    history.processing(&id(1));
    assert_eq!(history.get(&id(1)).unwrap().status, Status::Replied(vec![1, 2]));
    assert!(!history.finish(&id(2), Ok(vec![]), at(3)), "unknown");
    assert_eq!(history.unfinished(), 0);
    assert_eq!(history.take_finished(), [id(1)]);
    assert!(history.take_finished().is_empty());
}

#[test]
fn a_call_stays_until_its_expiry_and_its_response_a_while() {
    let mut history = IngressHistory::new(limits(1 << 20));
    // Answered at 2 and expiring just after 1,000: its expiry decides. Expiring just after 10: the
    // retention does.
    history.receive(&call(1, 1_000), at(1)).unwrap();
    history.receive(&call(2, 10), at(1)).unwrap();
    history.receive(&call(3, 10), at(1)).unwrap();
    history.finish(&id(1), Ok(vec![]), at(2));
    history.finish(&id(2), Ok(vec![]), at(2));
    assert_eq!(history.expire(at(301)), 0);
    assert_eq!(history.expire(at(302)), 1);
    assert_eq!(status(&history, 2), None);
    assert_eq!(history.expire(at(1_000)), 0, "the expiry is five nanoseconds later");
    assert_eq!(history.expire(at(1_001)), 1);
    assert_eq!(status(&history, 3), Some("received"), "never while unanswered");
    history.finish(&id(3), Err(reject()), at(1_001));
    assert_eq!(history.expire(at(1_300)), 0);
    assert_eq!(history.expire(at(1_301)), 1);
    assert!(history.is_empty());
    assert_eq!(history.bytes(), 0);
}

#[test]
fn a_call_that_could_still_be_inducted_is_still_known() {
    let mut history = IngressHistory::new(limits(1 << 20));
    let mut expiring = call(1, 500);
    expiring.ingress_expiry = at(500);
    history.receive(&expiring, at(1)).unwrap();
    history.finish(&id(1), Ok(vec![]), at(2));
    assert_eq!(history.expire(at(500)), 0, "at its expiry");
    assert_eq!(history.expire(at(501)), 1);
}

#[test]
fn the_oldest_responses_go_when_room_is_needed() {
    let mut history = IngressHistory::new(limits(90_000));
    for number in 0..10 {
        history.receive(&call(number, if number == 1 { 10 } else { 1_000 }), at(1)).unwrap();
    }
    for number in 0..10 {
        // Answered in the order 1, 0, 3, 2, ...
        history.finish(&id(number ^ 1), Ok(vec![0; 10_000]), at(20 + number));
        assert!(history.bytes() <= 90_000);
    }
    // Room for eight large replies. The first went as soon as it had to; its expiry had passed, so
    // it left altogether.
    assert_eq!(status(&history, 1), None);
    assert_eq!(status(&history, 0), Some("done"));
    assert_eq!(status(&history, 3), Some("replied"));
    assert_eq!(status(&history, 9), Some("replied"));
    assert_eq!(status(&history, 8), Some("replied"));
    // Replay of a call whose response is gone is still seen.
    assert_eq!(history.receive(&call(0, 1_000), at(30)), Err(HistoryError::Known(id(0))));
}

#[test]
fn a_reply_larger_than_the_whole_history_is_let_go_at_once() {
    let mut history = IngressHistory::new(limits(10_000));
    history.receive(&call(1, 1_000), at(1)).unwrap();
    assert!(history.finish(&id(1), Ok(vec![0; 1 << 20]), at(2)));
    assert_eq!(status(&history, 1), Some("done"));
    assert!(history.bytes() <= 10_000);
}

#[test]
fn refusals_name_the_limit() {
    let mut history = IngressHistory::new(limits(ENTRY_BYTES * 16));
    for number in 0..14 {
        history.receive(&call(number, 1_000), at(1)).unwrap();
        history.finish(&id(number), Ok(vec![]), at(1));
    }
    let refusal = history.receive(&call(14, 1_000), at(1)).unwrap_err();
    assert_eq!(refusal, HistoryError::Full { used: ENTRY_BYTES * 14, limit: ENTRY_BYTES * 14 });
    assert!(refusal.to_string().contains("ingress_history_bytes"));
    let mut history = IngressHistory::new(HistoryLimits { bytes_max: 1 << 20, unfinished_max: 1 });
    history.receive(&call(1, 1_000), at(1)).unwrap();
    assert_eq!(history.receive(&call(2, 1_000), at(1)), Err(HistoryError::UnfinishedFull(1)));
    assert_eq!(history.room(), Err(HistoryError::UnfinishedFull(1)));
}

#[test]
fn a_checkpoint_holds_what_changed_since_the_last_saved_one() {
    let mut history = IngressHistory::new(limits(1 << 20));
    (0..5).for_each(|number| history.receive(&call(number, 10), at(1)).unwrap());
    let ids = |changes: &HistoryChanges| {
        let mut ids: Vec<_> = changes
            .iter()
            .map(|change| {
                let (id, record) = change.unwrap();
                (id, record.is_some())
            })
            .collect();
        ids.sort();
        ids
    };
    let sorted = |mut ids: Vec<_>| {
        ids.sort();
        ids
    };
    let failed = history.begin_checkpoint();
    assert_eq!(ids(&failed).len(), 5);
    drop(failed);
    history.finish(&id(0), Ok(vec![1]), at(2));
    let saved = history.begin_checkpoint();
    // Changes after the snapshot belong to the next.
    history.finish(&id(1), Ok(vec![1]), at(3));
    assert_eq!(ids(&saved).len(), 5, "what the failed one held is still to be saved");
    history.finish_checkpoint(saved);
    history.finish(&id(2), Ok(vec![1]), at(3));
    history.expire(at(302));
    let next = history.begin_checkpoint();
    assert_eq!(ids(&next), sorted(vec![(id(0), false), (id(1), true), (id(2), true)]));
    history.finish_checkpoint(next);
    assert!(ids(&history.begin_checkpoint()).is_empty());
}

#[test]
fn records_of_another_call_or_with_a_tail_are_refused() {
    let mut history = IngressHistory::new(limits(1 << 20));
    history.receive(&call(1, 10), at(1)).unwrap();
    let record = history.get(&id(1)).unwrap().to_record().unwrap();
    assert!(HistoryEntry::from_record(id(1), &record).is_ok());
    assert!(HistoryEntry::from_record(id(2), &record).is_err());
    assert!(HistoryEntry::from_record(id(1), &[record.as_slice(), &[0]].concat()).is_err());
    assert!(HistoryEntry::from_record(id(1), &[]).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Receive(u64, u64),
    Processing(u64),
    Reply(u64, usize),
    Reject(u64),
    Pass(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0u64..30;
    prop_oneof![
        4 => (number.clone(), 0u64..400).prop_map(|(number, expiry)| Step::Receive(number, expiry)),
        1 => number.clone().prop_map(Step::Processing),
        4 => (number.clone(), 0usize..3_000).prop_map(|(number, bytes)| Step::Reply(number, bytes)),
        1 => number.prop_map(Step::Reject),
        2 => (1u64..200).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn restarts_change_nothing_and_limits_hold(steps in prop::collection::vec(step(), 0..120)) {
        let limits = HistoryLimits { bytes_max: 16 * ENTRY_BYTES, unfinished_max: 8 };
        // One never restarts; the other is saved and loaded now and then, by changes alone.
        let (mut steady, mut restarted) = (IngressHistory::new(limits), IngressHistory::new(limits));
        let mut saved = std::collections::BTreeMap::new();
        let mut now = 1;
        for step in steps {
            if let Step::Restart = step {
                let changes = restarted.begin_checkpoint();
                for (id, record) in changes.iter().map(Result::unwrap) {
                    match record {
                        Some(record) => drop(saved.insert(id, record)),
                        None => drop(saved.remove(&id)),
                    }
                }
                let records = saved.iter().map(|(id, record)| Ok::<_, HistoryError>((*id, record.clone())));
                restarted = IngressHistory::load(limits, records).unwrap();
                continue;
            }
            if let Step::Pass(seconds) = step {
                now += seconds;
            }
            let [first, second] = [&mut steady, &mut restarted].map(|history| match step {
                Step::Receive(number, expiry) => history.receive(&call(number, now + expiry), at(now)).is_ok(),
                Step::Processing(number) => {
                    history.processing(&id(number));
                    true
                }
                Step::Reply(number, bytes) => history.finish(&id(number), Ok(vec![0; bytes]), at(now)),
                Step::Reject(number) => history.finish(&id(number), Err(reject()), at(now)),
                Step::Pass(_) => history.expire(at(now)) > 0,
                Step::Restart => true,
            });
            prop_assert_eq!(first, second);
            prop_assert_eq!(steady.seal(), restarted.seal());
            prop_assert_eq!(steady.unfinished(), restarted.unfinished());
            prop_assert_eq!(steady.bytes(), restarted.bytes());
            prop_assert!(steady.bytes() <= limits.bytes_max);
            prop_assert!(steady.unfinished() <= limits.unfinished_max);
            let bytes: u64 = steady.iter().map(|entry| ENTRY_BYTES + entry.status.response_bytes()).sum();
            prop_assert_eq!(steady.bytes(), bytes);
            let unfinished = steady.iter().filter(|entry| !entry.status.is_terminal()).count() as u64;
            prop_assert_eq!(steady.unfinished(), unfinished);
        }
    }

    #[test]
    fn records_that_are_not_ours_never_panic(mut record in prop::collection::vec(any::<u8>(), 0..200), flips in prop::collection::vec((any::<u16>(), any::<u8>()), 0..6)) {
        let _ = HistoryEntry::from_record(id(1), &record);
        let mut history = IngressHistory::new(limits(1 << 20));
        history.receive(&call(1, 10), at(1)).unwrap();
        history.finish(&id(1), Err(reject()), at(1));
        record = history.get(&id(1)).unwrap().to_record().unwrap();
        for (at, byte) in flips {
            let length = record.len();
            record[usize::from(at) % length] = byte;
        }
        if let Ok(entry) = HistoryEntry::from_record(id(1), &record) {
            // Whatever decodes can be used.
            let mut history = IngressHistory::load(limits(1_000), [Ok::<_, HistoryError>((id(1), entry.to_record().unwrap()))]).unwrap();
            history.seal();
            history.expire(Time(u64::MAX));
        }
    }
}

#[test]
fn the_room_that_is_told_is_the_room_there_is() {
    let mut history =
        IngressHistory::new(HistoryLimits { bytes_max: 20 * ENTRY_BYTES, unfinished_max: 5 });
    for number in 0.. {
        let told = history.room_calls();
        let received = history.receive(&call(number, 100), at(1));
        assert_eq!(received.is_ok(), told > 0, "{number}: {told}");
        match received {
            Ok(()) if number % 2 == 0 => assert!(history.finish(&id(number), Ok(vec![]), at(1))),
            Ok(()) => {}
            Err(_) => break,
        }
    }
    assert_eq!(history.unfinished(), 5);
}

#[test]
fn above_a_quarter_of_the_cap_answers_leave_when_their_call_has_expired() {
    let mut history = IngressHistory::new(limits(40 * ENTRY_BYTES));
    for number in 0..20 {
        history.receive(&call(number, 50 + number), at(1)).unwrap();
        history.finish(&id(number), Ok(vec![]), at(2 + number));
    }
    // No call has expired.
    assert_eq!(history.expire(at(50)), 0);
    // Four have; they may go.
    assert_eq!(history.expire(at(54)), 4);
    assert_eq!(status(&history, 3), None);
    assert_eq!(status(&history, 4), Some("replied"));
    // Down to a quarter; the others are kept for clients that still poll.
    assert_eq!(history.expire(at(200)), 6);
    assert_eq!(history.len(), 10);
    assert_eq!(history.expire(at(400)), 10);
}
