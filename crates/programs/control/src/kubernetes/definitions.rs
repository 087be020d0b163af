//! CRDs of custom kinds: their names, their API resources, and notifications of their changes, which replace polling.

use ambit_k8s_api::{Definition, Kind};
use ambit_kube_kit::watch::{self as objects, ObjectWatch, WatchEvent};
use ambit_rt::DrainWatcher;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, core::PartialObjectMeta, discovery::ApiResource};
use tokio::sync::watch;

/// Returns a counter that changes whenever the CRD of a kind that the mesh reads changes.
pub(super) fn watch_crds(client: &Client, drain: &DrainWatcher) -> watch::Receiver<u64> {
    let (sender, receiver) = watch::channel(0);
    let api = Api::<PartialObjectMeta<CustomResourceDefinition>>::all(client.clone());
    let custom = Kind::ALL.iter().copied();
    let custom = custom.filter(|kind| kind.definition() != Definition::BuiltIn);
    let names: Vec<_> = custom.map(crd_name).collect();
    let ours = move |definition: &PartialObjectMeta<CustomResourceDefinition>| {
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        names.iter().any(|ours| ours == name).then_some(())
    };
    let mut drain = drain.clone();
    ambit_rt::spawn("definitions", async move {
        let mut watch = ObjectWatch::new(
            "CustomResourceDefinition",
            api,
            objects::watcher_config(),
            ours,
        );
        let follow = async {
            loop {
                if matches!(
                    watch.next().await,
                    WatchEvent::Object(..) | WatchEvent::Removed(_)
                ) {
                    sender.send_modify(|number| *number += 1);
                }
            }
        };
        tokio::select! {
            () = follow => {}
            _ = drain.wait_until_started() => {}
        }
    });
    receiver
}

/// Returns the name of a kind's CRD.
pub(super) fn crd_name(kind: Kind) -> String {
    format!("{}.{}", kind.plural(), kind.group())
}

/// Returns the API resource of a custom kind in an API version.
pub(crate) fn custom_resource(kind: Kind, version: &str) -> ApiResource {
    ApiResource {
        group: kind.group().to_owned(),
        version: version.to_owned(),
        api_version: format!("{}/{version}", kind.group()),
        kind: kind.as_str().to_owned(),
        plural: kind.plural().to_owned(),
    }
}
