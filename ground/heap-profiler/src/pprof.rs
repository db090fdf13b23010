//! The profile in the form of pprof, for `go tool pprof` and everything else that reads it.
//!
//! Source: `profile.proto` of github.com/google/pprof. Sample types are those of Go's heap
//! profiles, so that its options (`-sample_index=alloc_space`) work as expected.

use std::{collections::HashMap, io::Write};

use anyhow::Result;
use flate2::{Compression, write::GzEncoder};
use prost::Message;

use crate::{names, profile::Profile};

/// The messages of the format. A row is a field, its type, how it is written, and its number.
macro_rules! messages {
    ($($name:ident { $($field:ident: $type:ty = $($kind:ident)+, $tag:tt;)+ })+) => {
        $(
            #[derive(Clone, PartialEq, Message)]
            pub(crate) struct $name {
                $(
                    #[prost($($kind),+, tag = $tag)]
                    pub(crate) $field: $type,
                )+
            }
        )+
    };
}

messages! {
    ValueType {
        kind: i64 = int64, "1";
        unit: i64 = int64, "2";
    }
    Sample {
        location_id: Vec<u64> = uint64 repeated, "1";
        value: Vec<i64> = int64 repeated, "2";
    }
    Mapping {
        id: u64 = uint64, "1";
        memory_start: u64 = uint64, "2";
        memory_limit: u64 = uint64, "3";
        file_offset: u64 = uint64, "4";
        filename: i64 = int64, "5";
        build_id: i64 = int64, "6";
        has_functions: bool = bool, "7";
    }
    Line {
        function_id: u64 = uint64, "1";
    }
    Location {
        id: u64 = uint64, "1";
        mapping_id: u64 = uint64, "2";
        address: u64 = uint64, "3";
        line: Vec<Line> = message repeated, "4";
    }
    Function {
        id: u64 = uint64, "1";
        name: i64 = int64, "2";
        system_name: i64 = int64, "3";
    }
    File {
        sample_type: Vec<ValueType> = message repeated, "1";
        sample: Vec<Sample> = message repeated, "2";
        mapping: Vec<Mapping> = message repeated, "3";
        location: Vec<Location> = message repeated, "4";
        function: Vec<Function> = message repeated, "5";
        string_table: Vec<String> = string repeated, "6";
        time_nanos: i64 = int64, "9";
        duration_nanos: i64 = int64, "10";
        period_type: Option<ValueType> = message optional, "11";
        period: i64 = int64, "12";
        default_sample_type: i64 = int64, "14";
    }
}

/// Texts, each once; number 0 is the empty one.
struct Texts {
    numbers: HashMap<String, i64>,
    texts: Vec<String>,
}

impl Texts {
    fn new() -> Self {
        Self { numbers: HashMap::from([(String::new(), 0)]), texts: vec![String::new()] }
    }

    fn number(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as i64;
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

fn file(profile: &Profile) -> File {
    let mut texts = Texts::new();
    let mut kind =
        |kind: &str, unit: &str| ValueType { kind: texts.number(kind), unit: texts.number(unit) };
    let sample_type = vec![
        kind("alloc_objects", "count"),
        kind("alloc_space", "bytes"),
        kind("inuse_objects", "count"),
        kind("inuse_space", "bytes"),
    ];
    let period_type = Some(kind("space", "bytes"));
    let head = &profile.head;
    let mapping = profile.mappings.iter().zip(1..).map(|(mapping, id)| Mapping {
        id,
        memory_start: mapping.start,
        memory_limit: mapping.end,
        file_offset: mapping.offset,
        filename: texts.number(&mapping.path),
        build_id: if mapping.path == head.exe { texts.number(&head.build_id) } else { 0 },
        // Otherwise the tool looks for names itself, in files of the machine it runs on.
        has_functions: true,
    });
    let mapping: Vec<Mapping> = mapping.collect();
    let (mut function, mut functions) = (Vec::new(), HashMap::new());
    let mut location = Vec::with_capacity(profile.frames.len());
    for (frame, id) in profile.frames.iter().zip(1..) {
        let function_id = *functions.entry(frame.name.as_str()).or_insert_with(|| {
            let id = function.len() as u64 + 1;
            // The tool leaves out the parts in `<...>`, and would leave nothing of some names.
            let name = texts.number(&names::short(&frame.name));
            function.push(Function { id, name, system_name: texts.number(&frame.name) });
            id
        });
        location.push(Location {
            id,
            mapping_id: frame.mapping.map_or(0, |number| number as u64 + 1),
            address: frame.memory,
            line: vec![Line { function_id }],
        });
    }
    let sample = profile.stacks.iter().map(|stack| Sample {
        location_id: stack.frames.iter().map(|frame| *frame as u64 + 1).collect(),
        value: {
            let amount = &stack.amount;
            vec![amount.total_objects, amount.total_bytes, amount.live_objects, amount.live_bytes]
        },
    });
    let nanos = |millis: u64| i64::try_from(millis.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
    File {
        sample_type,
        sample: sample.collect(),
        mapping,
        location,
        function,
        default_sample_type: texts.number("inuse_space"),
        string_table: texts.texts,
        time_nanos: nanos(head.taken_millis),
        duration_nanos: nanos(head.taken_millis.saturating_sub(profile.since_millis)),
        period_type,
        period: i64::try_from(head.sample_bytes).unwrap_or(i64::MAX),
    }
}

pub(crate) fn encode(profile: &Profile) -> Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&file(profile).encode_to_vec())?;
    Ok(packed.finish()?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::testing::profile;

    // Promise: P1 - A pprof export refers only to sites that it contains.
    #[test]
    fn every_number_in_the_file_is_of_something_in_it() {
        let profile = profile();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&encode(&profile).unwrap()[..])
            .read_to_end(&mut bytes)
            .unwrap();
        let file = File::decode(&bytes[..]).unwrap();
        let text = |number: i64| file.string_table[usize::try_from(number).unwrap()].as_str();
        assert_eq!(text(0), "");
        let kinds: Vec<&str> = file.sample_type.iter().map(|kind| text(kind.kind)).collect();
        assert_eq!(kinds, ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]);
        assert_eq!(file.sample.len(), profile.stacks.len());
        let mut names = Vec::new();
        for sample in &file.sample {
            assert_eq!(sample.value.len(), kinds.len());
            for id in &sample.location_id {
                let location = file.location.iter().find(|location| location.id == *id).unwrap();
                let function = location.line[0].function_id;
                let function = file.function.iter().find(|one| one.id == function).unwrap();
                names.push(text(function.name));
                let mapping =
                    file.mapping.iter().find(|mapping| mapping.id == location.mapping_id).unwrap();
                assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
            }
        }
        assert!(names.contains(&"own::read"), "{names:?}");
        let live: i64 = file.sample.iter().map(|sample| sample.value[3]).sum();
        assert_eq!(live, profile.sum.live_bytes);
        assert_eq!((text(file.default_sample_type), file.period), ("inuse_space", 131_072));
    }
}
