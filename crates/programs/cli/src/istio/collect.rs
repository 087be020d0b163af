//! Reads the objects of a mesh from files or from a cluster: all objects of Istio's and the Gateway API's groups, and
//! the Kubernetes objects that they depend on. Secrets are not read, and ConfigMaps only if objects of the mesh name
//! them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use ambit_install::{
    cluster::{ClusterApi, ClusterError},
    object::ObjectRef,
};
use ambit_k8s_api::{
    BackendTLSPolicy, Kind, ObjectKey,
    unread::{is_mesh_group, replacement_for},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Deserialize as _;
use serde_json::Value;

use super::Mesh;
use crate::{
    CliError,
    files::{read_text, unreadable_file_error},
    install::install_error,
    policy_test::load_settings,
};

/// Kubernetes' own kinds that objects of the mesh depend on, or that carry labels of the mesh: API version and kind.
const BUILT_IN_KINDS: [(&str, &str); 10] = [
    ("v1", "Namespace"),
    ("v1", "Node"),
    ("v1", "ServiceAccount"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "CronJob"),
];
/// Name of the Deployment of Ambit's control plane, by which an installation is recognized.
const CONTROL_PLANE_DEPLOYMENT: &str = "ambit-control";
/// Maximum depth of subdirectories that are read below a directory named on the command line.
const MAX_DIRECTORY_DEPTH: usize = 16;

/// Reads the objects of manifests in files and directories; `-` is standard input.
pub(crate) fn read_files(paths: &[PathBuf]) -> Result<Mesh, CliError> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => manifests_below(path, MAX_DIRECTORY_DEPTH, &mut files)?,
            false => files.push(path.clone()),
        }
    }
    let mut mesh = Mesh::default();
    for file in &files {
        let read = ambit_manifests::parse_values(file, &read_text(file)?);
        let objects = read.objects.into_iter();
        mesh.objects
            .extend(objects.map(|(value, origin)| (value, Some(origin))));
        let problems = read.problems.iter();
        mesh.unreadable.extend(problems.map(ToString::to_string));
    }
    Ok(mesh)
}

fn manifests_below(
    directory: &Path,
    depth: usize,
    files: &mut Vec<PathBuf>,
) -> Result<(), CliError> {
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| unreadable_file_error(directory, error))?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() && depth > 0 {
            manifests_below(&path, depth - 1, files)?;
        } else if matches!(extension, Some("yaml" | "yml" | "json")) {
            files.push(path);
        }
    }
    Ok(())
}

/// Reads the objects of a cluster. A kind that the user may not list is noted as unreadable, and the others are read.
pub(crate) async fn read_cluster(
    cluster: &ClusterApi,
    mesh_namespace: &str,
) -> Result<Mesh, CliError> {
    let mut reader = ClusterReader {
        cluster,
        mesh: Mesh::default(),
    };
    for (version, kind) in BUILT_IN_KINDS {
        reader.list_objects(version, kind, (None, None)).await?;
    }
    for (version, kind, plural) in reader.list_definitions().await? {
        let found = reader.list_objects(&version, &kind, (None, None)).await?;
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let is_known = Kind::from_api_version(Some(&version), &kind).is_some();
        if found == Some(0) && !is_known && replacement_for(group, &kind).is_none() {
            reader
                .mesh
                .unused_kinds
                .push(format!("{kind} ({plural}.{group})"));
        }
    }
    let of_revisions = (Some(mesh_namespace), Some("istio.io/rev"));
    reader.list_objects("v1", "ConfigMap", of_revisions).await?;
    for (namespace, name) in named_config_maps(&reader.mesh, mesh_namespace) {
        reader
            .get_object("v1", "ConfigMap", &namespace, &name)
            .await?;
    }
    let control = reader.get_object(
        "apps/v1",
        "Deployment",
        mesh_namespace,
        CONTROL_PLANE_DEPLOYMENT,
    );
    let is_installed = control.await?;
    let mut mesh = reader.mesh;
    mesh.is_installed = is_installed;
    if is_installed {
        mesh.config = load_settings(cluster, mesh_namespace).await?;
    }
    Ok(mesh)
}

/// Returns namespace and name of the ConfigMaps to read: the MeshConfig, and those with CA certificates of
/// BackendTLSPolicies.
fn named_config_maps(mesh: &Mesh, mesh_namespace: &str) -> BTreeSet<(String, String)> {
    let mut names = BTreeSet::from([(mesh_namespace.to_owned(), "istio".to_owned())]);
    for (value, _) in &mesh.objects {
        let is_one = ObjectKey::read(value).is_ok_and(|key| key.kind == Kind::BackendTLSPolicy);
        let policy = is_one.then(|| BackendTLSPolicy::deserialize(value).ok());
        let Some(BackendTLSPolicy { metadata, spec, .. }) = policy.flatten() else {
            continue;
        };
        let namespace = metadata.namespace.unwrap_or_default();
        let references = spec.validation.ca_certificate_refs.into_iter();
        names.extend(references.map(|reference| (namespace.clone(), reference.name)));
    }
    names
}

/// Reader of a cluster's objects, which collects them and notes what the user may not read.
struct ClusterReader<'a> {
    cluster: &'a ClusterApi,
    mesh: Mesh,
}

impl ClusterReader<'_> {
    /// Reads all objects of a kind into the mesh, and returns their number; `None` if the user may not list them.
    async fn list_objects(
        &mut self,
        version: &str,
        kind: &str,
        (namespace, labels): (Option<&str>, Option<&str>),
    ) -> Result<Option<usize>, CliError> {
        let found = self.cluster.list(version, kind, namespace, labels).await;
        let Some(found) = self.unless_forbidden(found, "list", kind)? else {
            return Ok(None);
        };
        let count = found.len();
        self.mesh.objects.extend(
            found
                .into_iter()
                .map(|value| (remove_managed_fields(value), None)),
        );
        Ok(Some(count))
    }

    /// Reads one object unless it has been read before, and returns whether it exists.
    async fn get_object(
        &mut self,
        version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<bool, CliError> {
        let reference = ObjectRef {
            api_version: version.to_owned(),
            kind: kind.to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        };
        let mut objects = self.mesh.objects.iter();
        if objects.any(|(value, _)| ObjectRef::from_object(value).as_ref() == Some(&reference)) {
            return Ok(true);
        }
        let found = self.cluster.get(&reference).await;
        let what = format!("{kind} {namespace}/{name}");
        let found = self.unless_forbidden(found, "get", &what)?.flatten();
        let is_there = found.is_some();
        self.mesh
            .objects
            .extend(found.map(|value| (remove_managed_fields(value), None)));
        Ok(is_there)
    }

    /// Returns API version, kind and plural name of every kind of Istio's and the Gateway API's groups that has a CRD.
    async fn list_definitions(&mut self) -> Result<Vec<(String, String, String)>, CliError> {
        let found = self
            .cluster
            .list_typed::<CustomResourceDefinition>(None, None)
            .await;
        let Some(found) = self.unless_forbidden(found, "list", "CustomResourceDefinition")? else {
            let known = Kind::ALL.iter().filter(|kind| is_mesh_group(kind.group()));
            let known = known.map(|kind| {
                let version = format!("{}/{}", kind.group(), kind.version());
                (version, kind.as_str().to_owned(), kind.plural().to_owned())
            });
            return Ok(known.collect());
        };
        let of_mesh = found
            .into_iter()
            .filter(|one| is_mesh_group(&one.spec.group));
        Ok(of_mesh.filter_map(served_version).collect())
    }

    /// Returns the result of a request to the API server; for a forbidden request, adds a note and returns `None`.
    fn unless_forbidden<T>(
        &mut self,
        result: Result<T, ClusterError>,
        verb: &str,
        what: &str,
    ) -> Result<Option<T>, CliError> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_forbidden(&error) => {
                let note = format!("{what}: no permission for the verb {verb}; not checked");
                self.mesh.unreadable.push(note);
                Ok(None)
            }
            Err(error) => Err(install_error(error.into())),
        }
    }
}

fn is_forbidden(error: &ClusterError) -> bool {
    let ClusterError::Api { source, .. } = error else {
        return false;
    };
    matches!(&**source, kube::Error::Api(status) if status.code == 403)
}

/// Returns API version, kind and plural name by which a CRD's objects are read, in a served version: the one that Ambit
/// uses, or else the storage version, or any other.
fn served_version(definition: CustomResourceDefinition) -> Option<(String, String, String)> {
    let spec = definition.spec;
    let of_mesh = Kind::from_api_version(Some(&format!("{}/v1", spec.group)), &spec.names.kind);
    let versions = spec.versions.into_iter().filter(|version| version.served);
    let best = versions.max_by_key(|version| {
        let is_read = of_mesh.is_some_and(|kind| kind.version() == version.name);
        (is_read, version.storage)
    })?;
    let version = format!("{}/{}", spec.group, best.name);
    Some((version, spec.names.kind, spec.names.plural))
}

/// Removes `managedFields` from an object, which are often most of its size.
fn remove_managed_fields(mut value: Value) -> Value {
    let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        metadata.remove("managedFields");
    }
    value
}
