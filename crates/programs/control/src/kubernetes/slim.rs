//! Objects without what the mesh does not read, so that a listing of tens of thousands needs little
//! memory at any moment.

use std::borrow::Cow;

use ambit_k8s_api::{ObjectMeta, Pod};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodStatus};
use kube::Resource;
use serde::{Deserialize, Deserializer};

/// A pod, cut down while it is read: a page of a listing never holds whole ones.
#[derive(Clone, Debug)]
pub(super) struct SlimPod(pub(super) Pod);

impl<'de> Deserialize<'de> for SlimPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Pod::deserialize(deserializer).map(|pod| Self(slim_pod(pod)))
    }
}

impl Resource for SlimPod {
    type DynamicType = <Pod as Resource>::DynamicType;
    type Scope = <Pod as Resource>::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        Pod::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        Pod::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        Pod::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        Pod::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

fn slim_pod(pod: Pod) -> Pod {
    let container = |container: Container| Container {
        name: container.name,
        ports: container.ports,
        restart_policy: container.restart_policy,
        ..Container::default()
    };
    let containers = |all: Vec<Container>| all.into_iter().map(container).collect();
    let spec = pod.spec.map(|spec| PodSpec {
        containers: containers(spec.containers),
        init_containers: spec.init_containers.map(containers),
        host_network: spec.host_network,
        node_name: spec.node_name,
        service_account_name: spec.service_account_name,
        ..PodSpec::default()
    });
    let status = pod.status.map(|status| PodStatus {
        phase: status.phase,
        pod_ip: status.pod_ip,
        pod_ips: status.pod_ips,
        conditions: status
            .conditions
            .map(|all| all.into_iter().filter(|one| one.type_ == "Ready").collect()),
        ..PodStatus::default()
    });
    Pod {
        metadata: ObjectMeta {
            managed_fields: None,
            ..pod.metadata
        },
        spec,
        status,
    }
}

/// Metadata without the record of who wrote which field, and without what `kubectl apply` remembers:
/// together often larger than the object.
pub(super) fn metadata(metadata: &ObjectMeta) -> ObjectMeta {
    let annotations = metadata.annotations.as_ref().map(|all| {
        all.iter()
            .filter(|(name, _)| *name != "kubectl.kubernetes.io/last-applied-configuration")
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    });
    ObjectMeta {
        annotations,
        creation_timestamp: metadata.creation_timestamp.clone(),
        deletion_timestamp: metadata.deletion_timestamp.clone(),
        generation: metadata.generation,
        labels: metadata.labels.clone(),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        resource_version: metadata.resource_version.clone(),
        uid: metadata.uid.clone(),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::derive::PodInput;

    #[test]
    fn nothing_that_the_mesh_reads_is_cut_away() {
        let whole = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "cart-7d-x2", "namespace": "shop", "uid": "u", "generateName": "cart-7d-",
                "labels": {"app": "cart", "pod-template-hash": "7d"},
                "annotations": {"ambient.istio.io/redirection": "enabled"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-7d",
                    "uid": "r", "controller": true}],
                "managedFields": [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {}}}],
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "cart", "hostNetwork": true,
                "containers": [{"name": "a", "image": "i", "env": [{"name": "A", "value": "b"}],
                    "ports": [{"name": "web", "containerPort": 8080}]}],
                "initContainers": [{"name": "b", "restartPolicy": "Always",
                    "ports": [{"name": "admin", "containerPort": 9000}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}],
            },
        });
        let pod: Pod = serde_json::from_value(whole.clone()).unwrap();
        let slim: SlimPod = serde_json::from_value(whole).unwrap();
        let understood = PodInput::read(&pod).unwrap();
        assert_eq!(PodInput::read(&slim.0).unwrap(), understood);
        assert_eq!(understood.workload_name, "cart");
        assert!(slim.0.metadata.managed_fields.is_none());
        assert!(slim.0.spec.unwrap().volumes.is_none());
    }
}
