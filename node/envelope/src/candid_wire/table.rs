//! The type table of a message, as it is written.

use super::kinds::{EMPTY, FUNC, OPT, PRINCIPAL, RECORD, SERVICE, VARIANT, VEC};
use super::{FIELDS_MAX, METHOD_BYTES_MAX, REFERENCE_TYPES_MAX, Refusal, TYPES_MAX};

/// The number under which Candid writes a field.
pub const fn label(name: &str) -> u32 {
    let (name, mut hash, mut at) = (name.as_bytes(), 0_u32, 0);
    while at < name.len() {
        hash = hash.wrapping_mul(223).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Type {
    Opt(i64),
    Vec(i64),
    Record(Fields),
    Variant(Fields),
    /// Arguments and results.
    Func(Fields),
    /// Types of the methods.
    Service(Fields),
    /// Of a later version of Candid.
    Future,
}

/// A range of the fields of all types.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub(super) begin: usize,
    pub(super) end: usize,
}

/// Reads a message from its beginning on.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// The message.
    pub bytes: &'a [u8],
    /// Bytes that were read.
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn invalid(&self, what: &'static str) -> Refusal {
        Refusal::Invalid { at: self.at, what }
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// When the message has fewer.
    pub fn take(&mut self, length: u64) -> Result<&'a [u8], Refusal> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.invalid(CUT_OFF))?;
        self.at += taken.len();
        Ok(taken)
    }

    /// The next byte.
    ///
    /// # Errors
    /// When the message has none.
    pub fn byte(&mut self) -> Result<u8, Refusal> {
        let byte = self.bytes.get(self.at).copied();
        let byte = byte.ok_or_else(|| self.invalid(CUT_OFF))?;
        self.at += 1;
        Ok(byte)
    }

    /// A length, a count, an index or a label.
    ///
    /// # Errors
    /// When it has more than 64 bits, or is cut off.
    pub fn unsigned(&mut self) -> Result<u64, Refusal> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit left.
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.invalid("a number has more than 64 bits"))
    }

    /// The code or index of a type, which is small.
    ///
    /// # Errors
    /// When it has more than 35 bits, or is cut off.
    pub fn signed(&mut self) -> Result<i64, Refusal> {
        let mut number = 0_i64;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            number |= i64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let unused = 64 - (shift + 7);
                return Ok(number << unused >> unused);
            }
        }
        Err(self.invalid("the code of a type has more than 35 bits"))
    }

    /// A number of `what`.
    ///
    /// # Errors
    /// When there are more than `most`, or the number cannot be read.
    pub fn count(&mut self, most: usize, what: &'static str) -> Result<usize, Refusal> {
        let found = self.unsigned()?;
        let most_found = most as u64;
        usize::try_from(found)
            .ok()
            .filter(|found| *found <= most)
            .ok_or(Refusal::TooMany { what, most: most_found })
    }
}

/// All types of a message.
#[derive(Debug, Default)]
pub(super) struct Table {
    types: Vec<Type>,
    /// Label and type, of all types.
    fields: Vec<(u32, i64)>,
    /// Types that functions and services refer to, themselves included.
    references: usize,
}

impl Table {
    /// Reads the table and checks all that decoding relies on.
    pub(super) fn read(reader: &mut Reader<'_>, steps: &mut u64) -> Result<Self, Refusal> {
        let count = reader.count(TYPES_MAX, "types")?;
        let mut table = Self { types: Vec::with_capacity(count), ..Self::default() };
        for _ in 0..count {
            let fields = table.fields.len();
            let entry = table.entry(reader);
            *steps += 1 + (table.fields.len() - fields) as u64;
            table.types.push(entry?);
        }
        table.references = table.check_references(reader)?;
        Ok(table)
    }

    pub(super) fn len(&self) -> usize {
        self.types.len()
    }

    pub(super) fn references(&self) -> u64 {
        self.references as u64
    }

    pub(super) fn get(&self, kind: i64) -> Option<Type> {
        self.types.get(usize::try_from(kind).ok()?).copied()
    }

    pub(super) fn field(&self, at: usize) -> Option<(u32, i64)> {
        self.fields.get(at).copied()
    }

    pub(super) fn fields(&self, fields: Fields) -> &[(u32, i64)] {
        self.fields.get(fields.begin..fields.end).unwrap_or_default()
    }

    /// The type in an argument or in another type.
    pub(super) fn kind(reader: &mut Reader<'_>, types: usize) -> Result<i64, Refusal> {
        let kind = reader.signed()?;
        let known = match usize::try_from(kind) {
            Ok(index) => index < types,
            Err(_) => kind >= EMPTY || kind == PRINCIPAL,
        };
        if known { Ok(kind) } else { Err(reader.invalid("there is no such type")) }
    }

    fn entry(&mut self, reader: &mut Reader<'_>) -> Result<Type, Refusal> {
        // Indexes may point forward; `check_references` and `get` meet those beyond the table.
        let inner = |reader: &mut Reader<'_>| Self::kind(reader, TYPES_MAX);
        Ok(match reader.signed()? {
            OPT => Type::Opt(inner(reader)?),
            VEC => Type::Vec(inner(reader)?),
            RECORD => Type::Record(self.labelled(reader)?),
            VARIANT => Type::Variant(self.labelled(reader)?),
            FUNC => Type::Func(self.function(reader)?),
            SERVICE => Type::Service(self.service(reader)?),
            future if future < PRINCIPAL => {
                let length = reader.unsigned()?;
                reader.take(length)?;
                Type::Future
            }
            _ => return Err(reader.invalid("there is no such type")),
        })
    }

    fn push(&mut self, field: (u32, i64)) -> Result<(), Refusal> {
        if self.fields.len() == FIELDS_MAX {
            return Err(too_many_fields());
        }
        self.fields.push(field);
        Ok(())
    }

    fn labelled(&mut self, reader: &mut Reader<'_>) -> Result<Fields, Refusal> {
        let (begin, count) = (self.fields.len(), reader.count(FIELDS_MAX, FIELDS)?);
        let mut before = None;
        for _ in 0..count {
            let label = reader.unsigned()?;
            let label = u32::try_from(label);
            let label = label.map_err(|_| reader.invalid("a label has more than 32 bits"))?;
            if before.is_some_and(|before| before >= label) {
                return Err(reader.invalid("labels are not in ascending order"));
            }
            before = Some(label);
            self.push((label, Self::kind(reader, TYPES_MAX)?))?;
        }
        Ok(Fields { begin, end: self.fields.len() })
    }

    fn function(&mut self, reader: &mut Reader<'_>) -> Result<Fields, Refusal> {
        let begin = self.fields.len();
        for _ in 0..2 {
            for _ in 0..reader.count(FIELDS_MAX, FIELDS)? {
                self.push((0, Self::kind(reader, TYPES_MAX)?))?;
            }
        }
        match reader.byte()? {
            0 => {}
            1 if matches!(reader.byte()?, 1..=3) => {}
            _ => return Err(reader.invalid("there is no such annotation of a function")),
        }
        Ok(Fields { begin, end: self.fields.len() })
    }

    fn service(&mut self, reader: &mut Reader<'_>) -> Result<Fields, Refusal> {
        let (begin, count) = (self.fields.len(), reader.count(FIELDS_MAX, FIELDS)?);
        let mut before = None;
        for _ in 0..count {
            let length = reader.count(METHOD_BYTES_MAX, METHOD_BYTES)?;
            let name = str::from_utf8(reader.take(length as u64)?);
            let name = name.map_err(|_| reader.invalid("the name of a method is not UTF-8"))?;
            if before.is_some_and(|before| before >= name) {
                return Err(reader.invalid("methods are not in ascending order"));
            }
            before = Some(name);
            self.push((0, Self::kind(reader, TYPES_MAX)?))?;
        }
        Ok(Fields { begin, end: self.fields.len() })
    }

    /// Indexes point into the table, methods are functions, and few types are referred to by
    /// functions and services. Returns how many are.
    fn check_references(&self, reader: &Reader<'_>) -> Result<usize, Refusal> {
        let beyond = |kind: i64| kind >= 0 && self.get(kind).is_none();
        let inner = self.types.iter().filter_map(|entry| match entry {
            Type::Opt(inner) | Type::Vec(inner) => Some(*inner),
            _ => None,
        });
        let mut all = inner.chain(self.fields.iter().map(|(_, kind)| *kind));
        if all.any(beyond) {
            return Err(reader.invalid("there is no such type"));
        }
        let mut seen = vec![false; self.types.len()];
        let mut pending = Vec::new();
        for (index, entry) in self.types.iter().enumerate() {
            if let Type::Service(methods) = entry {
                let is_function =
                    |(_, kind): &(u32, i64)| matches!(self.get(*kind), Some(Type::Func(_)));
                if !self.fields(*methods).iter().all(is_function) {
                    return Err(reader.invalid("the type of a method is not that of a function"));
                }
            }
            if matches!(entry, Type::Func(_) | Type::Service(_)) {
                pending.push(index as i64);
            }
        }
        let mut reached = 0;
        while let Some(kind) = pending.pop() {
            let index = usize::try_from(kind).ok();
            let Some(seen) = index.and_then(|index| seen.get_mut(index)) else { continue };
            if std::mem::replace(seen, true) {
                continue;
            }
            reached += 1;
            if reached > REFERENCE_TYPES_MAX {
                let what = "types in the types of functions and services";
                return Err(Refusal::TooMany { what, most: REFERENCE_TYPES_MAX as u64 });
            }
            match self.get(kind) {
                Some(Type::Opt(inner) | Type::Vec(inner)) => pending.push(inner),
                Some(
                    Type::Record(fields)
                    | Type::Variant(fields)
                    | Type::Func(fields)
                    | Type::Service(fields),
                ) => pending.extend(self.fields(fields).iter().map(|(_, kind)| *kind)),
                Some(Type::Future) | None => {}
            }
        }
        Ok(reached)
    }
}

/// The error of a message that ends too early.
pub(super) const CUT_OFF: &str = "the message is cut off";
const FIELDS: &str = "fields in its types";
pub(super) const METHOD_BYTES: &str = "bytes in the name of a method";

const fn too_many_fields() -> Refusal {
    Refusal::TooMany { what: FIELDS, most: FIELDS_MAX as u64 }
}
