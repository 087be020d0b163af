//! Benchmarks of enrolling and unenrolling running pods under load, and of the first connection of new pods.

use anyhow::{Context, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, future::try_join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::Value;

use super::{
    load::Load,
    rig::{BenchCluster, PodPlan, is_captured, pause, split_arguments, timed, unix_seconds},
    stats::MeasuredSample,
    table::ClusterRow,
};
use crate::report::ReportLine;

/// Measures failed requests while a running namespace is labelled and unlabelled under load.
pub(super) async fn enrol_running_namespace(rig: &BenchCluster) -> Result<ClusterRow> {
    rig.namespace("bench-label", false).await?;
    let server = rig.server("bench-label", "server", 2).await?;
    // Openings in plaintext, and data of connections that stay in plaintext.
    let wire = rig.capture_packets(
        1,
        "tcp and (dst port 8080 or dst port 9090 or dst port 15008)",
    )?;
    let load = Load::start(rig, "bench-label", "load", &server, 36, "").await?;
    pause(2.0).await;
    let labelled = rig.label("bench-label", true).await?;
    rig.wait_until_captured("bench-label", true).await?;
    let enrolled = unix_seconds();
    pause(10.0).await;
    let unlabelled = rig.label("bench-label", false).await?;
    rig.wait_until_captured("bench-label", false).await?;
    pause(8.0).await;
    let report = load.stop().await?;
    let packets = wire.packets();
    let opened_in_plaintext = packets
        .iter()
        .filter(|packet| packet.port != 15008 && packet.bytes == 0)
        .filter(|packet| packet.unix > enrolled && packet.unix < unlabelled)
        .map(|packet| packet.from.as_str())
        .collect::<std::collections::BTreeSet<_>>();
    // Earlier connections also send bare acknowledgements: they are known from the time before.
    let before = packets
        .iter()
        .filter(|packet| packet.port != 15008 && packet.unix < enrolled)
        .map(|packet| packet.from.as_str())
        .collect::<std::collections::BTreeSet<_>>();
    let opened_in_plaintext = opened_in_plaintext.difference(&before).count();
    let failed = report.failed_requests(labelled, f64::MAX);
    let broken = report.broken_connections(labelled, f64::MAX);
    rig.remove_namespace("bench-label").await?;
    Ok(ClusterRow {
        scenario: "label, then unlabel, a running namespace under load",
        istio_result: "all open connections broken, 1-17 new ones fail, keep-alive ones stay in plaintext",
        target: "0 failures, 0 broken; every connection opened after enrolment is mTLS",
        measured: format!(
            "label: {}; unlabel: {}; {broken} broken, {opened_in_plaintext} opened in plaintext; enrolled {:.2} s after the label",
            report.summary(labelled, unlabelled),
            report.summary(unlabelled, f64::MAX),
            enrolled - labelled,
        ),
        times_better: None,
        is_target_reached: failed == 0 && opened_in_plaintext == 0,
    }
    .print_row())
}

/// Measures the first connection of pods that connect in the first millisecond of their process.
pub(super) async fn first_connection(rig: &BenchCluster) -> Result<ClusterRow> {
    const PODS: usize = 10;
    const CONCURRENT_PODS: usize = 20;
    rig.namespace("bench-first", true).await?;
    let server = rig.server("bench-first", "server", 2).await?;
    let mut alone = MeasuredSample::default();
    let mut retries = 0;
    for number in 0..PODS {
        let (ms, tries) = measure_first_response(rig, &server, &format!("one-{number}")).await?;
        alone.add(ms);
        retries += tries;
    }
    let names: Vec<_> = (0..CONCURRENT_PODS)
        .map(|number| format!("many-{number}"))
        .collect();
    let pods = names
        .iter()
        .map(|name| measure_first_response(rig, &server, name));
    let mut crowd = MeasuredSample::default();
    for (ms, tries) in try_join_all(pods).await? {
        crowd.add(ms);
        retries += tries;
    }
    rig.remove_namespace("bench-first").await?;
    Ok(ClusterRow {
        scenario: "first connection of a new mesh pod",
        istio_result: "held 0.9 s",
        target: "under 50 ms",
        measured: format!(
            "median {:.1} ms, worst {:.1} of {PODS}; {CONCURRENT_PODS} at once {:.1}, worst {:.1}; {retries} tries failed",
            alone.median(),
            alone.worst(),
            crowd.median(),
            crowd.worst(),
        ),
        times_better: Some(900.0 / alone.median()),
        is_target_reached: alone.worst() < 50.0 && retries == 0,
    }
    .print_row())
}

/// Creates a pod that connects to the server at once; returns the milliseconds to its first response, and the number of
/// failed attempts before it.
async fn measure_first_response(
    rig: &BenchCluster,
    server: &str,
    name: &str,
) -> Result<(f64, u64)> {
    let plan = PodPlan {
        namespace: "bench-first",
        name,
        node: 1,
        tool_arguments: split_arguments(&format!("first-connect {server}:9090")),
    };
    rig.create(&plan).await?;
    let line = rig
        .wait_for_log_line("bench-first", name, "first-connect")
        .await?;
    let reported: Value = serde_json::from_str(&line)?;
    let ms = reported.get("first_answer_ms").and_then(Value::as_f64);
    let retries = reported.get("retries").and_then(Value::as_u64);
    Ok((
        ms.with_context(|| format!("no answer: {line}"))?,
        retries.unwrap_or_default(),
    ))
}

/// Measures the time from a namespace's label to the annotation of its pods, for one pod and for a hundred at once.
pub(super) async fn enrolment(rig: &BenchCluster) -> Result<Vec<ReportLine>> {
    const ROUNDS: usize = 10;
    const CONCURRENT_PODS: usize = 100;
    rig.namespace("bench-enrol", false).await?;
    create_idle_pods(rig, 0..1).await?;
    let mut one = MeasuredSample::default();
    for _ in 0..ROUNDS {
        one.add(1e3 * measure_capture_time(rig, 1).await?);
        rig.label("bench-enrol", false).await?;
        rig.wait_until_captured("bench-enrol", false).await?;
    }
    create_idle_pods(rig, 1..CONCURRENT_PODS).await?;
    let hundred = 1e3 * measure_capture_time(rig, CONCURRENT_PODS).await?;
    let memory = super::memory::memory_of_hundred_pods(rig)?;
    rig.remove_namespace("bench-enrol").await?;
    let mut lines = vec![
        ReportLine::without_baseline(
            "enrolment of a running pod, label to status, median",
            "ms",
            one.median(),
            Some(290.0),
        ),
        ReportLine::without_baseline("the same, worst of 10", "ms", one.worst(), None),
        ReportLine::without_baseline("enrolment of 100 running pods at once", "ms", hundred, None),
    ];
    lines.extend(memory);
    Ok(lines)
}

/// Creates idle pods, alternating between the nodes, and waits until they run.
async fn create_idle_pods(rig: &BenchCluster, numbers: std::ops::Range<usize>) -> Result<()> {
    for number in numbers.clone() {
        let plan = PodPlan {
            namespace: "bench-enrol",
            name: &format!("pod-{number}"),
            node: if number % 2 == 0 { 1 } else { 2 },
            tool_arguments: split_arguments("sleep"),
        };
        rig.create(&plan).await?;
    }
    for number in numbers {
        rig.wait_until_running("bench-enrol", &format!("pod-{number}"))
            .await?;
    }
    Ok(())
}

/// Labels the namespace and returns the time in seconds until this number of pods is annotated as captured.
async fn measure_capture_time(rig: &BenchCluster, pods: usize) -> Result<f64> {
    let mut events = watcher(rig.pods("bench-enrol"), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    let mut seen = std::collections::BTreeSet::new();
    // The first listing has arrived before the label is set.
    for _ in 0..pods {
        events.try_next().await?;
    }
    let work = async {
        rig.label("bench-enrol", true).await?;
        while seen.len() < pods {
            let pod: Option<Pod> = events.try_next().await?;
            let pod = pod.context("the watch ended")?;
            if is_captured(&pod) {
                seen.extend(pod.metadata.name);
            }
        }
        Ok(())
    };
    Ok(timed(work).await?.1)
}
