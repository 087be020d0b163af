//! Namespace of a test, and its pods.

use std::{
    process::Output,
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

use ambit_lab::{ExpectedOutcome, GetOutcome, count_denials};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    exec,
    mesh::Mesh,
    pod::{addresses, is_captured, is_ready, node_addresses},
    wait::{TIMEOUT, wait_until},
};

static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);

/// Namespace that is removed at the end of its test.
#[derive(Debug)]
pub struct TestNamespace<'a> {
    mesh: &'a Mesh,
    name: String,
}

impl Mesh {
    /// Creates a namespace for a test; its name begins with `name`.
    pub fn test_namespace(&self, name: &str) -> TestNamespace<'_> {
        TestNamespace::new(self, name)
    }
}

impl<'a> TestNamespace<'a> {
    fn new(mesh: &'a Mesh, name: &str) -> Self {
        // One of the same name may still be terminating.
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{}-{number}", std::process::id());
        mesh.apply(
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
                .to_string(),
        );
        Self { mesh, name }
    }

    /// Returns the name of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a text that only this test's pods send.
    pub fn traffic_marker(&self) -> String {
        format!("said-in-{}", self.name)
    }

    /// Deploys `count` pods that call `server` once when they start, with [`Self::traffic_marker`] in the request, and then
    /// stay idle. Returns without waiting for the pods.
    pub fn deploy_starting_clients(&self, count: u32, node: Option<&str>) {
        let marker = format!("--marker={}", self.traffic_marker());
        let args = ["first-connect", "server:9000", "--stay", &marker];
        self.deploy("starter", count, node, &args);
    }

    /// Sets the namespace's label `istio.io/dataplane-mode` to `mode`, or removes it.
    pub fn label(&self, mode: Option<&str>) {
        let namespaces: Api<Namespace> = Api::all(self.mesh.client());
        let patch = json!({"metadata": {"labels": {"istio.io/dataplane-mode": mode}}});
        self.mesh
            .wait_for(namespaces.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)))
            .unwrap();
    }

    /// Applies manifests in this namespace; `$NAMESPACE` in them is replaced by its name.
    #[track_caller]
    pub fn apply(&self, yaml: &str) {
        let mut text = String::new();
        for mut object in ambit_cluster::objects::parse(&yaml.replace("$NAMESPACE", &self.name))
            .unwrap_or_else(|error| panic!("{error:#}"))
        {
            object
                .metadata
                .namespace
                .get_or_insert_with(|| self.name.clone());
            text += &format!("---\n{}\n", serde_json::to_string(&object).unwrap());
        }
        self.mesh.apply(&text);
    }

    /// Creates a Deployment `name` of pods that run `ambit-lab-tool` with these arguments under a service account of
    /// the same name, and a Service in front of ports 80 (to 8080) and 9000. The pods run on `node` if it is given.
    /// Returns without waiting for the pods.
    pub fn deploy(&self, name: &str, replicas: u32, node: Option<&str>, args: &[&str]) {
        let labels = json!({"app": name});
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name},
            }),
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": tool_pod_spec(name, node, args)},
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"selector": labels, "ports": [
                    {"name": "http", "port": 80, "targetPort": 8080},
                    {"name": "tcp-echo", "port": 9000},
                ]},
            }),
        ];
        let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
        self.apply(&texts.join("\n---\n"));
    }

    /// Deploys a server with HTTP (port 8080) and echo (9000), and waits until it is ready.
    pub fn deploy_server(&self, name: &str, node: Option<&str>) -> Pod {
        self.deploy(
            name,
            1,
            node,
            &["serve", "--port=8080", "--echo=9000", "--quiet"],
        );
        self.wait_until_ready(name, 1).remove(0)
    }

    /// Enrols the namespace, and deploys a captured server on the second node.
    #[track_caller]
    pub fn deploy_captured_server(&self) -> Pod {
        self.label(Some("ambient"));
        let server = self.deploy_server("server", Some("n2"));
        self.wait_until_captured("server", true);
        server
    }

    /// Deploys an idle pod in which commands can be run, and waits until it is ready.
    pub fn deploy_client(&self, name: &str, node: Option<&str>) -> Pod {
        self.deploy(name, 1, node, &["sleep"]);
        self.wait_until_ready(name, 1).remove(0)
    }

    /// Creates a pod that runs a shell script once. Returns without waiting for the pod.
    pub fn run(&self, name: &str, node: Option<&str>, script: &str) {
        let mut spec = tool_pod_spec("default", node, &[]);
        spec["restartPolicy"] = "Never".into();
        spec["containers"][0]["command"] = json!(["sh", "-c", script]);
        self.pod(name, json!({}), json!({}), spec);
    }

    /// Creates an idle pod without an owner, with these labels and annotations, in which commands can be run. Returns
    /// without waiting for the pod.
    pub fn create_ownerless_pod(
        &self,
        name: &str,
        node: Option<&str>,
        labels: Value,
        annotations: Value,
    ) {
        self.pod(
            name,
            labels,
            annotations,
            tool_pod_spec("default", node, &["sleep"]),
        );
    }

    /// Creates a pod without an owner that runs `ambit-lab-tool` with these arguments. Returns without waiting for the
    /// pod.
    pub fn create_ownerless_tool_pod(
        &self,
        name: &str,
        node: Option<&str>,
        labels: Value,
        args: &[&str],
    ) {
        self.pod(
            name,
            labels,
            json!({}),
            tool_pod_spec("default", node, args),
        );
    }

    fn pod(&self, name: &str, mut labels: Value, annotations: Value, spec: Value) {
        labels["app"] = name.into();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": spec,
        });
        self.apply(&pod.to_string());
    }

    /// Returns the pods with this label `app` that are not terminating.
    pub fn pods(&self, app: &str) -> Vec<Pod> {
        self.pods_with_labels(&format!("app={app}"))
    }

    /// Returns the pods with these labels that are not terminating.
    pub(crate) fn pods_with_labels(&self, labels: &str) -> Vec<Pod> {
        let mut pods = self.pods_including_terminating(labels);
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods
    }

    /// Returns the pods with these labels, including terminating ones.
    pub(crate) fn pods_including_terminating(&self, labels: &str) -> Vec<Pod> {
        let list = ListParams::default().labels(labels);
        let pods = self.mesh.wait_for(self.pod_api().list(&list));
        pods.unwrap().items
    }

    /// Waits until exactly this number of the app's pods exist and are ready; returns them.
    #[track_caller]
    pub fn wait_until_ready(&self, app: &str, count: usize) -> Vec<Pod> {
        let mut pods = Vec::new();
        wait_until(
            &format!("{count} pods of {}/{app} are ready", self.name),
            || {
                pods = self.pods(app);
                pods.len() == count && pods.iter().all(is_ready)
            },
        );
        pods
    }

    /// Waits until all pods of the app are annotated as captured, or none is.
    #[track_caller]
    pub fn wait_until_captured(&self, app: &str, captured: bool) {
        wait_until(
            &format!("pods of {}/{app} captured: {captured}", self.name),
            || {
                let pods = self.pods(app);
                !pods.is_empty() && pods.iter().all(|pod| is_captured(pod) == captured)
            },
        );
    }

    /// Waits until the pod's log has a JSON line with this value of `event`; returns the line.
    #[track_caller]
    pub fn wait_for_event(&self, pod: &str, event: &str) -> Value {
        self.wait_for_container_event(pod, None, event)
    }

    /// Waits like [`Self::wait_for_event`], for the log of one of the pod's containers.
    #[track_caller]
    pub fn wait_for_container_event(
        &self,
        pod: &str,
        container: Option<&str>,
        event: &str,
    ) -> Value {
        let mut found = None;
        wait_until(&format!("{pod} says {event}"), || {
            found = events(&self.log_of(pod, container))
                .into_iter()
                .find(|line| line.get("event").and_then(Value::as_str) == Some(event));
            found.is_some()
        });
        found.unwrap_or_default()
    }

    /// Returns the JSON lines of a pod's log.
    pub fn events(&self, pod: &str) -> Vec<Value> {
        events(&self.log(pod))
    }

    /// Returns the event of the first connection of a pod of [`Self::deploy_starting_clients`]; panics if the connection
    /// failed.
    #[track_caller]
    pub fn wait_for_first_response(&self, pod: &Pod) -> Value {
        let event = self.wait_for_event(&pod.name_any(), "first-connect");
        assert!(event["first_answer_ms"].is_number(), "{event}");
        event
    }

    /// Deletes a pod without a grace period.
    pub fn delete_pod(&self, name: &str) {
        let at_once = DeleteParams::default().grace_period(0);
        drop(
            self.mesh
                .wait_for(self.pod_api().delete(name, &at_once))
                .unwrap(),
        );
    }

    /// Runs a command in the first pod of the app. The pod need not be ready, since for a while after an outage of the
    /// API server no pod is.
    pub fn exec(&self, app: &str, command: &[&str]) -> Output {
        let pod = self
            .pods(app)
            .into_iter()
            .next()
            .unwrap_or_else(|| panic!("no pod of {}/{app}", self.name));
        let pods = self.pod_api();
        self.mesh.wait_for(exec::exec(&pods, &pod, command))
    }

    /// Sends a `GET` from a pod of the app; returns the response, or the failure.
    pub fn get(&self, app: &str, url: &str) -> Result<String, String> {
        let (ending, text) = self.try_get(app, url);
        match ending {
            GetOutcome::Success => Ok(text),
            _ => Err(format!("{ending:?}: {text}")),
        }
    }

    /// Sends a `GET` from a pod of the app; returns its outcome and its output.
    pub fn try_get(&self, app: &str, url: &str) -> (GetOutcome, String) {
        let output = self.exec(app, &["ambit-lab-tool", "get", url, "--timeout=5000"]);
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            text += &String::from_utf8_lossy(&output.stderr);
        }
        (
            GetOutcome::from_exit_code(output.status.code().unwrap_or(-1)),
            text,
        )
    }

    /// Repeats [`Self::get`] until the expected outcome: `true` is a response, `false` a denial by a policy, which must
    /// be in an access log. Any other failure panics.
    #[track_caller]
    pub fn wait_for_get<'e>(&self, app: &str, url: &str, expected: impl Into<ExpectedOutcome<'e>>) {
        let expected = expected.into();
        let denials = || match expected {
            ExpectedOutcome::Denial(policy) => {
                // kube-proxy may put the node's address in the place of its pod's.
                let client = self
                    .pods(app)
                    .iter()
                    .flat_map(|pod| addresses(pod).into_iter().chain(node_addresses(pod)))
                    .collect::<Vec<_>>();
                Some(count_denials(&self.mesh.access_log(), &client, policy))
            }
            ExpectedOutcome::Success | ExpectedOutcome::Failure(_) => None,
        };
        let before = denials();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let (ending, text) = self.try_get(app, url);
            // Logs are written after the answer: the next look may find it.
            if expected.matches(ending) && (before.is_none() || denials() > before) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{}/{app} -> {url} never came to {expected:?}, last: {ending:?}: {text}",
                self.name
            );
        }
    }

    /// Returns the log of a pod.
    pub fn log(&self, pod: &str) -> String {
        self.log_of(pod, None)
    }

    fn log_of(&self, pod: &str, container: Option<&str>) -> String {
        let parameters = LogParams {
            container: container.map(ToOwned::to_owned),
            ..LogParams::default()
        };
        self.mesh
            .wait_for(self.pod_api().logs(pod, &parameters))
            .unwrap_or_default()
    }

    /// Returns the mesh whose cluster contains the namespace.
    pub fn mesh(&self) -> &Mesh {
        self.mesh
    }

    /// Returns the Kubernetes client for this namespace's pods.
    pub fn pod_api(&self) -> Api<Pod> {
        Api::namespaced(self.mesh.client(), &self.name)
    }
}

impl Drop for TestNamespace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for args in [
                ["get", "pods", "--output=wide"],
                ["get", "events", "--sort-by=.lastTimestamp"],
            ] {
                let printed = self
                    .mesh
                    .cluster()
                    .kubectl()
                    .args(args)
                    .args(["--namespace", &self.name])
                    .output();
                if let Ok(printed) = printed {
                    eprintln!("{}", String::from_utf8_lossy(&printed.stdout));
                }
            }
        }
        let namespaces: Api<Namespace> = Api::all(self.mesh.client());
        let parameters = DeleteParams::default();
        let gone = namespaces.delete(&self.name, &parameters);
        if let Err(error) = self.mesh.wait_for(gone) {
            eprintln!("namespace {} stays: {error}", self.name);
        }
    }
}

/// Returns the JSON lines of a pod's log.
fn events(log: &str) -> Vec<Value> {
    let lines = log.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn tool_pod_spec(account: &str, node: Option<&str>, args: &[&str]) -> Value {
    let mut words = vec!["ambit-lab-tool"];
    words.extend(args);
    let probe = args.first().is_some_and(|tool| *tool == "serve").then(|| {
        // A busy machine that responds late makes no endpoint unready.
        let http = json!({"path": "/", "port": 8080});
        json!({"httpGet": http, "periodSeconds": 1, "timeoutSeconds": 10})
    });
    json!({
        "serviceAccountName": account,
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "tool",
            "image": "ambit/tools:dev",
            "imagePullPolicy": "Never",
            "command": words,
            "readinessProbe": probe,
        }],
    })
}
