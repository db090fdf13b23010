//! `thimble status`: asks a running node for its status report and prints it for people, or as it
//! is for machines.

use std::{fmt::Write as _, net::SocketAddr};

use accounting::format_size;
use anyhow::Result;
use dashboard::{
    ask,
    text::{memory, pools, short, throttling},
};
use gateway::report::{CANISTERS_MAX, Level, Report, Subnet};

/// Canisters printed; the report itself has more.
const CANISTERS_SHOWN: usize = 8;

pub(crate) fn run(address: SocketAddr, json: bool) -> Result<()> {
    ask::print(address, "--address", json, text)
}

fn members(out: &mut String, subnet: &Subnet) {
    let place = match subnet.place {
        Some(place) => format!("place {place} of {} members", subnet.members.len()),
        None => format!("following {} members, not one of them", subnet.members.len()),
    };
    let _ = writeln!(
        out,
        "subnet      {place}; final {}, executed {}, certified {}; {} rounds without a block, {} \
         double votes seen",
        subnet.finalised_height,
        subnet.executed_height,
        subnet.certified_height,
        subnet.nullified_rounds,
        subnet.equivocations
    );
    if let Some(sync) = &subnet.state_sync {
        let _ = writeln!(
            out,
            "            fetching the state of height {}: {} of {} from {} peers",
            sync.height,
            short(sync.bytes_done),
            short(sync.bytes_total),
            sync.peers
        );
    }
    let next = match subnet.dealings_missing {
        0 => "the next ones are ready".to_owned(),
        missing => format!("the next ones lack {missing} dealings"),
    };
    let _ = writeln!(
        out,
        "key         epoch {}, shares made for epoch {}; {next}",
        subnet.epoch, subnet.key_epoch
    );
    for (place, member) in subnet.members.iter().enumerate() {
        let heard = match member.heard_height {
            _ if Some(place as u32) == subnet.place => "this node".to_owned(),
            0 => "not heard".to_owned(),
            height => format!("heard at {height}"),
        };
        let _ = writeln!(out, "  {place:>2} {} {} {heard}", member.node_id, member.address);
    }
    let _ = writeln!(out);
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        out,
        "node {} of subnet {}\n{}, height {}, up {} s, version {}\n",
        report.node_id,
        report.subnet_id,
        report.status,
        report.rounds.height,
        report.uptime_millis / 1000,
        report.version
    );
    if let Some(subnet) = &report.subnet {
        members(&mut out, subnet);
    }
    memory(&mut out, &report.memory, &report.allocator);
    rounds(&mut out, report);
    let held = &report.throttling;
    throttling(&mut out, held_back(held.level), held.reason.as_deref(), held.events.len());
    pools(&mut out, &report.pools);
    disk(&mut out, report);
    let _ = writeln!(out, "\n{:<22} {:>8} {:>12} {:>12}", "process", "id", "anonymous", "files");
    for process in &report.processes {
        let _ = writeln!(
            out,
            "{:<22} {:>8} {:>12} {:>12}",
            process.role,
            process.pid,
            short(process.anonymous_bytes),
            short(process.file_bytes)
        );
    }
    let _ = writeln!(
        out,
        "\n{} canisters of at most {}{}",
        report.canisters_total,
        report.canisters_max,
        if report.canisters.is_empty() { "" } else { "; the largest:" }
    );
    for canister in report.canisters.iter().take(CANISTERS_SHOWN.min(CANISTERS_MAX)) {
        let _ = writeln!(
            out,
            "{:<30} {:>10}  {}",
            canister.id,
            short(canister.memory_bytes),
            canister.status
        );
    }
    out
}

/// Lines `rounds`, `stall` and `delta log`.
fn rounds(out: &mut String, report: &Report) {
    let rounds = &report.rounds;
    let _ = writeln!(
        out,
        "rounds      {} executed, {} messages, {} queries, {} checkpoints; {} waits, longest \
         stall {} ms; {} worker restarts",
        rounds.rounds,
        rounds.messages,
        rounds.queries,
        rounds.checkpoints,
        rounds.skipped,
        rounds.longest_stall_millis,
        rounds.worker_restarts
    );
    if let Some(stall) = &rounds.long_stall {
        let ago = report.unix_millis.saturating_sub(stall.ended_unix_millis) / 1000;
        let _ = writeln!(
            out,
            "stall       {} s without a certified round, ended {ago} s ago",
            stall.millis / 1000
        );
    }
    let _ = writeln!(
        out,
        "delta log   {} of {}",
        short(rounds.delta_bytes),
        format_size(rounds.delta_capacity_bytes)
    );
}

fn disk(out: &mut String, report: &Report) {
    let disk = &report.disk;
    let budget = match disk.budget_bytes {
        0 => "no disk budget".to_owned(),
        bytes => format!("of a budget of {}", format_size(bytes)),
    };
    let _ = writeln!(out, "\n{:<22} {:>12} {:>12} {:>12}", "disk", "used", "cap", "part");
    for line in &disk.lines {
        let part = line.used_bytes as f64 / line.cap_bytes.max(1) as f64 * 100.0;
        let _ = writeln!(
            out,
            "{:<22} {:>12} {:>12} {part:>10.1} %",
            line.name,
            short(line.used_bytes),
            format_size(line.cap_bytes)
        );
    }
    let _ = writeln!(out, "{} free on the disk, {budget}", short(disk.free_bytes));
    if let Some(shortage) = &disk.shortage {
        let _ = writeln!(out, "warning: {shortage}");
    }
}

fn held_back(level: Level) -> Option<&'static str> {
    match level {
        Level::None => None,
        Level::Queries => Some("queries are"),
        Level::Ingress => Some("queries and calls are"),
        Level::Execution => Some("queries, calls and execution are"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_report_is_printed_whole() {
        let text = text(&Report { status: "healthy".into(), ..Report::default() });
        for word in [
            "healthy",
            "memory",
            "allocator",
            "rounds",
            "delta log",
            "nothing is held back",
            "0 canisters of at most 0",
            "no disk budget",
        ] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
    }
}
