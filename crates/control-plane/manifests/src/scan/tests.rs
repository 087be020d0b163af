//! Files that their writers are done with do not have to settle.

use tempfile::TempDir;

use super::*;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: one}\n";

/// Scans a directory with a file that was just written, and returns whether its object was found.
fn finds(text: &str, held: bool, written: impl Fn(SystemTime) -> SystemTime) -> bool {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("one.yaml");
    let mut tree = Tree::default();
    let mut scanner = Scanner::new(vec![directory.path().to_owned()]);
    if held {
        fs::write(&path, POD).unwrap();
    }
    scanner.look(&mut tree, true, &Written::new());
    tree.take_change();
    fs::write(&path, text).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let whole = Written::from([(path, written(modified))]);
    scanner.look(&mut tree, false, &whole);
    tree.take_change().is_some()
}

#[test]
fn a_file_that_is_whole_is_read_at_once() {
    assert!(finds(POD, false, |modified| modified));
}

#[test]
fn a_file_that_its_writer_has_closed_empty_is_not_gone() {
    assert!(!finds("", true, |modified| modified));
}

#[test]
fn a_file_that_changed_since_it_was_whole_has_to_settle() {
    // Only on a machine that stood still meanwhile would it have settled.
    let begin = Instant::now();
    let found = finds(POD, false, |modified| modified - Duration::from_secs(1));
    assert!(!found || begin.elapsed() >= SETTLE);
}
