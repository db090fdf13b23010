//! Calls to other canisters: assembled step by step, then performed or discarded.

use ic_principal::Principal;
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

impl Host {
    pub(super) fn discard_pending_call(&mut self) {
        let discarded = self.outgoing().pending_call.take();
        if let Some(call) = discarded {
            self.changes.balance += call.cycles;
        }
    }

    /// Does something with the call under construction.
    fn pending<T>(&self, act: impl FnOnce(&mut Call) -> T) -> Result<T, Failure> {
        let done = self.outgoing().pending_call.as_mut().map(act);
        done.ok_or_else(|| self.violation("no call is under construction"))
    }

    pub(super) fn call_new(
        &mut self,
        callee: (u64, u64),
        name: (u64, u64),
        on_reply: (u64, u64),
        on_reject: (u64, u64),
    ) -> Result<(), Failure> {
        self.discard_pending_call();
        let callee = self.read_principal(callee.0, callee.1)?;
        let method_name = self.read_text(name.0, name.1, METHOD_NAME_BYTES)?;
        self.outgoing().pending_call = Some(Call {
            callee,
            method_name,
            arg: Vec::new(),
            cycles: 0,
            on_reply,
            on_reject,
            on_cleanup: None,
            timeout_seconds: None,
            prepaid: 0,
        });
        Ok(())
    }

    /// A principal in the Wasm memory.
    pub(super) fn read_principal(&mut self, src: u64, size: u64) -> Result<Principal, Failure> {
        let limit = Principal::MAX_LENGTH_IN_BYTES as u64;
        if size > limit {
            return Err(self.violation(format_args!(
                "a principal of {size} bytes, the limit is {limit} bytes"
            )));
        }
        let principal = Principal::try_from_slice(self.read_heap(src, size)?);
        principal.map_err(|_| self.violation("not a principal"))
    }

    pub(super) fn call_on_cleanup(&mut self, fun: u64, env: u64) -> Result<(), Failure> {
        match self.pending(|pending| pending.on_cleanup.replace((fun, env)))? {
            Some(_) => Err(self.violation("this call has a cleanup callback already")),
            None => Ok(()),
        }
    }

    pub(super) fn call_with_best_effort_response(
        &mut self,
        timeout_seconds: u32,
    ) -> Result<(), Failure> {
        let timeout = timeout_seconds.min(CALL_TIMEOUT_SECONDS);
        match self.pending(|pending| pending.timeout_seconds.replace(timeout))? {
            Some(_) => Err(self.violation("this call has a timeout already")),
            None => Ok(()),
        }
    }

    pub(super) fn call_data_append(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        let limit = self.context.payload_max_bytes;
        let have = self.pending(|pending| pending.arg.len() as u64)?;
        if have.checked_add(size).is_none_or(|all| all > limit) {
            return Err(self.violation(format_args!(
                "an argument of {have} + {size} bytes, the limit is {limit} bytes"
            )));
        }
        let range = self.heap_range(src, size)?;
        let heap = self.heap.clone();
        self.pending(|pending| pending.arg.extend_from_slice(heap.read(range)))
    }

    pub(super) fn call_cycles_add(&mut self, amount: Cycles) -> Result<(), Failure> {
        let liquid = self.liquid_balance();
        self.pending(|_| ())?;
        if amount > liquid {
            return Err(self.violation(format_args!(
                "{amount} cycles, but only {liquid} are above what keeps the canister from being \
                 frozen"
            )));
        }
        // `msg_cycles_accept` keeps both together within one amount.
        self.pending(|pending| pending.cycles += amount)?;
        self.changes.balance -= amount;
        Ok(())
    }

    pub(super) fn call_perform(&mut self) -> Result<u32, Failure> {
        self.pending(|_| ())?;
        let (call, calls, bytes) = {
            let mut outgoing = self.outgoing();
            (outgoing.pending_call.take(), outgoing.calls.len() as u64, outgoing.bytes)
        };
        let Some(call) = call else { return Ok(CANNOT_PERFORM) };
        let (name_bytes, arg_bytes) = (call.method_name.len() as u64, call.arg.len() as u64);
        let payload_bytes = name_bytes + arg_bytes;
        let prepaid = match self.mode {
            Context::CompositeQuery | Context::CompositeReply | Context::CompositeReject => 0,
            _ => self.context.costs.call(name_bytes, arg_bytes),
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
            self.changes.balance += call.cycles;
            return Ok(CANNOT_PERFORM);
        }
        self.charge(payload_bytes)?;
        self.changes.balance -= prepaid;
        let mut outgoing = self.outgoing();
        outgoing.bytes = outgoing_bytes;
        outgoing.calls.push(Call { prepaid, ..call });
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
}
