//! The objects that an installation applies.

use serde_json::{Value, json};

use crate::{
    error::InstallError,
    object::{self, ObjectRef},
    render::{self, Release},
    values::Overrides,
};

/// Everything that will be applied.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Release that it was rendered for.
    pub release: Release,
    /// Values that the user set.
    pub overrides: Overrides,
    /// Definitions, applied only where there are none.
    pub crds: Vec<Value>,
    /// Objects in order.
    pub objects: Vec<Value>,
}

impl Plan {
    /// Renders the chart.
    ///
    /// # Errors
    /// When the values do not fit it.
    pub fn new(release: Release, overrides: Overrides) -> Result<Self, InstallError> {
        let values = overrides.complete()?;
        let mut objects = render::objects(&release, &values)?;
        objects.retain(|object| !object::is_hook(object));
        // Definitions are kept when the mesh goes, and those of others stay as they are.
        let is_definition = |object: &Value| object::kind(object) == "CustomResourceDefinition";
        let mut crds = render::crds()?;
        crds.extend(objects.extract_if(.., |object| is_definition(object)));
        Ok(Self {
            objects,
            crds,
            release,
            overrides,
        })
    }

    /// The namespace of the mesh. Its pods enter others' namespaces: Pod Security must let them.
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

    pub(crate) fn names(&self) -> Vec<ObjectRef> {
        self.objects.iter().filter_map(ObjectRef::of).collect()
    }
}
