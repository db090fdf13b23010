//! A small table, for the tests of what all tables have in common: an inn with a door and a cellar.

use budget::MIB;
use serde::{Deserialize, Serialize};

use crate::{LineKind, Preset, Row, Rules, Scale, SheetLine, Table, limit};

const SCALE: Scale<2> = Scale::new([8, 32]);
const GUESTS: Row<2> = SCALE.values([4, 16]);
const CELLAR: Row<2> = SCALE.mib([4, 16]);

/// 2 MiB of walls, half a MiB per guest, and the cellar: 8 MiB at least.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExampleProgram {
    pub(crate) memory_budget_bytes: u64,
    pub(crate) disk_budget_bytes: u64,
    pub(crate) door: DoorLimits,
    pub(crate) cellar: CellarLimits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DoorLimits {
    pub(crate) guests: u64,
    /// Follows the guests.
    pub(crate) keys: u64,
    pub(crate) locked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CellarLimits {
    pub(crate) cellar_bytes: u64,
    pub(crate) barrel_bytes: u64,
}

impl Table for ExampleProgram {
    const PROGRAM: &'static str = "inn";
    const PRESETS: &'static [Preset] = &[
        Preset { name: "small", memory_bytes: 8 * MIB },
        Preset { name: "large", memory_bytes: 32 * MIB },
    ];
    const REASONS: &'static [(&'static str, &'static str)] = &[
        ("door.guests", "chairs"),
        ("door.keys", "follows guests"),
        ("door.locked", "it is day"),
        ("cellar.cellar_bytes", "what guests drink"),
        ("cellar.barrel_bytes", "what one can carry"),
    ];

    fn scaled(memory_bytes: u64) -> Self {
        let door = DoorLimits { guests: GUESTS.at(memory_bytes), keys: 0, locked: false };
        let cellar =
            CellarLimits { cellar_bytes: CELLAR.bytes_at(memory_bytes), barrel_bytes: MIB };
        let mut inn =
            Self { memory_budget_bytes: memory_bytes, disk_budget_bytes: 0, door, cellar };
        inn.follow(|_| false);
        inn
    }

    fn memory_budget_bytes(&self) -> u64 {
        self.memory_budget_bytes
    }

    fn disk_budget_bytes(&self) -> u64 {
        self.disk_budget_bytes
    }

    fn lines(&self) -> Vec<SheetLine> {
        let line = |name, bytes, kind| SheetLine {
            name,
            bytes,
            owner: "inn",
            made_of: String::new(),
            reason: "as inns have",
            kind,
        };
        vec![
            line("walls", 2 * MIB, LineKind::Fixed),
            line("rooms", self.door.guests.saturating_mul(MIB / 2), LineKind::Pool),
            line("cellar", self.cellar.cellar_bytes, LineKind::Pool),
            line("garden", 5 * MIB, LineKind::File),
            line("fields", 100 * MIB, LineKind::Disk),
        ]
    }

    fn follow(&mut self, stays: impl Fn(&str) -> bool) {
        if !stays("door.keys") {
            self.door.keys = self.door.guests;
        }
    }

    fn rules(&self, rules: &mut Rules) {
        rules.at_least(limit!(self.door.guests), 1, "an inn lives of guests");
        rules.at_most(limit!(self.door.guests), 1000, "a house of that size is a town");
        rules.within(
            limit!(self.cellar.barrel_bytes),
            limit!(self.cellar.cellar_bytes),
            "one must fit",
        );
        rules.pages(limit!(self.cellar.cellar_bytes), 4096);
    }
}
