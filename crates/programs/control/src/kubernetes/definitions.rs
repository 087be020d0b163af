//! Tells when a definition of ours appears or goes, so that nobody must ask often.

use ambit_kube_kit::watch::{self as objects, Watch, WatchEvent};
use ambit_rt::DrainWatcher;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, core::PartialObjectMeta};
use tokio::sync::watch;

/// A number that changes whenever a definition of Istio's kinds did.
pub(super) fn follow(client: &Client, drain: &DrainWatcher) -> watch::Receiver<u64> {
    let (sender, receiver) = watch::channel(0);
    let api = Api::<PartialObjectMeta<CustomResourceDefinition>>::all(client.clone());
    let ours = |definition: &PartialObjectMeta<CustomResourceDefinition>| {
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        name.ends_with(".istio.io").then_some(())
    };
    let mut drain = drain.clone();
    ambit_rt::spawn("definitions", async move {
        let mut watch = Watch::new("CustomResourceDefinition", api, objects::config(), ours);
        let follow = async {
            loop {
                if matches!(
                    watch.next().await,
                    WatchEvent::Object(..) | WatchEvent::Gone(_)
                ) {
                    sender.send_modify(|number| *number += 1);
                }
            }
        };
        tokio::select! {
            () = follow => {}
            _ = drain.started() => {}
        }
    });
    receiver
}
