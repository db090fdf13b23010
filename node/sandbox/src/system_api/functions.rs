//! The functions of `ic0`: one row each, from which everything else follows.
//!
//! A row has its documentation, the name, the types, the contexts that may call the function, its
//! handler, and where they apply `plus`, instructions in addition to [`CALL_INSTRUCTIONS`], and
//! `only 32`, a function that modules with a 64-bit memory lack. The words are those of the
//! interface specification, "Overview of imports": addresses and sizes are of type `I`, which is
//! `i32` for a module with a 32-bit memory or none and `i64` for one with a 64-bit memory. A
//! handler gets every argument widened to 64 bits, and its result is narrowed to the type.
//!
//! Validation refuses an import that is not here or has another type; the worker links the rows;
//! `tests/it/permissions.rs` calls each of them from each context; their table in
//! `docs/reference/system-api.md` is written by a test below.

use wasmparser::ValType;
use wasmtime::{Caller, Linker};

use super::{
    Blob, CALL_INSTRUCTIONS, Host,
    contexts::Contexts,
    cycles::{Scheme, amount},
    link::{WasmInteger, enter},
    memory::ADDRESS32_BYTES,
};

/// Module of the System API.
const IC0: &str = "ic0";

/// One function of `ic0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ic0Function {
    /// Name without the prefix `ic0.`.
    pub name: &'static str,
    /// Types of the parameters, in order: `I`, `i32` or `i64`.
    pub params: &'static [&'static str],
    /// Type of the result, if any.
    pub results: &'static [&'static str],
    /// Exists only where `I` is `i32`.
    pub only32: bool,
    /// Letters of the contexts that may call it, as the specification writes them.
    pub contexts: &'static str,
    /// Effect or result, for the documentation.
    pub docs: &'static str,
    /// The same as `contexts`.
    pub(super) permitted: Contexts,
    /// Instructions of a call, whatever its arguments are.
    pub(super) price: u64,
}

impl Ic0Function {
    /// The function of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        IC0_FUNCTIONS.iter().find(|function| function.name == name)
    }

    /// Parameters and results in a module whose memory is 64-bit (`memory64`) or not.
    pub fn val_types(&self, memory64: bool) -> (Vec<ValType>, Vec<ValType>) {
        let val_type = |word: &&str| match *word {
            "i64" => ValType::I64,
            "I" if memory64 => ValType::I64,
            _ => ValType::I32,
        };
        let types = |words: &[&str]| words.iter().map(val_type).collect();
        (types(self.params), types(self.results))
    }

    /// Its import in the text format, as the function `$name`.
    pub fn import_text(&self, memory64: bool) -> String {
        let (params, results) = self.val_types(memory64);
        let list =
            |types: Vec<ValType>| types.iter().map(|ty| format!(" {ty}")).collect::<String>();
        format!(
            "(import \"{IC0}\" \"{0}\" (func ${0} (param{1}) (result{2})))\n",
            self.name,
            list(params),
            list(results)
        )
    }
}

macro_rules! functions {
    (@only32) => { false };
    (@only32 32) => { true };
    (@result $value:ident) => { $value };
    (@result $value:ident, $result:ty) => { $value.map(<$result as WasmInteger>::narrow) };
    ($(
        $(#[doc = $docs:literal])+
        $name:ident($($arg:ident: $type:ident),*) $(-> $result:ident)?,
        from $contexts:literal $(, plus $price:literal)? $(, only $width:tt)? =>
            |$host:ident| $body:expr;
    )+) => {
        #[allow(non_upper_case_globals, reason = "the names of the functions")]
        mod rows {
            use super::{CALL_INSTRUCTIONS, Contexts, Ic0Function};

            $(pub(super) const $name: Ic0Function = Ic0Function {
                name: stringify!($name),
                params: &[$(stringify!($type)),*],
                results: &[$(stringify!($result))?],
                only32: functions!(@only32 $($width)?),
                contexts: $contexts,
                docs: concat!($($docs),+).trim_ascii(),
                permitted: Contexts::from_letters($contexts),
                price: CALL_INSTRUCTIONS $(+ $price)?,
            };)+
        }

        /// All functions, ordered by name.
        pub const IC0_FUNCTIONS: &[Ic0Function] = &[$(rows::$name),+];

        /// Links all functions that a module with addresses of type `I` may import.
        pub(super) fn define<I: WasmInteger>(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
            $(if !(I::IS_64 && rows::$name.only32) {
                linker.func_wrap(
                    IC0,
                    stringify!($name),
                    |mut caller: Caller<'_, Host>, $($arg: $type),*| {
                        $(let $arg = $arg.wide();)*
                        let result =
                            enter(&mut caller, &rows::$name, |$host: &mut Host| $body);
                        functions!(@result result $(, $result)?)
                    },
                )?;
            })+
            Ok(())
        }
    };
}

functions! {
    /// Accepts the message that is inspected.
    accept_message(), from "F" => |host| host.accept_message();
    /// Adds cycles to the call under construction.
    call_cycles_add(cycles: i64), from "U Ry Rt T", only 32 =>
        |host| host.call_cycles_add(cycles.into());
    /// Adds cycles, in two words, to the call under construction.
    call_cycles_add128(high: i64, low: i64), from "U Ry Rt T" =>
        |host| host.call_cycles_add(amount(high, low));
    /// Appends bytes to the argument of the call under construction.
    call_data_append(src: I, size: I), from "U CQ Ry Rt CRy CRt T" =>
        |host| host.call_data_append(src, size);
    // `plus`: creates a call, with its texts.
    /// Begins a call and discards the one under construction.
    call_new(
        callee_src: I, callee_size: I, name_src: I, name_size: I,
        reply_fun: I, reply_env: I, reject_fun: I, reject_env: I
    ), from "U CQ Ry Rt CRy CRt T", plus 1_000 => |host| host.call_new(
        (callee_src, callee_size),
        (name_src, name_size),
        (reply_fun, reply_env),
        (reject_fun, reject_env),
    );
    /// Sets the cleanup callback of the call under construction.
    call_on_cleanup(fun: I, env: I), from "U CQ Ry Rt CRy CRt T" =>
        |host| host.call_on_cleanup(fun, env);
    // `plus`: performs a call.
    /// Makes the call under construction; 0, or another number if it cannot be made.
    call_perform() -> i32, from "U CQ Ry Rt CRy CRt T", plus 1_000 => |host| host.call_perform();
    /// Makes the call under construction one whose response may be lost, with this timeout.
    call_with_best_effort_response(timeout_seconds: i32), from "U CQ Ry Rt CRy CRt T" =>
        |host| host.call_with_best_effort_response(timeout_seconds as u32);
    /// Balance in cycles; traps if it does not fit 64 bits.
    canister_cycle_balance() -> i64, from "*", only 32 =>
        |host| host.in_64_bits(host.changes.balance);
    /// Writes the balance in cycles (16 bytes).
    canister_cycle_balance128(dst: I), from "*" =>
        |host| host.write_cycles(dst, host.changes.balance);
    /// Writes the part of the balance above the freezing threshold (16 bytes).
    canister_liquid_cycle_balance128(dst: I), from "*" =>
        |host| host.write_cycles(dst, host.liquid_balance());
    /// Copies the canister's id.
    canister_self_copy(dst: I, offset: I, size: I), from "*" =>
        |host| host.blob_copy(Blob::CanisterSelf, dst, offset, size);
    /// Size of the canister's id.
    canister_self_size() -> I, from "*" => |host| host.blob_size(Blob::CanisterSelf);
    /// Status of the canister: 1 running, 2 stopping, 3 stopped.
    canister_status() -> i32, from "*" => |host| Ok(host.context.run_state as u32);
    /// Version of the canister.
    canister_version() -> i64, from "*" => |host| Ok(host.context.canister_version);
    /// Sets the certified data, at most 32 bytes.
    certified_data_set(src: I, size: I), from "I G U Ry Rt T" =>
        |host| host.certified_data_set(src, size);
    /// Writes the price of a call with a method name and an argument of these sizes (16 bytes).
    cost_call(method_name_size: i64, payload_size: i64, dst: I), from "* s" =>
        |host| host.write_cycles(dst, host.context.costs.call(method_name_size, payload_size));
    /// Writes the price of creating a canister (16 bytes).
    cost_create_canister(dst: I), from "* s" =>
        |host| host.write_cycles(dst, host.context.costs.create_canister);
    /// Writes the price of an HTTPS outcall with these sizes (16 bytes).
    cost_http_request(request_size: i64, response_bytes_max: i64, dst: I), from "* s" =>
        |host| host.write_cycles(dst, host.context.costs.outcall(request_size, response_bytes_max));
    /// Writes the price of an ECDSA signature (16 bytes): 0, 1 for an unknown curve, 2 for an
    /// unknown key.
    cost_sign_with_ecdsa(src: I, size: I, curve: i32, dst: I) -> i32, from "* s" =>
        |host| host.cost_of_key(Scheme::Ecdsa, src, size, curve as u32, dst);
    /// Writes the price of a Schnorr signature (16 bytes): 0, 1 for an unknown algorithm, 2 for an
    /// unknown key.
    cost_sign_with_schnorr(src: I, size: I, algorithm: i32, dst: I) -> i32, from "* s" =>
        |host| host.cost_of_key(Scheme::Schnorr, src, size, algorithm as u32, dst);
    /// Writes the price of a vetKD key (16 bytes): 0, 1 for an unknown curve, 2 for an unknown key.
    cost_vetkd_derive_key(src: I, size: I, curve: i32, dst: I) -> i32, from "* s" =>
        |host| host.cost_of_key(Scheme::VetKd, src, size, curve as u32, dst);
    /// Burns cycles, at most this amount in two words; writes how many (16 bytes).
    cycles_burn128(high: i64, low: i64, dst: I), from "I G U RQ Ry Rt C T" => |host| {
        let burned = host.cycles_burn(amount(high, low));
        host.write_cycles(dst, burned)
    };
    /// Copies the data certificate; traps if there is none.
    data_certificate_copy(dst: I, offset: I, size: I), from "NRQ CQ" =>
        |host| host.blob_copy(Blob::DataCertificate, dst, offset, size);
    /// 1 if there is a data certificate, otherwise 0.
    data_certificate_present() -> i32, from "*" => |host| Ok(host.data_certificate_present());
    /// Size of the data certificate; traps if there is none.
    data_certificate_size() -> I, from "NRQ CQ" => |host| host.blob_size(Blob::DataCertificate);
    /// Appends a line to the canister's log.
    debug_print(src: I, size: I), from "* s" => |host| host.debug_print(src, size);
    /// Number of environment variables.
    env_var_count() -> I, from "*" => |host| Ok(host.context.env_vars.len() as u64);
    /// Copies the name of an environment variable, by index.
    env_var_name_copy(index: I, dst: I, offset: I, size: I), from "*" =>
        |host| host.env_var_name_copy(index, dst, offset, size);
    /// 1 if there is an environment variable of this name, otherwise 0.
    env_var_name_exists(name_src: I, name_size: I) -> i32, from "*" =>
        |host| host.env_var_name_exists(name_src, name_size);
    /// Size of the name of an environment variable, by index.
    env_var_name_size(index: I) -> I, from "*" => |host| host.env_var_name_size(index);
    /// Copies the value of an environment variable, by name.
    env_var_value_copy(name_src: I, name_size: I, dst: I, offset: I, size: I), from "*" =>
        |host| host.env_var_value_copy((name_src, name_size), dst, offset, size);
    /// Size of the value of an environment variable, by name.
    env_var_value_size(name_src: I, name_size: I) -> I, from "*" =>
        |host| host.env_var_value_size(name_src, name_size);
    /// Sets the global timer, 0 switches it off; its time before.
    global_timer_set(time: i64) -> i64, from "I G U Ry Rt C T" =>
        |host| Ok(host.global_timer_set(time));
    /// 1 in replicated execution, otherwise 0.
    in_replicated_execution() -> i32, from "* s" => |host| Ok(host.in_replicated_execution());
    /// 1 if this principal is a controller of the canister, otherwise 0.
    is_controller(src: I, size: I) -> i32, from "* s" => |host| host.is_controller(src, size);
    /// Traps: not in the specification any more, but published modules import it.
    mint_cycles(amount: i64) -> i64, from "*", only 32 => |host| host.mint_cycles(amount.into());
    /// Traps: not in the specification any more, but published modules import it.
    mint_cycles128(high: i64, low: i64, _dst: I), from "*" =>
        |host| host.mint_cycles(amount(high, low)).map(drop);
    /// Copies the argument of the call, in a reply callback the reply.
    msg_arg_data_copy(dst: I, offset: I, size: I), from "I U RQ NRQ CQ Ry CRy F" =>
        |host| host.blob_copy(Blob::Argument, dst, offset, size);
    /// Size of the argument of the call, in a reply callback of the reply.
    msg_arg_data_size() -> I, from "I U RQ NRQ CQ Ry CRy F" =>
        |host| host.blob_size(Blob::Argument);
    /// Copies the principal of the caller.
    msg_caller_copy(dst: I, offset: I, size: I), from "*" =>
        |host| host.blob_copy(Blob::Caller, dst, offset, size);
    /// Copies the sender info of the call.
    msg_caller_info_data_copy(dst: I, offset: I, size: I),
        from "U RQ NRQ CQ Ry Rt CRy CRt C CC F" =>
        |host| host.blob_copy(Blob::CallerInfoData, dst, offset, size);
    /// Size of the sender info of the call, 0 without one.
    msg_caller_info_data_size() -> I, from "U RQ NRQ CQ Ry Rt CRy CRt C CC F" =>
        |host| host.blob_size(Blob::CallerInfoData);
    /// Copies the principal of the canister that signed the sender info.
    msg_caller_info_signer_copy(dst: I, offset: I, size: I),
        from "U RQ NRQ CQ Ry Rt CRy CRt C CC F" =>
        |host| host.blob_copy(Blob::CallerInfoSigner, dst, offset, size);
    /// Size of the principal of the canister that signed the sender info, 0 without one.
    msg_caller_info_signer_size() -> I, from "U RQ NRQ CQ Ry Rt CRy CRt C CC F" =>
        |host| host.blob_size(Blob::CallerInfoSigner);
    /// Size of the principal of the caller.
    msg_caller_size() -> I, from "*" => |host| host.blob_size(Blob::Caller);
    /// Accepts cycles of the call, at most this amount; how many.
    msg_cycles_accept(amount_max: i64) -> i64, from "U RQ Ry Rt", only 32 =>
        |host| Ok(host.msg_cycles_accept(amount_max.into()) as u64);
    /// Accepts cycles of the call, at most this amount in two words; writes how many (16 bytes).
    msg_cycles_accept128(high: i64, low: i64, dst: I), from "U RQ Ry Rt" => |host| {
        let accepted = host.msg_cycles_accept(amount(high, low));
        host.write_cycles(dst, accepted)
    };
    /// Cycles of the call that can be accepted; traps if the number does not fit 64 bits.
    msg_cycles_available() -> i64, from "U RQ Ry Rt", only 32 =>
        |host| host.in_64_bits(host.cycles_available);
    /// Writes the number of cycles of the call that can be accepted (16 bytes).
    msg_cycles_available128(dst: I), from "U RQ Ry Rt" =>
        |host| host.write_cycles(dst, host.cycles_available);
    /// Cycles that returned with the response; traps if the number does not fit 64 bits.
    msg_cycles_refunded() -> i64, from "Ry Rt", only 32 =>
        |host| host.in_64_bits(host.context.cycles_refunded);
    /// Writes the number of cycles that returned with the response (16 bytes).
    msg_cycles_refunded128(dst: I), from "Ry Rt" =>
        |host| host.write_cycles(dst, host.context.cycles_refunded);
    /// Deadline of the call in nanoseconds, 0 without one.
    msg_deadline() -> i64, from "U RQ NRQ CQ Ry Rt CRy CRt" => |host| Ok(host.msg_deadline());
    /// Copies the name of the method that is to be called.
    msg_method_name_copy(dst: I, offset: I, size: I), from "F" =>
        |host| host.blob_copy(Blob::MethodName, dst, offset, size);
    /// Size of the name of the method that is to be called.
    msg_method_name_size() -> I, from "F" => |host| host.blob_size(Blob::MethodName);
    /// Rejects the call with this text.
    msg_reject(src: I, size: I), from "U RQ NRQ CQ Ry Rt CRy CRt" =>
        |host| host.msg_reject(src, size);
    /// Code of the reject, 0 in a reply callback.
    msg_reject_code() -> i32, from "Ry Rt CRy CRt C" => |host| Ok(host.reject_code);
    /// Copies the text of the reject.
    msg_reject_msg_copy(dst: I, offset: I, size: I), from "Rt CRt" =>
        |host| host.blob_copy(Blob::RejectMessage, dst, offset, size);
    /// Size of the text of the reject.
    msg_reject_msg_size() -> I, from "Rt CRt" => |host| host.blob_size(Blob::RejectMessage);
    /// Replies to the call with the data that was appended.
    msg_reply(), from "U RQ NRQ CQ Ry Rt CRy CRt" => |host| host.msg_reply();
    /// Appends bytes to the data of the reply.
    msg_reply_data_append(src: I, size: I), from "U RQ NRQ CQ Ry Rt CRy CRt" =>
        |host| host.msg_reply_data_append(src, size);
    /// Instructions so far: 0 of the message, 1 of its call context.
    performance_counter(kind: i32) -> i64, from "* s" =>
        |host| host.performance_counter(kind as u32);
    /// Copies the public key of the root subnet.
    root_key_copy(dst: I, offset: I, size: I), from "I G U RQ Ry Rt C T" =>
        |host| host.blob_copy(Blob::RootKey, dst, offset, size);
    /// Size of the public key of the root subnet.
    root_key_size() -> I, from "I G U RQ Ry Rt C T" => |host| host.blob_size(Blob::RootKey);
    // `plus`: a system call of the worker opens part of the memory.
    /// Grows stable memory by a number of pages of 64 KiB; its pages before, or -1.
    stable64_grow(pages: i64) -> i64, from "* s", plus 2_000 =>
        |host| Ok(host.stable_grow(pages, u64::MAX));
    /// Copies bytes from stable memory.
    stable64_read(dst: i64, offset: i64, size: i64), from "* s" =>
        |host| host.stable_read(dst, offset, size);
    /// Pages of stable memory.
    stable64_size() -> i64, from "* s" => |host| Ok(host.stable_size());
    /// Copies bytes to stable memory.
    stable64_write(offset: i64, src: i64, size: i64), from "* s" =>
        |host| host.stable_write(offset, src, size);
    // `plus`: as of `stable64_grow`.
    /// Grows stable memory up to 4 GiB by a number of pages; its pages before, or -1.
    stable_grow(pages: i32) -> i32, from "* s", plus 2_000, only 32 =>
        |host| host.stable_in_32_bits().map(|()| host.stable_grow(pages, ADDRESS32_BYTES));
    /// Copies bytes from stable memory of at most 4 GiB.
    stable_read(dst: i32, offset: i32, size: i32), from "* s", only 32 =>
        |host| host.stable_in_32_bits().and_then(|()| host.stable_read(dst, offset, size));
    /// Pages of stable memory of at most 4 GiB.
    stable_size() -> i32, from "* s", only 32 =>
        |host| host.stable_in_32_bits().map(|()| host.stable_size());
    /// Copies bytes to stable memory of at most 4 GiB.
    stable_write(offset: i32, src: i32, size: i32), from "* s", only 32 =>
        |host| host.stable_in_32_bits().and_then(|()| host.stable_write(offset, src, size));
    /// Copies the id of the subnet.
    subnet_self_copy(dst: I, offset: I, size: I), from "*" =>
        |host| host.blob_copy(Blob::SubnetSelf, dst, offset, size);
    /// Number of nodes of the subnet: not in the specification, but published modules import it.
    subnet_self_node_count() -> i32, from "*" => |host| Ok(host.context.subnet_nodes);
    /// Size of the id of the subnet.
    subnet_self_size() -> I, from "*" => |host| host.blob_size(Blob::SubnetSelf);
    /// Time in nanoseconds since 1970.
    time() -> i64, from "*" => |host| Ok(host.time());
    /// Traps with this text.
    trap(src: I, size: I), from "* s" => |host| host.trap(src, size);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{env, fs};

    use super::*;

    #[test]
    fn every_function_is_found_by_name() {
        assert!(
            IC0_FUNCTIONS.windows(2).all(|pair| pair[0].name < pair[1].name),
            "ordered, without duplicates"
        );
        for function in IC0_FUNCTIONS {
            assert_eq!(Ic0Function::find(function.name), Some(function));
        }
        assert_eq!(Ic0Function::find("no_such_function"), None);
    }

    #[test]
    fn addresses_follow_the_memory() {
        use ValType::{I32, I64};
        let vetkd = Ic0Function::find("cost_vetkd_derive_key").unwrap();
        assert_eq!(vetkd.val_types(true), (vec![I64, I64, I32, I64], vec![I32]));
        assert_eq!(vetkd.val_types(false), (vec![I32; 4], vec![I32]));
    }

    // Promise: P9 - The table of System API functions in the documentation is the table in force.
    #[test]
    fn reference_page_is_the_table_in_force() {
        const PAGE: &str =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/system-api.md");
        const HEAD: &str = "\n## Functions\n\n\
                            | function | type | from where | instructions | effect or result |\n\
                            |---|---|---|---|---|\n";
        let page = fs::read_to_string(PAGE).unwrap();
        let mut expected = page.split_once(HEAD).unwrap().0.to_owned() + HEAD;
        for function in IC0_FUNCTIONS {
            let Ic0Function { name, contexts, price, docs, .. } = function;
            let params = function.params.join(", ");
            let result = function.results.first().unwrap_or(&"()");
            let only32 = if function.only32 { " Only where `I` is `i32`." } else { "" };
            expected += &format!(
                "| `{name}` | `({params}) -> {result}` | {contexts} | {price} | {docs}{only32} |\n"
            );
        }
        if env::var_os("THIMBLE_WRITE_REFERENCE").is_some() {
            fs::write(PAGE, expected).unwrap();
        } else {
            assert!(page == expected, "out of date: THIMBLE_WRITE_REFERENCE=1 writes {PAGE}");
        }
    }
}
