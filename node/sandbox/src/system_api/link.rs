//! The functions of `ic0` as wasmtime sees them: names, types, permissions, one line each.
//!
//! The lines below are generic over the address type `I`. Every argument reaches the implementation
//! widened to 64 bits, every result leaves it narrowed to its type.

use wasmtime::{Caller, Engine, Linker, WasmTy};

use super::{
    CALL_INSTRUCTIONS, Failure, Host,
    calls::NewCall,
    contexts::{Contexts, permitted},
    cycles::{Scheme, amount},
    memory::ADDRESS32_BYTES,
    message::BlobName,
};
use crate::module::{RUNTIME_MODULE, WILL_WRITE};

/// Module of the System API.
const IC0: &str = "ic0";

/// All functions for modules with 64-bit (`memory64`) or 32-bit addresses.
pub(crate) fn linker(engine: &Engine, memory64: bool) -> wasmtime::Result<Linker<Host>> {
    let mut linker = Linker::new(engine);
    if memory64 {
        define::<u64>(&mut linker)?;
    } else {
        define::<u32>(&mut linker)?;
        define_32(&mut linker)?;
    }
    Ok(linker)
}

/// A parameter or result type.
trait WasmInteger: WasmTy {
    fn wide(self) -> u64;
    fn narrow(wide: u64) -> Self;
}

impl WasmInteger for u32 {
    fn wide(self) -> u64 {
        self.into()
    }
    fn narrow(wide: u64) -> Self {
        // Sizes of blobs and counts are far below; -1 keeps its bits.
        wide as u32
    }
}

impl WasmInteger for u64 {
    fn wide(self) -> u64 {
        self
    }
    fn narrow(wide: u64) -> Self {
        wide
    }
}

/// Instructions of a call of `function`, for what it does whatever its arguments are.
fn price(function: &str) -> u64 {
    CALL_INSTRUCTIONS
        + match function {
            // Opens part of the memory: a system call of the worker.
            "stable_grow" | "stable64_grow" => 2_000,
            // Creates or performs a call of its own, with its texts.
            "call_new" | "call_perform" => 1_000,
            _ => 0,
        }
}

/// Runs one function of the system: charges for the call, checks that it may be called from here,
/// keeps fuel in step.
fn enter<R>(
    caller: &mut Caller<'_, Host>,
    function: &str,
    (contexts, price): (Contexts, u64),
    act: impl FnOnce(&mut Host) -> Result<R, Failure>,
) -> wasmtime::Result<R> {
    let fuel = caller.get_fuel()?;
    let host = caller.data_mut();
    host.fuel = fuel;
    // Pages are counted when they are touched and charged when the system looks.
    let pages = host.heap.take_uncharged();
    let mut result = host.charge(price.saturating_add(pages));
    if result.is_ok() && !host.mode.among(contexts) {
        result = Err(Failure::forbidden(function, host.mode));
    }
    let mut result = result.and_then(|()| act(host));
    if result.is_ok() {
        let pages = host.heap.take_uncharged();
        result = result.and_then(|done| host.charge(pages).map(|()| done));
    }
    if let Some(pacer) = host.pacer.as_ref().filter(|_| result.is_ok()) {
        let used = host.limits.instructions.saturating_sub(host.fuel);
        let paced = pacer.called(used);
        result = result.and_then(|done| paced.map(|()| done));
    }
    let fuel = host.fuel;
    caller.set_fuel(fuel)?;
    Ok(result?)
}

/// Before an operation on so much memory that it would be passed over between two steps: the count
/// is taken exactly.
fn synchronize_count(caller: &mut Caller<'_, Host>, bytes: u64) -> wasmtime::Result<()> {
    let is_long = |host: &Host| host.pacer.as_ref().is_some_and(|pacer| bytes >= pacer.step());
    if !is_long(caller.data()) {
        return Ok(());
    }
    let fuel = caller.get_fuel()?;
    let host = caller.data();
    if let Some(pacer) = &host.pacer {
        pacer.called(host.limits.instructions.saturating_sub(fuel))?;
    }
    // The next step is counted from here.
    caller.set_fuel(fuel)
}

macro_rules! functions {
    ($linker:ident: $($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? = |$host:ident| $body:expr;)*) => {$({
        let contexts = permitted(stringify!($name)).ok_or_else(|| wasmtime::Error::msg(concat!("no permissions for ic0.", stringify!($name))))?;
        let price = price(stringify!($name));
        $linker.func_wrap(IC0, stringify!($name), move |mut caller: Caller<'_, Host>, $($arg: $type),*| {
            $(let $arg = $arg.wide();)*
            let result = enter(&mut caller, stringify!($name), (contexts, price), |$host: &mut Host| $body);
            functions!(@result result $(, $result)?)
        })?;
    })*};
    (@result $value:ident, $result:ty) => { $value.map(<$result as WasmInteger>::narrow) };
    (@result $value:ident) => { $value };
}

/// Pairs of `*_size` and `*_copy`.
macro_rules! blobs {
    ($linker:ident, $I:ident: $($size:ident $copy:ident $blob:ident;)*) => {
        functions! { $linker:
            $(
                $size() -> $I = |host| host.blob_size(stringify!($size), BlobName::$blob);
                $copy(dst: $I, offset: $I, size: $I) = |host| host.blob_copy(stringify!($copy), BlobName::$blob, dst, offset, size);
            )*
        }
    };
}

#[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
fn define<I: WasmInteger>(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    blobs! { linker, I:
        msg_arg_data_size msg_arg_data_copy Argument;
        msg_caller_size msg_caller_copy Caller;
        msg_caller_info_data_size msg_caller_info_data_copy CallerInfoData;
        msg_caller_info_signer_size msg_caller_info_signer_copy CallerInfoSigner;
        msg_reject_msg_size msg_reject_msg_copy RejectMessage;
        canister_self_size canister_self_copy CanisterSelf;
        subnet_self_size subnet_self_copy SubnetSelf;
        msg_method_name_size msg_method_name_copy MethodName;
        root_key_size root_key_copy RootKey;
        data_certificate_size data_certificate_copy DataCertificate;
    }
    functions! { linker:
        msg_reject_code() -> u32 = |host| Ok(host.msg_reject_code().into());
        msg_deadline() -> u64 = |host| Ok(host.msg_deadline());
        msg_reply_data_append(src: I, size: I) = |host| host.msg_reply_data_append(src, size);
        msg_reply() = |host| host.msg_reply();
        msg_reject(src: I, size: I) = |host| host.msg_reject(src, size);
        accept_message() = |host| host.accept_message();

        msg_cycles_available128(dst: I) = |host| host.write_cycles("msg_cycles_available128", dst, host.cycles_available());
        msg_cycles_refunded128(dst: I) = |host| host.write_cycles("msg_cycles_refunded128", dst, host.context.cycles_refunded);
        msg_cycles_accept128(high: u64, low: u64, dst: I) = |host| {
            let accepted = host.msg_cycles_accept(amount(high, low));
            host.write_cycles("msg_cycles_accept128", dst, accepted)
        };
        cycles_burn128(high: u64, low: u64, dst: I) = |host| {
            let burned = host.cycles_burn(amount(high, low));
            host.write_cycles("cycles_burn128", dst, burned)
        };
        mint_cycles128(high: u64, low: u64, _dst: I) = |host| host.mint_cycles("mint_cycles128", amount(high, low)).map(drop);
        canister_cycle_balance128(dst: I) = |host| host.write_cycles("canister_cycle_balance128", dst, host.balance);
        canister_liquid_cycle_balance128(dst: I) = |host| host.write_cycles("canister_liquid_cycle_balance128", dst, host.liquid_balance());

        canister_status() -> u32 = |host| Ok(host.context.run_state as u64);
        subnet_self_node_count() -> u32 = |host| Ok(host.context.subnet_nodes.into());
        canister_version() -> u64 = |host| Ok(host.context.canister_version);

        call_new(callee_src: I, callee_size: I, name_src: I, name_size: I, reply_fun: I, reply_env: I, reject_fun: I, reject_env: I) = |host| {
            host.call_new(NewCall {
                callee: (callee_src, callee_size),
                name: (name_src, name_size),
                on_reply: (reply_fun, reply_env),
                on_reject: (reject_fun, reject_env),
            })
        };
        call_on_cleanup(fun: I, env: I) = |host| host.call_on_cleanup(fun, env);
        call_data_append(src: I, size: I) = |host| host.call_data_append(src, size);
        call_with_best_effort_response(timeout_seconds: u32) = |host| host.call_with_best_effort_response(timeout_seconds as u32);
        call_cycles_add128(high: u64, low: u64) = |host| host.call_cycles_add("call_cycles_add128", amount(high, low));
        call_perform() -> u32 = |host| host.call_perform().map(u64::from);

        stable64_size() -> u64 = |host| Ok(host.stable_size());
        stable64_grow(pages: u64) -> u64 = |host| Ok(host.stable_grow(pages, u64::MAX) as u64);
        stable64_write(offset: u64, src: u64, size: u64) = |host| host.stable_write("stable64_write", offset, src, size);
        stable64_read(dst: u64, offset: u64, size: u64) = |host| host.stable_read("stable64_read", dst, offset, size);

        certified_data_set(src: I, size: I) = |host| host.certified_data_set(src, size);
        data_certificate_present() -> u32 = |host| Ok(host.data_certificate_present().into());
        time() -> u64 = |host| Ok(host.time());
        global_timer_set(time: u64) -> u64 = |host| Ok(host.global_timer_set(time));
        performance_counter(kind: u32) -> u64 = |host| host.performance_counter(kind as u32);
        is_controller(src: I, size: I) -> u32 = |host| host.is_controller(src, size).map(u64::from);
        in_replicated_execution() -> u32 = |host| Ok(host.in_replicated_execution().into());

        cost_call(method_name_size: u64, payload_size: u64, dst: I) = |host| {
            let cost = host.call_cost(method_name_size, payload_size);
            host.write_cycles("cost_call", dst, cost)
        };
        cost_create_canister(dst: I) = |host| host.write_cycles("cost_create_canister", dst, host.context.costs.create_canister);
        cost_http_request(request_size: u64, response_bytes_max: u64, dst: I) = |host| {
            let cost = host.http_request_cost(request_size, response_bytes_max);
            host.write_cycles("cost_http_request", dst, cost)
        };
        cost_sign_with_ecdsa(src: I, size: I, curve: u32, dst: I) -> u32 =
            |host| host.cost_of_key("cost_sign_with_ecdsa", Scheme::Ecdsa, src, size, curve as u32, dst).map(u64::from);
        cost_sign_with_schnorr(src: I, size: I, algorithm: u32, dst: I) -> u32 =
            |host| host.cost_of_key("cost_sign_with_schnorr", Scheme::Schnorr, src, size, algorithm as u32, dst).map(u64::from);
        cost_vetkd_derive_key(src: I, size: I, curve: u32, dst: I) -> u32 =
            |host| host.cost_of_key("cost_vetkd_derive_key", Scheme::VetKd, src, size, curve as u32, dst).map(u64::from);

        env_var_count() -> I = |host| Ok(host.context.env_vars.len() as u64);
        env_var_name_size(index: I) -> I = |host| host.env_var_name_size(index);
        env_var_name_copy(index: I, dst: I, offset: I, size: I) = |host| host.env_var_name_copy(index, dst, offset, size);
        env_var_name_exists(name_src: I, name_size: I) -> u32 = |host| host.env_var_name_exists(name_src, name_size).map(u64::from);
        env_var_value_size(name_src: I, name_size: I) -> I = |host| host.env_var_value_size(name_src, name_size);
        env_var_value_copy(name_src: I, name_size: I, dst: I, offset: I, size: I) =
            |host| host.env_var_value_copy((name_src, name_size), dst, offset, size);

        debug_print(src: I, size: I) = |host| host.debug_print(src, size);
        trap(src: I, size: I) = |host| Err::<(), _>(host.trap(src, size));
    }
    linker.func_wrap(
        RUNTIME_MODULE,
        WILL_WRITE,
        |mut caller: Caller<'_, Host>, dst: I, len: I| -> wasmtime::Result<()> {
            let len = len.wide();
            synchronize_count(&mut caller, len)?;
            Ok(caller.data_mut().will_write(dst.wide(), len)?)
        },
    )?;
    Ok(())
}

/// Functions that only modules with 32-bit addresses have.
fn define_32(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    functions! { linker:
        msg_cycles_available() -> u64 = |host| host.msg_cycles_available();
        msg_cycles_refunded() -> u64 = |host| host.msg_cycles_refunded();
        msg_cycles_accept(amount_max: u64) -> u64 = |host| Ok(host.msg_cycles_accept(amount_max.into()) as u64);
        mint_cycles(amount: u64) -> u64 = |host| host.mint_cycles("mint_cycles", amount.into());
        canister_cycle_balance() -> u64 = |host| host.canister_cycle_balance();
        call_cycles_add(cycles: u64) = |host| host.call_cycles_add("call_cycles_add", cycles.into());
        stable_size() -> u32 = |host| host.stable_in_32_bits("stable_size").map(|()| host.stable_size());
        stable_grow(pages: u32) -> u32 = |host| host.stable_in_32_bits("stable_grow").map(|()| host.stable_grow(pages, ADDRESS32_BYTES) as u64);
        stable_write(offset: u32, src: u32, size: u32) =
            |host| host.stable_in_32_bits("stable_write").and_then(|()| host.stable_write("stable_write", offset, src, size));
        stable_read(dst: u32, offset: u32, size: u32) =
            |host| host.stable_in_32_bits("stable_read").and_then(|()| host.stable_read("stable_read", dst, offset, size));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{engine, module::IC0_FUNCTIONS};

    #[test]
    fn linked_functions_are_those_of_the_table_with_its_types() {
        let engine = engine::engine().unwrap();
        for memory64 in [false, true] {
            let linker = linker(&engine, memory64).unwrap();
            // A module that imports every function with the types of the table, and nothing else,
            // must link.
            let mut imports = String::new();
            let word = |word: crate::module::Ic0Type| word.val_type(memory64).to_string();
            for function in IC0_FUNCTIONS.iter().filter(|function| !(memory64 && function.only32)) {
                let params: String =
                    function.params.iter().map(|param| format!(" {}", word(*param))).collect();
                let result = function
                    .result
                    .map(|result| format!("(result {})", word(result)))
                    .unwrap_or_default();
                imports += &format!(
                    "(import \"ic0\" \"{}\" (func (param{params}) {result}))",
                    function.name
                );
            }
            let wasm = wat::parse_str(format!("(module {imports})")).unwrap();
            let module = wasmtime::Module::new(&engine, wasm).unwrap();
            linker.instantiate_pre(&module).unwrap();
        }
    }
}
