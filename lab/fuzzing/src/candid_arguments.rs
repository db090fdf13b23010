//! Candid arguments of clients and canisters: any bytes are refused or read within a bounded number
//! of steps and in memory in proportion to the bytes, and what the library reads passed the check.

use candid::{CandidType, Deserialize, Principal};
use envelope::candid_wire::{
    Bounds, Cost, FIELDS_MAX, STEPS_MAX, TYPES_MAX, VectorBound, decode, decode_nothing,
    principal_in,
};

use crate::allocated::within;

const VECTORS: &[VectorBound] = &[
    VectorBound::new("controllers", 10, Some("subnet.controllers_max")),
    VectorBound::new("environment_variables", 20, None),
    VectorBound::new("allowed_viewers", 10, None),
];
const BOUNDS: Bounds<'_> = Bounds { vectors: VECTORS };
/// Types, fields and values.
const ALL_STEPS_MAX: u64 = STEPS_MAX + (TYPES_MAX + FIELDS_MAX) as u64;
/// Fixed memory of reading, for any message: types and fields here and in the library.
const BESIDE_BYTES: usize = 4 << 20;

#[derive(CandidType, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(CandidType, Deserialize)]
#[allow(non_camel_case_types)]
enum Visibility {
    controllers,
    public,
    allowed_viewers(Vec<Principal>),
}

candid::define_function!(Transform : (Variable) -> (Variable) query);

#[derive(CandidType, Deserialize)]
struct Argument {
    canister_id: Option<Principal>,
    controllers: Option<Vec<Principal>>,
    compute_allocation: Option<candid::Nat>,
    environment_variables: Option<Vec<Variable>>,
    log_visibility: Option<Visibility>,
    wasm_module: Option<serde_bytes::ByteBuf>,
    transform: Option<Transform>,
}

pub(crate) fn test_one_input(message: &[u8]) {
    within(BESIDE_BYTES + 4 * message.len(), || {
        let mut cost = Cost::default();
        let walked = decode_nothing(message, BOUNDS, &mut cost);
        assert!(cost.steps <= ALL_STEPS_MAX && cost.bytes == message.len() as u64);
        if let Err(refusal) = &walked {
            assert!(refusal.to_string().len() < 300);
        }
        let read = decode::<Argument>(message, BOUNDS, &mut cost);
        assert!(read.is_err() || walked.is_ok());
        let id = principal_in(message, "canister_id", Bounds::default(), &mut cost);
        assert!(id.is_err() || message.starts_with(b"DIDL"));
    });
}
