//! `thimble-lab image`: the subcommands exist; their behaviour is tested in their crate.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

fn image(cache: &Path, arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thimble-lab"));
    command.arg("image").args(arguments).arg("--json").arg("--cache").arg(cache);
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_image_is_added_and_machines_get_their_disks() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, disk) = (folder.path().join("cache"), folder.path().join("disk.raw"));
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let machines = ["vm1", "vm2"].map(|name| folder.path().join(name));
    let [one, two] = machines.each_ref().map(|path| path.to_str().unwrap());
    let added = image(&cache, &["add", disk.to_str().unwrap(), "--reserve", "0"]);
    let id = added["id"].as_str().unwrap();
    let made = image(&cache, &["overlay", id, one, two]);
    assert_eq!(made.as_array().unwrap().len(), 2, "{made}");
    assert!(machines.iter().all(|machine| machine.is_file()));
    let listed = image(&cache, &["list"]);
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&added["id"], &Value::from("whole")));
    assert_eq!(listed[0]["overlays"], serde_json::json!([one, two]));
}
