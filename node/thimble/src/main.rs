//! The node's binary. Everything else is in the library of this package.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator;

/// How jemalloc is set up in every process of the node, read by it before `main`. Few arenas,
/// because each keeps memory of its own; unused address space goes back (`retain:false`), because
/// caps on address space count it; freed pages go back to the kernel within a second of further use.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: Option<&'static std::ffi::c_char> = {
    const TEXT: &std::ffi::CStr = c"background_thread:false,narenas:2,tcache_max:4096,retain:false,dirty_decay_ms:1000,muzzy_decay_ms:0";
    // SAFETY: the pointer is to a constant string that ends in zero.
    Some(unsafe { &*TEXT.as_ptr() })
};

fn main() -> ExitCode {
    thimble::main(consensus::Subnet::start)
}
