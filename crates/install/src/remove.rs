//! Taking an installation away: pods first let go, then the parts, the node agents before the node
//! proxies they feed.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    apply::{InstallError, installed, inventory_name},
    cluster::Cluster,
    inventory::removal_order,
    object::ObjectRef,
};

/// The label that puts pods and namespaces into the mesh.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Its value.
pub const AMBIENT: &str = "ambient";

/// How long deleting a single object may take: agents clean their nodes up, proxies drain.
const DELETION: Duration = Duration::from_secs(600);

/// What to take away.
#[derive(Clone, Copy, Debug, Default)]
pub struct Removal {
    /// Also the definitions that the installation made, with every object of theirs.
    pub crds: bool,
    /// Also the namespace, if the installation made it.
    pub namespace: bool,
}

/// Namespaces whose label puts them into the mesh.
///
/// # Errors
/// When they cannot be listed.
pub async fn enrolled_namespaces(cluster: &Cluster) -> Result<Vec<String>, InstallError> {
    let label = format!("{DATAPLANE_MODE}={AMBIENT}");
    let namespaces = cluster.list("v1", "Namespace", None, Some(&label)).await?;
    Ok(namespaces
        .iter()
        .filter_map(ObjectRef::of)
        .map(|name| name.name)
        .collect())
}

/// Takes the label that puts it into the mesh off a namespace, or puts it on.
///
/// # Errors
/// When the API server refuses.
pub async fn label(cluster: &Cluster, namespace: &str, enrol: bool) -> Result<(), InstallError> {
    let name = ObjectRef {
        api_version: "v1".to_owned(),
        kind: "Namespace".to_owned(),
        namespace: None,
        name: namespace.to_owned(),
    };
    let value = if enrol { json!(AMBIENT) } else { Value::Null };
    let patch = json!({"metadata": {"labels": {DATAPLANE_MODE: value}}});
    Ok(cluster.merge(&name, &patch).await?)
}

/// Takes the installation away.
///
/// # Errors
/// When there is none, or the API server refuses. What is gone by then stays gone; a second attempt
/// goes on from there.
pub async fn uninstall(
    cluster: &Cluster,
    namespace: &str,
    removal: Removal,
    say: &dyn Fn(&str),
) -> Result<(), InstallError> {
    let inventory = installed(cluster, namespace).await?;
    let inventory = inventory.ok_or_else(|| InstallError::Absent(namespace.to_owned()))?;
    for object in removal_order(inventory.objects.clone()) {
        if cluster.delete(&object, DELETION).await? {
            say(&format!("{object}: deleted"));
        }
    }
    if removal.crds {
        for crd in &inventory.crds {
            if cluster.delete(crd, DELETION).await? {
                say(&format!("{crd}: deleted"));
            }
        }
    } else if !inventory.crds.is_empty() {
        say("the definitions of Istio's kinds stay, with their objects: --crds takes them too");
    }
    cluster.delete(&inventory_name(namespace), DELETION).await?;
    if removal.namespace && inventory.made_namespace {
        let name = ObjectRef {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            namespace: None,
            name: namespace.to_owned(),
        };
        if cluster.delete(&name, DELETION).await? {
            say(&format!("{name}: deleted"));
        }
    }
    Ok(())
}
