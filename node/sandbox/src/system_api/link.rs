//! Functions as wasmtime sees them: types, and the steps before and after each call.

use wasmtime::{Caller, Engine, Linker, WasmTy};

use super::{
    Failure, Host,
    functions::{self, Ic0Function},
};
use crate::module::{RUNTIME_MODULE, WILL_WRITE};

/// The function that returns what the message was charged: everything is counted first.
const COUNTER: &str = "performance_counter";

/// All functions for modules with 64-bit (`memory64`) or 32-bit addresses.
pub(crate) fn linker(engine: &Engine, memory64: bool) -> wasmtime::Result<Linker<Host>> {
    if memory64 { define::<i64>(engine) } else { define::<i32>(engine) }
}

/// All functions for modules with addresses of type `I`.
fn define<I: WasmInteger>(engine: &Engine) -> wasmtime::Result<Linker<Host>> {
    let mut linker = Linker::new(engine);
    functions::define::<I>(&mut linker)?;
    linker.func_wrap(
        RUNTIME_MODULE,
        WILL_WRITE,
        |mut caller: Caller<'_, Host>, dst: I, len: I| -> wasmtime::Result<()> {
            let len = len.wide();
            synchronize_count(&mut caller, len)?;
            Ok(caller.data_mut().will_write(dst.wide(), len)?)
        },
    )?;
    Ok(linker)
}

/// A parameter or result type. Its values are taken as unsigned.
pub(super) trait WasmInteger: WasmTy {
    const IS_64: bool;
    fn wide(self) -> u64;
    fn narrow(wide: impl Into<u64>) -> Self;
}

impl WasmInteger for i32 {
    const IS_64: bool = false;
    fn wide(self) -> u64 {
        u64::from(self as u32)
    }
    fn narrow(wide: impl Into<u64>) -> Self {
        let wide: u64 = wide.into();
        // Sizes of blobs and counts are far below; -1 keeps its bits.
        wide as Self
    }
}

impl WasmInteger for i64 {
    const IS_64: bool = true;
    fn wide(self) -> u64 {
        self as u64
    }
    fn narrow(wide: impl Into<u64>) -> Self {
        let wide: u64 = wide.into();
        wide as Self
    }
}

/// Runs one function of the system: charges for the call, checks that it may be called from here,
/// keeps fuel in step.
pub(super) fn enter<R>(
    caller: &mut Caller<'_, Host>,
    function: &Ic0Function,
    act: impl FnOnce(&mut Host) -> Result<R, Failure>,
) -> wasmtime::Result<R> {
    let fuel = caller.get_fuel()?;
    let host = caller.data_mut();
    host.function = function.name;
    host.fuel = fuel;
    // Pages are counted when they are touched and charged when the system looks. Those of which the
    // kernel notes that they were written may wait.
    let all_counted = host.count_noted_pages(function.name == COUNTER);
    let pages = host.heap.take_uncharged();
    let mut result = host.charge(function.price.saturating_add(pages));
    host.heap.set_owes(!all_counted || result.is_err());
    if result.is_ok() && !host.mode.among(function.permitted) {
        result = Err(Failure::forbidden(function.name, host.mode));
    }
    let mut result = result.and_then(|()| act(host));
    if result.is_ok() {
        let all_counted = host.count_before_pause();
        let pages = host.heap.take_uncharged();
        result = result.and_then(|done| host.charge(pages).map(|()| done));
        if all_counted {
            host.heap.set_owes(result.is_err());
        }
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
        pacer.synchronized(host.limits.instructions.saturating_sub(fuel))?;
    }
    // The next step is counted from here.
    caller.set_fuel(fuel)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{engine, module::IC0_FUNCTIONS};

    #[test]
    fn there_is_a_function_that_returns_the_count() {
        assert!(IC0_FUNCTIONS.iter().any(|function| function.name == COUNTER));
    }

    #[test]
    fn linked_functions_are_those_of_the_table_with_its_types() {
        let engine = engine::engine().unwrap();
        for memory64 in [false, true] {
            let linker = linker(&engine, memory64).unwrap();
            // A module that imports every function with the types of the table, and nothing else,
            // must link.
            let imports: String = IC0_FUNCTIONS
                .iter()
                .filter(|function| !(memory64 && function.only32))
                .map(|function| function.import_text(memory64))
                .collect();
            let wasm = wat::parse_str(format!("(module {imports})")).unwrap();
            let module = wasmtime::Module::new(&engine, wasm).unwrap();
            linker.instantiate_pre(&module).unwrap();
        }
    }
}
