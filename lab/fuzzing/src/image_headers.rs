//! Headers of disk images and tar archives from outside: read, or refused, within the bounds of
//! their forms; a reader of an archive returns no more than there is.

use std::io::Read;

use images::{qcow2, tar_disk};

pub(crate) fn test_one_input(bytes: &[u8]) {
    if let Ok(header) = qcow2::read(bytes) {
        assert!((512..=2 << 20).contains(&header.cluster_bytes));
        assert!(header.backing.as_ref().is_none_or(|name| name.len() <= qcow2::NAME_BYTES_MAX));
        if header.check_base().is_ok() {
            assert!(header.backing.is_none() && !header.has_data_file);
        }
    }
    if tar_disk::is_header(bytes)
        && let Ok(mut disk) = tar_disk::DiskInTar::open(bytes)
    {
        let mut content = Vec::new();
        if disk.read_to_end(&mut content).is_ok() {
            // Two headers' worth of a block, and an end mark.
            assert!(content.len() + 1024 <= bytes.len());
        }
    }
    // Whatever the layers' headers state: the reader bounds the output.
    if let Ok(layers) = images::open_layers(std::io::Cursor::new(bytes.to_vec())) {
        let _ = std::io::copy(&mut layers.disk.take(1 << 20), &mut std::io::sink());
    }
}
