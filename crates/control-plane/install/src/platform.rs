//! Detects a cluster's platform from its Node objects.

use k8s_openapi::api::core::v1::Node;

/// Names of platforms that the chart knows.
pub const PLATFORMS: &[&str] = &[
    "gke",
    "eks",
    "aks",
    "openshift",
    "k3s",
    "k3d",
    "minikube",
    "kind",
    "talos",
    "microk8s",
];

/// Properties of a node that identify a platform.
struct PlatformSignature {
    platform: &'static str,
    /// Substring of a label's name.
    label: &'static str,
    /// Substring of the kubelet's version.
    version: &'static str,
    /// Prefix of the node's provider ID.
    provider: &'static str,
    /// Substring of the operating system image's name.
    os: &'static str,
}

const NO_SIGNATURE: PlatformSignature = PlatformSignature {
    platform: "",
    label: "",
    version: "",
    provider: "",
    os: "",
};

/// Platforms by their properties, more specific ones first: nodes of k3d match k3s, too.
const PLATFORM_SIGNATURES: &[PlatformSignature] = &[
    PlatformSignature {
        platform: "openshift",
        label: "node.openshift.io/",
        os: "OpenShift",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "gke",
        label: "cloud.google.com/gke-",
        version: "-gke.",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "eks",
        label: "eks.amazonaws.com/",
        version: "-eks-",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "aks",
        label: "kubernetes.azure.com/",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "k3d",
        os: "K3s",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "k3s",
        version: "+k3s",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "minikube",
        label: "minikube.k8s.io/",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "kind",
        provider: "kind://",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "talos",
        os: "Talos",
        ..NO_SIGNATURE
    },
    PlatformSignature {
        platform: "microk8s",
        label: "microk8s.io/",
        ..NO_SIGNATURE
    },
];

/// Returns the platform of these nodes; empty if no platform that needs special values is detected.
pub fn detect(nodes: &[Node]) -> &'static str {
    PLATFORM_SIGNATURES
        .iter()
        .find(|sign| nodes.iter().any(|node| sign.matches_node(node)))
        .map_or("", |sign| sign.platform)
}

impl PlatformSignature {
    fn matches_node(&self, node: &Node) -> bool {
        let is = |sign: &str, found: bool| !sign.is_empty() && found;
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        let version = info.map_or("", |info| &info.kubelet_version);
        let os = info.map_or("", |info| &info.os_image);
        let provider = node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.as_deref());
        let mut labels = node.metadata.labels.iter().flatten();
        is(
            self.label,
            labels.any(|(name, _)| name.contains(self.label)),
        ) || is(self.version, version.contains(self.version))
            || is(
                self.provider,
                provider.unwrap_or_default().starts_with(self.provider),
            )
            || is(self.os, os.contains(self.os))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(label: &str, version: &str, provider: &str, os: &str) -> Node {
        let node = json!({
            "metadata": {"labels": {label: ""}},
            "spec": {"providerID": provider},
            "status": {"nodeInfo": {"kubeletVersion": version, "osImage": os}},
        });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn platforms_are_detected_by_their_nodes() {
        for (node, platform) in [
            (
                node(
                    "cloud.google.com/gke-nodepool",
                    "v1.34.1-gke.100",
                    "gce://x",
                    "Container-Optimized OS",
                ),
                "gke",
            ),
            (
                node(
                    "eks.amazonaws.com/nodegroup",
                    "v1.34.1-eks-abc",
                    "aws:///x",
                    "Bottlerocket OS",
                ),
                "eks",
            ),
            (
                node("x", "v1.34.1-eks-abc", "aws:///x", "Amazon Linux 2023"),
                "eks",
            ),
            (
                node(
                    "kubernetes.azure.com/cluster",
                    "v1.34.1",
                    "azure:///x",
                    "Ubuntu",
                ),
                "aks",
            ),
            (
                node(
                    "node.openshift.io/os_id",
                    "v1.34.1",
                    "aws:///x",
                    "Red Hat Enterprise Linux CoreOS",
                ),
                "openshift",
            ),
            (
                node("x", "v1.34.1+k3s1", "k3s://a", "K3s v1.34.1+k3s1"),
                "k3d",
            ),
            (node("x", "v1.34.1+k3s1", "k3s://a", "Ubuntu 24.04"), "k3s"),
            (
                node("minikube.k8s.io/name", "v1.34.1", "", "Buildroot"),
                "minikube",
            ),
            (
                node(
                    "x",
                    "v1.34.1",
                    "kind://docker/kind/kind-control-plane",
                    "Debian",
                ),
                "kind",
            ),
            (node("x", "v1.34.1", "", "Talos (v1.11.0)"), "talos"),
            (
                node("microk8s.io/cluster", "v1.34.1", "", "Ubuntu"),
                "microk8s",
            ),
            (node("x", "v1.34.1", "", "Debian GNU/Linux 12"), ""),
        ] {
            assert_eq!(detect(std::slice::from_ref(&node)), platform, "{node:?}");
        }
        assert_eq!(detect(&[]), "");
    }

    #[test]
    fn every_platform_is_one_of_the_chart() {
        let schema: Value = serde_json::from_str(crate::chart::VALUES_SCHEMA).unwrap();
        let known = &schema["properties"]["global"]["properties"]["platform"]["enum"];
        let mut names = vec![""];
        names.extend(PLATFORMS);
        assert_eq!(known, &json!(names));
        assert!(
            PLATFORM_SIGNATURES
                .iter()
                .all(|sign| PLATFORMS.contains(&sign.platform))
        );
    }
}
