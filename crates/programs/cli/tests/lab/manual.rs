//! Tests of completion scripts in a real shell, and of the manual's pages.

use std::process::Command;

use crate::support::{Lab, ambit};

#[test]
fn bash_completes_commands_and_flags() {
    let script = "
source <(\"$AMBIT\" completion bash)
complete_words() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _ambit ambit \"${@: -1}\" \"${@: -2:1}\"; echo \"${COMPREPLY[@]}\"; }
complete_words ambit lin
complete_words ambit lab up --prim
";
    let output = Command::new("bash")
        .args(["-c", script])
        .env("AMBIT", ambit())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    assert_eq!(lines, ["lint", "--primary-cni"], "{errors}");
}

#[test]
fn every_command_has_a_page_of_the_manual() {
    let lab = Lab::new();
    let directory = tempfile::tempdir().unwrap();
    lab.command_ok(&["man", directory.path().to_str().unwrap()]);
    for page in [
        "ambit.1",
        "ambit-status.1",
        "ambit-lab-up.1",
        "ambit-policy-test.1",
    ] {
        let text = std::fs::read_to_string(directory.path().join(page)).unwrap();
        assert!(text.contains(".SH DESCRIPTION"), "{page}: {text}");
    }
}

#[test]
fn kubectl_finds_a_plugin_by_a_link() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = directory.path().join("kubectl-ambit");
    std::os::unix::fs::symlink(ambit(), &plugin).unwrap();
    let output = Command::new(&plugin).args(["status", "--help"]).output();
    let help = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(
        help.contains("Usage: kubectl ambit status [OPTIONS]"),
        "{help}"
    );
    assert!(help.contains("Examples:\n  ambit status"), "{help}");
    let output = Command::new(&plugin).args(["version", "--client"]).output();
    assert!(output.unwrap().status.success());
}
