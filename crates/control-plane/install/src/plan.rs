//! The objects that an installation applies.

use serde_json::{Value, json};

use crate::{
    error::InstallError,
    object::{self, ObjectRef},
    render::{self, Release},
    values::ValueOverrides,
};

/// Objects that an installation applies, in order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Release for which the chart was rendered.
    pub release: Release,
    /// Values that the user set.
    pub overrides: ValueOverrides,
    /// CRDs, applied only if they do not exist.
    pub crds: Vec<Value>,
    /// Objects other than CRDs, in the order of applying.
    pub objects: Vec<Value>,
}

impl Plan {
    /// Renders the chart for a release with the user's values.
    ///
    /// # Errors
    ///
    /// When the values do not fit the chart.
    pub fn new(release: Release, overrides: ValueOverrides) -> Result<Self, InstallError> {
        let values = overrides.with_defaults()?;
        let mut objects = render::render_objects(&release, &values)?;
        objects.retain(|object| !object::is_helm_hook(object));
        // An uninstallation keeps CRDs, and existing ones of other owners are not changed.
        let is_definition = |object: &Value| object::kind(object) == "CustomResourceDefinition";
        let mut crds = render::render_crds()?;
        crds.extend(objects.extract_if(.., |object| is_definition(object)));
        Ok(Self {
            objects,
            crds,
            release,
            overrides,
        })
    }

    /// Returns the Namespace object of the mesh. Its labels make Pod Security allow the mesh's pods to enter the
    /// network namespaces of other pods.
    pub fn namespace(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": self.release.namespace,
                "labels": {
                    "pod-security.kubernetes.io/enforce": "privileged",
                    "pod-security.kubernetes.io/audit": "privileged",
                    "pod-security.kubernetes.io/warn": "privileged",
                },
            },
        })
    }

    pub(crate) fn object_refs(&self) -> Vec<ObjectRef> {
        self.objects
            .iter()
            .filter_map(ObjectRef::from_object)
            .collect()
    }
}
