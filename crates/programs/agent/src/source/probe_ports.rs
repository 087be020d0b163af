//! Determines the ports of a pod that kubelet calls: those of the containers' probes and lifecycle hooks.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{Container, ContainerPort, Lifecycle, LifecycleHandler, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde::Deserialize;

/// Maximum exempt ports of one pod, each of which is a rule in the pod. Probes of further ports are treated as
/// plaintext.
const MAX_PROBE_PORTS: usize = 64;

/// Ports, probes and lifecycle hooks in a container's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ProbedContainer {
    ports: Option<Vec<ContainerPort>>,
    liveness_probe: Option<Probe>,
    readiness_probe: Option<Probe>,
    startup_probe: Option<Probe>,
    lifecycle: Option<Lifecycle>,
    restart_policy: Option<String>,
}

impl ProbedContainer {
    /// Extracts ports, probes and lifecycle hooks from a complete container spec.
    pub(super) fn from_container(container: &Container) -> Self {
        Self {
            ports: container.ports.clone(),
            liveness_probe: container.liveness_probe.clone(),
            readiness_probe: container.readiness_probe.clone(),
            startup_probe: container.startup_probe.clone(),
            lifecycle: container.lifecycle.clone(),
            restart_policy: container.restart_policy.clone(),
        }
    }

    fn called_ports(&self) -> impl Iterator<Item = u16> {
        let probes = [
            &self.liveness_probe,
            &self.readiness_probe,
            &self.startup_probe,
        ];
        let probes = probes.into_iter().flatten().flat_map(port_of_probe);
        let lifecycle = self.lifecycle.iter();
        let hooks = lifecycle.flat_map(|lifecycle| [&lifecycle.post_start, &lifecycle.pre_stop]);
        let hooks = hooks.flatten().flat_map(port_of_hook);
        probes
            .chain(hooks)
            .filter_map(|port| self.port_number(&port))
    }

    /// Resolves a port like kubelet: by its name in this container, or as a number, also in a string.
    fn port_number(&self, port: &IntOrString) -> Option<u16> {
        let number = match port {
            IntOrString::Int(number) => *number,
            IntOrString::String(name) => {
                let mut ports = self.ports.iter().flatten();
                let named = ports.find(|port| port.name.as_deref() == Some(name));
                match named {
                    Some(port) => port.container_port,
                    None => name.parse().ok()?,
                }
            }
        };
        u16::try_from(number).ok().filter(|port| *port != 0)
    }
}

/// Returns the port of a probe; `None` for probes that run a command.
fn port_of_probe(probe: &Probe) -> Option<IntOrString> {
    let http = probe.http_get.as_ref().map(|http| http.port.clone());
    let tcp = probe.tcp_socket.as_ref().map(|tcp| tcp.port.clone());
    let grpc = probe.grpc.as_ref().map(|grpc| IntOrString::Int(grpc.port));
    http.or(tcp).or(grpc)
}

fn port_of_hook(hook: &LifecycleHandler) -> Option<IntOrString> {
    let http = hook.http_get.as_ref().map(|http| http.port.clone());
    http.or_else(|| Some(hook.tcp_socket.as_ref()?.port.clone()))
}

/// Returns the probed ports of all containers; init containers count only if they are sidecars.
pub(super) fn probe_ports(
    containers: &[ProbedContainer],
    init_containers: Option<&[ProbedContainer]>,
) -> Vec<u16> {
    let init_containers = init_containers.unwrap_or_default().iter();
    let sidecars = init_containers.filter(|one| one.restart_policy.as_deref() == Some("Always"));
    let all: BTreeSet<_> = containers
        .iter()
        .chain(sidecars)
        .flat_map(ProbedContainer::called_ports)
        .collect();
    all.into_iter().take(MAX_PROBE_PORTS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(spec: serde_json::Value) -> Vec<u16> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            containers: Vec<ProbedContainer>,
            init_containers: Option<Vec<ProbedContainer>>,
        }
        let slim: Spec = serde_json::from_value(spec.clone()).unwrap();
        let ports = probe_ports(&slim.containers, slim.init_containers.as_deref());
        // Manifests arrive as whole objects.
        let whole: k8s_openapi::api::core::v1::PodSpec = serde_json::from_value(spec).unwrap();
        let of = |all: &[Container]| {
            all.iter()
                .map(ProbedContainer::from_container)
                .collect::<Vec<_>>()
        };
        let init = whole.init_containers.as_deref().map(of);
        assert_eq!(probe_ports(&of(&whole.containers), init.as_deref()), ports);
        ports
    }

    #[test]
    fn ports_of_every_probe_and_hook_are_found() {
        let spec = serde_json::json!({
            "containers": [
                {
                    "name": "web", "image": "i", "env": [{"name": "A", "value": "b"}],
                    "ports": [{"name": "http", "containerPort": 8080}, {"containerPort": 7000}],
                    "livenessProbe": {"httpGet": {"path": "/", "port": "http"}},
                    "readinessProbe": {"tcpSocket": {"port": 8081}},
                    "startupProbe": {"grpc": {"port": 8082}},
                    "lifecycle": {
                        "postStart": {"httpGet": {"port": 8083}},
                        "preStop": {"tcpSocket": {"port": "8084"}}
                    }
                },
                {"name": "job", "livenessProbe": {"exec": {"command": ["true"]}}}
            ],
            "initContainers": [
                {"name": "sidecar", "restartPolicy": "Always",
                 "startupProbe": {"httpGet": {"port": 8085}}},
                {"name": "setup", "readinessProbe": {"httpGet": {"port": 8086}}}
            ]
        });
        assert_eq!(ports(spec), [8080, 8081, 8082, 8083, 8084, 8085]);
    }

    #[test]
    fn a_port_is_named_in_its_own_container_and_in_range() {
        let spec = serde_json::json!({
            "containers": [
                {"name": "a", "ports": [{"name": "admin", "containerPort": 9000}]},
                {"name": "b", "livenessProbe": {"httpGet": {"port": "admin"}},
                 "readinessProbe": {"httpGet": {"port": 0}},
                 "startupProbe": {"tcpSocket": {"port": 65536}}},
                {"name": "c", "readinessProbe": {"httpGet": {"port": -1}}}
            ]
        });
        assert_eq!(ports(spec), [0; 0]);
    }

    #[test]
    fn exempt_ports_are_bounded() {
        let containers = (1..=200).map(
            |port| serde_json::json!({"name": "c", "livenessProbe": {"tcpSocket": {"port": port}}}),
        );
        let spec = serde_json::json!({"containers": containers.collect::<Vec<_>>()});
        assert_eq!(ports(spec).len(), MAX_PROBE_PORTS);
    }
}
