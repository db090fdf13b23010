//! All values of a message, one after the other, without building any.

use ic_principal::Principal;

use super::kinds::{BOOL, EMPTY, INT, NAT, NAT8, PRINCIPAL, TEXT, fixed_bytes};
use super::table::{self, CUT_OFF, Fields, Reader, Table, Type, label};
use super::{
    ARGUMENTS_MAX, Bounds, Cost, DEPTH_MAX, HEADER_BYTES_MAX, METHOD_BYTES_MAX, Refusal, STEPS_MAX,
};

/// A message that is within its bounds.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) table: Table,
    /// Types of the arguments.
    pub(super) arguments: Vec<i64>,
    pub(super) principal: Option<Principal>,
    pub(super) steps: u64,
    /// Bytes of numbers of any size.
    pub(super) number_bytes: u64,
}

/// The rest of a composite value.
#[derive(Clone, Copy, Debug)]
enum Frame {
    /// Of a record.
    Fields(Fields),
    /// Of a vector.
    Elements { kind: i64, left: u64 },
    /// The value of an option or of a variant, under the label by which vectors are bounded.
    One { kind: i64, name: Option<u32> },
    /// That value was read.
    Over,
}

struct Values<'a, 'b> {
    reader: Reader<'a>,
    bounds: Bounds<'b>,
    frames: Vec<Frame>,
    /// Field of the first argument whose principal is wanted.
    wanted: Option<u32>,
    /// What was read so far.
    walk: Walk,
}

impl Walk {
    /// Reads all of `message`; keeps the principal in the field `wanted` of the first argument.
    ///
    /// # Errors
    /// When it is not within `bounds` or those of this module. The cost is added to `cost` in any
    /// case.
    pub(super) fn run(
        message: &[u8],
        wanted: Option<&str>,
        bounds: Bounds<'_>,
        cost: &mut Cost,
    ) -> Result<Self, Refusal> {
        let reader = Reader { bytes: message, at: 0 };
        let (frames, wanted) = (Vec::new(), wanted.map(label));
        let mut values = Values { reader, bounds, frames, wanted, walk: Self::default() };
        let read = values.message();
        cost.add_walk(values.walk.steps, message.len());
        read.map(|()| values.walk)
    }
}

impl Values<'_, '_> {
    fn message(&mut self) -> Result<(), Refusal> {
        let mut reader = self.reader;
        if reader.take(4).ok() != Some(b"DIDL") {
            return Err(Refusal::Invalid { at: 0, what: "it does not begin with DIDL" });
        }
        let mut steps = 0;
        // The header is read from a bounded part of the message, so that it costs no more.
        let all = reader.bytes;
        reader.bytes = all.get(..HEADER_BYTES_MAX).unwrap_or(all);
        let header = Self::header(&mut reader, &mut steps);
        self.walk.steps += steps;
        let (table, arguments) = header.map_err(|refusal| match refusal {
            Refusal::Invalid { what: CUT_OFF, .. } if all.len() > HEADER_BYTES_MAX => {
                Refusal::TooMany { what: "bytes in its header", most: HEADER_BYTES_MAX as u64 }
            }
            refusal => refusal,
        })?;
        self.walk.table = table;
        self.reader = Reader { bytes: all, at: reader.at };
        // Depth is checked before a frame is pushed.
        self.frames.reserve_exact(DEPTH_MAX);
        for (number, kind) in arguments.iter().enumerate() {
            if number > 0 {
                self.wanted = None;
            }
            self.value(*kind, None)?;
            self.within()?;
        }
        if self.reader.at < self.reader.bytes.len() {
            return Err(self.reader.invalid("the message continues after its last value"));
        }
        self.walk.arguments = arguments;
        Ok(())
    }

    fn header(reader: &mut Reader<'_>, steps: &mut u64) -> Result<(Table, Vec<i64>), Refusal> {
        let table = Table::read(reader, steps)?;
        let count = reader.count(ARGUMENTS_MAX, "arguments")?;
        let types = table.len();
        let kinds = (0..count).map(|_| Table::kind(reader, types));
        let arguments = kinds.collect::<Result<Vec<_>, _>>()?;
        Ok((table, arguments))
    }

    /// The values within the one that was begun.
    fn within(&mut self) -> Result<(), Refusal> {
        while let Some(frame) = self.frames.last_mut() {
            let (kind, name) = match frame {
                Frame::Fields(Fields { begin, end }) if *begin < *end => {
                    let at = *begin;
                    *begin += 1;
                    let (name, kind) = self.walk.table.field(at).unwrap_or((0, EMPTY));
                    (kind, Some(name))
                }
                Frame::Elements { kind, left } if *left > 0 => {
                    *left -= 1;
                    (*kind, None)
                }
                Frame::One { kind, name } => {
                    let next = (*kind, *name);
                    *frame = Frame::Over;
                    next
                }
                Frame::Fields(_) | Frame::Elements { .. } | Frame::Over => {
                    self.frames.pop();
                    continue;
                }
            };
            self.value(kind, name)?;
        }
        Ok(())
    }

    fn step(&mut self, steps: u64) -> Result<(), Refusal> {
        self.walk.steps = self.walk.steps.saturating_add(steps);
        if self.walk.steps > STEPS_MAX { Err(too_many_values()) } else { Ok(()) }
    }

    fn push(&mut self, frame: Frame) -> Result<(), Refusal> {
        if self.frames.len() == DEPTH_MAX {
            return Err(Refusal::TooDeep);
        }
        self.frames.push(frame);
        Ok(())
    }

    /// Reads a value, or begins one that has values in it.
    fn value(&mut self, kind: i64, name: Option<u32>) -> Result<(), Refusal> {
        self.step(1)?;
        if let Some(bytes) = fixed_bytes(kind) {
            let taken = self.reader.take(bytes)?;
            if kind == BOOL && taken.first().is_some_and(|byte| *byte > 1) {
                return Err(self.reader.invalid("a bool is neither 0 nor 1"));
            }
            return Ok(());
        }
        match kind {
            NAT | INT => {
                let begin = self.reader.at;
                while self.reader.byte()? & 0x80 != 0 {}
                self.walk.number_bytes += (self.reader.at - begin) as u64;
                return Ok(());
            }
            TEXT => {
                let length = self.reader.unsigned()?;
                return self.reader.take(length).map(drop);
            }
            PRINCIPAL => return self.principal(name),
            EMPTY => return Err(self.reader.invalid("there is no value of type empty")),
            _ => {}
        }
        let found = self.walk.table.get(kind);
        match found.ok_or_else(|| self.reader.invalid("there is no such type"))? {
            Type::Opt(kind) => match self.reader.byte()? {
                0 => Ok(()),
                1 => {
                    // The Candid library copies its types of functions for each option.
                    self.step(self.walk.table.references())?;
                    self.push(Frame::One { kind, name })
                }
                _ => Err(self.reader.invalid("an option is neither 0 nor 1")),
            },
            Type::Vec(kind) => self.vector(kind, name),
            Type::Record(fields) => self.push(Frame::Fields(fields)),
            Type::Variant(cases) => {
                let case = self.reader.unsigned()?;
                let found = usize::try_from(case).ok().and_then(|case| {
                    let at = cases.begin.checked_add(case).filter(|at| *at < cases.end)?;
                    self.walk.table.field(at)
                });
                let wrong = self.reader.invalid("a variant has no such case");
                let (name, kind) = found.ok_or(wrong)?;
                // The Candid library looks the case up among the others, one after the other.
                self.step(case)?;
                self.push(Frame::One { kind, name: Some(name) })
            }
            Type::Func(fields) => {
                // The Candid library compares the types of its arguments and results.
                self.step((fields.end - fields.begin) as u64)?;
                self.reference()?;
                self.principal(None)?;
                let length = self.reader.count(METHOD_BYTES_MAX, table::METHOD_BYTES)?;
                self.reader.take(length as u64).map(drop)
            }
            Type::Service(methods) => {
                self.step((methods.end - methods.begin) as u64)?;
                self.principal(name)
            }
            Type::Future => {
                let length = self.reader.unsigned()?;
                if self.reader.unsigned()? > 0 {
                    return Err(self.reader.invalid("a reference is opaque"));
                }
                self.reader.take(length).map(drop)
            }
        }
    }

    fn vector(&mut self, kind: i64, name: Option<u32>) -> Result<(), Refusal> {
        let count = self.reader.unsigned()?;
        if kind == NAT8 {
            return self.reader.take(count).map(drop);
        }
        let bound = self.bounds.vectors.iter().find(|bound| Some(bound.label) == name);
        if let Some(bound) = bound.filter(|bound| count > bound.most) {
            let limit = bound.limit.map(|name| format!(" ({name})")).unwrap_or_default();
            let (field, most) = (bound.field, bound.most);
            return Err(Refusal::Vector { field, found: count, most, limit });
        }
        // Elements may have no bytes, so those that cannot be read within the bound are refused
        // before the first.
        if count > STEPS_MAX.saturating_sub(self.walk.steps) {
            return Err(too_many_values());
        }
        self.push(Frame::Elements { kind, left: count })
    }

    fn reference(&mut self) -> Result<(), Refusal> {
        if self.reader.byte()? == 1 {
            return Ok(());
        }
        Err(self.reader.invalid("a reference is opaque"))
    }

    fn principal(&mut self, name: Option<u32>) -> Result<(), Refusal> {
        self.reference()?;
        let length = self.reader.unsigned()?;
        if length > Principal::MAX_LENGTH_IN_BYTES as u64 {
            return Err(self.reader.invalid("a principal has more than 29 bytes"));
        }
        let bytes = self.reader.take(length)?;
        // In a field of the first argument itself.
        let is_field = matches!(self.frames.as_slice(), [Frame::Fields(_)]);
        if is_field && self.wanted.is_some() && self.wanted == name {
            self.walk.principal = Principal::try_from_slice(bytes).ok();
        }
        Ok(())
    }
}

const fn too_many_values() -> Refusal {
    Refusal::TooMany { what: "values", most: STEPS_MAX }
}
