//! Changes a test makes to a state between rounds: provisional cycles, any content of stable
//! memory.
//!
//! None of it is a message, and no batch holds it: a node that has to agree with others, or whose
//! block log is executed again, must not call it. The state stays one that rounds could have
//! produced: cycles are counted as minted, memories are new ones. The change is visible once the
//! state is published again ([`Executor::show_again`]).

use std::io::Read;

use pages::{MemoryId, read_bytes};
use state::{CanisterId, Cycles, WASM_PAGE_BYTES};

use crate::config::FatalError;
use crate::executor::Executor;
use crate::retry::ExecutionPoint;

/// Bytes written as one version of a memory.
const WRITTEN_AT_ONCE: u64 = 1 << 20;

impl Executor {
    /// Gives a canister cycles; the balance afterwards, or none where there is no such canister.
    /// A balance holds no more than there are numbers for.
    pub fn add_cycles(&mut self, id: &CanisterId, cycles: Cycles) -> Option<Cycles> {
        let canister = self.state.get_mut(id)?;
        let before = canister.cycles;
        canister.cycles = before.saturating_add(cycles);
        let after = canister.cycles;
        self.state.subnet.minted += after - before;
        self.state.refresh();
        self.since_checkpoint.count_manual_change();
        Some(after)
    }

    /// The stable memory of a canister, whole Wasm pages; none where there is no such canister.
    pub fn stable_memory(&self, id: &CanisterId) -> Result<Option<Vec<u8>>, FatalError> {
        let Some(canister) = self.state.get(id) else { return Ok(None) };
        let Some(execution) = canister.execution.as_ref() else { return Ok(Some(Vec::new())) };
        let bytes = execution.stable.wasm_pages.saturating_mul(WASM_PAGE_BYTES);
        let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        read_bytes(&self.core.pages.layout(execution.stable.id)?, 0, &mut content)?;
        Ok(Some(content))
    }

    /// Bytes of the stable memory of a canister; none where there is no such canister, or no code
    /// in it.
    pub fn stable_bytes(&self, id: &CanisterId) -> Option<u64> {
        let execution = self.state.get(id)?.execution.as_ref()?;
        Some(execution.stable.wasm_pages.saturating_mul(WASM_PAGE_BYTES))
    }

    /// Gives a canister with code another stable memory: these bytes, and zeros to the end of the
    /// last Wasm page. `false` where there is no such canister, or no code in it.
    ///
    /// # Errors
    /// When it cannot be written; the canister has the memory of before then.
    pub fn set_stable_memory(
        &mut self,
        id: &CanisterId,
        content: &mut dyn Read,
    ) -> Result<bool, FatalError> {
        if self.stable_bytes(id).is_none() {
            return Ok(false);
        }
        let memory = MemoryId(self.state.subnet.next_memory);
        self.state.subnet.next_memory += 1;
        let place = ExecutionPoint { height: self.height(), message: None };
        let core = self.core.clone();
        let base_bytes = core.limits().module.stable_bytes;
        core.attempts(place.clone()).until(|| core.pages.create(memory, base_bytes))?;
        let mut offset = 0;
        let mut part = Vec::new();
        loop {
            part.clear();
            let read = Read::take(&mut *content, WRITTEN_AT_ONCE).read_to_end(&mut part);
            let read = read.map_err(|error| FatalError::StableContent(error.to_string()))?;
            if read == 0 {
                break;
            }
            if offset + read as u64 > base_bytes {
                core.pages.remove(memory);
                return Err(FatalError::StableContent(format!(
                    "it has more bytes than the limit module.stable_bytes = {base_bytes}"
                )));
            }
            self.make_room(self.height())?;
            core.attempts(place.clone()).until(|| core.pages.write_bytes(memory, offset, &part))?;
            offset += read as u64;
        }
        let layout = core.pages.layout(memory)?;
        let wasm_pages = offset.div_ceil(WASM_PAGE_BYTES);
        if let Some(execution) =
            self.state.get_mut(id).and_then(|canister| canister.execution.as_mut())
        {
            let before = execution.stable.id;
            execution.stable.id = memory;
            execution.stable.wasm_pages = wasm_pages;
            execution.stable.layout = Some(layout);
            core.sandbox.forget(&[before]);
            core.pages.remove(before);
        }
        self.state.refresh();
        self.since_checkpoint.count_manual_change();
        Ok(true)
    }

    /// The root of the state as it is now, at the height of the last batch: to be signed and
    /// certified in the place of the one before.
    pub fn show_again(&mut self) -> [u8; 32] {
        self.state.settle();
        self.snapshot()
    }
}
