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
    label_substring: &'static str,
    /// Substring of the kubelet's version.
    kubelet_version_substring: &'static str,
    /// Prefix of the node's provider ID.
    provider_id_prefix: &'static str,
    /// Substring of the operating system image's name.
    os_image_substring: &'static str,
}

const EMPTY_SIGNATURE: PlatformSignature = PlatformSignature {
    platform: "",
    label_substring: "",
    kubelet_version_substring: "",
    provider_id_prefix: "",
    os_image_substring: "",
};

/// Platforms by their properties, more specific ones first: nodes of k3d match k3s, too.
const PLATFORM_SIGNATURES: &[PlatformSignature] = &[
    PlatformSignature {
        platform: "openshift",
        label_substring: "node.openshift.io/",
        os_image_substring: "OpenShift",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "gke",
        label_substring: "cloud.google.com/gke-",
        kubelet_version_substring: "-gke.",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "eks",
        label_substring: "eks.amazonaws.com/",
        kubelet_version_substring: "-eks-",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "aks",
        label_substring: "kubernetes.azure.com/",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "k3d",
        os_image_substring: "K3s",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "k3s",
        kubelet_version_substring: "+k3s",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "minikube",
        label_substring: "minikube.k8s.io/",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "kind",
        provider_id_prefix: "kind://",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "talos",
        os_image_substring: "Talos",
        ..EMPTY_SIGNATURE
    },
    PlatformSignature {
        platform: "microk8s",
        label_substring: "microk8s.io/",
        ..EMPTY_SIGNATURE
    },
];

/// Returns the platform of these nodes; empty if no platform that needs special values is detected.
pub fn detect_platform(nodes: &[Node]) -> &'static str {
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
            self.label_substring,
            labels.any(|(name, _)| name.contains(self.label_substring)),
        ) || is(
            self.kubelet_version_substring,
            version.contains(self.kubelet_version_substring),
        ) || is(
            self.provider_id_prefix,
            provider
                .unwrap_or_default()
                .starts_with(self.provider_id_prefix),
        ) || is(
            self.os_image_substring,
            os.contains(self.os_image_substring),
        )
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
            assert_eq!(
                detect_platform(std::slice::from_ref(&node)),
                platform,
                "{node:?}"
            );
        }
        assert_eq!(detect_platform(&[]), "");
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
