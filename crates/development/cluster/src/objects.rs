//! Applies manifests to a cluster, and waits for their effects.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::{GroupVersionKind, TypeMeta},
    discovery::{self, ApiCapabilities, ApiResource, Scope},
};

/// Parses YAML documents to Kubernetes objects.
pub fn parse(yaml: &str) -> Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for document in yaml.split("\n---") {
        let blank = document
            .lines()
            .all(|line| line.trim().is_empty() || line.starts_with('#') || line == "---");
        if !blank {
            let object = serde_saphyr::from_str(document)
                .with_context(|| format!("not an object:\n{document}"))?;
            objects.push(object);
        }
    }
    Ok(objects)
}

/// Applies every object of YAML documents, server-side and by force.
pub async fn apply(client: &Client, yaml: &str) -> Result<()> {
    for object in parse(yaml)? {
        let (api, name) = api(client, &object).await?;
        let parameters = PatchParams::apply("ambit-cluster").force();
        api.patch(&name, &parameters, &Patch::Apply(&object))
            .await
            .with_context(|| format!("cannot apply {}", object_description(&object)))?;
    }
    Ok(())
}

/// Deletes every object of YAML documents; missing objects are no error.
pub async fn delete(client: &Client, yaml: &str) -> Result<()> {
    for object in parse(yaml)? {
        let (api, name) = api(client, &object).await?;
        match api.delete(&name, &Default::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => {
                other.with_context(|| format!("cannot delete {}", object_description(&object)))?;
            }
        }
    }
    Ok(())
}

async fn api(client: &Client, object: &DynamicObject) -> Result<(Api<DynamicObject>, String)> {
    let types = object.types.clone().context("an object without kind")?;
    let name = object
        .metadata
        .name
        .clone()
        .context("an object without name")?;
    let (resource, capabilities) = resource(client, &types).await?;
    let api = match (&capabilities.scope, &object.metadata.namespace) {
        (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
        (_, None) => Api::default_namespaced_with(client.clone(), &resource),
        (_, Some(namespace)) => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    Ok((api, name))
}

/// Finds the API resource of a kind; retries for a while, since its CRD may have been applied just before.
async fn resource(client: &Client, types: &TypeMeta) -> Result<(ApiResource, ApiCapabilities)> {
    let kind = GroupVersionKind::try_from(types)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match discovery::pinned_kind(client, &kind).await {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("the cluster does not know {kind:?}"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn object_description(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or("object", |types| &types.kind);
    let metadata = &object.metadata;
    format!(
        "{kind} {}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    )
}

/// Retries until an attempt succeeds; returns the last error after a timeout.
pub async fn wait_until<T>(
    what: &str,
    timeout: Duration,
    mut ask: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("not within {timeout:?}: {what}")));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Returns an error with `state` unless `condition` is true, for [`wait_until`].
pub fn error_unless(condition: bool, state: impl std::fmt::Display) -> Result<()> {
    if condition {
        return Ok(());
    }
    bail!("{state}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_separated_and_empty_ones_skipped() {
        let yaml = "---\n# nothing\n---\nkind: A\napiVersion: v1\nmetadata: {name: a}\n---\n\
                    apiVersion: v1\nkind: B\nmetadata: {name: b}\nspec: {x: '---'}\n---\n";
        let names: Vec<_> = parse(yaml)
            .unwrap()
            .into_iter()
            .map(|object| object.metadata.name.unwrap())
            .collect();
        assert_eq!(names, ["a", "b"]);
    }
}
