//! Tests writes in real directories beside other writers.

use std::{
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

use super::*;

fn write(name: &str, text: &str, expected: Option<&str>) -> FileAction {
    FileAction::Write {
        name: name.to_owned(),
        text: text.to_owned(),
        expected: expected.map(ToOwned::to_owned),
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_keeps_its_permissions_and_a_new_one_gets_ours() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.conflist");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(perform_action(dir.path(), &write("a.conflist", "new", Some("old")), 0o600).unwrap());
    assert!(perform_action(dir.path(), &write("b.conflist", "new", None), 0o640).unwrap());
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("a.conflist"), mode("b.conflist")), (0o644, 0o640));
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(names(dir.path()), ["a.conflist", "b.conflist"]);
}

#[test]
fn later_writes_of_the_owner_are_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.conflist");
    fs::write(&path, "newer").unwrap();
    let action = write("a.conflist", "ours", Some("old"));
    assert!(!perform_action(dir.path(), &action, 0o600).unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
    fs::remove_file(&path).unwrap();
    assert!(!perform_action(dir.path(), &action, 0o600).unwrap());
    assert!(names(dir.path()).is_empty());
}

#[test]
fn link_stays_while_its_target_changes() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("target"), "old").unwrap();
    symlink("target", dir.path().join("a.conflist")).unwrap();
    assert!(perform_action(dir.path(), &write("a.conflist", "new", Some("old")), 0o600).unwrap());
    assert!(
        fs::symlink_metadata(dir.path().join("a.conflist"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(
        fs::read_to_string(dir.path().join("target")).unwrap(),
        "new"
    );
}

#[test]
fn removal_of_a_missing_file_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let action = FileAction::Remove {
        name: "a".to_owned(),
    };
    assert!(perform_action(dir.path(), &action, 0o600).unwrap());
}

#[test]
fn the_plugin_is_copied_when_it_differs_and_stale_copies_go() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = source.path().join(PLUGIN_NAME);
    fs::write(&from, "one").unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(target.path().join(format!("{TEMPORARY_PREFIX}77")), "cut").unwrap();
    fs::write(target.path().join("bridge"), "theirs").unwrap();
    remove_stale_temporaries(target.path());
    assert!(install_plugin(source.path(), target.path()).unwrap());
    assert!(!install_plugin(source.path(), target.path()).unwrap());
    assert_eq!(names(target.path()), [PLUGIN_NAME, "bridge"]);
    let to = target.path().join(PLUGIN_NAME);
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o755);
    for spoil in ["two", "longer"] {
        fs::write(&to, spoil).unwrap();
        assert!(install_plugin(source.path(), target.path()).unwrap());
        assert_eq!(fs::read_to_string(&to).unwrap(), "one");
    }
    fs::set_permissions(&to, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(install_plugin(source.path(), target.path()).unwrap());
}

#[test]
fn a_plugin_that_runs_is_replaced_unharmed() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (
        source.path().join(PLUGIN_NAME),
        target.path().join(PLUGIN_NAME),
    );
    fs::copy("/bin/cat", &from).unwrap();
    install_plugin(source.path(), target.path()).unwrap();
    let mut running = Command::new(&to)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    fs::copy("/bin/true", &from).unwrap();
    assert!(install_plugin(source.path(), target.path()).unwrap());
    let mut stdin = running.stdin.take().unwrap();
    io::Write::write_all(&mut stdin, b"still here").unwrap();
    drop(stdin);
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"still here");
    assert!(Command::new(&to).status().unwrap().success());
}

#[test]
fn errors_name_the_file_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let error = install_plugin(dir.path(), dir.path()).unwrap_err();
    assert!(error.to_string().contains(PLUGIN_NAME), "{error}");
    let read_only = FileError {
        what: "write",
        path: "/opt/cni/bin/ambit-cni".into(),
        source: io::ErrorKind::ReadOnlyFilesystem.into(),
    };
    assert!(read_only.to_string().contains("cniBinDir"), "{read_only}");
}
