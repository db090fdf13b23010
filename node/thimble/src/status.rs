//! `thimble status`: asks a running node for its status report and prints it for people, or as it is for machines.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use budget::format_size;
use gateway::report::{CANISTERS_MAX, Level, Report, Subnet};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, body::Bytes, header};
use hyper_util::rt::TokioIo;

/// A report larger than this is none.
const REPORT_BYTES_MAX: usize = 4 << 20;
/// A node that is alive answers sooner.
const PATIENCE: Duration = Duration::from_secs(10);
/// Canisters printed; the report itself has more.
const CANISTERS_SHOWN: usize = 8;

/// Fetches and prints.
pub(crate) fn run(address: SocketAddr, json: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bytes = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, fetch(address)).await.with_context(|| {
            format!("the node at {address} did not answer within {} s", PATIENCE.as_secs())
        })?
    })?;
    let report: Report = serde_json::from_slice(&bytes)
        .with_context(|| format!("what {address} answered is no status report of this version"))?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

async fn fetch(address: SocketAddr) -> Result<Bytes> {
    let stream = tokio::net::TcpStream::connect(address)
        .await
        .with_context(|| format!("no node answers at {address}; is it running, and is --address right?"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request =
        Request::get("/status.json").header(header::HOST, address.to_string()).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), REPORT_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| anyhow::anyhow!("reading the report: {error}"))?
        .to_bytes();
    connection.abort();
    if !status.is_success() {
        bail!(
            "{address} answered {status}: {}",
            String::from_utf8_lossy(&body).chars().take(300).collect::<String>()
        );
    }
    Ok(body)
}

fn signed(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "-" } else { "" }, short(bytes.unsigned_abs()))
}

/// `12.3 MiB`: three figures are enough for a person.
fn short(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

fn members(out: &mut String, subnet: &Subnet) {
    let place = match subnet.place {
        Some(place) => format!("place {place} of {} members", subnet.members.len()),
        None => format!("following {} members, not one of them", subnet.members.len()),
    };
    let _ = writeln!(
        out,
        "subnet      {place}; final {}, executed {}, certified {}; {} rounds without a block, {} double votes seen",
        subnet.finalised_height,
        subnet.executed_height,
        subnet.certified_height,
        subnet.nullified_rounds,
        subnet.equivocations
    );
    if let Some(sync) = &subnet.state_sync {
        let _ = writeln!(
            out,
            "            taking over the state of height {}: {} of {} from {} peers",
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
    let memory = &report.memory;
    let _ = writeln!(
        out,
        "memory      {} anonymous of a budget of {}; {} mapped files; {} in pools, {} not",
        short(memory.anonymous_bytes),
        format_size(memory.budget_bytes),
        short(memory.file_bytes),
        short(memory.accounted_bytes),
        signed(memory.unaccounted_bytes)
    );
    if let Some(group) = &memory.group {
        let limit =
            group.limit_bytes.map_or("no limit".into(), |limit| format!("a limit of {}", format_size(limit)));
        let _ = writeln!(
            out,
            "group       {} charged, {limit}; {} anonymous, {} page cache; {} killed for lack of memory",
            short(group.usage_bytes),
            short(group.anonymous_bytes),
            short(group.file_bytes),
            group.oom_kills
        );
    }
    let allocator = &report.allocator;
    let _ = writeln!(
        out,
        "allocator   {} live, {} active, {} resident; {} handed back in {} idle and {} pressed purges, {:.3} % of a core",
        short(allocator.live_bytes),
        short(allocator.active_bytes),
        short(allocator.resident_bytes),
        short(allocator.returned_bytes),
        allocator.purges_idle,
        allocator.purges_pressure,
        allocator.purge_cpu_percent
    );
    let rounds = &report.rounds;
    let _ = writeln!(
        out,
        "rounds      {} executed, {} messages, {} queries, {} checkpoints; {} waits, longest stall {} ms; {} worker restarts",
        rounds.rounds,
        rounds.messages,
        rounds.queries,
        rounds.checkpoints,
        rounds.skipped,
        rounds.longest_stall_millis,
        rounds.worker_restarts
    );
    let _ = writeln!(
        out,
        "delta log   {} of {}",
        short(rounds.delta_bytes),
        format_size(rounds.delta_capacity_bytes)
    );
    let throttling = match (&report.throttling.level, &report.throttling.reason) {
        (Level::None, _) => "nothing is held back".into(),
        (level, reason) => format!("{} held back: {}", held_back(*level), reason.as_deref().unwrap_or("")),
    };
    let _ = writeln!(out, "throttling  {throttling}; {} changes kept\n", report.throttling.events.len());
    let _ = writeln!(out, "{:<22} {:>12} {:>12} {:>12} {:>8}", "pool", "used", "most", "cap", "refused");
    for pool in &report.pools {
        let _ = writeln!(
            out,
            "{:<22} {:>12} {:>12} {:>12} {:>8}",
            pool.name,
            short(pool.used_bytes),
            short(pool.high_water_bytes),
            format_size(pool.cap_bytes),
            pool.refused
        );
    }
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
        "\n{} canisters{}",
        report.canisters_total,
        if report.canisters.is_empty() { "" } else { "; the largest:" }
    );
    for canister in report.canisters.iter().take(CANISTERS_SHOWN.min(CANISTERS_MAX)) {
        let _ =
            writeln!(out, "{:<30} {:>10}  {}", canister.id, short(canister.memory_bytes), canister.status);
    }
    out
}

fn held_back(level: Level) -> &'static str {
    match level {
        Level::None => "nothing",
        Level::Queries => "queries are",
        Level::Ingress => "queries and calls are",
        Level::Execution => "queries, calls and execution are",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_report_is_printed_whole() {
        let text = text(&Report { status: "healthy".into(), ..Report::default() });
        for word in
            ["healthy", "memory", "allocator", "rounds", "delta log", "nothing is held back", "0 canisters"]
        {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(short(0), "0 B");
        assert_eq!(short(1536), "1.5 KiB");
        assert_eq!(short(32 << 20), "32.0 MiB");
        assert_eq!(signed(-(5 << 30)), "-5.00 GiB");
    }
}
