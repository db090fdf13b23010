//! What a canister's code is known by once it was validated: its methods, hooks and metadata, and
//! the values its globals were left with. Nothing here knows how code is compiled or run.

use serde::{Deserialize, Serialize};

/// Value of one mutable global.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Global {
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// f32 as bits
    F32(u32),
    /// f64 as bits
    F64(u64),
    /// A 128-bit vector, as an integer.
    V128(u128),
}

impl Global {
    /// Whether the other has the same type.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// A global of a module that is exported or mutable, and no reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleGlobal {
    /// Whether its value changes: a canister has one of its own.
    pub mutable: bool,
    /// The value, of its type, that it has in a new instance.
    pub initial: Global,
}

/// Results of the validation of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleInfo {
    /// `canister_update` methods, ordered.
    pub updates: Vec<String>,
    /// `canister_query` methods, ordered.
    pub queries: Vec<String>,
    /// `canister_composite_query` methods, ordered.
    pub composite_queries: Vec<String>,
    /// Exported hooks present.
    pub hooks: Hooks,
    /// Whether the heap has 64-bit addresses.
    pub memory64: bool,
    /// Initial heap in Wasm pages.
    pub heap_initial_wasm_pages: u64,
    /// Most Wasm pages of the heap that the module declares, if it does; 0 without a heap.
    pub heap_maximum_wasm_pages: Option<u64>,
    /// Custom sections `icp:public <name>` / `icp:private <name>`: (public, name, content),
    /// ordered by name.
    pub custom_sections: Vec<CustomSection>,
    /// Whether the module asks for enhanced orthogonal persistence
    /// (`enhanced-orthogonal-persistence` private section).
    pub enhanced_orthogonal_persistence: bool,
    /// Globals that are exported or mutable, by index.
    pub globals: Vec<ModuleGlobal>,
    /// Instructions charged for compiling it.
    pub compile_instructions: u64,
}

/// One metadata section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustomSection {
    /// Whether the section is `icp:public`, and not `icp:private`.
    pub public: bool,
    /// Name of the section, without the prefix.
    pub name: String,
    /// Bytes of the section, as uploaded.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
}

/// Which entry points a module has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// `(start)`
    pub start: bool,
    /// `canister_init`
    pub init: bool,
    /// `canister_pre_upgrade`
    pub pre_upgrade: bool,
    /// `canister_post_upgrade`
    pub post_upgrade: bool,
    /// `canister_inspect_message`
    pub inspect_message: bool,
    /// `canister_heartbeat`
    pub heartbeat: bool,
    /// `canister_global_timer`
    pub global_timer: bool,
    /// `canister_on_low_wasm_memory`
    pub on_low_wasm_memory: bool,
}
