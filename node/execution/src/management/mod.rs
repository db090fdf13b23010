//! The management canister, `aaaaa-aa`: a facade that creates, changes and inspects canisters.
//!
//! Calls wait in one queue of the subnet and are served one at a time between the iterations of a
//! round, before canisters run. A call is answered at once, or it waits for something (a stop,
//! randomness). Attached cycles that the method did not keep are returned.
//!
//! [`Method::for_name`] states for each method who may call it and whether users may; the gateway's
//! check before a call is accepted, the check at induction (which charges the canister) and the
//! call itself use that same table. This module must not know how a round is put together.

mod argument;
mod chunks;
mod create;
pub(crate) mod install;
mod installing;
mod lifecycle;
pub(crate) mod outcalls;
mod overlay;
pub(crate) mod queries;
mod settings;
mod snapshots;
mod status;
pub(crate) mod types;

use std::sync::Once;

use candid::{CandidType, Principal};
use envelope::candid_wire::Cost;
use limits::Limits;
use sandbox::MESSAGE_OVERHEAD_INSTRUCTIONS;
use serde::de::DeserializeOwned;
use state::{
    CanisterId, CanisterState, Change, ChangeDetails, ChangeOrigin, Cycles, Fault, Ingress, Origin,
    Payload, RandomnessWaiter, Reject, ReplicatedState, StateArc, SubnetCall, Time, Visibility,
    state_heap,
};

use crate::config::FatalError;
use crate::core::{Core, RoundFacts};
use crate::message::Effects;
use crate::reject::{self, refused};
use crate::retry::ExecutionPoint;

pub(crate) use argument::decode;
pub(crate) use installing::{Installations, is_scratch};
pub(crate) use lifecycle::{STOP_TIMEOUT_SECONDS, run_out};

/// Installations that may wait because another one is paused.
const LONG_INSTALLS_MAX: usize = 4;
/// Divisor of the room for ingress messages: these may take one such part.
const LONG_INSTALLS_PART: u64 = 8;
/// Instructions a management call counts with in a round, in addition to what it executes.
const CALL_INSTRUCTIONS: u64 = MESSAGE_OVERHEAD_INSTRUCTIONS;

/// The reply without a value.
pub(crate) fn no_value() -> Vec<u8> {
    b"DIDL\0\0".to_vec()
}

pub(crate) fn encode<T: CandidType>(value: &T) -> Result<Vec<u8>, Reject> {
    candid::encode_one(value)
        .map_err(|_| reject::reject(521, "The result has no encoding in Candid."))
}

/// Callers that a method admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Any caller (the method may have rules of its own).
    Anyone,
    Controllers,
    /// Controllers and the canister itself.
    ControllersAndSelf,
    /// Controllers and subnet admins.
    ControllersAndAdmins,
    /// Callers that the canister's `status_visibility` admits, the canister itself, subnet admins.
    StatusViewers,
    /// Callers that the canister's `snapshot_visibility` admits.
    SnapshotViewers,
}

/// The paused messages of the canister that a method names for which its calls wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    /// None.
    Nothing,
    /// Installations: the method changes the data that they are resumed with, or permissions.
    Installation,
    /// Any: the method does that for every message, or the canister pays for it, of cycles that a
    /// message may have spent.
    Message,
}

#[derive(Clone, Copy, Debug)]
struct Method {
    access: Access,
    /// Whether users may call it by an ingress message.
    ingress: bool,
    /// Whether the argument names a canister, which pays the fee and is the effective canister id.
    names_canister: bool,
    awaits: Awaits,
    serve: fn(&mut Dispatcher<'_>, &SubnetCall) -> MethodResult,
}

/// Declares the methods, each served by the function of its name: access, whether users may call
/// it, whether it names a canister, and what its calls wait for.
macro_rules! methods {
    ($($name:ident: $access:ident, $ingress:literal, $names_canister:literal, $awaits:ident;)*) => {
        const METHODS: &[(&str, Method)] = &[$((stringify!($name), Method {
            access: Access::$access,
            ingress: $ingress,
            names_canister: $names_canister,
            awaits: Awaits::$awaits,
            serve: |on: &mut Dispatcher<'_>, call: &SubnetCall| on.$name(call),
        })),*];
    };
}

methods! {
    install_code: Controllers, true, true, Message;
    install_chunked_code: Controllers, true, true, Message;
    update_settings: Controllers, true, true, Message;
    take_canister_snapshot: Controllers, true, true, Message;
    load_canister_snapshot: Controllers, true, true, Message;
    delete_canister_snapshot: Controllers, true, true, Installation;
    upload_canister_snapshot_metadata: Controllers, true, true, Message;
    upload_canister_snapshot_data: Controllers, true, true, Message;
    list_canister_snapshots: SnapshotViewers, true, true, Nothing;
    read_canister_snapshot_metadata: SnapshotViewers, true, true, Nothing;
    read_canister_snapshot_data: SnapshotViewers, true, true, Message;
    upload_chunk: ControllersAndSelf, true, true, Installation;
    stored_chunks: ControllersAndSelf, true, true, Nothing;
    clear_chunk_store: ControllersAndSelf, true, true, Installation;
    start_canister: ControllersAndAdmins, true, true, Installation;
    stop_canister: ControllersAndAdmins, true, true, Installation;
    uninstall_code: ControllersAndAdmins, true, true, Message;
    delete_canister: ControllersAndAdmins, true, true, Message;
    canister_metrics: ControllersAndAdmins, true, true, Nothing;
    canister_status: StatusViewers, true, true, Nothing;
    create_canister: Anyone, true, false, Nothing;
    provisional_create_canister_with_cycles: Anyone, true, false, Nothing;
    provisional_top_up_canister: Anyone, true, true, Nothing;
    canister_info: Anyone, false, true, Nothing;
    canister_metadata: Anyone, false, true, Nothing;
    deposit_cycles: Anyone, false, true, Nothing;
    http_request: Anyone, false, false, Nothing;
    raw_rand: Anyone, false, false, Nothing;
    subnet_info: Anyone, false, false, Nothing;
    node_metrics_history: Anyone, false, false, Nothing;
}

impl Method {
    fn for_name(core: &Core, name: &str) -> Option<Self> {
        let (_, mut method) = *METHODS.iter().find(|(known, _)| *known == name)?;
        let is_off = match name {
            "http_request" => !core.config.outcalls,
            _ => is_provisional(name) && !core.config.provisional,
        };
        // Users create canisters where subnet admins may.
        method.ingress &= name != "create_canister" || !core.config.subnet_admins.is_empty();
        (!is_off).then_some(method)
    }
}

/// Methods of the interface specification that this subnet does not offer, and the reject for a
/// canister that calls one: with the code for a method that is switched off, or for a destination
/// that does not exist.
fn not_offered(core: &Core, name: &str) -> Option<Reject> {
    let (code, what) = match name {
        "http_request" | "flexible_http_request" if !core.config.outcalls => {
            // Once: canisters can repeat the call.
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| {
                tracing::info!(
                    method = name,
                    "a canister asks for an HTTPS outcall and they are off; features.outcalls \
                     (--outcalls) enables them, on all nodes of the subnet"
                );
            });
            (504, "HTTPS outcalls are switched off on this subnet.")
        }
        "flexible_http_request" => (504, "Flexible HTTPS outcalls are not offered."),
        "ecdsa_public_key" | "sign_with_ecdsa" | "schnorr_public_key" | "sign_with_schnorr"
        | "vetkd_public_key" | "vetkd_derive_key" => (301, "This subnet holds no threshold keys."),
        "bitcoin_get_balance"
        | "bitcoin_get_utxos"
        | "bitcoin_send_transaction"
        | "bitcoin_get_current_fee_percentiles"
        | "bitcoin_get_block_headers" => (301, "This subnet has no Bitcoin adapter."),
        _ => return None,
    };
    Some(reject::reject(code, format!("{what} The call of '{name}' cannot be served.")))
}

fn is_provisional(name: &str) -> bool {
    matches!(name, "provisional_create_canister_with_cycles" | "provisional_top_up_canister")
}

/// The refusal of a method that canisters cannot call.
fn unknown_to_canisters(core: &Core, name: &str) -> Reject {
    if is_provisional(name) && !core.config.provisional {
        return reject::not_provisional(name);
    }
    if queries::is_query(name) {
        return reject::not_by_update(name);
    }
    not_offered(core, name).unwrap_or_else(|| reject::unknown_management_method(name))
}

/// The refusal of a method that users cannot call.
fn unknown_to_users(core: &Core, name: &str) -> Reject {
    if Method::for_name(core, name).is_some() || not_offered(core, name).is_some() {
        return reject::not_by_ingress(name);
    }
    unknown_to_canisters(core, name)
}

/// Canister that a user's call is about, by its argument; `None` if the method names none. The cost
/// of reading the argument is added to `cost`.
pub(crate) fn named_canister(
    core: &Core,
    method_name: &str,
    arg: &[u8],
    cost: &mut Cost,
) -> Result<Option<CanisterId>, Reject> {
    match Method::for_name(core, method_name).filter(|method| method.ingress) {
        Some(method) if method.names_canister => {
            Ok(Some(canister_in(core.limits(), method_name, arg, cost)?))
        }
        Some(_) => Ok(None),
        None => Err(unknown_to_users(core, method_name)),
    }
}

fn canister_in(
    limits: &Limits,
    method_name: &str,
    arg: &[u8],
    cost: &mut Cost,
) -> Result<CanisterId, Reject> {
    let is_chunked = method_name == "install_chunked_code";
    let field = if is_chunked { "target_canister" } else { "canister_id" };
    argument::principal_in(limits, field, arg, cost)
}

/// Whether a call of a user may be taken in. `target` is the canister that [`named_canister`]
/// found, if it exists.
pub(crate) fn check_ingress(
    core: &Core,
    ingress: &Ingress,
    target: Option<&CanisterState>,
) -> Result<(), Reject> {
    let name = &ingress.method_name;
    let method = Method::for_name(core, name).filter(|method| method.ingress);
    let method = method.ok_or_else(|| unknown_to_users(core, name))?;
    if name == "create_canister" && !core.config.subnet_admins.contains(&ingress.sender) {
        return Err(reject::not_by_ingress(name));
    }
    if !method.names_canister {
        return Ok(());
    }
    let target =
        target.ok_or_else(|| reject::canister_not_found(&ingress.effective_canister_id))?;
    if target.id != ingress.effective_canister_id {
        return refused!(
            invalid_payload,
            "The call is about canister {} but came with effective canister id {}.",
            target.id,
            ingress.effective_canister_id
        );
    }
    check_access(core, (method.access, name), target, &ingress.sender)
}

/// Whether the canister pays for the induction of this call. Cycles from nothing cost nothing, and
/// a frozen canister must be able to get out of it.
pub(crate) fn is_charged(method_name: &str) -> bool {
    !method_name.starts_with("provisional_") && method_name != "create_canister"
}

fn check_access(
    core: &Core,
    (access, method_name): (Access, &str),
    target: &CanisterState,
    caller: &Principal,
) -> Result<(), Reject> {
    let admin = core.config.subnet_admins.contains(caller);
    let controller = target.is_controller(caller);
    let allowed = match access {
        Access::Anyone => true,
        Access::Controllers => controller,
        Access::ControllersAndSelf => controller || *caller == target.id,
        Access::ControllersAndAdmins => controller || admin,
        Access::SnapshotViewers => may_view(&target.settings.snapshot_visibility, target, caller),
        Access::StatusViewers => {
            admin
                || *caller == target.id
                || may_view(&target.settings.status_visibility, target, caller)
        }
    };
    if allowed { Ok(()) } else { Err(reject::invalid_controller(&target.id, method_name)) }
}

/// Whether `caller` is admitted by a visibility setting.
pub(crate) fn may_view(
    visibility: &Visibility,
    target: &CanisterState,
    caller: &Principal,
) -> bool {
    match visibility {
        Visibility::Public => true,
        Visibility::Controllers => target.is_controller(caller),
        Visibility::AllowedViewers(viewers) => {
            target.is_controller(caller) || viewers.contains(caller)
        }
    }
}

#[derive(Debug)]
enum Refusal {
    /// The caller gets this reject.
    Reject(Reject),
    /// The node stops.
    Fatal(FatalError),
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Self {
        Self::Reject(reject)
    }
}

impl From<FatalError> for Refusal {
    fn from(error: FatalError) -> Self {
        Self::Fatal(error)
    }
}

enum MethodOutcome {
    /// A reply; all cycles go back.
    Reply(Vec<u8>),
    /// A reply, and what is left of the cycles.
    ReplyWithRefund(Vec<u8>, Cycles),
    /// The call waits and is answered later.
    Waits,
    /// The call is served when the paused message of this canister is over.
    Awaits(CanisterId),
    /// The installation takes longer than a slice, and is served when those before it are over.
    AwaitsTurn,
}

type MethodResult = Result<MethodOutcome, Refusal>;

/// Where calls to the management canister are served.
pub(crate) struct Dispatcher<'a> {
    pub(crate) core: &'a Core,
    pub(crate) state: &'a mut ReplicatedState,
    pub(crate) round: &'a RoundFacts,
    /// Which management call is served.
    pub(crate) place: ExecutionPoint,
    pub(crate) effects: Effects,
}

impl Dispatcher<'_> {
    fn store_blob(&self, bytes: &[u8]) -> Result<(), FatalError> {
        self.core.attempts(self.place.clone()).until(|| self.core.blobs.put(bytes))?;
        self.core.note_blobs_changed();
        Ok(())
    }

    pub(crate) fn serve(&mut self, call: SubnetCall) -> Result<(), FatalError> {
        self.effects.work += CALL_INSTRUCTIONS;
        self.effects.messages += 1;
        let handling = match self.verdict() {
            Some(verdict) => {
                self.effects.verdicts.push(verdict);
                Err(reject::ruled_out(&Principal::management_canister()).into())
            }
            None => self.dispatch(&call),
        };
        self.conclude(call, handling)
    }

    /// The operator's verdict on what is served.
    fn verdict(&self) -> Option<Fault> {
        self.place.message.as_ref().and_then(|m| self.round.verdict(m.canister_id, m.ordinal))
    }

    /// Answers a call, unless it waits.
    fn conclude(&mut self, call: SubnetCall, handling: MethodResult) -> Result<(), FatalError> {
        let handling = match handling {
            Ok(MethodOutcome::AwaitsTurn) => {
                self.check_turns(&call).map(|()| MethodOutcome::AwaitsTurn)
            }
            handling => handling,
        };
        let (payload, refund) = match handling {
            Ok(MethodOutcome::AwaitsTurn) => {
                let call = SubnetCall { released_by: None, ..call };
                state_heap::within(|| self.state.subnet.long_installs.push_back(call));
                return Ok(());
            }
            Ok(MethodOutcome::Reply(bytes)) => (Payload::Reply(bytes), call.cycles),
            Ok(MethodOutcome::ReplyWithRefund(bytes, refund)) => (Payload::Reply(bytes), refund),
            Ok(MethodOutcome::Awaits(id)) => {
                if let Some(paused) =
                    self.state.get_mut(&id).and_then(|target| target.paused.as_mut())
                {
                    state_heap::within(|| paused.waiting.push(StateArc::new(call)));
                }
                return Ok(());
            }
            Ok(MethodOutcome::Waits) => {
                if let Origin::Ingress { request_id, .. } = call.origin {
                    self.effects.processing.push(request_id);
                }
                return Ok(());
            }
            Err(Refusal::Reject(reject)) => (Payload::Reject(reject), call.cycles),
            Err(Refusal::Fatal(error)) => return Err(error),
        };
        let unclaimed = self.effects.answer(&call.origin, payload, refund);
        self.state.subnet.consumption.uninstall += unclaimed;
        Ok(())
    }

    /// Whether one more installation may wait for its turn. Its argument stays in the subnet's
    /// record, and counts as message memory, until those before it are over.
    fn check_turns(&self, call: &SubnetCall) -> Result<(), Refusal> {
        let waiting = &self.state.subnet.long_installs;
        let limit = self.core.limits().subnet.best_effort_message_bytes / LONG_INSTALLS_PART;
        let bytes = waiting.iter().map(SubnetCall::accounted_bytes).sum::<u64>();
        let needed = call.accounted_bytes();
        if waiting.len() < LONG_INSTALLS_MAX && bytes + needed <= limit {
            return Ok(());
        }
        Err(Refusal::from(reject::queue_full(format!(
            "The installation takes longer than {} instructions (execution.instructions_per_slice) \
             and would have to wait for others. {} such wait, of at most {LONG_INSTALLS_MAX}, with \
             {bytes} bytes, and this one has {needed}, of at most {limit} (an eighth of \
             subnet.best_effort_message_bytes). Try again later; a module in chunks needs less.",
            self.core.limits().execution.instructions_per_slice,
            waiting.len(),
        ))))
    }

    /// Decodes the argument of a call. That is work of the round, whatever the result.
    fn decode<T: CandidType + DeserializeOwned>(&mut self, call: &SubnetCall) -> Result<T, Reject> {
        let limits = self.core.limits();
        self.charging(|cost| decode(limits, &call.arg, cost))
    }

    /// The canister that the argument of a call names, in the field `canister_id`.
    fn canister_in(&mut self, call: &SubnetCall) -> Result<CanisterId, Reject> {
        let limits = self.core.limits();
        self.charging(|cost| canister_in(limits, &call.method_name, &call.arg, cost))
    }

    /// Counts what `read` took as work of the round.
    fn charging<T>(&mut self, read: impl FnOnce(&mut Cost) -> T) -> T {
        let mut cost = Cost::default();
        let result = read(&mut cost);
        self.effects.work += cost.instructions;
        result
    }

    fn dispatch(&mut self, call: &SubnetCall) -> MethodResult {
        let name = call.method_name.as_str();
        let from_canister = matches!(call.origin, Origin::Canister { .. });
        let method =
            Method::for_name(self.core, name).filter(|method| method.ingress || from_canister);
        let method = method.ok_or_else(|| unknown_to_canisters(self.core, name))?;
        let caller = call.origin.caller();
        if method.names_canister {
            let id = self.canister_in(call)?;
            let target = self.target(&id)?;
            check_access(self.core, (method.access, name), target, &caller)?;
            let awaits = target.paused.as_ref().is_some_and(|paused| match paused.context {
                Some(_) => method.awaits == Awaits::Message,
                None => method.awaits != Awaits::Nothing,
            });
            if awaits {
                return Ok(MethodOutcome::Awaits(id));
            }
        }
        (method.serve)(self, call)
    }

    fn canister_status(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        Ok(MethodOutcome::Reply(status::canister_status(self.core, self.target(&id)?)?))
    }

    fn canister_metrics(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        Ok(MethodOutcome::Reply(status::canister_metrics(self.target(&id)?)?))
    }

    fn target(&self, id: &CanisterId) -> Result<&CanisterState, Reject> {
        self.state.get(id).ok_or_else(|| reject::canister_not_found(id))
    }

    fn target_mut(&mut self, id: &CanisterId) -> Result<&mut CanisterState, Reject> {
        self.state.get_mut(id).ok_or_else(|| reject::canister_not_found(id))
    }

    /// If a canister's call states the caller's version, it must be right.
    fn check_sender_version(&self, call: &SubnetCall, told: Option<u64>) -> Result<(), Reject> {
        match (call.sender_version, told) {
            (Some(version), Some(told)) if version != told => refused!(
                504,
                "sender_canister_version is {told}, but the calling canister has version \
                 {version}."
            ),
            _ => Ok(()),
        }
    }

    /// Adds to a canister's history what `call` did to it at the time of its version.
    fn add_change(
        canister: &mut CanisterState,
        time: Time,
        (call, told): (&SubnetCall, Option<u64>),
        details: ChangeDetails,
    ) {
        let origin = match &call.origin {
            Origin::Canister { caller, .. } => ChangeOrigin::Canister(*caller, told),
            origin => ChangeOrigin::User(origin.caller()),
        };
        canister.history.push(Change { time, version: canister.version, origin, details });
    }

    fn raw_rand(&mut self, call: &SubnetCall) -> MethodResult {
        let limits = self.core.limits();
        self.charging(|cost| argument::decode_nothing(limits, &call.arg, cost))?;
        let waiting = self.state.subnet.randomness_waiters.len() as u64;
        if waiting >= limits.execution.raw_rand_waiting {
            return refused!(
                queue_full,
                "{waiting} calls of raw_rand wait for randomness, the most are \
                 execution.raw_rand_waiting = {}. Try again.",
                limits.execution.raw_rand_waiting
            );
        }
        // No value is given that was known when the call was made.
        self.state.subnet.randomness_waiters.push_back(RandomnessWaiter {
            origin: call.origin.clone(),
            cycles: call.cycles,
            height: self.round.height,
        });
        Ok(MethodOutcome::Waits)
    }

    fn deposit_cycles(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        let canister = self.target_mut(&id)?;
        let fits = canister.room_for_cycles().min(call.cycles);
        canister.credit(fits);
        Ok(MethodOutcome::ReplyWithRefund(no_value(), call.cycles - fits))
    }

    fn provisional_top_up_canister(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: ic_management_canister_types::ProvisionalTopUpCanisterArgs =
            self.decode(call)?;
        let canister = self.target_mut(&argument.canister_id)?;
        let amount = settings::saturating_cycles(&argument.amount).min(canister.room_for_cycles());
        canister.credit(amount);
        self.state.subnet.minted += amount;
        Ok(MethodOutcome::Reply(no_value()))
    }
}
