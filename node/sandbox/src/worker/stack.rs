//! The stack of a message that runs in slices, made once and used again.
//!
//! The engine would map and unmap one for each message, which costs as much as many a message. A
//! worker runs one message at a time, so it keeps one stack. After a message only the pages near
//! its top stay, which every message uses; deeper pages are returned. Code cannot read remains of
//! other messages: a frame is written before it is read.

use std::{
    ops::Range,
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use pages::PAGE_BYTES;
use rustix::mm::{Advice, MprotectFlags, madvise, mprotect, munmap};
use wasmtime::{Error, StackCreator, StackMemory};

use super::mapping::reserve;
use crate::{
    engine::{HOST_STACK_BYTES, WASM_STACK_BYTES},
    lock,
};

const PAGE: usize = PAGE_BYTES as usize;

/// Bytes of a stack that are kept between two messages.
const KEPT_BYTES: usize = 64 << 10;

const _: () = assert!(
    (WASM_STACK_BYTES + HOST_STACK_BYTES) as u64 == limits::STACK_BYTES,
    "the sheet has room for the stack of a paused message"
);

/// Makes stacks, and keeps one.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    free: Arc<Mutex<Option<Stack>>>,
}

/// A mapping: an inaccessible page, and the stack above it.
#[derive(Debug)]
struct Stack {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, as a `Vec`'s allocation does; nothing about it
// is tied to a thread.
unsafe impl Send for Stack {}
// SAFETY: a shared reference gives addresses out and no access.
unsafe impl Sync for Stack {}

impl Stack {
    fn new(bytes: usize) -> std::io::Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE).max(PAGE);
        let base = reserve(PAGE + bytes)?;
        let stack = Self { base, bytes };
        // SAFETY: within the mapping just made, to which no other reference exists.
        unsafe {
            mprotect(
                base.as_ptr().add(PAGE).cast(),
                bytes,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
        }
        Ok(stack)
    }

    fn range(&self) -> Range<usize> {
        let start = self.base.as_ptr() as usize + PAGE;
        start..start + self.bytes
    }

    /// Gives back what is below the part that stays.
    fn trim(&self) -> std::io::Result<()> {
        let below = self.bytes.saturating_sub(KEPT_BYTES);
        // SAFETY: within the mapping, of which nothing is in use.
        unsafe {
            madvise(self.base.as_ptr().add(PAGE).cast(), below, Advice::LinuxDontNeed)?;
        }
        Ok(())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length and is not in use any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), PAGE + self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

// SAFETY: each stack is given to one owner at a time, is mapped for as long as it is owned, aligned
// to pages, and has an inaccessible page below.
unsafe impl StackCreator for Stacks {
    fn new_stack(&self, size: usize, _zeroed: bool) -> Result<Box<dyn StackMemory>, Error> {
        let kept = lock(&self.free).take();
        let stack = match kept.filter(|stack| stack.bytes >= size) {
            Some(stack) => stack,
            None => Stack::new(size)?,
        };
        Ok(Box::new(StackLease { stack: Some(stack), free: Arc::clone(&self.free) }))
    }
}

/// A stack in use, which is returned when dropped.
#[derive(Debug)]
struct StackLease {
    stack: Option<Stack>,
    free: Arc<Mutex<Option<Stack>>>,
}

// SAFETY: see `StackCreator`; the stack is there until this is dropped.
unsafe impl StackMemory for StackLease {
    fn top(&self) -> *mut u8 {
        self.range().end as *mut u8
    }

    fn range(&self) -> Range<usize> {
        self.stack.as_ref().map_or(0..0, Stack::range)
    }

    fn guard_range(&self) -> Range<*mut u8> {
        let start = self.range().start;
        (start - PAGE) as *mut u8..start as *mut u8
    }
}

impl Drop for StackLease {
    fn drop(&mut self) {
        if let Some(stack) = self.stack.take()
            && stack.trim().is_ok()
        {
            *lock(&self.free) = Some(stack);
        }
    }
}
