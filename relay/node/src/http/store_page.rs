//! `StoreQueryResponse` of the specification, written entry by entry.

use std::io;

use accounting::Reservation;
use http_server::Pieces;
use protocol::MessageHash;

use super::message::put_text;

/// Bytes of an entry in addition to its message and its topic, and of what surrounds the entries.
const ENTRY_BYTES_MAX: usize = 160;

/// A message of a page, from the store of this node or of another.
pub(super) trait PageEntry {
    /// Most bytes of its message and its topic in JSON.
    fn data_bytes_max(&self, include_data: bool) -> usize;

    /// Appends its JSON.
    fn put(&self, include_data: bool, out: &mut Vec<u8>) -> io::Result<()>;
}

/// A page in JSON.
pub(super) struct PageJson<E> {
    pub(super) entries: std::vec::IntoIter<E>,
    pub(super) include_data: bool,
    pub(super) cursor: Option<MessageHash>,
    pub(super) state: State,
    /// The memory of the entries, where it is of a pool.
    pub(super) _held: Option<Reservation>,
}

/// What is written next.
#[derive(Clone, Copy)]
pub(super) enum State {
    Head,
    First,
    Later,
    End,
}

impl<E: PageEntry> Pieces for PageJson<E>
where
    Self: Send + 'static,
{
    fn next_bytes(&mut self) -> Option<usize> {
        let entry = match self.state {
            State::End => return None,
            State::Head => None,
            State::First | State::Later => self.entries.as_slice().first(),
        };
        Some(ENTRY_BYTES_MAX + entry.map_or(0, |entry| entry.data_bytes_max(self.include_data)))
    }

    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if matches!(self.state, State::Head) {
            out.extend_from_slice(
                br#"{"requestId":"","statusCode":200,"statusDesc":"OK","messages":["#,
            );
            self.state = State::First;
            return Ok(());
        }
        let Some(entry) = self.entries.next() else {
            out.push(b']');
            if let Some(cursor) = self.cursor {
                out.extend_from_slice(b",\"paginationCursor\":");
                put_text(&cursor.to_string(), out)?;
            }
            out.push(b'}');
            self.state = State::End;
            return Ok(());
        };
        if matches!(self.state, State::Later) {
            out.push(b',');
        }
        self.state = State::Later;
        entry.put(self.include_data, out)
    }
}
