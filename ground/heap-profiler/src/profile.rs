//! A document whose addresses have names and whose counts are estimates of all allocations: what
//! every view is made of.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use anyhow::{Result, bail, ensure};
use serde::Serialize;

use crate::{
    command::Program,
    document::{Count, Document, Head, Mapping, Stack},
    names::{self, Owner},
    program::Symbols,
};

/// Allocations of a stack or a site, extrapolated from its samples. Live ones are negative where a
/// profile is of the changes between two documents and more was freed than allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Amount {
    pub(crate) live_bytes: i64,
    pub(crate) live_objects: i64,
    pub(crate) live_samples: i64,
    pub(crate) total_bytes: i64,
    pub(crate) total_objects: i64,
    pub(crate) total_samples: i64,
}

impl Amount {
    fn from_counts(live: Count, total: Count, sample_bytes: u64) -> Self {
        let (live_objects, live_bytes) = estimate(live, sample_bytes);
        let (total_objects, total_bytes) = estimate(total, sample_bytes);
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            live_bytes,
            live_objects,
            live_samples: whole(live.samples),
            total_bytes,
            total_objects,
            total_samples: whole(total.samples),
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.each(other, i64::saturating_add);
    }

    fn subtract(&mut self, other: &Self) {
        self.each(other, i64::saturating_sub);
    }

    fn each(&mut self, other: &Self, change: impl Fn(i64, i64) -> i64) {
        self.live_bytes = change(self.live_bytes, other.live_bytes);
        self.live_objects = change(self.live_objects, other.live_objects);
        self.live_samples = change(self.live_samples, other.live_samples);
        self.total_bytes = change(self.total_bytes, other.total_bytes);
        self.total_objects = change(self.total_objects, other.total_objects);
        self.total_samples = change(self.total_samples, other.total_samples);
    }
}

/// Objects and bytes behind samples: one of size x is sampled with probability `1 -
/// e^(-x/interval)`, and x is taken for the mean of the samples. So is the form `heap_v2` defined,
/// and jemalloc writes counts for which it comes out right.
fn estimate(count: Count, sample_bytes: u64) -> (i64, i64) {
    if count.samples == 0 || count.bytes == 0 {
        return (0, 0);
    }
    let mean = count.bytes as f64 / count.samples as f64;
    let probability = -(-mean / sample_bytes as f64).exp_m1();
    // A conversion saturates at the largest value.
    ((count.samples as f64 / probability) as i64, (count.bytes as f64 / probability) as i64)
}

/// A function on a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// As people write it; a file and an offset where no function is known.
    pub(crate) name: String,
    pub(crate) owner: Owner,
    /// Of the call, in memory.
    pub(crate) memory: u64,
    /// Number of its mapping.
    pub(crate) mapping: Option<usize>,
}

/// Allocations of one sequence of functions.
#[derive(Clone, Debug)]
pub(crate) struct StackSample {
    /// Numbers of frames, the allocation's first, without the allocator's.
    pub(crate) frames: Vec<usize>,
    pub(crate) amount: Amount,
}

#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) head: Head,
    /// Where it begins, in milliseconds since 1970.
    pub(crate) since_millis: u64,
    /// Whether it is of the changes between two documents.
    pub(crate) between: bool,
    pub(crate) frames: Vec<Frame>,
    pub(crate) stacks: Vec<StackSample>,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) sum: Amount,
}

impl Profile {
    /// Names the addresses by the program's file. `before` is subtracted. Errors: the documents are
    /// of two processes; the file is another build than the running program.
    pub(crate) fn new(
        document: Document,
        before: Option<Document>,
        symbols: &Symbols,
        file: &Path,
        program: &Program,
    ) -> Result<Self> {
        let head = document.head;
        if head.build_id != symbols.build_id {
            bail!(
                "{} (build {}) is not what runs there (build {}), so it does not know its \
                 functions; name the file that does: --program /proc/{}/exe on that machine, or a \
                 copy of it",
                file.display(),
                of_build(&symbols.build_id),
                of_build(&head.build_id),
                head.pid
            );
        }
        let mut amounts: BTreeMap<Vec<u64>, Amount> = BTreeMap::new();
        let mut add = |stacks: Vec<Stack>, change: fn(&mut Amount, &Amount)| {
            for stack in stacks {
                let amount = Amount::from_counts(stack.live, stack.total, head.sample_bytes);
                change(amounts.entry(stack.addresses).or_default(), &amount);
            }
        };
        add(document.stacks, Amount::add);
        let (mut since_millis, between) = (head.started_millis, before.is_some());
        if let Some(before) = before {
            let same = |head: &Head| (head.pid, head.started_millis, head.build_id.clone());
            ensure!(
                same(&before.head) == same(&head),
                "the earlier profile is of process {} that began to sample at {}, this one of \
                 process {} at {}: only profiles of one process can be compared",
                before.head.pid,
                before.head.started_millis,
                head.pid,
                head.started_millis
            );
            since_millis = before.head.taken_millis;
            add(before.stacks, Amount::subtract);
        }
        let mut namer = Namer { symbols, mappings: &document.mappings, program, head: &head };
        let mut frames = Vec::new();
        let mut numbers: HashMap<u64, usize> = HashMap::new();
        let mut stacks = Vec::with_capacity(amounts.len());
        let mut sum = Amount::default();
        for (addresses, amount) in amounts {
            if amount == Amount::default() {
                continue;
            }
            sum.add(&amount);
            let mut stack: Vec<usize> = Vec::with_capacity(addresses.len());
            for address in addresses {
                stack.push(*numbers.entry(address).or_insert_with(|| {
                    frames.push(namer.frame(address));
                    frames.len() - 1
                }));
            }
            let skipped =
                stack.iter().take_while(|frame| frames[**frame].owner == Owner::Allocator).count();
            // A stack of the allocator's functions alone keeps the last: something must bear its
            // bytes.
            stack.drain(..skipped.min(stack.len().saturating_sub(1)));
            stacks.push(StackSample { frames: stack, amount });
        }
        Ok(Self { since_millis, between, frames, stacks, mappings: document.mappings, sum, head })
    }

    /// The site of a stack: its nearest function that allocates for itself.
    pub(crate) fn site(&self, stack: &StackSample) -> Option<usize> {
        let frames = &stack.frames;
        let found = frames.iter().find(|frame| self.frames[**frame].owner > Owner::Plumbing);
        found.or_else(|| frames.first()).copied()
    }

    /// The caller of the site: the nearest function of the program's own, if it is not the site.
    pub(crate) fn caller(&self, stack: &StackSample) -> Option<usize> {
        let own =
            stack.frames.iter().find(|frame| self.frames[**frame].owner == Owner::Own).copied();
        own.filter(|own| Some(*own) != self.site(stack))
    }
}

fn of_build(id: &str) -> &str {
    if id.is_empty() { "without an id" } else { id }
}

struct Namer<'a> {
    symbols: &'a Symbols,
    mappings: &'a [Mapping],
    program: &'a Program,
    head: &'a Head,
}

impl Namer<'_> {
    fn frame(&mut self, address: u64) -> Frame {
        // It is where the call returns to, which may be behind its function's end.
        let address = address.saturating_sub(1);
        let found = self
            .mappings
            .iter()
            .position(|mapping| (mapping.start..mapping.end).contains(&address));
        let Some(number) = found else {
            let name = format!("code at {address:#x}");
            return Frame { name, owner: Owner::Library, memory: address, mapping: None };
        };
        let mapping = &self.mappings[number];
        let offset = (address - mapping.start).saturating_add(mapping.offset);
        let mut placed = offset;
        if mapping.path == self.head.exe
            && let Some(inside) = self.symbols.address(offset)
        {
            placed = inside;
            if let Some((linker, _)) = self.symbols.function(inside) {
                let name = names::readable(linker);
                let owner = names::owner(&name, self.program.own);
                return Frame { name, owner, memory: address, mapping: Some(number) };
            }
        }
        let file = mapping.path.rsplit('/').next().unwrap_or_default();
        let file = if file.is_empty() { "code without a file" } else { file };
        let name = format!("{file}+{placed:#x}");
        // Other files are the system's libraries.
        let own = mapping.path == self.head.exe;
        let owner = if own { Owner::Library } else { Owner::Plumbing };
        Frame { name, owner, memory: address, mapping: Some(number) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P1 - A heap sample is scaled to the allocations that it represents.
    #[test]
    fn samples_stand_for_what_they_were_drawn_from() {
        // Objects of 1 KiB at one sample per 128 KiB: each stands for about 128.
        let (objects, bytes) = estimate(Count { samples: 100, bytes: 100 << 10 }, 128 << 10);
        assert!((12_800..12_900).contains(&objects), "{objects}");
        assert!((bytes / 1024 - objects).abs() <= 1, "{bytes}");
        // Large ones are all sampled.
        let large = Count { samples: 3, bytes: 3 << 30 };
        assert_eq!(estimate(large, 128 << 10), (3, 3 << 30));
        // No sum overflows for any document.
        let most = Count { samples: u64::MAX, bytes: u64::MAX };
        let mut amount = Amount::from_counts(most, most, 1);
        amount.add(&amount.clone());
        assert_eq!(amount.live_bytes, i64::MAX);
        assert_eq!(estimate(Count { samples: 0, bytes: 5 }, 1), (0, 0));
        assert!(estimate(Count { samples: u64::MAX, bytes: 1 }, u64::MAX).1 >= 0);
    }
}
