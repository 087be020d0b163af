//! JSON of workloads, services and policies: in a node proxy's `/config_dump` and in files at `LOCAL_XDS_PATH` (Istio's
//! keys, camelCase). Also the JSON of `explain` queries, and the file of accepted trust domains.
//!
//! [`Json`] serializes a type of the model. Each JSON form mirrors a type of the model for serde (`#[serde(remote)]`),
//! so that a field added to the model does not compile until its JSON form has it, too.
#![forbid(unsafe_code)]

pub mod explain;
mod names;
mod policy;
mod service;
mod trust_domains;
mod workload;

pub use trust_domains::TrustDomains;
pub use workload::PodNameForm;

use serde::{Deserialize, Deserializer};

/// Value of the model that is serialized in its JSON form: a workload, a service, a policy or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// Deserializes a list of values in their JSON forms: `#[serde(deserialize_with =
/// "ambit_mesh_json::deserialize_json_list")]`.
///
/// # Errors
///
/// When an element is invalid, or has an unknown field.
pub fn deserialize_json_list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    Json<T>: Deserialize<'de>,
{
    let elements = Vec::<Json<T>>::deserialize(deserializer)?;
    Ok(elements.into_iter().map(|Json(element)| element).collect())
}

/// Implements `serde_with` conversions for JSON forms, so that other forms can use them in lists and options, and
/// serialization of the model's types as [`Json`].
macro_rules! forms {
    ($($form:ident of $model:ty),* $(,)?) => {$(
        impl SerializeAs<$model> for $form {
            fn serialize_as<S: Serializer>(source: &$model, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(source, serializer)
            }
        }
        impl<'de> DeserializeAs<'de, $model> for $form {
            fn deserialize_as<D: Deserializer<'de>>(deserializer: D) -> Result<$model, D::Error> {
                Self::deserialize(deserializer)
            }
        }
        impl Serialize for $crate::Json<$model> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $form::serialize(&self.0, serializer)
            }
        }
        impl Serialize for $crate::Json<&$model> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $form::serialize(self.0, serializer)
            }
        }
        impl<'de> Deserialize<'de> for $crate::Json<$model> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $form::deserialize(deserializer).map(Self)
            }
        }
    )*};
}
use forms;
