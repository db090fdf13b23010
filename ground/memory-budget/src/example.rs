//! A small table, for the tests of what all tables have in common: an inn with a door and a cellar.

use accounting::MIB;

use crate::{Preset, Rules, Scale, SheetLine, limit, limits, lines, table, times, whole};

const SCALE: Scale<2> = Scale::new([8, 32]);

const PRESETS: [Preset; 2] = [
    Preset { name: "small", memory_bytes: 8 * MIB },
    Preset { name: "large", memory_bytes: 32 * MIB },
];

table! {
    /// 2 MiB of walls, half a MiB per guest, and the cellar: 8 MiB at least.
    pub struct ExampleProgram {
        program "inn", presets PRESETS, lines sheet_lines;
        budgets {
            /// Memory.
            memory_budget_bytes,
            /// Disk.
            disk_budget_bytes,
        }
        groups {
            /// The door.
            door: DoorLimits,
            /// The cellar.
            cellar: CellarLimits,
        }
    }
}

pub(crate) use cellar::CellarLimits;
pub(crate) use door::DoorLimits;

mod door {
    use super::*;

    limits! {
        SCALE;
        /// The door.
        pub struct DoorLimits as door of ExampleProgram, rules check_door {
            /// Guests.
            guests: u64 = values([4, 16]), agreed,
                pays line("rooms"),
                bounds [
                    at_least(1, "an inn lives of guests"),
                    at_most(1000, "a house of that size is a town"),
                ],
                reason "chairs";
            /// Follows the guests.
            keys: u64 = follows(|inn| inn.door.guests), local, reason "follows guests";
            /// At night.
            locked: bool = off(), agreed, reason "it is day";
        }
    }

    fn check_door(inn: &ExampleProgram, rules: &mut Rules) {
        rules.bounds(inn, &["door.guests"]);
    }
}

mod cellar {
    use super::*;

    limits! {
        SCALE;
        /// The cellar.
        pub struct CellarLimits as cellar of ExampleProgram, rules check_cellar {
            /// All barrels.
            cellar_bytes: u64 = mib([4, 16]), local,
                pays line("cellar"), bounds [pages(4096)],
                reason "what guests drink";
            /// One barrel.
            barrel_bytes: u64 = fixed(MIB), local,
                pays within("cellar"),
                reason "what one can carry";
        }
    }

    fn check_cellar(inn: &ExampleProgram, rules: &mut Rules) {
        let (barrel, cellar) = (limit!(inn.cellar.barrel_bytes), limit!(inn.cellar.cellar_bytes));
        rules.within(barrel, cellar, "one must fit");
    }
}

fn sheet_lines(inn: &ExampleProgram) -> Vec<SheetLine> {
    lines![
        Fixed("walls", "inn") = whole(2 * MIB), "as inns have";
        Pool("rooms", "inn") = times(inn.door.guests, MIB / 2), "as inns have";
        Pool("cellar", "inn") = whole(inn.cellar.cellar_bytes), "as inns have";
        File("garden", "inn") = whole(5 * MIB), "as inns have";
        Disk("fields", "inn") = whole(100 * MIB), "as inns have";
    ]
}
