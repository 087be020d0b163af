//! Files of the Helm chart, embedded in the binary.

use serde::Deserialize;

/// A file of the chart.
#[derive(Clone, Copy, Debug)]
pub struct ChartFile {
    /// Path of the file in the chart.
    pub path: &'static str,
    /// Text of the file.
    pub text: &'static str,
}

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(ChartFile { path: $path, text: include_str!(concat!("../../../../charts/ambit/", $path)) }),*]
    };
}

/// Templates, in the order of their names.
pub const TEMPLATES: &[ChartFile] = files![
    "templates/_agent.tpl",
    "templates/_names.tpl",
    "templates/_platforms.tpl",
    "templates/_pods.tpl",
    "templates/agent-configmap.yaml",
    "templates/agent-daemonset.yaml",
    "templates/agent-rbac.yaml",
    "templates/control-deployment.yaml",
    "templates/control-rbac.yaml",
    "templates/control-service.yaml",
    "templates/flows-rbac.yaml",
    "templates/kiali-definitions.yaml",
    "templates/mesh-configmap.yaml",
    "templates/monitoring.yaml",
    "templates/networkpolicies.yaml",
    "templates/node-proxy-daemonset.yaml",
    "templates/node-proxy-rbac.yaml",
    "templates/probe-hosts.yaml",
    "templates/quota.yaml",
    "templates/release-hook.yaml",
];

/// CRDs of Istio's kinds and of our own.
pub const CRDS: &[ChartFile] = files![
    "crds/authorizationpolicies.yaml",
    "crds/destinationrules.yaml",
    "crds/httpfaults.yaml",
    "crds/peerauthentications.yaml",
    "crds/ratelimits.yaml",
    "crds/requestauthentications.yaml",
    "crds/serviceentries.yaml",
    "crds/telemetries.yaml",
    "crds/wasmplugins.yaml",
    "crds/workloadentries.yaml",
];

/// Files that templates include verbatim.
pub const INCLUDED_FILES: &[ChartFile] = files![
    "files/alerts.yaml",
    "files/dashboards/control-plane.json",
    "files/dashboards/mesh.json",
    "files/dashboards/node-proxy.json",
    "files/dashboards/service.json",
    "files/dashboards/waypoint.json",
    "files/dashboards/workload.json",
];

/// Template of the notes that are printed after an installation.
pub const NOTES: ChartFile = ChartFile {
    path: "templates/NOTES.txt",
    text: include_str!("../../../../charts/ambit/templates/NOTES.txt"),
};

/// The default values of the chart.
pub const DEFAULT_VALUES: &str = include_str!("../../../../charts/ambit/values.yaml");

/// Schema of the values.
pub const VALUES_SCHEMA: &str = include_str!("../../../../charts/ambit/values.schema.json");

const METADATA: &str = include_str!("../../../../charts/ambit/Chart.yaml");

/// Metadata of the chart, from `Chart.yaml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Name of the chart.
    pub name: String,
    /// Version of the chart.
    pub version: String,
    /// Version of the mesh that the chart installs.
    pub app_version: String,
}

/// Reads the metadata of the chart.
///
/// # Errors
///
/// If the embedded chart is invalid.
pub fn metadata() -> Result<Metadata, serde_saphyr::Error> {
    serde_saphyr::from_str(METADATA)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_file_of_the_chart_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../charts/ambit");
        let (alerts, dashboards) = INCLUDED_FILES.split_at(1);
        assert_eq!(alerts[0].path, "files/alerts.yaml");
        for (directory, files) in [
            ("templates", TEMPLATES),
            ("crds", CRDS),
            ("files/dashboards", dashboards),
        ] {
            let mut existing: Vec<_> = fs::read_dir(root.join(directory))
                .unwrap()
                .map(|entry| format!("{directory}/{}", entry.unwrap().file_name().display()))
                .filter(|path| path != NOTES.path)
                .collect();
            existing.sort();
            let here: Vec<_> = files.iter().map(|file| file.path.to_owned()).collect();
            assert_eq!(here, existing);
        }
    }

    #[test]
    fn the_chart_has_the_version_of_the_binaries() {
        let metadata = metadata().unwrap();
        assert_eq!(metadata.app_version, env!("CARGO_PKG_VERSION"));
        assert_eq!(metadata.version, env!("CARGO_PKG_VERSION"));
    }
}
