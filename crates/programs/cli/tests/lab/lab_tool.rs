//! Tests of `ambit lab-tool`, with and without the program `ambit-lab-tool` beside `ambit`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::support::{Lab, ambit, pod_manifest};

/// Copies `ambit` to the directory, without the mesh's other programs.
fn copy_alone(directory: &Path) -> PathBuf {
    let copy = directory.join("ambit");
    fs::copy(ambit(), &copy).unwrap();
    copy
}

/// Runs `ambit lab-tool` with a `PATH` without programs of the mesh.
fn lab_tool(ambit: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(ambit);
    command.arg("lab-tool").args(arguments);
    command.env("PATH", "/usr/bin:/bin").output().unwrap()
}

#[test]
fn ambit_lab_tool_is_the_program_beside_it() {
    let arguments = ["get", "--help"];
    let output = lab_tool(Path::new(ambit()), &arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Usage: ambit-lab-tool get"), "{text}");
    let output = lab_tool(Path::new(ambit()), &["get", "ftp://a"]);
    let own = Command::new(Path::new(ambit()).with_file_name("ambit-lab-tool"))
        .args(["get", "ftp://a"])
        .output()
        .unwrap();
    assert_eq!(output, own);
}

#[test]
fn missing_lab_tool_is_reported_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let ambit = copy_alone(directory.path());
    let output = lab_tool(&ambit, &["sleep"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("put it beside ambit"), "{text}");
    let demo = Command::new(&ambit).args(["lab", "demo"]).output().unwrap();
    let text = String::from_utf8(demo.stderr).unwrap();
    assert!(text.contains("has no ambit-lab-tool"), "{text}");

    let lab = Lab::new();
    lab.write("pod.yaml", &pod_manifest("a", "[ambit-lab-tool, sleep]"));
    let up = ["up", "MANIFESTS", "--no-mesh", "--wait", "0"];
    lab.run_program_ok(&ambit, &up);
    lab.wait_for("the remedy in the pod's log", |_| {
        lab.run_ok(&["logs", "a"]).contains("beside ambit")
    });
}
