//! Checks that the examples are valid: the control plane reports no problem and understands every policy.

use std::{fs, path::Path};

#[test]
fn every_example_is_read_without_a_problem() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples");
    let mut count = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let snapshot = ambit_manifests::read_snapshot(&[&path]).unwrap();
            assert!(snapshot.problems.is_empty(), "{:?}", snapshot.problems);
            assert!(!snapshot.objects.is_empty(), "{}", path.display());
            count += 1;
        }
    }
    assert!(count > 0);
}
