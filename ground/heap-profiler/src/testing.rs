//! A small profile for the tests of every view.

use crate::{
    command::Program,
    document::{Head, Mapping},
    names::Owner,
    profile::{Amount, Frame, Profile, StackSample},
};

pub(crate) const PROGRAM: Program = Program { name: "x", own: &["own"] };

/// 5 MiB live: 3 that a library allocated for one function of the program, 2 by another.
pub(crate) fn profile() -> Profile {
    let names = [
        ("alloc::raw_vec::RawVec<T,A>::grow_one", Owner::Plumbing),
        ("<library::Buffer<u8> as core::ops::Grow>::grow", Owner::Library),
        ("own::read::{{closure}}", Owner::Own),
        ("own::index", Owner::Own),
        ("own::answer", Owner::Own),
        ("tokio::runtime::run", Owner::Library),
        ("tokio::runtime::<\"task\" & more>", Owner::Library),
        ("main", Owner::Library),
    ];
    let frames = names.iter().zip(0..).map(|((name, owner), at)| Frame {
        name: name.trim_end_matches("::{{closure}}").to_string(),
        owner: *owner,
        memory: 0x1000 + at,
        mapping: Some(0),
    });
    let stack = |frames: &[usize], live: i64, total: i64| StackSample {
        frames: frames.to_vec(),
        amount: Amount {
            live_bytes: live,
            live_objects: live / 1024,
            live_samples: live >> 17,
            total_bytes: total,
            total_objects: total / 1024,
            total_samples: total >> 17,
        },
    };
    let stacks = vec![
        stack(&[0, 1, 2, 5, 6, 7], 2 << 20, 4 << 20),
        stack(&[0, 1, 2, 5, 7], 1 << 20, 4 << 20),
        stack(&[0, 3, 7], 2 << 20, 2 << 20),
        stack(&[4, 5, 7], 0, 100 << 20),
    ];
    let mut sum = Amount::default();
    for stack in &stacks {
        sum.add(&stack.amount);
    }
    Profile {
        head: Head {
            program: "x".into(),
            pid: 7,
            exe: "/usr/bin/x".into(),
            build_id: "ab".into(),
            started_millis: 1_000,
            taken_millis: 63_000,
            sample_bytes: 131_072,
            profiler_bytes: 1 << 20,
            profiler_bytes_max: 4 << 20,
            ..Head::default()
        },
        since_millis: 1_000,
        between: false,
        frames: frames.collect(),
        stacks,
        mappings: vec![Mapping {
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            path: "/usr/bin/x".into(),
        }],
        sum,
    }
}
