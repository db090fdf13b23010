//! Names of exported functions: which ones the interface specification gives a meaning ("Entry
//! points").

use crate::Hooks;

/// Meaning of an export's name.
pub(super) enum ExportName<'a> {
    /// A hook; the function notes its presence.
    Hook(fn(&mut Hooks)),
    /// A method: its kind, and what follows the first space of the export name.
    Method(MethodKind, &'a str),
    /// Begins like an entry point but is not one.
    Reserved,
    /// Means nothing to the node.
    Other,
}

/// Kind of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodKind {
    Update,
    Query,
    CompositeQuery,
}

/// Reads the name of an exported function. There is exactly one space between the kind of a method
/// and its name; the name may hold anything.
pub(super) fn export_name(name: &str) -> ExportName<'_> {
    let Some(rest) = name.strip_prefix("canister_") else { return ExportName::Other };
    if let Some((kind, method)) = rest.split_once(' ') {
        return match kind {
            "update" => ExportName::Method(MethodKind::Update, method),
            "query" => ExportName::Method(MethodKind::Query, method),
            "composite_query" => ExportName::Method(MethodKind::CompositeQuery, method),
            _ => ExportName::Reserved,
        };
    }
    match rest {
        "init" => ExportName::Hook(|hooks| hooks.init = true),
        "pre_upgrade" => ExportName::Hook(|hooks| hooks.pre_upgrade = true),
        "post_upgrade" => ExportName::Hook(|hooks| hooks.post_upgrade = true),
        "inspect_message" => ExportName::Hook(|hooks| hooks.inspect_message = true),
        "heartbeat" => ExportName::Hook(|hooks| hooks.heartbeat = true),
        "global_timer" => ExportName::Hook(|hooks| hooks.global_timer = true),
        "on_low_wasm_memory" => ExportName::Hook(|hooks| hooks.on_low_wasm_memory = true),
        _ => ExportName::Reserved,
    }
}
