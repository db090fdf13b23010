//! The page of an instance for its user: subnets and canisters as they are after the last round.

use std::fmt::Write as _;

use execution::Placement as _;
use http_server::with_reservation;
use state::{CanisterState, CanisterStatus};

use crate::{
    bounds::Bounds,
    instance::Instance,
    operations::{Failure, Outcome},
};

/// Canisters that one page shows.
const CANISTERS_SHOWN: usize = 500;
/// The longest page: 64 subnets, and each canister shown with ten controllers.
const PAGE_BYTES_MAX: u64 = 1 << 20;

/// The page runs nothing and loads nothing; styles are its own.
pub(crate) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                                 form-action 'none'; frame-ancestors 'none'";

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width\"><title>Instance</title><style>\
    :root{color-scheme:light dark}\
    body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}\
    table{border-collapse:collapse;width:100%}\
    th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884;\
    vertical-align:top}\
    .n{text-align:right;font-variant-numeric:tabular-nums}\
    code{font-size:13px;overflow-wrap:anywhere}\
    .scroll{overflow-x:auto}</style></head><body>\n";

impl Instance {
    /// The page, in HTML. It has its room in the pool of long answers until it was sent.
    pub(crate) fn dashboard(&mut self, bounds: &Bounds) -> Outcome {
        let room = bounds.stable_answers.try_reserve(PAGE_BYTES_MAX);
        let mut room = room.map_err(|_| {
            Failure::bad(format!(
                "the page finds no room: the pool stable_answers has {} bytes, which answers that \
                 are being sent hold; try again",
                bounds.stable_answers.cap_bytes()
            ))
        })?;
        let executor = self.replica.executor();
        let mut page = HEAD.to_owned();
        // Writing to a string does not fail.
        let _ = write!(
            page,
            "<h1>Instance</h1><p>Height {}, time {} ns since 1970.</p>",
            executor.height().0,
            self.replica.shared.now().0
        );
        page.push_str(
            "<h2>Subnets</h2><div class=scroll><table><tr><th>Subnet<th>Kind<th class=n>Nodes\
             <th>Canister ids</tr>",
        );
        self.replica.shared.subnets.with_all(|all| {
            for subnet in all {
                let (id, kind) = (subnet.id, subnet.plan.kind);
                let nodes = subnet.nodes.len();
                let _ =
                    write!(page, "<tr><td><code>{id}</code><td>{kind:?}<td class=n>{nodes}<td>");
                for range in subnet.plan.all_ranges() {
                    let (first, last) = range.ids();
                    let _ = write!(page, "<code>{first} – {last}</code><br>");
                }
            }
        });
        let state = executor.state();
        let _ = write!(
            page,
            "</table></div><h2>Canisters</h2><p>{} in all{}.</p><div class=scroll><table><tr>\
             <th>Canister<th>Subnet<th>Status<th class=n>Cycles<th class=n>Memory, bytes\
             <th class=n>Allocation, bytes<th>Controllers<th>Module hash</tr>",
            state.len(),
            if state.len() > CANISTERS_SHOWN as u64 { ", the first 500 are shown" } else { "" }
        );
        for canister in state.canisters().take(CANISTERS_SHOWN) {
            let subnet = self.replica.shared.subnets.subnet_of(&canister.id);
            let subnet = subnet.map_or_else(String::new, |subnet| subnet.to_text());
            row(&mut page, canister, &subnet);
        }
        page.push_str("</table></div></body></html>\n");
        room.shrink(PAGE_BYTES_MAX.saturating_sub(page.len() as u64));
        Ok(with_reservation(page, room))
    }
}

/// Every value is a number, a principal or a hash: none needs to be escaped.
fn row(page: &mut String, canister: &CanisterState, subnet: &str) {
    let status = match canister.status {
        CanisterStatus::Running => "running",
        CanisterStatus::Stopping(_) => "stopping",
        CanisterStatus::Stopped => "stopped",
    };
    let _ = write!(
        page,
        "<tr><td><code>{}</code><td><code>{subnet}</code><td>{status}<td class=n>{}<td class=n>{}\
         <td class=n>{}<td>",
        canister.id,
        canister.cycles,
        canister.memory_usage().total(),
        canister.settings.memory_allocation,
    );
    for controller in &canister.controllers {
        let _ = write!(page, "<code>{controller}</code><br>");
    }
    let hash = canister.module().map(|module| hex::encode(module.hash.0));
    let _ = write!(page, "<td><code>{}</code>", hash.unwrap_or_default());
}
