//! Objects of the simulated cluster, of realistic size.

use ambit_model::Identity;
use serde_json::{Value, json};

use super::delivery_board::CHURN_POD_PREFIX;

/// Number of simulated objects of each kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterSize {
    pub(super) nodes: u32,
    pub(super) services: u32,
    pub(super) pods_per_service: u32,
    pub(super) namespaces: u32,
}

pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const NAMESPACES: &str = "/api/v1/namespaces";
pub(super) const PODS: &str = "/api/v1/pods";
pub(super) const SERVICES: &str = "/api/v1/services";
pub(super) const ACCOUNTS: &str = "/api/v1/serviceaccounts";
pub(super) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(super) const POLICIES: &str = "/apis/security.istio.io/v1/authorizationpolicies";

/// API collections that the control plane watches and that are empty in the simulated cluster, each with its kind.
pub(super) const EMPTY_COLLECTIONS: &[(&str, &str)] = &[
    (
        "/apis/networking.istio.io/v1/serviceentries",
        "ServiceEntry",
    ),
    (
        "/apis/networking.istio.io/v1/workloadentries",
        "WorkloadEntry",
    ),
    (
        "/apis/security.istio.io/v1/peerauthentications",
        "PeerAuthentication",
    ),
];

impl ClusterSize {
    pub(super) fn pods(self) -> u32 {
        self.services * self.pods_per_service
    }

    fn namespace_of(self, service: u32) -> String {
        format!("team-{}", service % self.namespaces)
    }

    /// Returns the initial objects, each with its collection.
    pub(super) fn objects(self) -> impl Iterator<Item = (&'static str, Value)> {
        let nodes = (0..self.nodes).map(|n| (NODES, node(n)));
        let namespaces = (0..self.namespaces)
            .map(|n| format!("team-{n}"))
            .chain(["istio-system".to_owned(), "default".to_owned()])
            .map(|name| (NAMESPACES, namespace(&name)));
        let services = (0..self.services).flat_map(move |n| {
            let of_service = [
                (SERVICES, self.service(n)),
                (ACCOUNTS, self.account(n)),
                (SLICES, self.slice(n, n * self.pods_per_service)),
            ];
            let policy = n.is_multiple_of(10).then(|| (POLICIES, self.policy(n)));
            of_service.into_iter().chain(policy)
        });
        let pods = (0..self.pods()).map(move |n| (PODS, self.pod(n)));
        nodes.chain(namespaces).chain(services).chain(pods)
    }

    fn service(self, n: u32) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": format!("svc-{n}"), "namespace": self.namespace_of(n),
                "labels": {"app": format!("svc-{n}")}, "managedFields": managed_fields("kubectl")},
            "spec": {
                "clusterIP": address(96, n), "clusterIPs": [address(96, n)], "type": "ClusterIP",
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
                "selector": {"app": format!("svc-{n}")},
                "ports": [
                    {"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"},
                    {"name": "grpc", "port": 9000, "targetPort": "grpc", "protocol": "TCP"},
                ],
            },
            "status": {"loadBalancer": {}},
        })
    }

    fn account(self, n: u32) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": format!("svc-{n}"), "namespace": self.namespace_of(n)},
        })
    }

    fn policy(self, n: u32) -> Value {
        json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": format!("svc-{n}"), "namespace": self.namespace_of(n)},
            "spec": {
                "selector": {"matchLabels": {"app": format!("svc-{n}")}}, "action": "ALLOW",
                "rules": [{"from": [{"source": {"principals": [
                    format!("cluster.local/ns/{}/sa/svc-{}", self.namespace_of(n + 1), n + 1),
                ]}}], "to": [{"operation": {"ports": ["8080"]}}]}],
            },
        })
    }

    /// Returns a DENY policy for one service, whose delivery to the last proxy is measured.
    pub(super) fn deny(self, number: usize) -> Value {
        json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": format!("{CHURN_POD_PREFIX}{number}"), "namespace": self.namespace_of(0)},
            "spec": {
                "selector": {"matchLabels": {"app": "svc-0"}}, "action": "DENY",
                "rules": [{"to": [{"operation": {"ports": ["8080"]}}]}],
            },
        })
    }

    /// Returns the EndpointSlice of a service; `version` changes it.
    pub(super) fn slice(self, service: u32, version: u32) -> Value {
        let endpoints: Vec<_> = (0..self.pods_per_service)
            .map(|n| {
                let pod = service * self.pods_per_service + n;
                json!({
                    "addresses": [address(10, pod + version % 7)], "nodeName": self.node_of(pod),
                    "conditions": {"ready": true, "serving": true, "terminating": false},
                    "targetRef": {"kind": "Pod", "name": self.pod_name(pod),
                        "namespace": self.namespace_of(service)},
                })
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("svc-{service}-x7k2p"),
                "namespace": self.namespace_of(service),
                "labels": {"kubernetes.io/service-name": format!("svc-{service}"),
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
            "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        })
    }

    fn node_of(self, pod: u32) -> String {
        format!("node-{}", pod % self.nodes)
    }

    fn pod_name(self, n: u32) -> String {
        format!("svc-{}-6d4cf56db6-{n:05}", n / self.pods_per_service)
    }

    fn pod(self, n: u32) -> Value {
        self.any_pod(n / self.pods_per_service, &self.pod_name(n), n, true)
    }

    /// Returns the pod that a change adds or removes; without an address, the pod is only scheduled.
    pub(super) fn churning_pod(self, number: u32, has_address: bool) -> Value {
        let service = number % self.services;
        // Addresses beyond those of the initial pods, reused after a while.
        let address = self.pods() + number % 60_000;
        self.any_pod(service, &churning_name(number), address, has_address)
    }

    /// Returns the node and identity of a pod of the churn.
    pub(super) fn churning_identity(self, number: u32) -> (u32, Identity) {
        let node = (self.pods() + number % 60_000) % self.nodes;
        let service = number % self.services;
        let account = format!("svc-{service}");
        (
            node,
            Identity::new("cluster.local", self.namespace_of(service), account),
        )
    }

    pub(super) fn churning_namespace(self, number: u32) -> String {
        self.namespace_of(number % self.services)
    }

    fn any_pod(self, service: u32, name: &str, number: u32, has_address: bool) -> Value {
        let app = format!("svc-{service}");
        let truth = if has_address { "True" } else { "False" };
        let conditions: Vec<_> = [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
        ]
        .map(|kind| {
            json!({"type": kind, "status": truth, "lastProbeTime": null,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .into();
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "generateName": format!("{app}-6d4cf56db6-"),
                "namespace": self.namespace_of(service),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app": app, "pod-template-hash": "6d4cf56db6", "version": "v1",
                    "app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "shop"},
                "annotations": {"ambient.istio.io/redirection": "enabled",
                    "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z",
                    "prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true,
                    "blockOwnerDeletion": true, "name": format!("{app}-6d4cf56db6"),
                    "uid": "6f7e2d6a-9f0a-4f0e-8f4b-2f8f4a1f0c11"}],
                "managedFields": managed_fields("kubelet"),
            },
            "spec": {
                "nodeName": self.node_of(number), "serviceAccountName": app,
                "serviceAccount": app, "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
                "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": true,
                "terminationGracePeriodSeconds": 30, "preemptionPolicy": "PreemptLowerPriority",
                "tolerations": [
                    {"key": "node.kubernetes.io/not-ready", "operator": "Exists",
                        "effect": "NoExecute", "tolerationSeconds": 300},
                    {"key": "node.kubernetes.io/unreachable", "operator": "Exists",
                        "effect": "NoExecute", "tolerationSeconds": 300},
                ],
                "volumes": [{"name": "kube-api-access-abcde", "projected": {"defaultMode": 420,
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt",
                            "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    ]}}],
                "containers": [{
                    "name": "app", "image": "registry.example.com/shop/app:v1.2.3",
                    "imagePullPolicy": "IfNotPresent",
                    "env": [
                        {"name": "LOG_LEVEL", "value": "info"},
                        {"name": "DATABASE_URL", "value": "postgres://db.shop.svc.cluster.local:5432/shop"},
                        {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1",
                            "fieldPath": "status.podIP"}}},
                    ],
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"},
                        {"name": "grpc", "containerPort": 9000, "protocol": "TCP"}],
                    "resources": {"limits": {"memory": "256Mi"},
                        "requests": {"cpu": "100m", "memory": "128Mi"}},
                    "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
                        "periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3},
                    "volumeMounts": [{"name": "kube-api-access-abcde", "readOnly": true,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                }],
            },
            "status": {
                "phase": if has_address { "Running" } else { "Pending" },
                "conditions": conditions, "qosClass": "Burstable",
                "startTime": "2026-01-01T00:00:00Z",
            },
        });
        if has_address && let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
            let ip = address(10, number);
            status.insert("podIPs".into(), json!([{"ip": ip}]));
            status.insert("podIP".into(), json!(ip));
            status.insert("hostIP".into(), json!("10.255.0.1"));
            status.insert(
                "containerStatuses".into(),
                json!([{"name": "app", "ready": true, "started": true, "restartCount": 0,
                    "image": "registry.example.com/shop/app:v1.2.3",
                    "imageID": "registry.example.com/shop/app@sha256:9f86d081884c7d659a2feaa0c55ad015",
                    "containerID": "containerd://9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c",
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "lastState": {}}]),
            );
        }
        pod
    }
}

/// Returns the node proxy's pod on a node.
pub(super) fn proxy_pod(node: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("ztunnel-{node}"), "namespace": "istio-system",
            "uid": format!("uid-of-ztunnel-{node}"), "labels": {"app": "ztunnel"}},
        "spec": {"nodeName": format!("node-{node}"), "serviceAccountName": "ztunnel",
            "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

pub(super) fn churning_name(number: u32) -> String {
    format!("{CHURN_POD_PREFIX}{number}")
}

fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name,
            "istio.io/dataplane-mode": "ambient"}},
        "status": {"phase": "Active"},
    })
}

fn node(n: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("node-{n}"), "labels": {
            "kubernetes.io/hostname": format!("node-{n}"),
            "topology.kubernetes.io/region": "r1",
            "topology.kubernetes.io/zone": format!("r1-{}", n % 3)}},
        "spec": {}, "status": {},
    })
}

/// Returns `managedFields` of realistic size, which every simulated object has.
fn managed_fields(by: &str) -> Value {
    let fields: serde_json::Map<_, _> = (0..24)
        .map(|n| {
            (
                format!("f:field{n}"),
                json!({".": {}, "f:name": {}, "f:value": {}}),
            )
        })
        .collect();
    json!([{"manager": by, "operation": "Update", "apiVersion": "v1", "subresource": "status",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": fields}}])
}

/// Returns the address with this number in a network of 24 host bits.
fn address(network: u8, number: u32) -> String {
    let [_, a, b, c] = (number + 1).to_be_bytes();
    format!("{network}.{a}.{b}.{c}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn objects_have_distinct_names() {
        let size = ClusterSize {
            nodes: 3,
            services: 20,
            pods_per_service: 4,
            namespaces: 2,
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut keys = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for (collection, object) in size.objects() {
            let metadata = &object["metadata"];
            let key = (
                collection,
                text(&metadata["namespace"]),
                text(&metadata["name"]),
            );
            assert!(keys.insert(key.clone()), "{key:?} twice");
            if collection == PODS {
                assert!(addresses.insert(text(&object["status"]["podIP"])));
                assert!(
                    object.to_string().len() > 3000,
                    "pods are as large as real ones"
                );
            }
        }
        assert_eq!(addresses.len(), 80);
    }
}
