//! Tests of the commands in the book's pages (`docs/src`) for a cluster.

use ambit_cluster_tests::{Mesh, TIMEOUT, VALUES};
use ambit_testkit::documents::{DocumentStep, run_steps, steps_of_file};

/// Runs the commands of a page, with the images of the test cluster; `/tmp` is replaced by the test's own directory.
fn walk(mesh: &Mesh, page: &str) {
    let own = tempfile::tempdir().unwrap();
    let steps: Vec<DocumentStep> = steps_of_file(&format!("docs/src/{page}"), "cluster");
    run_steps(&steps, TIMEOUT, |command| {
        let values = "global.hub=registry.example.com/ambit,global.tag=v1";
        let command = command
            .replace(values, VALUES)
            .replace("registry.example.com/ambit/tools:v1", "ambit/tools:dev")
            .replace("/tmp/", &format!("{}/", own.path().display()));
        mesh.shell(&command)
    });
}

#[test]
fn walk_on_a_cluster() {
    walk(&Mesh::shared(), "start/cluster.md");
}

#[test]
fn symptoms_on_a_cluster_are_as_the_book_shows_them() {
    walk(&Mesh::shared(), "troubleshooting.md");
}
