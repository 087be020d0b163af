//! Reads, applies and deletes objects of a cluster as plain JSON values.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PropagationPolicy},
    core::DynamicObject,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::object::ObjectRef;

/// Field manager of applied objects.
pub const FIELD_MANAGER: &str = "ambit";

/// Error of a call to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Another field manager owns a field that would be changed.
    #[error("{object} has fields that another set: {message}; --force-conflicts takes them over")]
    Conflict {
        /// Name of the object.
        object: String,
        /// Message of the API server, which names the fields and their field managers.
        message: String,
    },
    /// Any other error of the API server.
    #[error("cannot {what}")]
    Api {
        /// Action that failed, such as applying an object.
        what: String,
        /// Cause of the error.
        #[source]
        source: Box<kube::Error>,
    },
    /// Response that is not a valid object.
    #[error("{what} is no response of an API server")]
    InvalidResponse {
        /// Name of the requested object.
        what: String,
    },
}

/// API of one cluster, for objects as JSON values or as Kubernetes types.
#[derive(Clone)]
pub struct ClusterApi {
    client: Client,
}

impl std::fmt::Debug for ClusterApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}

impl ClusterApi {
    /// Creates the cluster's API from a Kubernetes client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the client of the cluster's API.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the server's version: in full, and its minor part.
    ///
    /// # Errors
    ///
    /// When the API server does not respond.
    pub async fn version(&self) -> Result<(String, String), ClusterError> {
        let info = self.client.apiserver_version().await;
        let info = info.map_err(|source| api_error("get the API server's version", source))?;
        Ok((info.git_version, info.minor))
    }

    /// Returns the object if it exists.
    ///
    /// # Errors
    ///
    /// When the API server refuses or is unavailable.
    pub async fn get(&self, name: &ObjectRef) -> Result<Option<Value>, ClusterError> {
        let found = match self.api(name).get_opt(&name.name).await {
            // The cluster may not know the kind.
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            other => other.map_err(|source| api_error(&format!("read {name}"), source))?,
        };
        found.map(|object| to_value(name, &object)).transpose()
    }

    /// Lists all objects of a kind, in a namespace or in all. Empty if the cluster does not know
    /// the kind.
    ///
    /// # Errors
    ///
    /// When the API server refuses or is unavailable.
    pub async fn list(
        &self,
        api_version: &str,
        kind: &str,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Vec<Value>, ClusterError> {
        let name = ObjectRef {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(ToOwned::to_owned),
            name: String::new(),
        };
        let params = ListParams {
            label_selector: labels.map(ToOwned::to_owned),
            ..ListParams::default()
        };
        let list = match self.api(&name).list(&params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            other => other.map_err(|source| api_error(&format!("list {kind}s"), source))?,
        };
        list.items
            .iter()
            .map(|object| to_value(&name, object))
            .collect()
    }

    /// Returns a typed object if it exists.
    ///
    /// # Errors
    ///
    /// When the API server refuses or is unavailable, or the response is not such an object.
    pub async fn get_typed<K>(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<K>, ClusterError>
    where
        K: k8s_openapi::Resource + DeserializeOwned,
    {
        let name = ObjectRef::for_kind::<K>(namespace, name);
        let found = self.get(&name).await?;
        found.map(|value| parse_object(&name, value)).transpose()
    }

    /// Lists all objects of a typed kind, as [`Self::list`] does.
    ///
    /// # Errors
    ///
    /// When the API server refuses or is unavailable, or the response has other objects.
    pub async fn list_typed<K>(
        &self,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Vec<K>, ClusterError>
    where
        K: k8s_openapi::Resource + DeserializeOwned,
    {
        let name = ObjectRef::for_kind::<K>(namespace, "");
        let list = self
            .list(K::API_VERSION, K::KIND, namespace, labels)
            .await?;
        list.into_iter()
            .map(|value| parse_object(&name, value))
            .collect()
    }

    /// Applies an object server-side, and returns it. `force` takes over fields from other field managers.
    ///
    /// # Errors
    ///
    /// When another manager owns a field, or the API server refuses or is unavailable.
    pub async fn apply(&self, object: &Value, force: bool) -> Result<Value, ClusterError> {
        let name = ObjectRef::from_object(object).ok_or_else(|| ClusterError::InvalidResponse {
            what: "an object without kind or name".to_owned(),
        })?;
        let mut params = PatchParams::apply(FIELD_MANAGER);
        params.force = force;
        match self
            .api(&name)
            .patch(&name.name, &params, &Patch::Apply(object))
            .await
        {
            Ok(applied) => to_value(&name, &applied),
            Err(kube::Error::Api(status)) if status.reason == "Conflict" => {
                Err(ClusterError::Conflict {
                    object: name.to_string(),
                    message: status.message.clone(),
                })
            }
            Err(source) => Err(api_error(&format!("apply {name}"), source)),
        }
    }

    /// Merges a patch into an object.
    ///
    /// # Errors
    ///
    /// When the API server refuses or is unavailable.
    pub async fn merge_patch(&self, name: &ObjectRef, patch: &Value) -> Result<(), ClusterError> {
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let done = self
            .api(name)
            .patch(&name.name, &params, &Patch::Merge(patch))
            .await;
        done.map(drop)
            .map_err(|source| api_error(&format!("change {name}"), source))
    }

    /// Deletes an object after its dependents, and waits until it is gone. Returns false if it did
    /// not exist.
    ///
    /// # Errors
    ///
    /// When the API server refuses or is unavailable, or the object still exists after `timeout`.
    pub async fn delete(&self, name: &ObjectRef, timeout: Duration) -> Result<bool, ClusterError> {
        let what = format!("delete {name}");
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        };
        match self.api(name).delete(&name.name, &params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            other => drop(other.map_err(|source| api_error(&what, source))?),
        }
        let gone = async {
            while self.get(name).await?.is_some() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Ok(true)
        };
        tokio::time::timeout(timeout, gone)
            .await
            .unwrap_or_else(|_| {
                Err(ClusterError::InvalidResponse {
                    what: format!(
                        "{name} after {} s of being deleted: it is still there, which",
                        timeout.as_secs()
                    ),
                })
            })
    }

    /// Returns the last log lines of a container; with `previous`, those of the instance before its last restart.
    pub async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        lines: Option<i64>,
        previous: bool,
    ) -> Option<String> {
        let params = LogParams {
            container: Some(container.to_owned()),
            tail_lines: lines,
            previous,
            ..LogParams::default()
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        pods.logs(pod, &params).await.ok()
    }

    fn api(&self, name: &ObjectRef) -> Api<DynamicObject> {
        let resource = name.resource();
        match &name.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}

fn api_error(what: &str, source: kube::Error) -> ClusterError {
    ClusterError::Api {
        what: what.to_owned(),
        source: Box::new(source),
    }
}

fn parse_object<K: DeserializeOwned>(name: &ObjectRef, value: Value) -> Result<K, ClusterError> {
    serde_json::from_value(value).map_err(|error| ClusterError::InvalidResponse {
        what: format!("{name}, which cannot be read ({error}),"),
    })
}

/// Converts an object to JSON, and adds API version and kind, which items of lists lack.
fn to_value(name: &ObjectRef, object: &DynamicObject) -> Result<Value, ClusterError> {
    let mut value = serde_json::to_value(object).map_err(|_| ClusterError::InvalidResponse {
        what: name.to_string(),
    })?;
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".to_owned(), name.api_version.as_str().into());
        map.insert("kind".to_owned(), name.kind.as_str().into());
    }
    Ok(value)
}
