//! Writing a body: objects one after the other, cut into pieces as they come, so that no more than
//! a piece is held.

use super::{Header, LeafHash, ObjectId, PIECE_BYTES, piece_hash};
use crate::Height;

pub(super) fn put_object_key(bytes: &mut Vec<u8>, object: &ObjectId) {
    match object {
        ObjectId::Records => bytes.push(1),
        ObjectId::Memory(id) => {
            bytes.push(2);
            bytes.extend_from_slice(&id.0.to_be_bytes());
        }
        ObjectId::Blob(hash) => {
            bytes.push(3);
            bytes.extend_from_slice(hash);
        }
        ObjectId::Payload(number) => {
            bytes.push(4);
            bytes.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn body_row(index: u32, hash: &LeafHash) -> [u8; 36] {
    let mut row = [0; 36];
    let (left, right) = row.split_at_mut(4);
    left.copy_from_slice(&index.to_be_bytes());
    right.copy_from_slice(hash);
    row
}

/// Where full pieces of a body go.
pub trait PieceSink {
    /// Why a piece was not taken.
    type Error;

    /// Takes a piece.
    ///
    /// # Errors
    /// The sink's own.
    fn piece(&mut self, index: u32, bytes: &[u8]) -> Result<(), Self::Error>;
}

/// Takes a body bit by bit and hands its pieces on as they are full.
#[derive(Debug)]
pub struct BodyEncoder {
    piece: Vec<u8>,
    pieces: Vec<LeafHash>,
    body_bytes: u64,
}

impl Default for BodyEncoder {
    fn default() -> Self {
        Self { piece: Vec::with_capacity(PIECE_BYTES), pieces: Vec::new(), body_bytes: 0 }
    }
}

impl BodyEncoder {
    /// Begins an object of the given length in bytes; `leaves` rows have to follow. Objects come in
    /// the order of their ids.
    pub fn object<S: PieceSink>(
        &mut self,
        sink: &mut S,
        object: &ObjectId,
        length: u64,
        leaves: u32,
    ) -> Result<(), S::Error> {
        let mut bytes = Vec::with_capacity(1 + 32 + 8 + 4);
        put_object_key(&mut bytes, object);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&leaves.to_be_bytes());
        self.put(sink, &bytes)
    }

    /// A leaf of the object, by rising index.
    pub fn leaf<S: PieceSink>(
        &mut self,
        sink: &mut S,
        index: u32,
        hash: &LeafHash,
    ) -> Result<(), S::Error> {
        self.put(sink, &body_row(index, hash))
    }

    fn put<S: PieceSink>(&mut self, sink: &mut S, mut bytes: &[u8]) -> Result<(), S::Error> {
        self.body_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.piece.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() == PIECE_BYTES {
                self.flush(sink)?;
            }
        }
        Ok(())
    }

    fn flush<S: PieceSink>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        debug_assert!(
            (1..=PIECE_BYTES).contains(&self.piece.len()),
            "a piece of {} bytes",
            self.piece.len()
        );
        let index = u32::try_from(self.pieces.len()).unwrap_or(u32::MAX);
        self.pieces.push(piece_hash(&self.piece));
        sink.piece(index, &self.piece)?;
        self.piece.clear();
        Ok(())
    }

    /// The header of the whole.
    pub fn finish<S: PieceSink>(
        mut self,
        sink: &mut S,
        height: Height,
    ) -> Result<Header, S::Error> {
        if !self.piece.is_empty() {
            self.flush(sink)?;
        }
        debug_assert_eq!(
            self.pieces.len() as u64,
            self.body_bytes.div_ceil(PIECE_BYTES as u64),
            "pieces of a body of {} bytes",
            self.body_bytes
        );
        Ok(Header { height, body_bytes: self.body_bytes, pieces: self.pieces })
    }
}
