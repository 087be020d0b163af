//! Records and status conditions of WasmPlugins.

use ambit_k8s_api::{Kind, ObjectKey, Secret, WasmPlugin, labels, secret::DOCKER_CONFIG};
use ambit_model::{NamespacedHostname, WaypointExtension};

use crate::{
    condition::{ConditionType, PLUGIN_ACCEPTED, Standing, Verdict},
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::wasm_plugin::PluginInput,
    pod_directory::PodDirectory,
    relations::references::Edge,
    view::{MeshView, rendered::Rendered},
};

/// Namespace and host, which no Service has, that permit to fetch a plugin's module from any Service or pod: for
/// plugins of the root namespace, which administrators write.
const ANYWHERE: &str = "*";

impl MeshKind for WasmPlugin {
    const CONDITIONS: &'static [ConditionType] = &[PLUGIN_ACCEPTED];

    fn changed(index: &mut Index, change: &Change<'_, PluginInput>, _: &mut PodDirectory) {
        index.mark(change.key.clone());
        let targets = |plugin: Option<&PluginInput>| -> Vec<ObjectKey> {
            plugin
                .map(|plugin| plugin.targets.0.clone())
                .unwrap_or_default()
        };
        let (old, new) = (targets(change.old), targets(change.new));
        index.attach_rule(change.key, old, new);
        let secret = |plugin: Option<&PluginInput>| plugin?.pull_secret.clone();
        let (old, new) = (secret(change.old), secret(change.new));
        index
            .view
            .references
            .replace(Edge::PullSecret, change.key, old, new);
    }

    fn render(view: &MeshView, key: &ObjectKey, plugin: &PluginInput) -> Rendered {
        let Some(extension) = &plugin.extension else {
            return Rendered::default();
        };
        let mut callees = view.granted_callees((Kind::WasmPlugin, &key.namespace));
        if key.namespace == view.config.root_namespace {
            callees.push(NamespacedHostname::new(ANYWHERE, ANYWHERE));
        }
        let pull_secret = plugin.credentials(view).unwrap_or_default();
        let waypoints = plugin.targets.concerned(view).into_iter();
        let records = waypoints.map(|(gateway, concerned)| {
            let extension = WaypointExtension {
                for_gateway: concerned.for_gateway,
                services: concerned.services,
                pull_secret: pull_secret.clone(),
                callees: callees.clone(),
                ..extension.clone()
            };
            (gateway, extension)
        });
        Rendered::at_waypoints(records)
    }

    fn standing(view: &MeshView, _: &ObjectKey, plugin: &PluginInput) -> Option<Standing> {
        let verdict = if plugin.targets.0.is_empty() {
            Verdict {
                is_true: false,
                reason: "NoTargets",
                message: "without spec.targetRefs a plugin is for sidecars and gateways: it has no effect on waypoints".to_owned(),
                is_trouble: true,
            }
        } else {
            let verdict = plugin.targets.verdict(view, "plugin", "run");
            match &plugin.pull_secret {
                Some(secret) if verdict.is_true && plugin.credentials(view).is_none() => {
                    without_credentials(secret)
                }
                _ => verdict,
            }
        };
        Some(Standing {
            verdict: Some(verdict),
            ..Standing::default()
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
fn without_credentials(secret: &ObjectKey) -> Verdict {
    let message = format!(
        "spec.imagePullSecret: there is no {secret} of the type {DOCKER_CONFIG} with the label {}: the image is pulled \
         without credentials, and if its registry refuses that, requests are decided by spec.failStrategy or by the \
         version before",
        labels::IMAGE_PULL_SELECTOR
    );
    Verdict {
        is_true: false,
        reason: "NoPullSecret",
        message,
        is_trouble: true,
    }
}
