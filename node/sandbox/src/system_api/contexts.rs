//! From where functions may be called: the contexts of the interface specification, "Overview of
//! imports", with its letters. A set of them is bits, so a call costs one comparison.

use crate::{CallbackKind, Entry};

/// Kind of the running entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Context {
    /// `I`: `canister_init` or `canister_post_upgrade`.
    Install = 1,
    /// `G`: `canister_pre_upgrade`.
    PreUpgrade = 1 << 1,
    /// `U`: `canister_update`.
    Update = 1 << 2,
    /// `RQ`: `canister_query`, replicated.
    ReplicatedQuery = 1 << 3,
    /// `NRQ`: `canister_query`, not replicated.
    Query = 1 << 4,
    /// `CQ`: `canister_composite_query`.
    CompositeQuery = 1 << 5,
    /// `Ry`: reply callback.
    Reply = 1 << 6,
    /// `Rt`: reject callback.
    Reject = 1 << 7,
    /// `CRy`: reply callback of a composite query.
    CompositeReply = 1 << 8,
    /// `CRt`: reject callback of a composite query.
    CompositeReject = 1 << 9,
    /// `C`: cleanup callback.
    Cleanup = 1 << 10,
    /// `CC`: cleanup callback of a composite query.
    CompositeCleanup = 1 << 11,
    /// `s`: `(start)`.
    Start = 1 << 12,
    /// `F`: `canister_inspect_message`.
    Inspect = 1 << 13,
    /// `T`: heartbeat, global timer, low memory hook.
    Task = 1 << 14,
}

impl Context {
    /// The context of an entry. `replicated` distinguishes queries and callbacks of the two modes.
    pub(crate) fn for_entry(entry: &Entry, replicated: bool) -> Self {
        match (entry, replicated) {
            (Entry::Init | Entry::PostUpgrade { .. }, _) => Self::Install,
            (Entry::PreUpgrade, _) => Self::PreUpgrade,
            (Entry::Update(_), _) => Self::Update,
            (Entry::Query(_), true) => Self::ReplicatedQuery,
            (Entry::Query(_), false) => Self::Query,
            (Entry::CompositeQuery(_), _) => Self::CompositeQuery,
            (Entry::Callback { kind: CallbackKind::Reply, .. }, true) => Self::Reply,
            (Entry::Callback { kind: CallbackKind::Reject { .. }, .. }, true) => Self::Reject,
            (Entry::Callback { kind: CallbackKind::Reply, .. }, false) => Self::CompositeReply,
            (Entry::Callback { kind: CallbackKind::Reject { .. }, .. }, false) => {
                Self::CompositeReject
            }
            (Entry::Cleanup { .. }, true) => Self::Cleanup,
            (Entry::Cleanup { .. }, false) => Self::CompositeCleanup,
            (Entry::Heartbeat | Entry::GlobalTimer | Entry::OnLowWasmMemory, _) => Self::Task,
            (Entry::InspectMessage { .. }, _) => Self::Inspect,
        }
    }

    /// For error texts.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Install => "canister_init or canister_post_upgrade",
            Self::PreUpgrade => "canister_pre_upgrade",
            Self::Update => "an update method",
            Self::ReplicatedQuery => "a query method in replicated mode",
            Self::Query => "a query method in non-replicated mode",
            Self::CompositeQuery => "a composite query method",
            Self::Reply => "a reply callback",
            Self::Reject => "a reject callback",
            Self::CompositeReply => "a reply callback of a composite query",
            Self::CompositeReject => "a reject callback of a composite query",
            Self::Cleanup => "a cleanup callback",
            Self::CompositeCleanup => "a cleanup callback of a composite query",
            Self::Start => "the (start) function",
            Self::Inspect => "canister_inspect_message",
            Self::Task => {
                "a system task (canister_heartbeat, canister_global_timer or \
                 canister_on_low_wasm_memory)"
            }
        }
    }

    /// Whether this is in a set of contexts.
    pub(crate) fn among(self, contexts: Contexts) -> bool {
        contexts.0 & self as u16 != 0
    }
}

/// A set of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contexts(u16);

impl Contexts {
    /// `*`: all but `(start)`.
    const ALL: u16 = (1 << 15) - 1 - Context::Start as u16;

    /// The contexts with these letters, separated by spaces. In a constant, other letters do not
    /// compile.
    pub(super) const fn from_letters(letters: &str) -> Self {
        Self(Self::bits(letters.as_bytes()))
    }

    const fn bits(letters: &[u8]) -> u16 {
        let (first, rest) = match letters {
            [] => return 0,
            [b' ', rest @ ..] => (0, rest),
            [b'*', rest @ ..] => (Self::ALL, rest),
            [b'I', rest @ ..] => (Context::Install as u16, rest),
            [b'G', rest @ ..] => (Context::PreUpgrade as u16, rest),
            [b'U', rest @ ..] => (Context::Update as u16, rest),
            [b'R', b'Q', rest @ ..] => (Context::ReplicatedQuery as u16, rest),
            [b'N', b'R', b'Q', rest @ ..] => (Context::Query as u16, rest),
            [b'C', b'Q', rest @ ..] => (Context::CompositeQuery as u16, rest),
            [b'R', b'y', rest @ ..] => (Context::Reply as u16, rest),
            [b'R', b't', rest @ ..] => (Context::Reject as u16, rest),
            [b'C', b'R', b'y', rest @ ..] => (Context::CompositeReply as u16, rest),
            [b'C', b'R', b't', rest @ ..] => (Context::CompositeReject as u16, rest),
            [b'C', b'C', rest @ ..] => (Context::CompositeCleanup as u16, rest),
            [b'C', rest @ ..] => (Context::Cleanup as u16, rest),
            [b's', rest @ ..] => (Context::Start as u16, rest),
            [b'F', rest @ ..] => (Context::Inspect as u16, rest),
            [b'T', rest @ ..] => (Context::Task as u16, rest),
            _ => panic!("no context of the specification has these letters"),
        };
        first | Self::bits(rest)
    }
}
