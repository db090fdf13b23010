//! Why a module is refused. The display text is what the installer of the canister reads.

use thiserror::Error;

/// Characters of a name out of a module that a message repeats.
const NAME_CHARS_MAX: usize = 80;

/// Where in a module validation found something that is not valid. The texts are fixed and the
/// places follow from the order of the module's sections: a text of the validator would change with
/// its version, and rejects are part of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ModuleLocation {
    /// A section.
    #[error("the {0} is not valid")]
    Section(&'static str),
    /// The body of a function.
    #[error("function {0} is not valid (imported functions count)")]
    Function(u32),
    /// Bytes that cannot be read as a section.
    #[error("what follows the {0} is cut off or not a section")]
    After(&'static str),
    /// Nothing but the place of the module in what was read so far.
    #[error("the module cannot be read")]
    Module,
}

/// A module that cannot be a canister.
///
/// No variant holds a text of a library.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum ModuleError {
    #[error(
        "the module starts like a gzip stream, but it cannot be unpacked: the stream is damaged \
         or cut off"
    )]
    Gzip,
    #[error(
        "the module is not a WebAssembly binary: it must start with the magic number and version \
         1 (00 61 73 6d 01 00 00 00), or be a gzip stream of such a module"
    )]
    NotWasm,
    /// WebAssembly validation refused it.
    #[error(
        "WebAssembly validation failed: {0}. Canisters have no threads, exceptions, garbage \
         collection, custom page sizes, relaxed SIMD, and no second memory"
    )]
    Invalid(ModuleLocation),
    /// More of something than a limit allows.
    #[error("{what}: {value}, but the limit `module.{limit_name}` is {limit}")]
    Limit {
        /// What was counted, and in which unit.
        what: &'static str,
        /// Field of [`limits::ModuleLimits`].
        limit_name: &'static str,
        limit: u64,
        /// The module's value (or a lower bound, if counting stopped at the limit).
        value: u64,
    },
    #[error("import `{module}.{name}`: only functions of module `ic0` can be imported")]
    Import {
        module: String,
        /// Name of the import within `module`, cut after 80 characters.
        name: String,
    },
    #[error(
        "import `ic0.{name}`: the System API has no such function for canisters with a \
         {width}-bit memory"
    )]
    UnknownImport {
        /// Name of the imported function without `ic0.`, cut after 80 characters.
        name: String,
        /// 32 or 64.
        width: u8,
    },
    #[error(
        "import `ic0.{name}`: it has type {found}, but canisters with a {width}-bit memory import \
         it as {expected}"
    )]
    ImportType {
        name: String,
        /// 32 or 64.
        width: u8,
        expected: String,
        found: String,
    },
    #[error("exported function `{0}`: an entry point has type () -> ()")]
    EntryType(String),
    #[error(
        "exported function `{0}`: names that start with `canister_` are reserved for the entry \
         points of the interface specification, and this is none of them"
    )]
    EntryUnknown(String),
    #[error("a branch table has {targets} targets, but it can have {most} at most")]
    BranchTable { targets: u32, most: u32 },
    #[error(
        "method `{0}` is exported more than once as `canister_update`, `canister_query` or \
         `canister_composite_query`"
    )]
    MethodTwice(String),
    #[error("custom section `{0}` exists more than once as `icp:public` or `icp:private`")]
    SectionTwice(String),
    #[error(
        "custom section `{0}`: names that start with `icp:` must be `icp:public <name>` or \
         `icp:private <name>`"
    )]
    SectionUnknown(String),
    /// State that could not be kept.
    #[error(
        "global {0} is mutable and holds a reference; references cannot be kept between messages, \
         keep them in a table or make the global immutable"
    )]
    ReferenceGlobal(u32),
}

impl From<wasmparser::Error> for ModuleError {
    fn from(_: wasmparser::Error) -> Self {
        Self::Invalid(ModuleLocation::Module)
    }
}

impl ModuleError {
    /// The same with its place, where it had none.
    pub(super) fn with_location(self, location: ModuleLocation) -> Self {
        match self {
            Self::Invalid(ModuleLocation::Module) => Self::Invalid(location),
            error => error,
        }
    }
}

/// Name and value of a limit, for [`within`].
macro_rules! limit {
    ($limits:ident.$name:ident) => {
        (stringify!($name), $limits.$name)
    };
}
pub(super) use limit;

/// Refuses when `value` is over the limit.
pub(super) fn within(
    what: &'static str,
    (limit_name, limit): (&'static str, u64),
    value: u64,
) -> Result<(), ModuleError> {
    if value > limit { Err(ModuleError::Limit { what, limit_name, limit, value }) } else { Ok(()) }
}

/// A name out of a module, short enough for a message.
pub(super) fn shorten_name(name: &str) -> String {
    match name.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}...", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}
