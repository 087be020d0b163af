//! Removes fields that the mesh does not read while objects are deserialized, so that a list of tens of thousands needs
//! little memory.

use std::borrow::Cow;

use ambit_derive::FetchedKind;
use ambit_k8s_api::{Object, ObjectMeta};
use kube::{Resource, core::PartialObjectMeta};
use serde::{Deserialize, Deserializer};

/// Object that is reduced during deserialization, so that no page of a list is in memory with complete objects.
#[derive(Clone, Debug)]
pub(super) struct SlimObject<K>(pub(super) K);

impl<'de, K: FetchedKind> Deserialize<'de> for SlimObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = K::deserialize(deserializer)?;
        strip_metadata(object.metadata_mut());
        Ok(Self(object.without_unused_fields()))
    }
}

impl<K: FetchedKind> Resource for SlimObject<K> {
    type DynamicType = <K as Resource>::DynamicType;
    type Scope = <K as Resource>::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        <K as Resource>::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        <K as Resource>::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        <K as Resource>::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        <K as Resource>::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.metadata()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.metadata_mut()
    }
}

/// Builds an object from a response that contains only its metadata.
pub(super) fn metadata_only<K: FetchedKind>(partial: &PartialObjectMeta<K>) -> Object {
    let mut object = K::default();
    object.metadata_mut().clone_from(&partial.metadata);
    strip_metadata(object.metadata_mut());
    object.into()
}

/// Removes `managedFields` and the annotation of `kubectl apply`, which together are often larger
/// than the rest of the object.
pub(super) fn strip_metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

#[cfg(test)]
mod tests {
    use ambit_k8s_api::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_reduced_while_deserialized() {
        let slim: SlimObject<Pod> = serde_json::from_value(json!({
            "metadata": {
                "name": "a", "labels": {"app": "a"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "b": "c"},
                "managedFields": [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {}}}],
            },
            "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]},
        }))
        .unwrap();
        let Pod { metadata, spec, .. } = slim.0;
        assert!(metadata.managed_fields.is_none());
        assert_eq!(
            metadata.annotations.unwrap(),
            [("b".to_owned(), "c".to_owned())].into()
        );
        assert_eq!(metadata.labels.unwrap()["app"], "a");
        assert!(spec.unwrap().volumes.is_none());
    }
}
