//! Disk usage, line by line of the disk's budget sheet, for the status report and the metrics.
//!
//! Each line is asked of the part that keeps it; only folders with few files are read. Unreadable
//! files count as zero: the report is for people.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use gateway::report;
use limits::{HEAP_LINES, MESSAGE_FILES_LINE, STATE_HEAP_LINE, SheetLine};
use pages::PageStore;
use state::CertifiedReader;

use crate::{config::Config, disk_budget};

#[derive(Clone)]
pub(crate) struct DiskUsage {
    data_dir: PathBuf,
    budget_bytes: u64,
    shortage: Option<String>,
    lines: Vec<SheetLine>,
    pub(crate) canisters_max: u64,
    // Interfaces.
    pages: Arc<PageStore>,
    sandbox: Arc<sandbox::Pool>,
    reader: CertifiedReader,
    in_heap: Arc<StateHeapBytes>,
}

/// Bytes of the state's heap that the rules of replicated state count, after the last round, for
/// each of [`HEAP_LINES`]; and bytes in files of messages that wait.
#[derive(Debug, Default)]
pub(crate) struct StateHeapBytes([AtomicU64; HEAP_LINES.len()], AtomicU64);

impl StateHeapBytes {
    pub(crate) fn set(&self, bytes: [u64; HEAP_LINES.len()]) {
        for (line, bytes) in self.0.iter().zip(bytes) {
            line.store(bytes, Relaxed);
        }
    }

    pub(crate) fn set_message_files(&self, bytes: u64) {
        self.1.store(bytes, Relaxed);
    }

    fn message_files(&self) -> u64 {
        self.1.load(Relaxed)
    }

    fn line_bytes(&self, name: &str) -> Option<u64> {
        let line = HEAP_LINES.iter().position(|line| *line == name)?;
        Some(self.0.get(line)?.load(Relaxed))
    }

    /// Of all but messages with guaranteed responses, most of which is room for what may come.
    fn others_bytes(&self) -> u64 {
        self.0.iter().skip(1).map(|line| line.load(Relaxed)).sum()
    }
}

impl DiskUsage {
    pub(crate) fn new(
        config: &Config,
        pages: Arc<PageStore>,
        sandbox: Arc<sandbox::Pool>,
        reader: CertifiedReader,
        in_heap: Arc<StateHeapBytes>,
    ) -> Self {
        let limits = &config.limits;
        let sheet = limits.sheet();
        Self {
            data_dir: config.data_dir.clone(),
            budget_bytes: sheet.disk_budget_bytes,
            // An unreadable disk is reported where files are written.
            shortage: disk_budget::shortage(config).unwrap_or_default(),
            lines: sheet.disk_lines().cloned().collect(),
            canisters_max: limits.subnet.canisters_max,
            pages,
            sandbox,
            reader,
            in_heap,
        }
    }

    pub(crate) fn report(&self) -> report::Disk {
        report::Disk {
            budget_bytes: self.budget_bytes,
            shortage: self.shortage.clone(),
            free_bytes: self.pages.disk_free_bytes().unwrap_or_default(),
            lines: self.lines.iter().filter_map(|line| self.line(line)).collect(),
        }
    }

    pub(crate) fn delta_bytes(&self) -> u64 {
        self.pages.delta_bytes()
    }

    /// How much of a line is taken; none for what is kept free, or gone in a moment.
    fn line(&self, line: &SheetLine) -> Option<report::DiskLine> {
        let used_bytes = match line.name {
            "delta_log" => self.pages.delta_bytes(),
            "compiled_modules" => self.sandbox.preparer().cache_usage().0,
            "block_log" => self.files_bytes("blocks"),
            "checkpoint_records" => self.files_bytes("state"),
            MESSAGE_FILES_LINE => self.in_heap.message_files(),
            STATE_HEAP_LINE => {
                memory::file_heap().active_bytes.saturating_sub(self.in_heap.others_bytes())
            }
            "canister_state" => {
                self.reader.latest().map_or(0, |state| state.metrics().canister_state_bytes)
            }
            name => self.in_heap.line_bytes(name)?,
        };
        Some(report::DiskLine { name: line.name.into(), used_bytes, cap_bytes: line.bytes })
    }

    /// Bytes of the files in a folder of the data folder, without those of folders in it.
    fn files_bytes(&self, folder: &str) -> u64 {
        let Ok(entries) = fs::read_dir(self.data_dir.join(folder)) else { return 0 };
        entries
            .filter_map(|entry| entry.ok()?.metadata().ok())
            .filter(fs::Metadata::is_file)
            .fold(0, |sum, metadata| sum.saturating_add(metadata.len()))
    }
}
