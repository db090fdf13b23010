//! Reports of queries in blocks: their encoding, and which node may make which.
//!
//! A block's maker reports its own counts ([`state::QueryReport`]). Voters check only its form and
//! its maker, because only the maker saw the queries; a canister that it reported before is skipped
//! by execution.

use bytes::BufMut;
use commonware_codec::{
    Buf, EncodeSize, Error, RangeCfg, Read, ReadExt, ReadRangeExt, Write, varint::UInt,
};
use commonware_consensus::Heightable as _;
use commonware_cryptography::ed25519::PublicKey;
use ic_principal::Principal;
use state::{QUERY_REPORT_CANISTERS_MAX, QueryCounts, QueryReport};

use super::{block::Block, resharing::Resharing};

/// Bytes of a principal at most.
const PRINCIPAL_BYTES_MAX: usize = Principal::MAX_LENGTH_IN_BYTES;
/// Bytes of one canister's figures at most: four varints.
const COUNTS_BYTES_MAX: usize = 4 * 10;

/// A report in a block. One that decodes has the form of a report ([`QueryReport::check`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockQueryReport(pub(super) QueryReport);

impl BlockQueryReport {
    /// Bytes of an encoded report at most; lengths are varints.
    pub(super) const BYTES_MAX: usize = 1
        + PRINCIPAL_BYTES_MAX
        + 5
        + QUERY_REPORT_CANISTERS_MAX * (1 + PRINCIPAL_BYTES_MAX + COUNTS_BYTES_MAX);
}

fn figures(counts: &QueryCounts) -> [u64; 4] {
    [counts.calls, counts.instructions, counts.request_bytes, counts.response_bytes]
}

fn read_principal(buf: &mut impl Buf) -> Result<Principal, Error> {
    let bytes = Vec::<u8>::read_range(buf, RangeCfg::from(0..=PRINCIPAL_BYTES_MAX))?;
    Ok(Principal::from_slice(&bytes))
}

impl Write for BlockQueryReport {
    fn write(&self, out: &mut impl BufMut) {
        self.0.node.as_slice().write(out);
        self.0.canisters.len().write(out);
        for (canister, counts) in &self.0.canisters {
            canister.as_slice().write(out);
            figures(counts).into_iter().for_each(|figure| UInt(figure).write(out));
        }
    }
}

impl EncodeSize for BlockQueryReport {
    fn encode_size(&self) -> usize {
        let of_one = |(canister, counts): &(Principal, QueryCounts)| {
            let figures = figures(counts).into_iter().map(|figure| UInt(figure).encode_size());
            canister.as_slice().encode_size() + figures.sum::<usize>()
        };
        self.0.node.as_slice().encode_size()
            + self.0.canisters.len().encode_size()
            + self.0.canisters.iter().map(of_one).sum::<usize>()
    }
}

impl Read for BlockQueryReport {
    type Cfg = ();

    fn read_cfg(buf: &mut impl Buf, (): &()) -> Result<Self, Error> {
        let node = read_principal(buf)?;
        let reported = usize::read_cfg(buf, &RangeCfg::from(1..=QUERY_REPORT_CANISTERS_MAX))?;
        let mut canisters = Vec::new();
        for _ in 0..reported {
            let canister = read_principal(buf)?;
            let mut figure = || UInt::<u64>::read(buf).map(u64::from);
            let counts = QueryCounts {
                calls: figure()?,
                instructions: figure()?,
                request_bytes: figure()?,
                response_bytes: figure()?,
            };
            canisters.push((canister, counts));
        }
        let report = QueryReport { node, canisters };
        report.check().map_err(|_| Error::Invalid("QueryReport", "canisters out of order"))?;
        Ok(Self(report))
    }
}

/// Why a block of `leader` that carries this report gets no vote. The summary must be that of the
/// block's epoch ([`Resharing::wait_for_epoch`]).
pub(super) fn check_report(
    resharing: &Resharing,
    leader: &PublicKey,
    block: &Block,
) -> Result<(), String> {
    let Some(BlockQueryReport(report)) = &block.queries else { return Ok(()) };
    report.check()?;
    // Others may propose that block again.
    if resharing.is_last(block.height()) {
        return Err("it reports queries in a block where that has no place".into());
    }
    if resharing.node_id(leader) != Some(report.node) {
        return Err("it reports queries in another node's name".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use commonware_codec::{Decode as _, Encode as _};

    use super::*;

    fn report(
        canisters: impl IntoIterator<Item = u8>,
        bytes: usize,
        figure: u64,
    ) -> BlockQueryReport {
        let counts = QueryCounts {
            calls: figure,
            instructions: figure,
            request_bytes: figure,
            response_bytes: figure,
        };
        let canister = |number| (Principal::from_slice(&vec![number; bytes]), counts);
        let canisters = canisters.into_iter().map(canister).collect();
        BlockQueryReport(QueryReport { node: Principal::from_slice(&vec![7; bytes]), canisters })
    }

    fn read(report: &BlockQueryReport) -> Option<BlockQueryReport> {
        BlockQueryReport::decode_cfg(report.encode(), &()).ok()
    }

    #[test]
    fn a_report_reads_back_and_the_longest_has_its_bound() {
        for report in [report([1], 10, 0), report([1, 2, 3], 10, 300)] {
            assert_eq!(report.encode().len(), report.encode_size());
            assert_eq!(read(&report), Some(report));
        }
        let longest = report(0..200, PRINCIPAL_BYTES_MAX, u64::MAX);
        assert!(longest.encode_size() <= BlockQueryReport::BYTES_MAX);
        assert!(longest.encode_size() + 5 > BlockQueryReport::BYTES_MAX, "the bound is not idle");
        assert_eq!(read(&longest), Some(longest));
    }

    #[test]
    fn no_other_form_is_read() {
        for refused in [report([], 10, 1), report([2, 1], 10, 1), report(0..201, 10, 1)] {
            assert_eq!(read(&refused), None, "{refused:?}");
        }
        let good = report([1, 2], 10, 1 << 40).encode();
        for end in 0..good.len() {
            assert!(BlockQueryReport::decode_cfg(good.slice(..end), &()).is_err(), "{end}");
        }
    }
}
