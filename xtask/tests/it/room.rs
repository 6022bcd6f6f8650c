//! A disk with too little room is reported before the build.
use std::process::{Command, Output};

fn room(gib: &str, target: &str) -> Output {
    Command::new("sh")
        .args(["xtask/bootstrap.sh", "has-room"])
        .current_dir(xtask::root())
        .env("ROOM_GIB", gib)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap()
}

#[test]
fn too_little_room_is_told_with_what_is_needed_and_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("not/made/yet");
    let target = target.to_str().unwrap();
    let asked = room("999999999", target);
    let told = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert_eq!(asked.status.code(), Some(1), "{told}");
    for words in [
        target,
        "needs 999999999 GiB more",
        "0 are there",
        "GiB free",
        "ROOM_GIB=0",
    ] {
        assert!(told.contains(words), "{told}");
    }
    assert!(room("0", target).status.success());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it makes nothing");
}
