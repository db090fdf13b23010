//! The format of the first file system: a cpio archive of the kind "newc" (the kernel's
//! Documentation/driver-api/early-userspace/buffer-format).

use std::collections::BTreeSet;

/// An archive in memory.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    inode: u32,
}

impl Archive {
    /// A folder, and those above it.
    pub(super) fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || self.folders.contains(path) {
            return;
        }
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.folders.insert(path.to_owned());
        self.entry(path, 0o040_755, &[]);
    }

    pub(super) fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        let path = path.trim_start_matches('/');
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(path, 0o100_000 | mode, &content);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let length = name.len() as u32 + 1;
        self.bytes.extend_from_slice(b"070701");
        // Inode, mode, user, group, links, time, size, four numbers of devices, length of the name,
        // no checksum.
        for field in [self.inode, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, length, 0] {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_where_the_kernel_looks_for_them() {
        let mut archive = Archive::default();
        archive.file("/lib/a/x", 0o755, vec![1, 2, 3, 4, 5]);
        archive.file("/lib/y", 0o644, vec![]);
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let (mut at, mut seen) = (0, vec![]);
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let field = |index: usize| {
                let from = at + 6 + index * 8;
                let text = std::str::from_utf8(&bytes[from..from + 8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            let (mode, size, length) = (field(1), field(6), field(11));
            let name = String::from_utf8(bytes[at + 110..at + 110 + length - 1].to_vec()).unwrap();
            let content = (at + 110 + length).next_multiple_of(4);
            seen.push((name, mode, bytes[content..content + size].to_vec()));
            at = (content + size).next_multiple_of(4);
        }
        let names: Vec<&str> = seen.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["lib", "lib/a", "lib/a/x", "lib/y", "TRAILER!!!"]);
        assert_eq!((seen[2].1, seen[2].2.as_slice()), (0o100_755, &[1, 2, 3, 4, 5][..]));
    }
}
