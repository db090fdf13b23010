//! Which setting of which runtime does what. One table for each wish.

use super::{findings::Knob, process_settings::ProcessSettings};

const fn knob(setting: &'static str, why: &'static str) -> Knob {
    Knob { setting, why }
}

const GLIBC_GIVE_BACK: [Knob; 2] = [
    knob(
        "MALLOC_ARENA_MAX=2",
        "every thread may get an arena of its own, and each keeps what it once had",
    ),
    knob(
        "GLIBC_TUNABLES=glibc.malloc.trim_threshold=131072:glibc.malloc.mmap_threshold=131072",
        "fixed thresholds: large blocks go back at once, and the top of the heap when it is free",
    ),
];

/// Settings to hold less memory when idle.
pub(crate) fn give_back(runtime: &str) -> Vec<Knob> {
    match runtime {
        "ghc" => vec![
            knob(
                "+RTS -I0.3 -Iw60 -RTS",
                "a major collection after 0.3 s at rest, at most one a minute",
            ),
            knob(
                "+RTS --disable-delayed-os-memory-return -RTS",
                "free memory leaves the process at once, not when the kernel is short of it",
            ),
            knob("+RTS -Fd1 -RTS", "keeps less free memory after a peak (from GHC 9.2 on)"),
        ],
        "go" => vec![
            knob(
                "GOMEMLIMIT=<a little above live>",
                "the collector works harder near it, and gives back",
            ),
            knob("GOGC=50", "collects when the heap has grown by half, not by all of it"),
            knob(
                "GODEBUG=madvdontneed=1",
                "free memory leaves the process at once (the default since Go 1.16)",
            ),
        ],
        "jvm" => vec![
            knob(
                "-XX:G1PeriodicGCInterval=30000",
                "G1 collects at rest, and gives back (from JDK 12 on)",
            ),
            knob(
                "-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30",
                "the heap shrinks when more than 30 % of it is free after a full collection",
            ),
            knob("-Xms<small>", "the heap never shrinks below what it began with"),
            knob(
                "-XX:+UseShenandoahGC -XX:ShenandoahUncommitDelay=5000 \
                 -XX:ShenandoahGuaranteedGCInterval=30000",
                "collects at rest and gives back without a pause",
            ),
        ],
        "node" => vec![
            knob("--optimize-for-size", "V8 prefers a small heap"),
            knob(
                "--max-semi-space-size=2",
                "MiB for new objects; it grows to 16 and more by default",
            ),
            knob("--max-old-space-size=<MiB>", "a bound makes V8 collect and compact before it"),
        ],
        "dotnet" => vec![
            knob("DOTNET_GCConserveMemory=7", "compacts instead of keeping holes"),
            knob("DOTNET_gcServer=0", "one small heap, not one for each processor"),
        ],
        "jemalloc" => vec![
            knob(
                "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0",
                "free pages go back after a second, also without allocations",
            ),
            knob("MALLOC_CONF=narenas:2", "fewer arenas keep less each"),
        ],
        "mimalloc" => vec![knob("MIMALLOC_PURGE_DELAY=0", "free pages go back at once")],
        _ => GLIBC_GIVE_BACK.to_vec(),
    }
}

/// A sentence on the process's settings that explains it; begins with a space.
pub(crate) fn explain_settings(runtime: &str, settings: &ProcessSettings) -> String {
    let words = settings.runtime_flags(runtime);
    let has = |test: fn(&str) -> bool| words.iter().copied().find(|word| test(word));
    match runtime {
        // The threaded runtime collects when idle unless a flag disables that.
        "ghc" => has(|word| matches!(word, "-I0" | "-I0.0"))
            .map(|word| format!(" It was started with {word}: idle collections are switched off.")),
        "go" => settings
            .variable("GOGC")
            .filter(|value| *value == "off" || value.parse().is_ok_and(|value: u32| value > 100))
            .map(|value| format!(" It was started with GOGC={value}."))
            .or_else(|| {
                let off =
                    settings.variable("GODEBUG")?.split(',').any(|word| word == "madvdontneed=0");
                off.then(|| {
                    " It was started with GODEBUG=madvdontneed=0: free memory stays until the \
                     kernel is short of it."
                        .to_owned()
                })
            }),
        "jvm" => has(|word| word.starts_with("-Xms") || word == "-XX:+AlwaysPreTouch")
            .map(|word| format!(" It was started with {word}.")),
        _ => None,
    }
    .unwrap_or_default()
}

/// It has to live with less.
pub(crate) fn smaller_heap(runtime: &str) -> Vec<Knob> {
    match runtime {
        "ghc" => vec![
            knob("+RTS -c -RTS", "compacts in place: less memory, longer collections"),
            knob("+RTS -F1.5 -RTS", "collects when the heap is 1.5 times what lived, not twice"),
            knob("+RTS -M<size> -RTS", "a bound, with compacting before it"),
        ],
        "go" => vec![knob(
            "GOMEMLIMIT=<nine tenths of the cap>",
            "the collector keeps below it if it can",
        )],
        "jvm" => vec![
            knob("-Xmx<size>", "a bound of the heap; leave room for memory outside it"),
            knob("-XX:MaxRAMPercentage=50", "the same as a share of the cap"),
        ],
        "node" => {
            vec![knob("--max-old-space-size=<MiB>", "a bound of the heap; leave room for buffers")]
        }
        "dotnet" => vec![knob("DOTNET_GCHeapHardLimit=<hex bytes>", "a bound of the heap")],
        _ => give_back(runtime),
    }
}

/// The collector should work less.
pub(crate) fn larger_heap(runtime: &str) -> Vec<Knob> {
    match runtime {
        "ghc" => vec![
            knob("+RTS -A64m -n4m -RTS", "a larger allocation area: fewer young collections"),
            knob("+RTS -F2.5 -RTS", "fewer old ones"),
        ],
        "go" => vec![knob("GOGC=200", "collects half as often; set GOMEMLIMIT as its bound")],
        "jvm" => vec![
            knob("-Xmx<size>", "a larger heap is collected less often"),
            knob("-XX:NewSize=<size>", "more room for new objects"),
        ],
        "node" => {
            vec![knob("--max-semi-space-size=32", "MiB; fewer objects get old before they die")]
        }
        "dotnet" => vec![knob("DOTNET_GCgen0size=<hex bytes>", "more room for new objects")],
        _ => Vec::new(),
    }
}

/// Pauses should be shorter.
pub(crate) fn shorter_pauses(runtime: &str) -> Vec<Knob> {
    match runtime {
        "ghc" => vec![
            knob(
                "+RTS --nonmoving-gc -RTS",
                "old data is collected while the program runs; needs more memory",
            ),
            knob("+RTS -qg -RTS", "on few processors a collection in one thread is often shorter"),
        ],
        "go" => vec![knob(
            "GOMAXPROCS=<processors it may use>",
            "a quota it does not know of stops it in the pause",
        )],
        "jvm" => vec![
            knob("-XX:MaxGCPauseMillis=50", "G1 and Parallel try to keep it"),
            knob(
                "-XX:+UseShenandoahGC",
                "or -XX:+UseZGC: almost all of the work is done concurrently with the program",
            ),
        ],
        "node" => {
            vec![knob("--max-semi-space-size=8", "a smaller young generation is copied faster")]
        }
        "dotnet" => vec![knob(
            "DOTNET_gcConcurrent=1",
            "old data is collected concurrently with the program",
        )],
        _ => Vec::new(),
    }
}

/// Settings to reduce memory outside the heap.
pub(crate) fn outside(runtime: &str) -> Vec<Knob> {
    let mut knobs = match runtime {
        "jvm" => vec![
            knob(
                "-XX:NativeMemoryTracking=summary",
                "then `jcmd PID VM.native_memory` says what it is",
            ),
            knob("-XX:MaxDirectMemorySize=<size>", "bounds buffers outside the heap"),
            knob("-Xss256k", "smaller stacks of threads"),
        ],
        "node" => vec![knob("UV_THREADPOOL_SIZE=2", "fewer threads with buffers and arenas")],
        _ => Vec::new(),
    };
    knobs.extend(GLIBC_GIVE_BACK);
    knobs
}

/// What holds the data.
pub(crate) fn heap_profile(runtime: &str) -> Vec<Knob> {
    match runtime {
        "ghc" => vec![knob("+RTS -hT -RTS", "a profile of the heap by kind of data")],
        "go" => vec![knob(
            "go tool pprof http://.../debug/pprof/heap",
            "what was allocated where and lives",
        )],
        "jvm" => vec![knob("jcmd PID GC.class_histogram", "what lives, by class")],
        "node" => {
            vec![knob("--heapsnapshot-signal=SIGUSR2", "writes what lives when the signal comes")]
        }
        "dotnet" => vec![knob("dotnet-gcdump collect -p PID", "what lives, by type")],
        _ => Vec::new(),
    }
}
