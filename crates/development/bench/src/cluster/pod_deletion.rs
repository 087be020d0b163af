//! Benchmark of deleting many pods of a node at once: the longest time without responses for other pods, without the
//! mesh and with it.

use anyhow::Result;
use futures_util::future::try_join_all;
use kube::api::{DeleteParams, ListParams};

use super::{
    load::Load,
    rig::{BenchCluster, PodPlan, pause, split_arguments},
    table::ClusterRow,
};
use crate::report::ReportLine;

/// Number of pods that are deleted at once: as many as fit on a node besides the mesh's and the cluster's own pods.
const DELETED_PODS: usize = 80;
const NAMESPACE: &str = "bench-leave";

/// Returns the longest time in seconds without a response at a pod on the node whose other pods are deleted.
pub(super) async fn measure(rig: &BenchCluster, in_mesh: bool) -> Result<f64> {
    rig.namespace(NAMESPACE, in_mesh).await?;
    let server = rig.server(NAMESPACE, "server", 2).await?;
    let names: Vec<_> = (0..DELETED_PODS)
        .map(|number| format!("crowd-{number}"))
        .collect();
    try_join_all(names.iter().map(|name| async move {
        let plan = PodPlan {
            namespace: NAMESPACE,
            name,
            node: 1,
            tool_arguments: split_arguments("sleep"),
        };
        rig.create(&plan).await?;
        rig.wait_until_running(NAMESPACE, name).await
    }))
    .await?;
    let load = Load::start(rig, NAMESPACE, "load", &server, 40, "").await?;
    pause(5.0).await;
    let pods = rig.pods(NAMESPACE);
    let crowd = ListParams::default().labels("app notin (server,load)");
    pods.delete_collection(&DeleteParams::default(), &crowd)
        .await?;
    let report = load.stop().await?;
    rig.remove_namespace(NAMESPACE).await?;
    Ok(report.longest_gap())
}

/// Compares the results without and with the mesh.
pub(super) fn compare(without: f64, with: f64) -> (ClusterRow, ReportLine) {
    let row = ClusterRow {
        scenario: "80 pods of a node deleted at once: others' longest silence",
        istio_result: "(not measured)",
        target: "at most twice what it is without the mesh",
        measured: format!("{with:.2} s, without the mesh {without:.2} s"),
        times_better: None,
        is_target_reached: with <= 2.0 * without,
    }
    .print_row();
    let name = "longest silence while 80 pods go";
    let line = ReportLine::compared_with(name, "ms", without * 1e3, with * 1e3, 2.0);
    (row, line)
}
