//! Waypoint of a test's namespace, operated by the command line as users do.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;

use crate::{
    TestNamespace,
    pod::{addresses, is_ready},
    wait_until,
};

/// Label of a waypoint's pods and objects.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Name of the waypoint, the command line's default.
const NAME: &str = "waypoint";

/// Gateway of the class `istio-waypoint`, called `waypoint`.
#[derive(Debug)]
pub struct Waypoint<'a> {
    space: &'a TestNamespace<'a>,
}

impl<'a> Waypoint<'a> {
    /// Runs `ambit waypoint apply`, and waits for two ready pods.
    #[track_caller]
    pub fn apply(space: &'a TestNamespace<'a>) -> Self {
        let waypoint = Self { space };
        waypoint.ambit(&["apply", "--wait"]);
        waypoint.wait_until_ready(2);
        waypoint
    }

    /// Returns the handle of a waypoint whose Gateway already exists, once it has two ready pods.
    #[track_caller]
    pub fn find_ready(space: &'a TestNamespace<'a>) -> Self {
        let waypoint = Self { space };
        waypoint.wait_until_ready(2);
        waypoint
    }

    /// Runs `ambit waypoint delete`.
    #[track_caller]
    pub fn delete(&self) {
        self.ambit(&["delete", NAME]);
    }

    /// Runs `ambit waypoint` on the cluster, even if a lab is running.
    #[track_caller]
    fn ambit(&self, args: &[&str]) {
        let mesh = self.space.mesh();
        let kubeconfig = format!("--kubeconfig={}", mesh.cluster().kubeconfig().display());
        let of = ["--namespace", self.space.name(), &kubeconfig];
        mesh.ambit(&[&["waypoint"], args, &of].concat());
    }

    /// Runs `kubectl` in the waypoint's namespace.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> String {
        let namespace = ["--namespace", self.space.name()];
        self.space.mesh().kubectl(&[args, &namespace].concat())
    }

    /// Returns the waypoint's pods that are not terminating.
    pub fn pods(&self) -> Vec<Pod> {
        self.space
            .pods_with_labels(&format!("{GATEWAY_NAME}={NAME}"))
    }

    /// Returns the addresses of the waypoint's pods; a starting pod has none yet.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let pods = self.pods();
        let first = pods
            .iter()
            .filter_map(|pod| addresses(pod).first().copied());
        first.collect()
    }

    /// Waits until the waypoint has exactly this number of pods, all ready.
    #[track_caller]
    pub fn wait_until_ready(&self, count: usize) -> Vec<Pod> {
        let mut pods = Vec::new();
        wait_until(&format!("the waypoint has {count} ready pods"), || {
            pods = self.pods();
            pods.len() == count && pods.iter().all(is_ready)
        });
        pods
    }

    /// Scales the waypoint's Deployment, and waits for the pods.
    #[track_caller]
    pub fn scale(&self, count: usize) {
        let replicas = format!("--replicas={count}");
        self.kubectl(&["scale", &format!("deployment/{NAME}"), &replicas]);
        self.wait_until_ready(count);
    }

    /// Waits until the waypoint has no pod, not even a terminating one, which serves as long as it receives requests
    /// and no other pod serves.
    #[track_caller]
    pub fn wait_until_gone(&self) {
        let label = format!("{GATEWAY_NAME}={NAME}");
        wait_until("the waypoint has no pods", || {
            self.space.pods_including_terminating(&label).is_empty()
        });
    }

    /// Calls `by`, which makes the control plane replace the waypoint's pods, and waits until all pods are new.
    #[track_caller]
    pub fn wait_until_replaced(&self, by: impl FnOnce(&Self)) {
        let before: BTreeSet<_> = self.pods().iter().map(ResourceExt::uid).collect();
        by(self);
        wait_until("the waypoint's pods are replaced", || {
            let pods = self.pods();
            let is_new = |pod: &Pod| is_ready(pod) && !before.contains(&pod.uid());
            pods.len() == before.len() && pods.iter().all(is_new)
        });
    }

    /// Applies a merge patch to the waypoint's Gateway.
    #[track_caller]
    pub fn patch(&self, patch: &Value) {
        let patch = patch.to_string();
        self.kubectl(&["patch", "gateway", NAME, "--type=merge", "--patch", &patch]);
    }

    /// Returns the waypoint's Gateway.
    #[track_caller]
    pub fn gateway(&self) -> Value {
        let text = self.kubectl(&["get", "gateway", NAME, "--output=json"]);
        serde_json::from_str(&text).expect("kubectl writes JSON")
    }

    /// Waits until the Gateway's status condition of type `kind` is `expected`, as `STATUS REASON`.
    #[track_caller]
    pub fn wait_for_condition(&self, kind: &str, expected: &str) {
        let mut last = Value::Null;
        wait_until(&format!("{kind} is {expected}"), || {
            last = self.gateway()["status"].clone();
            condition(&last, kind).as_deref() == Some(expected)
        });
    }

    /// Returns the names of the waypoint's generated objects.
    #[track_caller]
    pub fn generated_objects(&self) -> String {
        let kinds = "serviceaccounts,services,deployments,poddisruptionbudgets";
        let label = format!("--selector={GATEWAY_NAME}={NAME}");
        self.kubectl(&["get", kinds, &label, "--output=name"])
    }

    /// Returns the access logs of the waypoint's pods.
    #[track_caller]
    pub fn access_log(&self) -> String {
        let label = format!("--selector={GATEWAY_NAME}={NAME}");
        self.kubectl(&["logs", &label, "--tail=-1", "--prefix"])
    }

    /// Returns the metrics of the waypoint's pods, which a pod of the app requests.
    pub fn metrics(&self, app: &str) -> String {
        let addresses = self.addresses();
        let pages = addresses.iter().map(|address| {
            let url = format!("http://{address}:15020/stats/prometheus");
            self.space.get(app, &url).unwrap_or_default()
        });
        pages.collect()
    }
}

/// Returns the status condition of type `kind` in an object's status, as `STATUS REASON`.
pub fn condition(status: &Value, kind: &str) -> Option<String> {
    let conditions = status["conditions"].as_array()?;
    let one = conditions.iter().find(|one| one["type"] == kind)?;
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    Some(format!("{} {}", text("status"), text("reason")))
}
