//! Tests of the command line's output about waypoints, for operators.

use std::{
    io,
    path::Path,
    process::{Command, Output, Stdio},
    thread::JoinHandle,
};

use ambit_cluster_tests::{Mesh, TestNamespace, built_binary, wait_until};
use serde_json::{Value, json};

use super::WaypointFixture;

#[test]
fn records_state_and_reports_of_waypoints_are_shown_to_operators() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("shown");
    let _covered = WaypointFixture::new(&space);
    space.apply(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{to: [{operation: {paths: [/admin*]}}]}]
",
    );
    let waypoint = format!("{}/waypoint", space.name());
    let shows = |section: &str, texts: &[&str]| {
        wait_until(&format!("{section} with {texts:?}"), || {
            let text = mesh.ambit(&["waypoint", section, "-n", space.name()]);
            texts.iter().all(|one| text.contains(one))
        });
    };
    let policy = format!("{}/no-admin", space.name());
    let service = format!("{0}/server.{0}.svc.cluster.local", space.name());
    shows("policies", &[&waypoint, &policy, "DENY"]);
    shows("routes", &[&waypoint, &service]);
    shows("endpoints", &[&waypoint, &service, "Healthy"]);

    // Each of its pods, in order, and not among the problems.
    wait_until("the status has the waypoint's pods", || {
        let text = mesh.ambit(&["status"]);
        let mut rows = text.lines().filter(|line| line.starts_with(&waypoint));
        let in_order = rows
            .clone()
            .all(|row| row.contains(" ready ") && row.contains("SYNCED"));
        rows.next().is_some() && in_order && !text.contains(&format!("! {waypoint}"))
    });
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("report.tar.gz");
    let archive = archive.to_str().unwrap();
    mesh.ambit(&["bug-report", "--output", archive, "--log-lines", "10"]);
    let listed = Command::new("tar")
        .args(["-tzf", archive])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let has = |file: &str| {
        let mut lines = listed.lines();
        lines.any(|line| line.contains("pods/waypoint-") && line.ends_with(file))
    };
    assert!(
        has("/config_dump") && has("/metrics") && has(".log"),
        "{listed}"
    );
}

/// Writes a kubeconfig with the permissions of a namespace's default service account, to which no role is bound.
fn default_account_kubeconfig(mesh: &Mesh, namespace: &str) -> tempfile::NamedTempFile {
    let view = [
        "config",
        "view",
        "--raw",
        "--minify",
        "--flatten",
        "-o",
        "json",
    ];
    let mut config: serde_json::Value = serde_json::from_str(&mesh.kubectl(&view)).unwrap();
    let token = mesh.kubectl(&["create", "token", "default", "-n", namespace]);
    config["users"][0]["user"] = serde_json::json!({"token": token.trim()});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    file
}

/// Makes the waypoint open a connection to the server for each request, since the server's node proxy reports connections:
/// one that the waypoint keeps from before the reader would give it nothing to report.
fn use_connections_once(space: &TestNamespace<'_>) {
    space.apply(
        "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: server}
spec: {host: server, trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}}
",
    );
}

/// Running `ambit flows` of a user, whose output is read once the command ends.
struct FlowsCommand(JoinHandle<io::Result<Output>>);

impl FlowsCommand {
    fn start(user: &Path, arguments: &[&str]) -> Self {
        let child = Command::new(built_binary("ambit"))
            .args(["flows", "-o", "json", "--kubeconfig"])
            .arg(user)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.unwrap();
        Self(std::thread::spawn(move || child.wait_with_output()))
    }

    /// Repeats `traffic` until the command's time is over, and returns what it wrote.
    ///
    /// The metrics of proxies do not tell when this command reads: readers of other tests are among theirs.
    fn finish_beside(self, mut traffic: impl FnMut()) -> (String, String) {
        wait_until("the command has ended", || {
            traffic();
            self.0.is_finished()
        });
        self.finish()
    }

    fn finish(self) -> (String, String) {
        let output = self.0.join().unwrap().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    }
}

#[test]
fn flows_are_shown_live_to_users_with_the_right() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("flows");
    let covered = WaypointFixture::new(&space);
    use_connections_once(&space);
    let arguments = ["--for", "15s", "-n", space.name()];
    let reading = FlowsCommand::start(&mesh.cluster().kubeconfig(), &arguments);
    let to_server = format!("{}/seen", covered.urls[0]);
    let (text, _) = reading.finish_beside(|| {
        space.get("client", &to_server).unwrap();
    });
    let events: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for side in ["source", "waypoint", "destination"] {
        let is_seen = events.iter().any(|event| event["reporter"]["kind"] == side);
        assert!(is_seen, "{side} in {text}");
    }
    let request = events
        .iter()
        .find(|event| event["request"]["path"] == "/seen");
    let request = request.unwrap_or_else(|| panic!("no request in {text}"));
    assert_eq!(request["waypoint"], format!("{}/waypoint", space.name()));
    assert_eq!(request["source"]["owner"], "client");

    let client = format!("{}/client", space.name());
    let explained = mesh.ambit(&[
        "explain", "--from", &client, "--to", "server", "--path", "/seen",
    ]);
    assert!(explained.contains("REACHES the application"), "{explained}");
}

/// Checks that a user who may read only the namespace `mine` gets flow events of traffic within it, from `theirs` and
/// to `theirs`.
#[track_caller]
fn assert_only_own_flows(text: &str, mine: &str, theirs: &str) {
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let find = |side: &str, from: &str, to: &str| {
        let found = events.iter().find(|event| {
            event["reporter"]["kind"] == side
                && event["source"]["namespace"] == from
                && event["destination"]["namespace"] == to
        });
        assert!(
            found.is_some(),
            "no event of the {side} from {from} to {to}: {text}"
        );
        found.unwrap()
    };
    for side in ["source", "waypoint", "destination"] {
        find(side, mine, mine);
    }
    let called = find("waypoint", theirs, mine);
    assert_eq!(called["source"]["owner"], Value::Null, "{called}");
    assert_eq!(called["request"]["path"], "/seen", "{called}");
    let call = find("source", mine, theirs);
    assert_eq!(call["destination"], json!({"namespace": theirs}), "{call}");
    assert_eq!(call["source"]["owner"], "client", "{call}");
    // Nothing of what happens in the other namespace, whoever calls there.
    for event in &events {
        let kind = &event["reporter"]["kind"];
        let is_mine = |side: &str| event[side]["namespace"] == mine;
        assert!(
            if kind == "source" {
                is_mine("source")
            } else {
                is_mine("destination")
            },
            "{event}"
        );
    }
}

#[test]
fn flows_of_a_namespace_are_for_those_who_may_view_it() {
    let mesh = Mesh::shared();
    let (mine, theirs) = (mesh.test_namespace("viewed"), mesh.test_namespace("hidden"));
    let covered = WaypointFixture::new(&mine);
    use_connections_once(&mine);
    let their_server = theirs.deploy_captured_server();
    theirs.deploy_client("client", Some("n1"));
    theirs.wait_until_captured("client", true);
    let theirs_only = format!("http://server.{}/theirs", theirs.name());
    theirs.wait_for_get("client", &theirs_only, true);
    let user = default_account_kubeconfig(&mesh, mine.name());

    // Without a right, with one for another namespace, and for all of them.
    let refused = |namespace: &str, reason: &str| {
        let (events, error) = FlowsCommand::start(user.path(), &["-n", namespace]).finish();
        assert!(
            events.is_empty() && error.contains(reason),
            "{events}{error}"
        );
    };
    let no_right = format!("no right to get flows.ambit.io in {}", mine.name());
    refused(mine.name(), &no_right);
    mine.apply(&format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: viewer}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}}
subjects: [{{kind: ServiceAccount, name: default, namespace: {}}}]
",
        mine.name()
    ));
    wait_until("the user may view the namespace", || {
        let reading = FlowsCommand::start(user.path(), &["--for", "1s", "-n", mine.name()]);
        !reading.finish().1.contains("no right")
    });
    let no_right = format!("no right to get flows.ambit.io in {}", theirs.name());
    refused(theirs.name(), &no_right);
    let (_, error) = FlowsCommand::start(user.path(), &[]).finish();
    assert!(error.contains("flow events of all namespaces"), "{error}");
    // The user reaches no port but that of flow events.
    let config = format!("--kubeconfig={}", user.path().display());
    for name in ["https:istiod:https-dns", "http:istiod:http-monitoring"] {
        let path = format!("/api/v1/namespaces/istio-system/services/{name}/proxy/");
        let mut kubectl = mesh.cluster().kubectl();
        let answer = kubectl.args([&config, "get", "--raw", &path]).output();
        let error = String::from_utf8_lossy(&answer.unwrap().stderr).into_owned();
        assert!(error.contains("forbidden"), "{name}: {error}");
    }

    let reading = FlowsCommand::start(user.path(), &["--for", "20s", "-n", mine.name()]);
    let to_server = format!("{}/seen", covered.urls[0]);
    let (text, error) = reading.finish_beside(|| {
        mine.get("client", &to_server).unwrap();
        theirs.get("client", &to_server).unwrap();
        theirs.get("client", &theirs_only).unwrap();
        mine.get("client", &theirs_only).unwrap();
    });
    assert!(
        error.contains("reading through the control plane"),
        "{error}"
    );
    assert_only_own_flows(&text, mine.name(), theirs.name());
    let hidden = their_server.metadata.name.unwrap();
    assert!(!text.contains(&hidden), "{hidden} in {text}");
}
