//! Calls to other canisters: assembled step by step, then performed or discarded.

use ic_principal::Principal;
use serde::{Deserialize, Serialize};
use state::Cycles;

use super::{Context, Failure, Host};
use crate::Call;

/// Longest method name.
const METHOD_NAME_BYTES: u64 = 20_000;

/// `MAX_CALL_TIMEOUT`: longer timeouts of best-effort calls are cut to it.
const CALL_TIMEOUT_SECONDS: u32 = 300;

/// Accounted for a call in addition to its name and argument.
const CALL_OVERHEAD_BYTES: u64 = 128;

/// `ic0.call_perform`: the call cannot be made.
const CANNOT_PERFORM: u32 = 2;

/// A call under construction.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PendingCall {
    callee: Principal,
    method_name: String,
    #[serde(with = "serde_bytes")]
    arg: Vec<u8>,
    pub(super) cycles: Cycles,
    on_reply: (u64, u64),
    on_reject: (u64, u64),
    on_cleanup: Option<(u64, u64)>,
    timeout_seconds: Option<u32>,
}

impl PendingCall {
    pub(super) fn payload_bytes(&self) -> usize {
        self.method_name.len() + self.arg.len()
    }
}

/// Arguments of `ic0.call_new`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewCall {
    pub(super) callee: (u64, u64),
    pub(super) name: (u64, u64),
    pub(super) on_reply: (u64, u64),
    pub(super) on_reject: (u64, u64),
}

impl Host {
    pub(super) fn discard_pending_call(&mut self) {
        let discarded = self.outgoing().pending_call.take();
        if let Some(call) = discarded {
            self.balance += call.cycles;
        }
    }

    /// Does something with the call under construction.
    fn pending<T>(
        &self,
        function: &str,
        act: impl FnOnce(&mut PendingCall) -> T,
    ) -> Result<T, Failure> {
        self.outgoing().pending_call.as_mut().map(act).ok_or_else(|| {
            Failure::contract(&format!("ic0.{function}: no call is under construction"))
        })
    }

    pub(super) fn call_new(&mut self, call: NewCall) -> Result<(), Failure> {
        const FUNCTION: &str = "call_new";
        self.discard_pending_call();
        let callee = self.read_principal(FUNCTION, call.callee.0, call.callee.1)?;
        let method_name = self.read_text(FUNCTION, call.name.0, call.name.1, METHOD_NAME_BYTES)?;
        self.outgoing().pending_call = Some(PendingCall {
            callee,
            method_name,
            arg: Vec::new(),
            cycles: 0,
            on_reply: call.on_reply,
            on_reject: call.on_reject,
            on_cleanup: None,
            timeout_seconds: None,
        });
        Ok(())
    }

    /// A principal in the Wasm memory.
    pub(super) fn read_principal(
        &mut self,
        function: &str,
        src: u64,
        size: u64,
    ) -> Result<Principal, Failure> {
        let limit = Principal::MAX_LENGTH_IN_BYTES as u64;
        if size > limit {
            return Err(Failure::contract(&format!(
                "ic0.{function}: a principal of {size} bytes, the limit is {limit} bytes"
            )));
        }
        let bytes = self.read_heap(function, src, size)?;
        Principal::try_from_slice(bytes)
            .map_err(|_| Failure::contract(&format!("ic0.{function}: not a principal")))
    }

    pub(super) fn call_on_cleanup(&mut self, fun: u64, env: u64) -> Result<(), Failure> {
        self.pending("call_on_cleanup", |pending| {
            if pending.on_cleanup.is_some() {
                return Err(Failure::contract(
                    "ic0.call_on_cleanup: this call has a cleanup callback already",
                ));
            }
            pending.on_cleanup = Some((fun, env));
            Ok(())
        })?
    }

    pub(super) fn call_with_best_effort_response(
        &mut self,
        timeout_seconds: u32,
    ) -> Result<(), Failure> {
        self.pending("call_with_best_effort_response", |pending| {
            if pending.timeout_seconds.is_some() {
                return Err(Failure::contract(
                    "ic0.call_with_best_effort_response: this call has a timeout already",
                ));
            }
            pending.timeout_seconds = Some(timeout_seconds.min(CALL_TIMEOUT_SECONDS));
            Ok(())
        })?
    }

    pub(super) fn call_data_append(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        const FUNCTION: &str = "call_data_append";
        let limit = self.context.payload_max_bytes;
        let have = self.pending(FUNCTION, |pending| pending.arg.len() as u64)?;
        if have.checked_add(size).is_none_or(|all| all > limit) {
            return Err(Failure::contract(&format!(
                "ic0.{FUNCTION}: an argument of {have} + {size} bytes, the limit is {limit} bytes"
            )));
        }
        let range = self.heap_range(FUNCTION, src, size)?;
        let heap = self.heap.clone();
        self.pending(FUNCTION, |pending| pending.arg.extend_from_slice(heap.read(range)))
    }

    pub(super) fn call_cycles_add(
        &mut self,
        function: &str,
        amount: Cycles,
    ) -> Result<(), Failure> {
        let liquid = self.liquid_balance();
        self.pending(function, |_| ())?;
        if amount > liquid {
            return Err(Failure::contract(&format!(
                "ic0.{function}: {amount} cycles, but only {liquid} are above what keeps the \
                 canister from being frozen"
            )));
        }
        // `msg_cycles_accept` keeps both together within one amount.
        self.pending(function, |pending| pending.cycles += amount)?;
        self.balance -= amount;
        Ok(())
    }

    pub(super) fn call_perform(&mut self) -> Result<u32, Failure> {
        self.pending("call_perform", |_| ())?;
        let (call, calls, bytes) = {
            let mut outgoing = self.outgoing();
            (outgoing.pending_call.take(), outgoing.calls.len() as u64, outgoing.bytes)
        };
        let Some(call) = call else { return Ok(CANNOT_PERFORM) };
        let payload_bytes = call.payload_bytes() as u64;
        let prepaid = match self.mode {
            Context::CompositeQuery | Context::CompositeReply | Context::CompositeReject => 0,
            _ => self.call_cost(call.method_name.len() as u64, call.arg.len() as u64),
        };
        let outgoing_bytes =
            bytes.saturating_add(payload_bytes).saturating_add(CALL_OVERHEAD_BYTES);
        let refused = calls >= self.context.calls_max
            || payload_bytes > self.context.payload_max_bytes
            || outgoing_bytes > self.outgoing_bytes_max()
            || prepaid > self.liquid_balance()
            || (self.context.reject_guaranteed_response_calls
                && call.timeout_seconds.is_none()
                && self.context.replicated)
            || !self.take_queue_slot(&call.callee);
        if refused {
            self.balance += call.cycles;
            return Ok(CANNOT_PERFORM);
        }
        self.charge(payload_bytes)?;
        self.balance -= prepaid;
        let mut outgoing = self.outgoing();
        outgoing.bytes = outgoing_bytes;
        outgoing.calls.push(Call {
            callee: call.callee,
            method_name: call.method_name,
            arg: call.arg,
            cycles: call.cycles,
            on_reply: call.on_reply,
            on_reject: call.on_reject,
            on_cleanup: call.on_cleanup,
            timeout_seconds: call.timeout_seconds,
            prepaid,
        });
        Ok(0)
    }

    fn take_queue_slot(&self, callee: &Principal) -> bool {
        let slots = self.context.queue_slots_left.get(callee).unwrap_or(&self.context.queue_slots);
        let mut outgoing = self.outgoing();
        let taken = outgoing.slots_taken.entry(*callee).or_default();
        let is_free = *taken < *slots;
        *taken += u64::from(is_free);
        is_free
    }

    /// Amount that a call takes from the balance, reservations included.
    pub(super) fn call_cost(&self, method_name_bytes: u64, argument_bytes: u64) -> Cycles {
        let costs = &self.context.costs;
        let payload = Cycles::from(method_name_bytes).saturating_add(argument_bytes.into());
        costs
            .call_base
            .saturating_add(costs.call_per_byte.saturating_mul(payload))
            .saturating_add(costs.response_reservation)
            .saturating_add(costs.callback_execution_reservation)
    }
}
