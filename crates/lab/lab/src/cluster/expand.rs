//! Derives the pods that should exist from the manifests: bare pods, and replicas of Deployments.

use std::{collections::BTreeMap, sync::Arc};

use ambit_k8s_api::{Deployment, Kind, Object, ObjectKey, ObjectMeta, Pod, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// Pod that should exist according to the manifests.
pub(super) struct DesiredPod {
    pub(super) pod: Arc<Pod>,
    /// Deployment of which the pod is a replica; `None` for a pod of the manifests.
    pub(super) deployment: Option<DesiredDeployment>,
}

/// Deployment that a desired pod is a replica of.
#[derive(Clone, Debug)]
pub(super) struct DesiredDeployment {
    pub(super) key: ObjectKey,
    /// Name of the ReplicaSet that owns the pods of the current template.
    pub(super) replica_set: String,
    /// Whether pods of an earlier template run until new ones are ready (strategy `RollingUpdate`).
    pub(super) is_rolling_update: bool,
}

impl DesiredPod {
    /// Returns the UID that the pod's manifest sets, if any.
    pub(super) fn uid(&self) -> Option<String> {
        self.pod.metadata.uid.clone().filter(|uid| !uid.is_empty())
    }
}

pub(super) fn desired_pods<'a>(
    objects: impl Iterator<Item = (&'a ObjectKey, &'a Object)>,
) -> BTreeMap<ObjectKey, DesiredPod> {
    let mut pods = BTreeMap::new();
    for (key, object) in objects {
        match object {
            Object::Pod(pod) => {
                pods.insert(
                    key.clone(),
                    DesiredPod {
                        pod: pod.clone(),
                        deployment: None,
                    },
                );
            }
            Object::Deployment(deployment) => expand_deployment(key, deployment, &mut pods),
            _ => {}
        }
    }
    pods
}

fn expand_deployment(
    key: &ObjectKey,
    deployment: &Deployment,
    pods: &mut BTreeMap<ObjectKey, DesiredPod>,
) {
    let Some(spec) = &deployment.spec else { return };
    let template = serde_json::to_vec(&spec.template).unwrap_or_default();
    let hash = name_suffix(fnv_hash(&template), 9);
    let strategy = spec.strategy.as_ref();
    let replica_set = format!("{}-{hash}", key.name);
    let desired = DesiredDeployment {
        key: key.clone(),
        replica_set: replica_set.clone(),
        is_rolling_update: strategy.and_then(|strategy| strategy.type_.as_deref())
            != Some("Recreate"),
    };
    for index in 0..spec.replicas.unwrap_or(1).clamp(0, 500) {
        let suffix = name_suffix(fnv_hash(format!("{replica_set}/{index}").as_bytes()), 5);
        let name = format!("{replica_set}-{suffix}");
        let mut meta = spec.template.metadata.clone().unwrap_or_default();
        meta.labels
            .get_or_insert_default()
            .insert(labels::POD_TEMPLATE_HASH.into(), hash.clone());
        let pod = Pod {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(key.namespace.to_string()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "apps/v1".into(),
                    kind: "ReplicaSet".into(),
                    name: replica_set.clone(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }]),
                labels: meta.labels,
                annotations: meta.annotations,
                ..ObjectMeta::default()
            },
            spec: spec.template.spec.clone(),
            ..Pod::default()
        };
        let key = ObjectKey::new(Kind::Pod, key.namespace.clone(), name);
        pods.insert(
            key,
            DesiredPod {
                pod: Arc::new(pod),
                deployment: Some(desired.clone()),
            },
        );
    }
}

/// Formats a number like the hashes in Kubernetes' names: without vowels, so that no words occur.
fn name_suffix(mut number: u64, length: usize) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut name = String::with_capacity(length);
    for _ in 0..length {
        let index = usize::try_from(number % 27).unwrap_or_default();
        name.push(LETTERS.get(index).copied().map_or('x', char::from));
        number /= 27;
    }
    name
}

/// Hashes bytes with FNV-1a, so that names are the same in every run, unlike with the standard hasher.
fn fnv_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
