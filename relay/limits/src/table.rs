//! The table itself: every limit of the relay, in groups that are each declared in a file.
//!
//! Units are in the names: `_bytes`, `_seconds`, `_millis`, `_hours`, `_percent`; a name without a
//! unit is a count. Every other crate of the relay takes the group it needs by reference and never
//! invents a limit of its own.

use accounting::MIB;
use memory_budget::{HeapLimits, Preset, Scale, SheetLine};

use crate::{
    ClientLimits, ConnectionLimits, FilterLimits, GossipLimits, GovernorLimits, HttpLimits,
    LightPushLimits, MessageLimits, PeerLimits, ProcessLimits, RlnLimits, RootsLimits, StoreLimits,
    SyncLimits,
};

/// Memory sizes in MiB at which every row names its values; [`memory_budget::Row`] defines the
/// values between them.
///
/// How the sizes are used: at 64 MiB nearly half goes to the process, the kernel and the page
/// cache, and the pools hold the least of each thing that one busy relay needs. Up to 1 GiB pools
/// grow with the size. Beyond, they grow slower: the rest is page cache, which is where messages
/// live.
pub(crate) const SCALE: Scale<7> = Scale::new([64, 96, 128, 256, 512, 1024, 4096]);

/// All presets. They are derived like any other size; tests pin their values.
pub const PRESETS: [Preset; 5] = [
    Preset { name: "tiny", memory_bytes: 64 * MIB },
    Preset { name: "micro", memory_bytes: 128 * MIB },
    Preset { name: "nano", memory_bytes: 256 * MIB },
    Preset { name: "small", memory_bytes: 512 * MIB },
    Preset { name: "medium", memory_bytes: 1024 * MIB },
];

memory_budget::table! {
    /// All limits of one relay. Built by [`Limits::derive`] or [`Limits::preset`], checked by
    /// [`Limits::check`].
    pub struct Limits {
        program "thimble-relay", presets PRESETS, lines Limits::sheet_lines;
        budgets {
            /// The most memory the relay may take, stated by the operator.
            memory_budget_bytes,
        }
        groups {
            /// Reserve for the process itself.
            process: ProcessLimits,
            /// Connections, streams and multiplexers.
            connections: ConnectionLimits,
            /// Messages and frames on their way through.
            messages: MessageLimits,
            /// The mesh of relay nodes.
            gossip: GossipLimits,
            /// Filter subscriptions and pushes.
            filter: FilterLimits,
            /// Messages that light clients push.
            light_push: LightPushLimits,
            /// Verification of rate limit proofs (RLN).
            rln: RlnLimits,
            /// The log, its index, and queries.
            store: StoreLimits,
            /// Store synchronisation.
            sync: SyncLimits,
            /// Peers that are known, connected or not.
            peers: PeerLimits,
            /// The REST interface.
            http: HttpLimits,
            /// Roots of the membership tree, from an Ethereum RPC server (RLN).
            roots: RootsLimits,
            /// Requests to other nodes.
            client: ClientLimits,
            /// When freed memory goes back to the operating system, and when work is held back.
            governor: GovernorLimits,
            /// Limits of sampling allocations, in a relay that does (`--heap-profile`).
            heap: HeapLimits,
        }
    }
}

impl Limits {
    /// The lines of the sheet, in the order in which the relay needs them.
    fn sheet_lines(&self) -> Vec<SheetLine> {
        [
            self.process_lines(),
            self.connection_lines(),
            self.message_lines(),
            self.push_lines(),
            self.rln_lines(),
            self.gossip_lines(),
            self.filter_lines(),
            self.store_lines(),
            self.sync_lines(),
            self.peer_lines(),
            self.http_lines(),
            self.roots_lines(),
            self.client_lines(),
            self.file_lines(),
        ]
        .concat()
    }
}
