//! Programs for the universal canister (`canisters/universal-c`) that make it call any method of
//! any canister with any bytes.

use candid::Principal;

/// Operations of the universal canister, and its imported functions by number.
const INT: u8 = 1;
const BYTES: u8 = 2;
const SPLIT: u8 = 3;
const ROOM: u8 = 5;
const COPY: u8 = 6;
const SWAP: u8 = 8;
const CONCAT: u8 = 9;
const TO_BYTES: u8 = 10;
const IF: u8 = 15;
const CALLBACK: u8 = 21;
const IMPORTS: u8 = 64;
const REJECT_CODE: u8 = IMPORTS + 8;
const REJECT_MESSAGE_SIZE: u8 = IMPORTS + 9;
const REJECT_MESSAGE_COPY: u8 = IMPORTS + 10;
const REPLY_APPEND: u8 = IMPORTS + 12;
const REPLY: u8 = IMPORTS + 13;
const CALL_NEW: u8 = IMPORTS + 30;
const CALL_APPEND: u8 = IMPORTS + 32;
const CALL_CYCLES: u8 = IMPORTS + 34;
const CALL_PERFORM: u8 = IMPORTS + 35;
const TRAP: u8 = IMPORTS + 64;

#[derive(Default)]
struct Program(Vec<u8>);

impl Program {
    fn push(mut self, operations: &[u8]) -> Self {
        self.0.extend(operations);
        self
    }

    fn int(self, value: u64) -> Self {
        self.push(&[INT]).push(&value.to_le_bytes())
    }

    fn sized(self, operation: u8, bytes: &[u8]) -> Self {
        self.push(&[operation]).push(&(bytes.len() as u32).to_le_bytes()).push(bytes)
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        self.sized(BYTES, bytes)
    }
}

/// First byte of what the canister replies: the callee replied, or rejected (then eight bytes of
/// code and the message follow, so that both are a part of the certified state).
pub(super) const REPLIED: u8 = b'r';
pub(super) const REJECTED: u8 = b'j';

/// The argument with which the universal canister calls `method` of `callee`.
pub(super) fn call(callee: &Principal, method: &str, argument: &[u8], cycles: u64) -> Vec<u8> {
    let replied = Program::default().bytes(&[REPLIED]).push(&[SPLIT, REPLY_APPEND, REPLY]);
    let message = [REJECT_MESSAGE_SIZE, ROOM, COPY, 0, SPLIT];
    let rejected = Program::default()
        .bytes(&[REJECTED])
        .push(&[REJECT_CODE, TO_BYTES, CONCAT])
        .push(&message)
        .int(0)
        .push(&[SWAP, REJECT_MESSAGE_COPY, CONCAT, SPLIT, REPLY_APPEND, REPLY]);
    let refused = Program::default().bytes(b"the call could not be made").push(&[SPLIT, TRAP]);
    Program::default()
        .bytes(callee.as_slice())
        .push(&[SPLIT])
        .bytes(method.as_bytes())
        .push(&[SPLIT])
        .bytes(&replied.0)
        .push(&[CALLBACK])
        .bytes(&rejected.0)
        .push(&[CALLBACK, CALL_NEW])
        .bytes(argument)
        .push(&[SPLIT, CALL_APPEND])
        .int(0)
        .int(cycles)
        .push(&[CALL_CYCLES, CALL_PERFORM])
        .sized(IF, &refused.0)
        .0
}
