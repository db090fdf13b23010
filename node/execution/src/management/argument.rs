//! Arguments of management calls: one bound for each list that an argument has, and the reject for
//! what is refused.
//!
//! Every argument is read by [`envelope::candid_wire`], which charges for it whether it is accepted
//! or not. No text of a library becomes part of a reject.

use candid::{CandidType, Principal};
use envelope::candid_wire::{self, Bounds, Cost, Refusal, VectorBound};
use limits::Limits;
use serde::de::DeserializeOwned;
use state::Reject;

use super::install::CHUNKS_MAX;
use super::outcalls::HEADERS_MAX;
use super::settings::{ENVIRONMENT_VARIABLES_MAX, VIEWERS_MAX};
use crate::reject;

const CONTROLLERS: &str = "controllers";
const ENVIRONMENT_VARIABLES: &str = "environment_variables";
const VIEWERS: &str = "allowed_viewers";
const HEADERS: &str = "headers";
const CHUNKS: &str = "chunk_hashes_list";
const GLOBALS: &str = "globals";

/// Bounds of all lists in arguments of the management canister.
fn vectors(limits: &Limits) -> [VectorBound; 6] {
    let (controllers, globals) = (limits.subnet.controllers_max, limits.module.globals);
    [
        VectorBound::new(CONTROLLERS, controllers, Some("subnet.controllers_max")),
        VectorBound::new(ENVIRONMENT_VARIABLES, ENVIRONMENT_VARIABLES_MAX as u64, None),
        VectorBound::new(VIEWERS, VIEWERS_MAX as u64, None),
        VectorBound::new(HEADERS, HEADERS_MAX as u64, None),
        VectorBound::new(CHUNKS, CHUNKS_MAX as u64, None),
        VectorBound::new(GLOBALS, globals, Some("module.globals")),
    ]
}

/// Decodes an argument. The cost of reading it is added to `cost` in any case.
pub(crate) fn decode<T: CandidType + DeserializeOwned>(
    limits: &Limits,
    arg: &[u8],
    cost: &mut Cost,
) -> Result<T, Reject> {
    let vectors = vectors(limits);
    candid_wire::decode(arg, Bounds { vectors: &vectors }, cost).map_err(refused)
}

/// Checks the argument of a method that takes none; arguments that there are have no effect.
pub(super) fn decode_nothing(limits: &Limits, arg: &[u8], cost: &mut Cost) -> Result<(), Reject> {
    let vectors = vectors(limits);
    candid_wire::decode_nothing(arg, Bounds { vectors: &vectors }, cost).map_err(refused)
}

/// The principal in a field of an argument.
pub(super) fn principal_in(
    limits: &Limits,
    field: &'static str,
    arg: &[u8],
    cost: &mut Cost,
) -> Result<Principal, Reject> {
    let vectors = vectors(limits);
    candid_wire::principal_in(arg, field, Bounds { vectors: &vectors }, cost).map_err(refused)
}

/// The reject of a refusal: lists that are too long have the codes and texts of their fields.
fn refused(refusal: Refusal) -> Reject {
    let Refusal::Vector { field, found, most, limit } = &refusal else {
        return reject::invalid_payload(format!("The argument cannot be decoded: {refusal}."));
    };
    match *field {
        CONTROLLERS => {
            reject::invalid_payload(format!("{found} controllers, the most is {most}{limit}."))
        }
        ENVIRONMENT_VARIABLES => {
            reject::invalid_payload(format!("{found} environment variables, the most is {most}."))
        }
        HEADERS => {
            reject::rejected_message(format!("{found} http headers exceed the limit of {most}"))
        }
        CHUNKS => reject::contract_violation(format!("{found} chunks, the most is {most}.")),
        GLOBALS => reject::contract_violation(format!(
            "The number of globals is {found}, the most is {most}{limit}."
        )),
        _ => reject::invalid_payload(format!("{refusal}.")),
    }
}
