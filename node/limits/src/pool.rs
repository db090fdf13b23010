//! Names of the memory pools, for their users: `ledger.pool(limits::pool::REQUEST_BODIES)`.
//!
//! A pool's cap is the line of the same name in the budget sheet. Pools marked *observed* are held
//! to their cap by deterministic rules of the replicated state, which every node must apply alike;
//! the ledger only counts them ([`accounting::Pool::observe`]).

/// Constants of the program that the loader writes in the node and in each worker:
/// [`crate::ProcessLimits::program_bytes`] each, counted as measured (observed).
pub const PROGRAM: &str = "program";
/// Working memory shared by update messages and installs, which exclude one another where they do
/// not fit together. Before a message starts, [`crate::Limits::message_dirty_bytes`] are reserved;
/// before an install or upgrade, [`crate::Limits::install_dirty_bytes`]. Wait with
/// [`accounting::Pool::reserve_within`].
pub const EXECUTIONS: &str = "executions";
/// Compile children: [`crate::SandboxLimits::compile_anonymous_bytes`] each. Separate from
/// [`EXECUTIONS`], so that messages run at the same time.
pub const COMPILATIONS: &str = "compilations";
/// Pages that queries dirty and drop: [`crate::Limits::query_dirty_bytes`] each.
pub const QUERIES: &str = "queries";
/// Replies of queries kept for the next asker.
pub const QUERY_CACHE: &str = "query_cache";
/// Ingress messages that no block holds yet.
pub const INGRESS_POOL: &str = "ingress_pool";
/// Blocks that are proposed, logged, waiting for execution, or in it.
pub const BLOCKS: &str = "blocks";
/// Request bodies being read, decoded and verified.
pub const REQUEST_BODIES: &str = "request_bodies";
/// Responses being encoded and written.
pub const RESPONSES: &str = "responses";
/// Buffers of open connections: [`crate::CONNECTION_BYTES`] each.
pub const CONNECTIONS: &str = "connections";
/// Buffers of open connections to the HTTP gateway:
/// [`crate::HttpGatewayLimits::connection_bytes`] each.
pub const HTTP_CONNECTIONS: &str = "http_connections";
/// Memory of requests to the HTTP gateway, in the parts of [`crate::HttpGatewayLimits::parts`].
pub const HTTP_REQUESTS: &str = "http_requests";
/// HTTPS outcalls under way: [`crate::OutcallLimits::request_bytes`] each, then what there is of
/// the answer until a block has one.
pub const OUTCALLS: &str = "outcalls";
/// Certificates of recent heights.
pub const CERTIFICATES: &str = "certificates";
/// Tables of the key generation's bases, and the memory it works in while dealings are verified.
/// Full means slower, nothing else.
pub const NIDKG_TABLES: &str = "nidkg_tables";
/// The index of delta pages (observed).
pub const DELTA_INDEX: &str = "delta_index";
