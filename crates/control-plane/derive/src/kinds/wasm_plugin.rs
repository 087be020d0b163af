//! Records and status conditions of WasmPlugins.

use ambit_k8s_api::{Kind, ObjectKey, Secret, WasmPlugin, labels, secret::DOCKER_CONFIG_TYPE};
use ambit_model::{NamespacedHostname, WaypointExtension};

use crate::{
    condition::{ConditionContent, ConditionType, DerivedStatus, WASM_PLUGIN_ACCEPTED},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::wasm_plugin::PluginInput,
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::{MeshView, rendered::RenderedRecords},
};

/// Namespace and host of a callee, which no Service has, by which waypoints may fetch the plugin's module from any
/// Service or pod. Only plugins of the root namespace, which administrators write, get it.
const ANY_CALLEE: &str = "*";

impl MeshKind for WasmPlugin {
    const CONDITIONS: &'static [ConditionType] = &[WASM_PLUGIN_ACCEPTED];

    fn on_change(index: &mut Index, change: &Change<'_, PluginInput>, _: &mut PodDirectory) {
        index.mark_object_stale(change.key.clone());
        let targets = |plugin: Option<&PluginInput>| -> Vec<ObjectKey> {
            plugin
                .map(|plugin| plugin.targets.0.clone())
                .unwrap_or_default()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        index.update_policy_targets(change.key, old, new);
        let secret = |plugin: Option<&PluginInput>| plugin?.pull_secret.clone();
        let (old, new) = (secret(change.old), secret(change.new));
        index
            .view
            .references
            .replace(ReferenceKind::PullSecret, change.key, old, new);
    }

    fn render(view: &MeshView, key: &ObjectKey, plugin: &PluginInput) -> RenderedRecords {
        let Some(extension) = &plugin.extension else {
            return RenderedRecords::default();
        };
        let mut callees = view.granted_services((Kind::WasmPlugin, &key.namespace));
        if key.namespace == view.config.root_namespace {
            callees.push(NamespacedHostname::new(ANY_CALLEE, ANY_CALLEE));
        }
        let pull_secret = plugin.credentials(view).unwrap_or_default();
        let waypoints = plugin.targets.by_waypoint(view).into_iter();
        let records = waypoints.map(|(gateway, concerned)| {
            let extension = WaypointExtension {
                for_gateway: concerned.targets_gateway,
                services: concerned.services,
                pull_secret: pull_secret.clone(),
                callees: callees.clone(),
                ..extension.clone()
            };
            (gateway, extension)
        });
        RenderedRecords::from_waypoint_records(records)
    }

    fn derived_status(
        view: &MeshView,
        _: &ObjectKey,
        plugin: &PluginInput,
    ) -> Option<DerivedStatus> {
        let condition = if plugin.targets.0.is_empty() {
            ConditionContent {
                is_true: false,
                reason: "NoTargets",
                message: "without spec.targetRefs a plugin is for sidecars and gateways: it has no effect on waypoints".to_owned(),
                needs_attention: true,
            }
        } else {
            let condition = plugin.targets.waypoints_condition(view, "plugin", "run");
            match &plugin.pull_secret {
                Some(secret) if condition.is_true && plugin.credentials(view).is_none() => {
                    missing_secret_condition(secret)
                }
                _ => condition,
            }
        };
        Some(DerivedStatus {
            condition: Some(condition),
            ..DerivedStatus::default()
        })
    }
}

impl PluginInput {
    /// Returns the credentials in the plugin's Secret, if the Secret exists and is usable.
    fn credentials(&self, view: &MeshView) -> Option<Vec<u8>> {
        let credentials = view.get::<Secret>(self.pull_secret.as_ref()?)?;
        Some(credentials.0.to_vec())
    }
}

/// Builds the status condition for an `imagePullSecret` that does not exist or is not usable.
fn missing_secret_condition(secret: &ObjectKey) -> ConditionContent {
    let message = format!(
        "spec.imagePullSecret: there is no {secret} of the type {DOCKER_CONFIG_TYPE} with the label {}: the image is pulled \
         without credentials, and if its registry refuses that, requests are decided by spec.failStrategy or by the \
         version before",
        labels::IMAGE_PULL_SELECTOR
    );
    ConditionContent {
        is_true: false,
        reason: "NoPullSecret",
        message,
        needs_attention: true,
    }
}
