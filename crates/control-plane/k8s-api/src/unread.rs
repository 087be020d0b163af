//! Kinds of other meshes without an effect in this one: only the existence of their objects is read, to report it.

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::status::Status;

macro_rules! unread {
    ($($(#[$doc:meta])* $name:ident, $group:literal, $plural:literal;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            /// API version of the object.
            #[serde(default)]
            pub api_version: String,
            /// Kind of the object.
            #[serde(default)]
            pub kind: String,
            /// Metadata of the object.
            #[serde(default)]
            pub metadata: ObjectMeta,
        }

        impl k8s_openapi::Resource for $name {
            const API_VERSION: &'static str = concat!($group, "/v1");
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($name);
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = NamespaceResourceScope;
        }

        impl k8s_openapi::Metadata for $name {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl Status for $name {
            fn api_version(&self) -> &str {
                &self.api_version
            }

            fn conditions(&self) -> Vec<Value> {
                Vec::new()
            }
        })*
    };
}

unread! {
    /// Routes of Istio's own API.
    VirtualService, "networking.istio.io", "virtualservices";
    /// Changes of Envoy's configuration.
    EnvoyFilter, "networking.istio.io", "envoyfilters";
}
