//! `/debug/configz`: the objects of Istio's and the Gateway API's kinds, as the API server has them. The control plane
//! keeps only what it understood of an object, so they are listed on request.

use ambit_k8s_api::{Definition, Kind};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    discovery::ApiResource,
};
use serde_json::{Map, Value, json};

/// Objects of one page of a list.
const LIMIT: u32 = 500;

/// All objects, by kind.
///
/// # Errors
/// Fails if a kind that has a definition cannot be listed; the text names it.
pub(super) async fn objects(client: &Client) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    let custom = |kind: &&Kind| kind.definition() != Definition::BuiltIn;
    for kind in Kind::ALL.iter().filter(custom) {
        let listed = list(client, *kind).await;
        all.extend(listed.map_err(|error| format!("cannot list objects of kind {kind}: {error}"))?);
    }
    Ok(all)
}

/// Objects of a kind; none without its definition.
async fn list(client: &Client, kind: Kind) -> Result<Vec<Value>, kube::Error> {
    let resource = ApiResource {
        group: kind.group().to_owned(),
        version: kind.version().to_owned(),
        api_version: format!("{}/{}", kind.group(), kind.version()),
        kind: kind.as_str().to_owned(),
        plural: kind.plural().to_owned(),
    };
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(LIMIT);
    loop {
        let list = match api.list(&page).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(all),
            Err(error) => return Err(error),
        };
        all.extend(
            list.items
                .into_iter()
                .map(|object| shown(&resource, object)),
        );
        match list.metadata.continue_ {
            Some(next) if !next.is_empty() => page = page.continue_token(&next),
            _ => return Ok(all),
        }
    }
}

/// Object with its type, which items of a list lack, and without what the API server keeps about its fields.
fn shown(resource: &ApiResource, object: DynamicObject) -> Value {
    let mut metadata = object.metadata;
    metadata.managed_fields = None;
    let mut shown = Map::new();
    shown.insert("kind".to_owned(), json!(resource.kind));
    shown.insert("apiVersion".to_owned(), json!(resource.api_version));
    shown.insert("metadata".to_owned(), json!(metadata));
    if let Value::Object(data) = object.data {
        shown.extend(data);
    }
    Value::Object(shown)
}
