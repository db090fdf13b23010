//! The System API as a table: every function of `ic0` with its signature.
//!
//! Source: interface specification, "Overview of imports". Addresses and sizes are of type `I`,
//! which is `i32` for a module with a 32-bit memory or none and `i64` for one with a 64-bit memory;
//! [`Ic0Type::I`] stands for it. Validation refuses an import that is not here or has another type;
//! the worker links exactly these.

use wasmparser::ValType;

/// A parameter or result type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ic0Type {
    /// The address type of the module.
    I,
    /// `i32`, whatever the width of addresses.
    I32,
    /// `i64`, whatever the width of addresses.
    I64,
}

impl Ic0Type {
    /// The type it stands for in a module whose memory is 64-bit (`memory64`) or not.
    pub fn val_type(self, memory64: bool) -> ValType {
        match self {
            Self::I if memory64 => ValType::I64,
            Self::I | Self::I32 => ValType::I32,
            Self::I64 => ValType::I64,
        }
    }
}

/// One function of `ic0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ic0Function {
    /// Name without the prefix `ic0.`.
    pub name: &'static str,
    /// Types of the parameters, in order.
    pub params: &'static [Ic0Type],
    /// The result, if any.
    pub result: Option<Ic0Type>,
    /// Exists only where `I = i32`.
    pub only32: bool,
}

impl Ic0Function {
    /// Parameters and results in a module whose memory is 64-bit (`memory64`) or not.
    pub fn val_types(&self, memory64: bool) -> (Vec<ValType>, Vec<ValType>) {
        let types = |words: &[Ic0Type]| words.iter().map(|word| word.val_type(memory64)).collect();
        (types(self.params), types(self.result.as_slice()))
    }
}

/// The entry for `name`, if a module with this memory width may import it.
pub fn ic0_function(name: &str, memory64: bool) -> Option<&'static Ic0Function> {
    let index = IC0_FUNCTIONS.binary_search_by(|function| function.name.cmp(name)).ok()?;
    IC0_FUNCTIONS.get(index).filter(|function| !(memory64 && function.only32))
}

const fn f(name: &'static str, params: &'static [Ic0Type], result: Option<Ic0Type>) -> Ic0Function {
    Ic0Function { name, params, result, only32: false }
}

const fn f32_only(
    name: &'static str,
    params: &'static [Ic0Type],
    result: Option<Ic0Type>,
) -> Ic0Function {
    Ic0Function { name, params, result, only32: true }
}

use Ic0Type::{I, I32, I64};

/// All functions, ordered by name.
pub const IC0_FUNCTIONS: &[Ic0Function] = &[
    f("accept_message", &[], None),
    f32_only("call_cycles_add", &[I64], None),
    f("call_cycles_add128", &[I64, I64], None),
    f("call_data_append", &[I, I], None),
    f("call_new", &[I, I, I, I, I, I, I, I], None),
    f("call_on_cleanup", &[I, I], None),
    f("call_perform", &[], Some(I32)),
    f("call_with_best_effort_response", &[I32], None),
    f32_only("canister_cycle_balance", &[], Some(I64)),
    f("canister_cycle_balance128", &[I], None),
    f("canister_liquid_cycle_balance128", &[I], None),
    f("canister_self_copy", &[I, I, I], None),
    f("canister_self_size", &[], Some(I)),
    f("canister_status", &[], Some(I32)),
    f("canister_version", &[], Some(I64)),
    f("certified_data_set", &[I, I], None),
    f("cost_call", &[I64, I64, I], None),
    f("cost_create_canister", &[I], None),
    f("cost_http_request", &[I64, I64, I], None),
    f("cost_sign_with_ecdsa", &[I, I, I32, I], Some(I32)),
    f("cost_sign_with_schnorr", &[I, I, I32, I], Some(I32)),
    f("cost_vetkd_derive_key", &[I, I, I32, I], Some(I32)),
    f("cycles_burn128", &[I64, I64, I], None),
    f("data_certificate_copy", &[I, I, I], None),
    f("data_certificate_present", &[], Some(I32)),
    f("data_certificate_size", &[], Some(I)),
    f("debug_print", &[I, I], None),
    f("env_var_count", &[], Some(I)),
    f("env_var_name_copy", &[I, I, I, I], None),
    f("env_var_name_exists", &[I, I], Some(I32)),
    f("env_var_name_size", &[I], Some(I)),
    f("env_var_value_copy", &[I, I, I, I, I], None),
    f("env_var_value_size", &[I, I], Some(I)),
    f("global_timer_set", &[I64], Some(I64)),
    f("in_replicated_execution", &[], Some(I32)),
    f("is_controller", &[I, I], Some(I32)),
    f32_only("mint_cycles", &[I64], Some(I64)),
    f("mint_cycles128", &[I64, I64, I], None),
    f("msg_arg_data_copy", &[I, I, I], None),
    f("msg_arg_data_size", &[], Some(I)),
    f("msg_caller_copy", &[I, I, I], None),
    f("msg_caller_info_data_copy", &[I, I, I], None),
    f("msg_caller_info_data_size", &[], Some(I)),
    f("msg_caller_info_signer_copy", &[I, I, I], None),
    f("msg_caller_info_signer_size", &[], Some(I)),
    f("msg_caller_size", &[], Some(I)),
    f32_only("msg_cycles_accept", &[I64], Some(I64)),
    f("msg_cycles_accept128", &[I64, I64, I], None),
    f32_only("msg_cycles_available", &[], Some(I64)),
    f("msg_cycles_available128", &[I], None),
    f32_only("msg_cycles_refunded", &[], Some(I64)),
    f("msg_cycles_refunded128", &[I], None),
    f("msg_deadline", &[], Some(I64)),
    f("msg_method_name_copy", &[I, I, I], None),
    f("msg_method_name_size", &[], Some(I)),
    f("msg_reject", &[I, I], None),
    f("msg_reject_code", &[], Some(I32)),
    f("msg_reject_msg_copy", &[I, I, I], None),
    f("msg_reject_msg_size", &[], Some(I)),
    f("msg_reply", &[], None),
    f("msg_reply_data_append", &[I, I], None),
    f("performance_counter", &[I32], Some(I64)),
    f("root_key_copy", &[I, I, I], None),
    f("root_key_size", &[], Some(I)),
    f("stable64_grow", &[I64], Some(I64)),
    f("stable64_read", &[I64, I64, I64], None),
    f("stable64_size", &[], Some(I64)),
    f("stable64_write", &[I64, I64, I64], None),
    f32_only("stable_grow", &[I32], Some(I32)),
    f32_only("stable_read", &[I32, I32, I32], None),
    f32_only("stable_size", &[], Some(I32)),
    f32_only("stable_write", &[I32, I32, I32], None),
    f("subnet_self_copy", &[I, I, I], None),
    // Not in the specification's overview yet, but canisters built with `ic0` 1.2 import it: how
    // many nodes the subnet has.
    f("subnet_self_node_count", &[], Some(I32)),
    f("subnet_self_size", &[], Some(I)),
    f("time", &[], Some(I64)),
    f("trap", &[I, I], None),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_function_is_found_by_name() {
        assert!(
            IC0_FUNCTIONS.windows(2).all(|pair| pair[0].name < pair[1].name),
            "ordered, without duplicates"
        );
        for function in IC0_FUNCTIONS {
            assert_eq!(ic0_function(function.name, false), Some(function));
            assert_eq!(ic0_function(function.name, true).is_none(), function.only32);
        }
        assert!(ic0_function("no_such_function", false).is_none());
    }

    #[test]
    fn addresses_follow_the_memory() {
        let copy = ic0_function("msg_arg_data_copy", true).unwrap();
        assert!(copy.params.iter().all(|word| word.val_type(true) == ValType::I64));
        assert!(copy.params.iter().all(|word| word.val_type(false) == ValType::I32));
        let vetkd = ic0_function("cost_vetkd_derive_key", true).unwrap();
        assert_eq!(vetkd.params[2].val_type(true), ValType::I32);
    }
}
