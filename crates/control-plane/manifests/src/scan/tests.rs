//! Tests that completely written files are read without a delay.

use tempfile::TempDir;

use super::*;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: one}\n";

/// Scans a directory with a file that was just written, and returns whether its object was found.
fn scan_finds_object(text: &str, held: bool, written: impl Fn(SystemTime) -> SystemTime) -> bool {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("one.yaml");
    let mut tree = ManifestTree::default();
    let mut scanner = Scanner::new(vec![directory.path().to_owned()]);
    if held {
        fs::write(&path, POD).unwrap();
    }
    scanner.scan(&mut tree, true, &CompletionTimes::new());
    tree.take_change();
    fs::write(&path, text).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let whole = CompletionTimes::from([(path, written(modified))]);
    scanner.scan(&mut tree, false, &whole);
    tree.take_change().is_some()
}

#[test]
fn complete_file_is_read_at_once() {
    assert!(scan_finds_object(POD, false, |modified| modified));
}

#[test]
fn file_closed_while_empty_keeps_its_objects() {
    assert!(!scan_finds_object("", true, |modified| modified));
}

#[test]
fn file_changed_after_completion_has_to_settle() {
    // It could have settled only if the machine was suspended meanwhile.
    let begin = Instant::now();
    let found = scan_finds_object(POD, false, |modified| modified - Duration::from_secs(1));
    assert!(!found || begin.elapsed() >= FILE_SETTLE_TIME);
}
