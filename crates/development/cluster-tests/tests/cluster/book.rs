//! The commands of the book's pages (`docs/src`) for a cluster.

use std::process::{Command, Output};

use ambit_cluster_tests::{Mesh, TIMEOUT, VALUES, binary};
use ambit_testkit::documents::{Step, follow, repository, steps_of};
use tempfile::TempDir;

/// Runs the commands of a page.
fn walk(mesh: &Mesh, page: &str) {
    let own = tempfile::tempdir().unwrap();
    let steps: Vec<Step> = steps_of(&format!("docs/src/{page}"), "cluster");
    follow(&steps, TIMEOUT, |command| shell(mesh, &own, command));
}

/// Runs a shell command as the book has it, with the images of the test cluster; `/tmp` is a directory of the test's own.
fn shell(mesh: &Mesh, own: &TempDir, command: &str) -> Output {
    let kubectl = mesh.cluster().kubectl();
    let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy());
    let words: Vec<_> = std::iter::once(kubectl.get_program())
        .chain(kubectl.get_args())
        .map(quoted)
        .collect();
    let command = command
        .replace(
            "global.hub=registry.example.com/ambit,global.tag=v1",
            VALUES,
        )
        .replace("registry.example.com/ambit/tools:v1", "ambit/tools:dev")
        .replace("/tmp/", &format!("{}/", own.path().display()));
    let script = format!("kubectl() {{ {} \"$@\"; }}\n{command}", words.join(" "));
    let programs = binary("ambit");
    let programs = programs.parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    Command::new("sh")
        .args(["-ec", &script])
        .current_dir(repository())
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("KUBECONFIG", mesh.cluster().kubeconfig())
        .output()
        .unwrap()
}

#[test]
fn walk_on_a_cluster() {
    walk(&Mesh::shared(), "start/cluster.md");
}

#[test]
fn symptoms_on_a_cluster_are_as_the_book_shows_them() {
    walk(&Mesh::shared(), "troubleshooting.md");
}
