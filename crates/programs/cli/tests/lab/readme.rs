//! The README's walk with a waypoint, in the lab of the README's first steps.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::support::{Lab, TIMEOUT};

/// A command of a document, and the lines that follow it.
#[derive(Debug, Default)]
struct Step {
    command: String,
    output: Vec<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The steps of the README's first block of commands below a heading.
fn steps(heading: &str) -> Vec<Step> {
    let text = fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, below) = text.split_once(heading).unwrap();
    let (_, block) = below.split_once("```console\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let mut steps: Vec<Step> = Vec::new();
    let mut is_document = false;
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            let command = command.split("  #").next().unwrap().to_owned();
            is_document = command.ends_with("<<'END'");
            let output = Vec::new();
            steps.push(Step { command, output });
            continue;
        }
        let step = steps.last_mut().unwrap();
        if is_document {
            step.command.push_str(&format!("\n{line}"));
            is_document = line != "END";
        } else {
            // What differs from run to run is left out.
            step.output.push(line.split('…').next().unwrap().to_owned());
        }
    }
    steps
}

/// Runs a command until it succeeds and prints what is expected: the mesh follows changes, but not at once.
fn run(lab: &Lab, command: &str, expected: &[String]) -> String {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let output = lab.shell(command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() && expected.iter().all(|line| text.contains(&**line)) {
            return text;
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(Instant::now() < deadline, "{command}: {text}{errors}");
        std::thread::sleep(Duration::from_millis(100)); // tidy: between two looks
    }
}

#[test]
fn the_walk_with_a_waypoint_works_beside_policies_that_name_callers() {
    let lab = Lab::new();
    for entry in fs::read_dir(repository().join("examples/demo")).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            let name = path.file_name().unwrap().to_str().unwrap();
            lab.write(name, &fs::read_to_string(&path).unwrap());
        }
    }
    lab.ok(&["up", "MANIFESTS"]);
    let get = "ambit lab exec frontend -- curl -s http://orders/";
    run(&lab, get, &["orders in ".to_owned()]);

    // Nothing is done without a decision about the policies.
    let apply = "ambit waypoint apply --lab default -n shop";
    let refused = lab.shell(apply);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{errors}");
    for name in [
        "orders-from-frontend (ALLOW)",
        "ledger-not-from-frontend (DENY)",
    ] {
        assert!(errors.contains(name), "{errors}");
    }
    run(&lab, get, &["orders in ".to_owned()]);

    // Unchanged, they refuse the waypoint, which `explain` and the log report.
    run(&lab, &format!("{apply} --allow-moot-policies --wait"), &[]);
    let refusal = "policy shop/orders-from-frontend of the workload refused the waypoint";
    run(&lab, get, &[refusal.to_owned()]);
    let log = run(&lab, "ambit lab logs waypoint", &[refusal.to_owned()]);
    let line = log.lines().find(|line| line.contains(refusal)).unwrap();
    assert!(line.contains(" 503 UF "), "{line}");
    let explain =
        "ambit policy explain --lab default --from shop/frontend --to orders.shop --port 80";
    let explained = lab.shell(explain);
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert_eq!(explained.status.code(), Some(1), "{text}");
    assert!(text.contains("policies refuse the waypoint"), "{text}");

    let steps = steps("## Waypoints: layer 7");
    assert!(steps.len() > 3, "{steps:?}");
    for step in &steps {
        run(&lab, &step.command, &step.output);
    }
    run(
        &lab,
        explain,
        &["ALLOWED by shop/orders-from-frontend-from-waypoint".to_owned()],
    );
    // What was denied to the frontend stays denied.
    let ledger = "ambit lab exec frontend -- curl -s http://ledger/";
    run(&lab, ledger, &["RBAC: access denied".to_owned()]);
}
