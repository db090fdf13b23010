//! Limits of messages that light clients push.

use accounting::{KIB, MIB};
use memory_budget::{SheetLine, lines, times};

use crate::{Limits, SCALE, pool};

/// A push being served, in addition to its message, which is in `receiving` and then in
/// `appending`.
pub const REQUEST_BYTES: u64 = 4 * KIB;

const _: () = assert!(rows::messages_burst.covers(&rows::messages_per_second));
const _: () = assert!(rows::messages_per_second.covers(&rows::hold_back_messages_per_second));

memory_budget::limits! {
    SCALE;
    /// Limits of light push.
    #[serde(deny_unknown_fields)]
    pub struct LightPushLimits as light_push of Limits {
        /// Requests being served, over all peers. Beyond it 429.
        requests_in_flight: u64 = values([128, 192, 256, 512, 1024, 2048, 4096]), local,
            pays line("push_requests"), bounds [at_least(1, "the service could not be used")],
            reason "4 KiB each; the messages are in receiving and appending";
        /// Messages of one peer per second, on average. Beyond it 429.
        messages_per_second: u64 = fixed(10_000), local,
            bounds [at_least(1, "the service could not be used")],
            reason "above what a relay takes; lower it where clients are strangers";
        /// Messages of one peer at once after a pause.
        messages_burst: u64 = fixed(10_000), local,
            bounds [at_least(1, "the service could not be used")], reason "a second of the rate";
        /// Messages whose receivers, or all relay peers, read slower than messages come are held
        /// back, but a topic is not slowed down below this rate, nor below the next: then the
        /// oldest in their queues leave.
        hold_back_messages_per_second: u64 = fixed(250), local,
            reason "a topic's ordinary rate; a slow reader cannot slow it more";
        /// The same in bytes.
        hold_back_bytes_per_second: u64 = fixed(8 * MIB), local, pays none("a rate takes no room"),
            reason "60 of the largest messages";
    }
}

impl Limits {
    /// Pushes being served.
    pub(crate) fn push_lines(&self) -> Vec<SheetLine> {
        lines![
            Pool(pool::PUSH_REQUESTS, "relay") =
                times(self.light_push.requests_in_flight, REQUEST_BYTES),
                "light pushes being served";
        ]
    }
}
