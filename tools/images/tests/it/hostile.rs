//! Files with a wrong name suffix, a false size, or paths that lead out of the cache.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use crate::kit::{Lab, names, pack, tool};

/// It is refused with these words, and nothing is left of it.
#[track_caller]
fn refused(lab: &Lab, image: &Path, words: &[&str]) {
    let words: Vec<_> = words.iter().copied().chain([image.to_str().unwrap()]).collect();
    lab.run("add", [image]).bad(&words);
    lab.assert_only(0);
    assert_eq!(names(&lab.cache.join("locks")), [""; 0]);
}

fn file(lab: &Lab, name: &str, bytes: &[u8]) -> PathBuf {
    let path = lab.path(name);
    fs::write(&path, bytes).unwrap();
    path
}

// Promise: P25 - A truncated or damaged image is refused with the reason.
#[test]
fn what_is_cut_off_or_damaged_is_refused() {
    let lab = Lab::new();
    let raw = lab.disk("disk", 1 << 20, 1);
    for extension in ["zst", "gz", "xz", "tar", "tar.zst", "tar.gz", "tar.xz"] {
        let image = pack(&raw, extension);
        let whole = fs::read(&image).unwrap();
        for at in
            [1, 2, 3].map(|quarter| whole.len() / 4 * quarter).into_iter().chain([whole.len() - 1])
        {
            // The zeros after the end mark of a tar archive are ignored.
            if extension == "tar" && at == whole.len() - 1 {
                continue;
            }
            refused(&lab, &file(&lab, "cut", &whole[..at]), &["cut off"]);
        }
        if extension != "tar" {
            let mut damaged = whole.clone();
            damaged[whole.len() / 2] ^= 0xff;
            refused(&lab, &file(&lab, "damaged", &damaged), &["damaged"]);
            refused(&lab, &file(&lab, "more", &[&*whole, b"more"].concat()), &["damaged"]);
        }
    }
    let mut tar = fs::read(pack(&raw, "tar")).unwrap();
    tar[10] ^= 1;
    // Its first header is invalid now, so this is a valid raw disk with a whole number of sectors.
    assert!(lab.run("add", [&file(&lab, "raw", &tar)]).code == Some(0));
}

// Promise: P25 - A file that is not a disk image is refused with the reason.
#[test]
fn what_is_no_disk_is_refused() {
    let lab = Lab::new();
    refused(&lab, &file(&lab, "empty", b""), &["nothing in it"]);
    refused(&lab, &file(&lab, "page.raw", b"<html>404 not found</html>"), &["no multiple of 512"]);
    let packed = pack(&file(&lab, "text", b"not a disk"), "tar.xz");
    refused(&lab, &packed, &["no multiple of 512"]);
    refused(&lab, &pack(&file(&lab, "nothing", b""), "gz"), &["nothing in it"]);
    for (bytes, word) in [
        (&b"PK\x03\x04"[..], "zip"),
        (b"BZh9", "bzip2"),
        (b"KDMV", "VMDK"),
        (b"vhdxfile", "VHD"),
        (b"QFI\xfb\0\0\0\x01", "qemu-img convert"),
        (b"QFI\xfb\0\0\0\x09", "version 9"),
        (b"QFI\xfb\0\0\0\x03", "cut off or damaged"),
    ] {
        let mut disk = bytes.to_vec();
        disk.resize(1 << 16, 0);
        refused(&lab, &file(&lab, "other.raw", &disk), &[word]);
    }
    let fifo = lab.path("fifo");
    tool(lab.folder.path(), "mkfifo", ["fifo"]);
    refused(&lab, &fifo, &["no regular file"]);
    refused(&lab, Path::new("/dev/null"), &["no regular file"]);
    refused(&lab, lab.folder.path(), &["no regular file"]);
    refused(&lab, &lab.path("missing"), &["opening", "No such file"]);
}

// Promise: P25 - An image writes at most `--limit` bytes.
/// A few bytes that unpack to more than any disk, and sizes that are declared and false.
#[test]
fn bombs_stop_at_the_limit() {
    let lab = Lab::new();
    let zeros = lab.path("zeros");
    fs::File::create(&zeros).unwrap().set_len(96 << 20).unwrap();
    for extension in ["zst", "gz", "tar.zst", "xz.xz"] {
        let bomb = pack(&zeros, extension);
        let arguments = ["--limit".as_ref(), "64MiB".as_ref(), bomb.as_os_str()];
        lab.run("add", arguments)
            .bad(&["larger than the limit of 64 MiB (--limit)", "of the file were read"]);
        lab.assert_only(0);
    }
    // Not a bomb with a higher limit: zeros take no room.
    let packed = lab.path("zeros.gz");
    let added = lab.run("add", ["--json".as_ref(), packed.as_os_str()]).good().json();
    assert_eq!(
        (added["disk_bytes"].as_u64(), added["virtual_bytes"].as_u64()),
        (Some(0), Some(96 << 20))
    );
    assert!(added["ratio"].as_f64().unwrap() > 900.0, "{added}");
    lab.run("remove", [added["id"].as_str().unwrap()]).good();
    // A qcow2 file of a few kilobytes with a disk of two terabytes.
    tool(lab.folder.path(), "qemu-img", ["create", "-q", "-f", "qcow2", "huge", "2T"]);
    refused(&lab, &lab.path("huge"), &["larger than the limit of 64 GiB"]);
    // Packed five times over.
    let nested = pack(&file(&lab, "small", &[1; 512]), "gz.zst.xz.gz.zst");
    refused(&lab, &nested, &["packed more than 3 times (zstd, gzip, xz, and more inside)"]);
    // An archive that declares nine exabytes, and one whose description of an entry is as large.
    for (kind, word) in [
        (b'0', "cut off"),
        (b'x', "at most 65536"),
        (b'L', "at most 65536"),
        (b'g', "at most 65536"),
    ] {
        let archive = [&header("disk", u64::MAX >> 1, kind)[..], &[1; 4096]].concat();
        refused(&lab, &file(&lab, "huge.tar", &archive), &[word]);
    }
    // xz that wants more memory than there is: 1.5 GiB of dictionary.
    let greedy = tool(
        lab.folder.path(),
        "sh",
        ["-c", "xz -c --lzma2=preset=0,dict=1536MiB --threads=1 small || true"],
    );
    if !greedy.is_empty() {
        refused(&lab, &file(&lab, "greedy.xz", &greedy), &["xz", "emory"]);
    }
}

/// A tar header with arbitrary fields.
fn header(name: &str, size: u64, kind: u8) -> [u8; 512] {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size);
    header.set_mode(0o644);
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_cksum();
    *header.as_bytes()
}

// Promise: P25 - An archive of an image contains one disk and no path outside.
#[test]
fn an_archive_holds_one_disk_and_nothing_that_leads_out() {
    let lab = Lab::new();
    let folder = lab.folder.path();
    lab.disk("one.raw", 1 << 16, 1);
    lab.disk("two.raw", 1 << 16, 2);
    fs::create_dir(lab.path("folder")).unwrap();
    tool(folder, "ln", ["-s", "/etc/passwd", "link.raw"]);
    tool(folder, "ln", ["one.raw", "hard.raw"]);
    tool(folder, "mkfifo", ["fifo"]);
    fs::File::create(lab.path("sparse.raw")).unwrap().set_len(1 << 20).unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(lab.path("sparse.raw"))
        .unwrap()
        .write_all(&[1; 512])
        .unwrap();
    let tar = |name: &str, arguments: &[&str]| {
        tool(folder, "tar", ["-cPf", name].iter().chain(arguments));
        lab.path(name)
    };
    refused(
        &lab,
        &tar("two.tar", &["one.raw", "two.raw"]),
        &["more than one file, one.raw and two.raw"],
    );
    refused(&lab, &tar("none.tar", &["folder"]), &["no regular file"]);
    refused(
        &lab,
        &tar("climbs.tar", &["--transform=s,^,../../,", "one.raw"]),
        &["../../one.raw", "leads out"],
    );
    refused(
        &lab,
        &tar("root.tar", &["--transform=s,^,/etc/,", "one.raw"]),
        &["/etc/one.raw", "leads out"],
    );
    refused(&lab, &tar("link.tar", &["link.raw"]), &["link.raw", "a symbolic link"]);
    refused(&lab, &tar("hard.tar", &["one.raw", "hard.raw"]), &["hard.raw", "a hard link"]);
    refused(&lab, &tar("fifo.tar", &["fifo", "one.raw"]), &["fifo", "a FIFO"]);
    refused(&lab, &tar("sparse.tar", &["-S", "sparse.raw"]), &["sparse", "without --sparse"]);
    refused(
        &lab,
        &tar("sparse.pax.tar", &["-S", "--format=pax", "sparse.raw"]),
        &["sparse", "without --sparse"],
    );
    let device = [&header("null", 0, b'3')[..], &[0; 1024]].concat();
    refused(&lab, &file(&lab, "device.tar", &device), &["null", "a device"]);
    let strange = [&header("disk", 0, b'V')[..], &[0; 1024]].concat();
    refused(&lab, &file(&lab, "strange.tar", &strange), &["unknown kind"]);
    let mut follows = fs::read(tar("good.tar", &["one.raw"])).unwrap();
    follows.extend([1; 512]);
    refused(&lab, &file(&lab, "follows.tar", &follows), &["something follows the end"]);
    let many: Vec<u8> = (0..5000).flat_map(|_| header("folder/", 0, b'5')).collect();
    refused(&lab, &file(&lab, "many.tar", &many), &["more than 4096 entries"]);
    // Entries that tools write in addition to a disk are accepted: folders, long names, attributes;
    // all formats.
    let long = format!("folder/{}", "long".repeat(40));
    fs::rename(lab.path("one.raw"), lab.path(&long)).unwrap();
    for format in ["gnu", "pax", "posix"] {
        let archive = tar("fine.tar", &[&format!("--format={format}"), "folder"]);
        let added = lab.add(&archive);
        assert_eq!(added["virtual_bytes"], 1 << 16);
        lab.run("remove", [added["id"].as_str().unwrap()]).good();
    }
}

// Promise: P25 - A qcow2 image that names another file is refused.
/// A qcow2 file that names another file of the host would show it to the guest.
#[test]
fn a_qcow2_file_that_points_outside_is_refused() {
    let lab = Lab::new();
    let folder = lab.folder.path();
    let secret = lab.disk("secret", 1 << 20, 1);
    tool(
        folder,
        "qemu-img",
        ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", secret.to_str().unwrap(), "overlay"],
    );
    tool(
        folder,
        "qemu-img",
        ["create", "-q", "-f", "qcow2", "-o", "data_file=data,data_file_raw=on", "outside", "1M"],
    );
    for image in ["overlay", "outside"] {
        let image = lab.path(image);
        let words = if image.ends_with("overlay") { "an overlay of" } else { "in another file" };
        refused(&lab, &image, &[words]);
        // Packed, and unpacked on request, all the same: the header is read before any other
        // program reads the file.
        refused(&lab, &pack(&image, "tar.gz"), &[words]);
        lab.run("add", ["--unpacked".as_ref(), image.as_os_str()]).bad(&[words]);
        lab.run("add", ["--compressed".as_ref(), image.as_os_str()]).bad(&[words]);
        lab.assert_only(0);
    }
    // An absolute path in a backing file that only a later reader would resolve.
    let json = b"json:{\"driver\":\"file\",\"filename\":\"/etc/shadow\"}";
    let mut hostile = fs::read(lab.path("overlay")).unwrap();
    let at = hostile
        .windows(secret.as_os_str().len())
        .position(|it| it == secret.to_str().unwrap().as_bytes())
        .unwrap();
    hostile[at..at + json.len()].copy_from_slice(json);
    hostile[16..20].copy_from_slice(&(json.len() as u32).to_be_bytes());
    refused(&lab, &file(&lab, "json", &hostile), &["an overlay of json:", "/etc/shadow"]);
    // A raw disk that a guest made look like a qcow2 file is opened as qcow2, and refused likewise.
    let mut guest = fs::read(lab.path("overlay")).unwrap();
    guest.resize(1 << 20, 0);
    refused(&lab, &pack(&file(&lab, "guest", &guest), "zst"), &["an overlay of"]);
}

#[test]
fn a_damaged_qcow2_file_is_refused() {
    let lab = Lab::new();
    lab.disk("disk", 2 << 20, 1);
    tool(lab.folder.path(), "qemu-img", ["convert", "-O", "qcow2", "disk", "good"]);
    let good = fs::read(lab.path("good")).unwrap();
    refused(&lab, &file(&lab, "cut", &good[..good.len() / 2]), &[]);
    refused(&lab, &file(&lab, "shorter", &good[..good.len() - (1 << 16)]), &[]);
    // Its first table of clusters is nonsense.
    let table = u64::from_be_bytes(good[40..48].try_into().unwrap()) as usize;
    let mut nonsense = good.clone();
    nonsense[table..table + 8].copy_from_slice(&[0x80, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
    refused(&lab, &file(&lab, "nonsense", &nonsense), &[]);
    // Every byte of the header is changed: no panic, no remains. A file that is still valid qcow2
    // is accepted.
    for at in 0..112 {
        let mut changed = good.clone();
        changed[at] ^= 0x40;
        let image = file(&lab, "changed", &changed);
        let run = lab.run("add", ["--json".as_ref(), image.as_os_str()]);
        if run.code == Some(0) {
            lab.run("remove", [run.json()["id"].as_str().unwrap()]).good();
        } else {
            run.bad(&[image.to_str().unwrap()]);
        }
    }
    lab.assert_only(0);
}

/// The image is written to while it is added.
#[test]
fn an_image_that_changes_while_it_is_read_is_refused() {
    let lab = Lab::new();
    let (mut running, image) = crate::kit::halfway(&lab);
    let bases = names(&lab.cache.join("bases")).len();
    fs::OpenOptions::new().append(true).open(&image).unwrap().write_all(&[0; 4]).unwrap();
    running.signal(rustix::process::Signal::CONT);
    // xz may meet what was appended first.
    let run = running.end();
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(
        run.err.contains("changed while it was read") || run.err.contains("damaged"),
        "{run:?}"
    );
    lab.assert_only(bases);
}
