//! Manifests, leaves, names of chunks and streams of records as another node sends them: decoding
//! any input returns, and an accepted value has that one encoding.
//!
//! The first byte chooses the decoder.

use state::ChunkId;
use state::manifest::{
    Body, BodyEncoder, Header, LEAF_BYTES, LeafHash, ObjectId, PieceSink, encode_leaf, unpack_leaf,
};
use state::store::RowReader;

struct PieceBuffer(Vec<u8>);

impl PieceSink for PieceBuffer {
    type Error = ();

    fn piece(&mut self, _: u32, bytes: &[u8]) -> Result<(), ()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

type Object = (ObjectId, u64, Vec<(u32, LeafHash)>);

fn objects(bytes: &[u8]) -> Option<Vec<Object>> {
    let mut body = Body::new(bytes, bytes.len() as u64);
    let mut objects = vec![];
    while let Some(object) = body.object().ok()? {
        let mut rows = vec![];
        while let Some(row) = body.row().ok()? {
            rows.push(row);
        }
        objects.push((object.id, object.length, rows));
    }
    Some(objects)
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    match choice % 5 {
        0 => {
            let Ok(header) = Header::from_bytes(bytes) else { return };
            assert_eq!(header.to_bytes(), bytes);
        }
        1 => {
            let Some(objects) = objects(bytes) else { return };
            let (mut body, mut kept) = (BodyEncoder::default(), PieceBuffer(vec![]));
            for (id, length, rows) in &objects {
                body.object(&mut kept, id, *length, rows.len() as u32).expect("kept");
                for (index, hash) in rows {
                    body.leaf(&mut kept, *index, hash).expect("kept");
                }
            }
            body.finish(&mut kept, state::Height(0)).expect("kept");
            assert_eq!(kept.0, bytes);
        }
        2 => {
            let Ok(runs) = unpack_leaf(bytes, 64) else { return };
            let (mut leaf, mut encoded) = (vec![0; LEAF_BYTES], vec![]);
            for (page, content) in runs {
                let at = page as usize * 4096;
                leaf[at..at + content.len()].copy_from_slice(content);
            }
            assert!(encode_leaf(&leaf, &mut encoded));
            assert_eq!(encoded, bytes);
        }
        3 => {
            let Some(chunk) = ChunkId::from_bytes(bytes) else { return };
            assert_eq!(chunk.to_bytes(), bytes);
        }
        _ => {
            let (mut rows, mut stream) = (RowReader::new(bytes, bytes.len() as u64), vec![]);
            while let Ok(Some(row)) = rows.next_row() {
                row.append_to(&mut stream);
            }
            assert!(bytes.starts_with(&stream));
        }
    }
}
