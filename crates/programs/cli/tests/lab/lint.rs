//! Tests of `ambit lint` with a lab, and with manifests alone.

use crate::support::{Lab, SLEEP_COMMAND, pod_manifest};

const POLICY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: callers, namespace: test}
spec:
  selector: {matchLabels: {app: a}}
  rules: [{from: [{source: {namespaces: [test]}}]}]
";

#[test]
fn linted_manifests_fail_by_errors_or_warnings() {
    let lab = Lab::new();
    lab.write("pod.yaml", &pod_manifest("a", SLEEP_COMMAND))
        .up(&[]);
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("policy.yaml");
    let lint = |text: &str, flags: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let output = lab.command(&[&["lint", file], flags].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), text + &errors)
    };
    let in_lab = ["--lab", "default"];
    let (code, text) = lint(&POLICY.replace("app: a", "app: b"), &in_lab);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("no pod in test has the labels app=b"),
        "{text}"
    );
    let (code, _) = lint(
        &POLICY.replace("app: a", "app: b"),
        &["--lab", "default", "--strict"],
    );
    assert_eq!(code, 1);
    let broken = POLICY.replace("namespaces", "namespace");
    for flags in [&in_lab[..], &["--alone"]] {
        let (code, text) = lint(&broken, flags);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("namespace"), "{text}");
    }
    assert_eq!(lint("a: [", &["--alone"]).0, 1);
    assert_eq!(lint("", &["--alone"]), (0, "no problems\n".to_owned()));
    assert_eq!(lint("", &["--lab", "nobody"]).0, 3);
}
