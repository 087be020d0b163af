//! Secrets with credentials of registries. Their contents never appear in logs or dumps.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{
    ByteString, NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Deserialize;

/// Type of Secrets with registry credentials.
pub const DOCKER_CONFIG_TYPE: &str = "kubernetes.io/dockerconfigjson";
/// Key of the registry credentials in a Secret of the type [`DOCKER_CONFIG_TYPE`].
pub const DOCKER_CONFIG_KEY: &str = ".dockerconfigjson";

/// Secret with the fields that the mesh reads.
#[derive(Clone, Default, PartialEq, Deserialize)]
pub struct Secret {
    /// Metadata of the Secret.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Contents of the Secret, by key.
    #[serde(default)]
    pub data: BTreeMap<String, ByteString>,
    /// Plain-text data of manifests (`stringData`).
    #[serde(default, rename = "stringData")]
    pub string_data: BTreeMap<String, String>,
    /// Type of the Secret.
    #[serde(default, rename = "type")]
    pub secret_type: String,
}

impl Secret {
    /// Returns the value of a key; `stringData` takes precedence.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let text = self.string_data.get(key).map(String::as_bytes);
        text.or_else(|| self.data.get(key).map(|bytes| bytes.0.as_slice()))
    }
}

/// Omits the content of the Secret from debug output.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("namespace", &self.metadata.namespace)
            .field("name", &self.metadata.name)
            .field("secret_type", &self.secret_type)
            .finish_non_exhaustive()
    }
}

impl k8s_openapi::Resource for Secret {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Secret";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "secrets";
    type Scope = NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Secret {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
