//! The allocator's figures as reported by workers, and sampling of this process's allocations.

use std::{path::Path, sync::OnceLock};

use heap_profiler::Sampler;
use limits::HeapLimits;
use sandbox::HeapFigures;

/// The allocator is one for the process, and so is who samples it.
static SAMPLER: OnceLock<Sampler> = OnceLock::new();

/// Samples the allocations of the node process from here on; the process may become another one
/// first. To be called before there are threads, once. Workers are not sampled.
pub(crate) fn start_sampling(folder: &Path, limits: &HeapLimits) -> anyhow::Result<()> {
    let settings = heap_profiler::Settings {
        sample_bytes: limits.sample_bytes,
        profiler_bytes: limits.profiler_bytes,
        answer_bytes: limits.answer_bytes,
    };
    let sampler = Sampler::start("thimble", folder, settings)?;
    // A second one would be the same.
    let _ = SAMPLER.set(sampler);
    Ok(())
}

/// Who samples, in a node that was started to.
pub(crate) fn sampler() -> Option<&'static Sampler> {
    SAMPLER.get()
}

/// Reads the figures, after handing back what is freed if `trim`.
pub(crate) fn heap(trim: bool) -> HeapFigures {
    let heap = memory::allocator::heap(trim);
    HeapFigures {
        live_bytes: heap.live_bytes,
        resident_bytes: heap.resident_bytes,
        returned_bytes: heap.returned_bytes,
    }
}
