//! Tests of a lab's start and end: no process, mount or file stays behind.

use std::fs;

use crate::support::{Lab, SLEEP_COMMAND, kill, pod_manifest, wait_until, wait_until_gone};

/// Returns the mounts of the test's own mount namespace, to which a lab must add none.
fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

#[test]
fn down_leaves_no_process_no_mount_and_no_file() {
    let before = mounts();
    let lab = Lab::new();
    lab.write("pod.yaml", &pod_manifest("a", SLEEP_COMMAND))
        .up(&[]);
    let processes = lab.processes();
    assert!(processes.len() >= 3, "{processes:?}");
    assert_eq!(mounts(), before);
    lab.run_ok(&["down"]);
    wait_until_gone(&processes);
    assert!(!lab.state().exists());
    assert_eq!(mounts(), before);
}

#[test]
fn a_killed_lab_takes_everything_with_it() {
    // Whichever process is killed: the first one, the supervisor, or the one outside that watches.
    for victim in ["init", "supervise", "guard"] {
        let lab = Lab::new();
        // A process that left its group and session dies too.
        let stray = "[sh, -c, 'setsid sleep 1000 & exec ambit-lab-tool sleep']";
        lab.write("pod.yaml", &pod_manifest("a", stray)).up(&[]);
        let processes = lab.processes();
        let state = lab.state();
        let pid = find_process(victim, state.to_str().unwrap());
        kill(pid);
        wait_until_gone(&processes);
        assert!(!lab.run(&["status"]).status.success(), "{victim}");
        // Only a guard that is killed leaves files; the next lab of the name removes them.
        if victim != "guard" {
            wait_until(&format!("{victim}: the state is gone"), || !state.exists());
        }
        lab.up(&[]);
        lab.run_ok(&["down"]);
    }
}

fn find_process(stage: &str, state: &str) -> i32 {
    let pids = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words.contains(&stage.as_bytes()) && words.contains(&state.as_bytes())
    };
    pids.find(is_it).unwrap()
}

#[test]
fn an_ordinary_user_has_labs_too() {
    let lab = Lab::unprivileged();
    lab.write(
        "pods.yaml",
        &(pod_manifest("a", SLEEP_COMMAND) + &pod_manifest("b", "[ambit-lab-tool, serve]")),
    );
    lab.up(&["--ip-family", "dual"]);
    let processes = lab.processes();
    let b = lab.exec("b", &["hostname"]).1;
    assert_eq!(b, "b");
    let status = lab.run_ok(&["status", "-o", "json"]);
    assert!(status.contains("fd00:10:244:"), "{status}");
    lab.run_ok(&["down"]);
    wait_until_gone(&processes);
    assert!(!lab.state().exists());
}

#[test]
fn lab_names_are_unique_and_isolated() {
    let lab = Lab::new();
    lab.write("pod.yaml", &pod_manifest("a", SLEEP_COMMAND))
        .up(&[]);
    let again = lab.run(&["up", "MANIFESTS", "--no-mesh"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("is up already"));
    lab.up(&["--name", "other"]);
    let list = lab.run_ok(&["list"]);
    assert!(list.contains("default") && list.contains("other"), "{list}");
    lab.run_ok(&["down", "--name", "other"]);
    assert_eq!(lab.exec("a", &["true"]).0, 0);
}

#[test]
fn lab_that_cannot_start_names_the_reason_and_cleans_up() {
    let lab = Lab::new();
    let cases: [(&[&str], &str); 5] = [
        (&["up", "/does/not/exist"], "/does/not/exist"),
        (&["up", "MANIFESTS", "--nodes", "0"], "0 is not in 1..=99"),
        (
            &["up", "MANIFESTS", "--nodes", "500"],
            "500 is not in 1..=99",
        ),
        (
            &["up", "MANIFESTS", "--node-proxy", "node-7=/bin/sh"],
            "node-7",
        ),
        (&["up", "MANIFESTS", "--bin-dir", "/proc"], "ambit-control"),
    ];
    for (args, words) in cases {
        let output = lab.run(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(words),
            "{args:?}: {text}"
        );
        assert!(!lab.state().exists(), "{args:?}");
    }
}
