//! Tests of the commands in the book's pages (`docs/src`) for a cluster.

use ambit_cluster_tests::{Mesh, TIMEOUT, VALUES};
use ambit_testkit::documents::{DocumentStep, parse_file_steps, run_steps};

/// Runs the commands of a page, with the images of the test cluster; `/tmp` is replaced by the test's own directory.
fn run_page_commands(mesh: &Mesh, page: &str) {
    let own = tempfile::tempdir().unwrap();
    let steps: Vec<DocumentStep> = parse_file_steps(&format!("docs/src/{page}"), "cluster");
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
    run_page_commands(&Mesh::shared(), "start/cluster.md");
}

#[test]
fn symptoms_on_a_cluster_are_as_the_book_shows_them() {
    run_page_commands(&Mesh::shared(), "troubleshooting.md");
}
