//! The macros in which a program declares its limits, its table and the lines of its sheet.

/// Declares a group of limits: one row says all there is to a limit.
///
/// ```
/// use memory_budget::{LimitsError, LineKind, Preset, Rules, Scale, SheetLine};
/// use memory_budget::{limit, limits, whole};
///
/// /// Memory sizes, in MiB, at which rows name their values.
/// const SCALE: Scale<2> = Scale::new([8, 32]);
///
/// limits! {
///     SCALE;
///     /// What is drunk.
///     #[serde(deny_unknown_fields)]
///     pub struct CellarLimits as cellar of Limits, rules check_cellar {
///         /// All barrels together.
///         cellar_bytes: u64 = mib([4, 16]), agreed,
///             pays line("cellar"),
///             bounds [at_least(4096, "an inn lives of its guests"), pages(4096)],
///             reason "half of the house";
///         /// One barrel.
///         barrel_bytes: u64 = follows(|limits| limits.cellar.cellar_bytes / 4), local,
///             pays within("cellar"),
///             reason "follows cellar_bytes";
///     }
/// }
///
/// /// Rules between these limits and others.
/// fn check_cellar(limits: &Limits, rules: &mut Rules) {
///     let barrel = limit!(limits.cellar.barrel_bytes);
///     rules.within(barrel, limit!(limits.cellar.cellar_bytes), "one must fit");
/// }
///
/// const PRESETS: [Preset; 1] = [Preset { name: "small", memory_bytes: 8 << 20 }];
///
/// memory_budget::table! {
///     /// All limits of an inn.
///     pub struct Limits {
///         program "inn", presets PRESETS, lines lines;
///         budgets {
///             /// Its memory.
///             memory_budget_bytes,
///         }
///         groups {
///             /// What is drunk.
///             cellar: CellarLimits,
///         }
///     }
/// }
///
/// fn lines(limits: &Limits) -> Vec<SheetLine> {
///     memory_budget::lines![
///         Pool("cellar", "inn") = whole(limits.cellar.cellar_bytes), "what guests drink";
///     ]
/// }
///
/// # fn main() -> Result<(), LimitsError> {
/// let limits = Limits::derive(8 << 20)?;
/// assert_eq!((limits.cellar.cellar_bytes, limits.cellar.barrel_bytes), (4 << 20, 1 << 20));
/// assert!(memory_budget::omissions(&[limits]).is_empty());
/// # Ok(())
/// # }
/// ```
///
/// A row has, in this order:
///
/// 1. The documentation of the field, which the reference of limits shows
///    ([`crate::reference()`]). It needs no default for serde: [`crate::from_record`] reads tables
///    that were recorded before there was the row.
/// 2. Name and type, `u64` or `bool`. The name ends in its unit.
/// 3. The value. A method of [`crate::Scale`], without the scale: `fixed(value)`, `mib([..])`,
///    `values([..])`, `steps([..])` and so on; further methods of [`crate::Row`] may come after it.
///    Or a consequence: `follows(|limits| ..)`. Or both: after a value by memory,
///    `follows(|limits, least| ..)` makes a consequence that is given that value, and
///    `follows_disk(|limits, least| ..)` one where a disk budget is stated.
/// 4. `agreed` where members of a subnet must have the same value: the result of a batch depends on
///    it, or it bounds messages between members, or it decides what a member contributes to
///    agreement on the same input. Otherwise `local`. A bound of the time or memory that one
///    machine spends on its contribution is local: machines differ in these whatever the limit.
/// 5. `pays`: `line("a", "b")` names all lines of the sheet that change with the limit;
///    `within("a")` names the line that counts its memory and does not change with it;
///    `none("why")` says why there is no line. A limit in bytes does not compile without it. A test
///    of each program finds lines that are missing or wrong ([`crate::omissions`]).
/// 6. `bounds [..]`, where the limit has any of its own: `at_least(value, "why")`,
///    `at_most(value, "why")`, `pages(bytes)`.
/// 7. `reason "..."`: why the value is as it is, as `PROGRAM limits` shows it.
///
/// `as cellar of Limits` is the field of the group and the table. After it may come
/// `flattens field: Type` for a part of the group that every program has, `if path` for a function
/// of the group without which its rules do not apply, and `rules path` for a function that checks
/// the rules between several limits. The bounds of the rows are checked after that function; it may
/// check some first ([`crate::Rules::bounds`]), so that an operator reads which value is wrong
/// before what follows from it.
///
/// A group whose struct is in this crate has only its rows in the program:
/// `shared HeapLimits as heap of Limits = |memory| ..; { sample_bytes: local, reason "..."; }`.
///
/// Each row makes a constant too, its values by memory: `rows::cellar_bytes`, in a module `rows`
/// beside the group. So there is one group in a module; its crate depends on `serde`.
///
/// A row without `agreed` or `local` does not compile:
///
/// ```compile_fail
/// # fn main() {}
/// # const SCALE: memory_budget::Scale<1> = memory_budget::Scale::new([8]);
/// # use memory_budget::Preset;
/// # const PRESETS: [Preset; 1] = [Preset { name: "inn", memory_bytes: 8 << 20 }];
/// # fn lines(_: &Limits) -> Vec<memory_budget::SheetLine> { Vec::new() }
/// # memory_budget::table! {
/// #     pub struct Limits {
/// #         program "inn", presets PRESETS, lines lines;
/// #         budgets { memory_budget_bytes, }
/// #         groups { door: DoorLimits, }
/// #     }
/// # }
/// memory_budget::limits! {
///     SCALE;
///     /// The door.
///     pub struct DoorLimits as door of Limits {
///         /// Guests.
///         guests: u64 = fixed(1), reason "chairs";
///     }
/// }
/// ```
///
/// Nor one without a reason:
///
/// ```compile_fail
/// # fn main() {}
/// # const SCALE: memory_budget::Scale<1> = memory_budget::Scale::new([8]);
/// # use memory_budget::Preset;
/// # const PRESETS: [Preset; 1] = [Preset { name: "inn", memory_bytes: 8 << 20 }];
/// # fn lines(_: &Limits) -> Vec<memory_budget::SheetLine> { Vec::new() }
/// # memory_budget::table! {
/// #     pub struct Limits {
/// #         program "inn", presets PRESETS, lines lines;
/// #         budgets { memory_budget_bytes, }
/// #         groups { door: DoorLimits, }
/// #     }
/// # }
/// memory_budget::limits! {
///     SCALE;
///     /// The door.
///     pub struct DoorLimits as door of Limits {
///         /// Guests.
///         guests: u64 = fixed(1), local;
///     }
/// }
/// ```
///
/// Nor one in bytes without a line of the sheet:
///
/// ```compile_fail
/// # fn main() {}
/// # const SCALE: memory_budget::Scale<1> = memory_budget::Scale::new([8]);
/// # use memory_budget::Preset;
/// # const PRESETS: [Preset; 1] = [Preset { name: "inn", memory_bytes: 8 << 20 }];
/// # fn lines(_: &Limits) -> Vec<memory_budget::SheetLine> { Vec::new() }
/// # memory_budget::table! {
/// #     pub struct Limits {
/// #         program "inn", presets PRESETS, lines lines;
/// #         budgets { memory_budget_bytes, }
/// #         groups { door: DoorLimits, }
/// #     }
/// # }
/// memory_budget::limits! {
///     SCALE;
///     /// The door.
///     pub struct DoorLimits as door of Limits {
///         /// Its letter box.
///         letters_bytes: u64 = fixed(1), local, reason "a letter";
///     }
/// }
/// ```
#[macro_export]
macro_rules! limits {
    // Values by memory: the first method is the scale's, further ones are the row's.
    (@row $scale:ident follows $of:tt) => { $scale.fixed(0) };
    (@row $scale:ident $form:ident $value:tt follows $of:tt) => { $scale.$form $value };
    (@row $scale:ident $form:ident $value:tt follows_disk $of:tt) => { $scale.$form $value };
    (@row $scale:ident $form:ident $value:tt $($more:ident $by:tt)*) => {
        $scale.$form $value $(.$more $by)*
    };

    (@follows $least:expr, follows ($of:expr)) => { $crate::Follows::Others($of) };
    (@follows $least:expr, $form:ident $value:tt follows ($of:expr)) => {
        $crate::Follows::Least($of, $least)
    };
    (@follows $least:expr, $form:ident $value:tt follows_disk ($of:expr)) => {
        $crate::Follows::Disk($of, $least)
    };
    (@follows $least:expr, $($form:ident $value:tt)+) => { $crate::Follows::Nothing };

    (@scope agreed) => { true };
    (@scope local) => { false };
    (@scope $other:ident) => {
        compile_error!(concat!("a limit is `agreed` or `local`, not `", stringify!($other), "`"))
    };

    (@pays) => { $crate::Pays::Unstated };
    (@pays line ($($line:expr),+)) => { $crate::Pays::Lines(&[$($line),+]) };
    (@pays within ($line:expr)) => { $crate::Pays::Within($line) };
    (@pays none ($why:expr)) => { $crate::Pays::Nothing($why) };

    // A line of documentation; nothing for another attribute.
    (@doc doc = $line:expr) => { $line };
    (@doc $($attribute:tt)*) => { "" };

    // One row. `$value` and `$set` read and write the limit.
    (@limit $Table:ident $name:expr, [$($doc:expr),*], $scope:ident, ($($pays:tt)*),
        [$($bound:expr),*], $reason:expr, $value:expr, $set:expr, $follows:expr) => {
        $crate::Limit::<$Table> {
            name: $name,
            doc: &[$($doc),*],
            is_agreed: $crate::limits!(@scope $scope),
            pays: $crate::limits!(@pays $($pays)*),
            bounds: &[$($bound),*],
            reason: $reason,
            value: $value,
            set: $set,
            follows: $follows,
        }
        .complete(concat!("the row of `", $name, "` lacks `pays` or a reason"))
    };

    (
        $scale:ident;
        $(#[$meta:meta])*
        pub struct $Group:ident as $group:ident of $Table:ident
            $(, flattens $part:ident: $Part:ident)? $(, if $if:path)? $(, rules $rules:path)?
        {
            $(
                $(#[$($field_meta:tt)*])*
                $field:ident: $type:ident = $($form:ident $value:tt)+, $scope:ident,
                $(pays $pays:ident ($($line:expr),+ $(,)?),)?
                $(bounds [$($bound:ident ($($limit:expr),+ $(,)?)),+ $(,)?],)?
                reason $reason:literal;
            )+
        }
    ) => {
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        $(#[$meta])*
        pub struct $Group {
            $(
                #[doc = concat!("Limits that every program has; see [`", stringify!($Part), "`].")]
                #[serde(flatten)]
                pub $part: $Part,
            )?
            $($(#[$($field_meta)*])* pub $field: $type,)+
        }

        /// Values by memory, under the names of their limits.
        #[allow(non_upper_case_globals, reason = "a row has the name of its limit")]
        pub(crate) mod rows {
            use super::*;

            $(
                pub(crate) const $field: $crate::Row<{ $scale.sizes() }> =
                    $crate::limits!(@row $scale $($form $value)+);
            )+
        }

        impl $crate::Group<$Table> for $Group {
            $(const PART: &'static [$crate::Limit<$Table>] =
                <$Part as $crate::Group<$Table>>::LIMITS;)?
            const LIMITS: &'static [$crate::Limit<$Table>] = &[$(
                $crate::limits!(
                    @limit $Table concat!(stringify!($group), ".", stringify!($field)),
                    [$($crate::limits!(@doc $($field_meta)*)),*], $scope,
                    ($($pays ($($line),+))?),
                    [$($($crate::LimitBound::$bound($($limit),+)),+)?], $reason,
                    |table| $crate::Value::number(Self::of(table).$field),
                    |table, value| Self::of_mut(table).$field = $crate::Value::of(value),
                    $crate::limits!(
                        @follows |memory| rows::$field.value_at(memory), $($form $value)+
                    )
                ),
            )+];

            fn of(table: &$Table) -> &Self {
                &table.$group
            }

            fn of_mut(table: &mut $Table) -> &mut Self {
                &mut table.$group
            }

            fn scaled(memory_bytes: u64) -> Self {
                Self {
                    $($part: <$Part as $crate::Group<$Table>>::scaled(memory_bytes),)?
                    $($field: $crate::Value::of(rows::$field.value_at(memory_bytes)),)+
                }
            }

            fn rules(table: &$Table, rules: &mut $crate::Rules) {
                $(if !$if(Self::of(table)) {
                    return;
                })?
                $($rules(table, rules);)?
                rules.bounds_of(table, Self::LIMITS);
            }
        }
    };

    (
        shared $Group:ident as $group:ident $(. $inner:ident)? of $Table:ident = $scaled:expr;
        $(rules $rules:path;)?
        {
            $(
                $field:ident: $scope:ident, $(pays $pays:ident ($($line:expr),+ $(,)?),)?
                reason $reason:literal;
            )+
        }
    ) => {
        impl $crate::Group<$Table> for $Group {
            const LIMITS: &'static [$crate::Limit<$Table>] = &[$(
                $crate::limits!(
                    @limit $Table concat!(stringify!($group), ".", stringify!($field)), [], $scope,
                    ($($pays ($($line),+))?), [], $reason,
                    |table| Self::of(table).$field,
                    |table, value| Self::of_mut(table).$field = value,
                    $crate::Follows::Nothing
                ),
            )+];

            fn of(table: &$Table) -> &Self {
                &table.$group$(.$inner)?
            }

            fn of_mut(table: &mut $Table) -> &mut Self {
                &mut table.$group$(.$inner)?
            }

            fn scaled(memory_bytes: u64) -> Self {
                let scaled: fn(u64) -> Self = $scaled;
                let group = scaled(memory_bytes);
                // A field without a row does not compile.
                let $Group { $($field: _),+ } = &group;
                group
            }

            #[allow(unused_variables, reason = "a group may have no rules")]
            fn rules(table: &$Table, rules: &mut $crate::Rules) {
                $($rules(table, rules);)?
            }
        }
    };
}

/// Declares a program's table of groups of limits, and the functions that every table has. An
/// example is at [`crate::limits!`].
///
/// After the program's name, its presets and the function of the lines of its sheet come the memory
/// budget, a disk budget if the program has one, and the groups, each with its documentation.
#[macro_export]
macro_rules! table {
    (
        $(#[$meta:meta])*
        pub struct $Table:ident {
            program $program:literal, presets $presets:ident, lines $lines:path;
            budgets {
                $(#[$memory_meta:meta])*
                $memory:ident,
                $($(#[$disk_meta:meta])* $disk:ident,)?
            }
            groups {
                $($(#[$group_meta:meta])* $group:ident: $Group:ident,)+
            }
        }
    ) => {
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        $(#[$meta])*
        #[serde(deny_unknown_fields)]
        pub struct $Table {
            $(#[$memory_meta])*
            pub $memory: u64,
            $($(#[$disk_meta])* pub $disk: u64,)?
            $($(#[$group_meta])* pub $group: $Group,)+
        }

        impl $crate::Table for $Table {
            const PROGRAM: &'static str = $program;
            const PRESETS: &'static [$crate::Preset] = &$presets;
            const LIMITS: &'static [&'static [$crate::Limit<Self>]] = &[$(
                <$Group as $crate::Group<Self>>::PART,
                <$Group as $crate::Group<Self>>::LIMITS,
            )+];

            fn unlinked(memory_bytes: u64) -> Self {
                Self {
                    $memory: memory_bytes,
                    $($disk: 0,)?
                    $($group: <$Group as $crate::Group<Self>>::scaled(memory_bytes),)+
                }
            }

            fn memory_budget_bytes(&self) -> u64 {
                self.$memory
            }

            $(fn disk_budget_bytes(&self) -> u64 {
                self.$disk
            })?

            fn lines(&self) -> Vec<$crate::SheetLine> {
                $lines(self)
            }

            fn rules(&self, rules: &mut $crate::Rules) {
                $(rules.group::<Self, $Group>(self);)+
            }
        }

        impl $Table {
            /// The table for a program that may take `memory_bytes` in all (whole MiB of it), or
            /// which line of the budget sheet does not fit and what size would work.
            pub fn derive(memory_bytes: u64) -> Result<Self, $crate::LimitsError> {
                $crate::derive(memory_bytes)
            }

            /// The smallest size that can be derived. Below the first size that rows name nothing
            /// shrinks further: the sum of that table is the least that is needed.
            pub fn smallest_bytes() -> u64 {
                $crate::smallest_bytes::<Self>()
            }

            /// The table of a named size.
            pub fn preset(name: &str) -> Result<Self, $crate::LimitsError> {
                $crate::preset(name)
            }

            /// The table in a record that any version of the program wrote
            /// ([`memory_budget::from_record`]).
            pub fn from_record(record: &serde_json::Value) -> Result<Self, $crate::LimitsError> {
                $crate::from_record(record)
            }

            /// Applies the operator's own values by name: an object of groups of limits. Nothing is
            /// changed when anything is refused ([`memory_budget::apply_overrides`]).
            pub fn apply_overrides(
                &mut self,
                overrides: &serde_json::Value,
            ) -> Result<(), $crate::LimitsError> {
                $crate::apply_overrides(self, overrides)
            }

            /// Whether the limits fit together and into the budget; every rule broken is named with
            /// its limits and values.
            pub fn check(&self) -> Result<(), $crate::LimitsError> {
                $crate::check(self)
            }

            /// The budget sheet of this table.
            pub fn sheet(&self) -> $crate::Sheet {
                $crate::Sheet::for_table(self)
            }

            /// The pools that hold the program to the sheet. Lines that are not pools are taken off
            /// the budget first.
            pub fn ledger(&self) -> Result<accounting::Ledger, $crate::LimitsError> {
                self.sheet().ledger()
            }
        }
    };
}

/// Lines of a budget sheet: `KIND(NAME, OWNER) = AMOUNT, REASON;`. A kind is a variant of
/// [`crate::LineKind`], an amount the result of [`crate::whole`] or [`crate::times`], or bytes with
/// a text of their terms. An example is at [`crate::limits!`].
#[macro_export]
macro_rules! lines {
    ($($kind:ident($name:expr, $owner:literal) = $amount:expr, $reason:expr;)*) => {
        vec![$({
            let (bytes, made_of) = $amount;
            $crate::SheetLine {
                name: $name,
                bytes,
                owner: $owner,
                made_of,
                reason: $reason,
                kind: $crate::LineKind::$kind,
            }
        }),*]
    };
}
