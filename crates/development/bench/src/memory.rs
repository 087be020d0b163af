//! Benchmarks of the resident memory of node proxy, agent and control plane as the mesh grows, and of a pod's start.

use std::{
    io::{Read, Write},
    path::Path,
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result};

use crate::{
    process,
    report::ReportLine,
    rig::{BenchLab, wait_until_settled},
};

fn namespace(name: &str, mode: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{istio.io/dataplane-mode: {mode}}}}}\n---\n"
    )
}

fn idle_pod(namespace: &str, name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  serviceAccountName: {name}
  containers: [{{name: main, image: none, command: [ambit-lab-tool, echo, --port, \"9000\"]}}]
---
"
    )
}

/// Runs the memory benchmarks.
pub(crate) fn run() -> Result<Vec<ReportLine>> {
    let bin_dir = std::env::current_exe()?
        .parent()
        .context("a program is in a directory")?
        .to_owned();
    let mut lines = Vec::new();

    let idle = {
        let manifests =
            namespace("mesh", "ambient") + &idle_pod("mesh", "a") + &idle_pod("mesh", "b");
        let rig = BenchLab::up(&[("rig.yaml".into(), manifests)])?;
        let resident = |name: &str| wait_until_settled(|| process::resident_mb(&rig.pids(name)?));
        let idle = resident("proxy")?;
        lines.push(ReportLine::without_baseline(
            "node proxy idle",
            "MB",
            idle,
            Some(22.0),
        ));
        lines.push(ReportLine::without_baseline(
            "agent idle",
            "MB",
            resident("agent")?,
            Some(78.0),
        ));
        lines.push(ReportLine::without_baseline(
            "control plane idle",
            "MB",
            resident("control")?,
            Some(135.0),
        ));
        connections(&rig, &mut lines)?;
        idle
    };
    pods(&bin_dir, &mut lines)?;
    workloads(idle, &mut lines)?;
    Ok(lines)
}

/// Measures memory with 4,000 open connections through both node proxies.
fn connections(rig: &BenchLab, lines: &mut Vec<ReportLine>) -> Result<()> {
    const CONNECTIONS: usize = 4000;
    let server = format!("{}:9000", rig.address("mesh", "b")?);
    // The first one loads certificates and code pages, which are not the cost of connections.
    let mut open = vec![rig.dial("mesh/a", &server)?];
    let before = wait_until_settled(|| process::resident_mb(&rig.pids("proxy")?))?;
    while open.len() < CONNECTIONS {
        let mut stream = rig.dial("mesh/a", &server)?;
        stream.write_all(b"hello")?;
        stream.read_exact(&mut [0; 5])?;
        open.push(stream);
    }
    let after = wait_until_settled(|| process::resident_mb(&rig.pids("proxy")?))?;
    lines.push(ReportLine::without_baseline(
        "node proxy, 4,000 open connections, added",
        "MB",
        after - before,
        Some(64.0),
    ));
    Ok(())
}

/// Measures 100 pods in the mesh: the mesh's memory, the time to enrol all of them, and the time to start another pod.
fn pods(bin_dir: &Path, lines: &mut Vec<ReportLine>) -> Result<()> {
    const PODS: usize = 100;
    let mut manifests = namespace("crowd", "none") + &namespace("mesh", "ambient");
    for n in 0..PODS {
        manifests += &idle_pod("crowd", &format!("pod-{n}"));
    }
    let rig = BenchLab::up(&[("rig.yaml".into(), manifests)])?;
    let start = Instant::now();
    rig.apply("label.yaml", &namespace("crowd", "ambient"))?;
    rig.wait_until("all captured", |status| {
        status.pods.iter().all(|pod| pod.captured)
    })?;
    let enrolled = start.elapsed();
    let resident = |name: &str| wait_until_settled(|| process::resident_mb(&rig.pids(name)?));
    lines.push(ReportLine::without_baseline(
        "node proxy, 100 pods",
        "MB",
        resident("proxy")?,
        Some(24.0),
    ));
    lines.push(ReportLine::without_baseline(
        "agent, 100 pods",
        "MB",
        resident("agent")?,
        None,
    ));
    lines.push(ReportLine::without_baseline(
        "enrolling 100 running pods, label to last captured",
        "ms",
        enrolled.as_secs_f64() * 1e3,
        None,
    ));
    let (sum, count) = rig.agent_histogram("ambit_agent_enrolment_seconds")?;
    for n in 0..20 {
        rig.apply(
            &format!("new-{n}.yaml"),
            &idle_pod("mesh", &format!("new-{n}")),
        )?;
        rig.wait_until("the new pod is captured", |status| {
            status
                .pods
                .iter()
                .any(|pod| pod.name == format!("new-{n}") && pod.captured)
        })?;
    }
    let (sum_after, count_after) = rig.agent_histogram("ambit_agent_enrolment_seconds")?;
    let mean = (sum_after - sum) / (count_after - count).max(1.0);
    lines.push(ReportLine::without_baseline(
        "enrolling one new pod (the plugin's wait)",
        "ms",
        mean * 1e3,
        Some(55.0),
    ));
    let plugin = bin_dir.join("ambit-cni");
    let runs = 50_u32;
    let start = Instant::now();
    for _ in 0..runs {
        let output = Command::new(&plugin)
            .env("CNI_COMMAND", "VERSION")
            .output()?;
        anyhow::ensure!(output.status.success(), "ambit-cni VERSION failed");
    }
    let each = start.elapsed().as_secs_f64() * 1e3 / f64::from(runs);
    lines.push(ReportLine::without_baseline(
        "running the CNI plugin (exec to exit)",
        "ms",
        each,
        Some(29.0),
    ));
    Ok(())
}

/// Measures memory with 50,000 workloads and 5,000 services, compared with `idle`.
fn workloads(idle: f64, lines: &mut Vec<ReportLine>) -> Result<()> {
    const SERVICES: usize = 5000;
    const WORKLOADS_EACH: usize = 10;
    let mut files = vec![(
        "rig.yaml".to_owned(),
        namespace("mesh", "ambient") + &idle_pod("mesh", "a") + &namespace("many", "none"),
    )];
    for chunk in 0..SERVICES / 100 {
        let mut text = String::new();
        for service in chunk * 100..(chunk + 1) * 100 {
            text += &format!(
                "apiVersion: v1
kind: Service
metadata: {{name: service-{service}, namespace: many}}
spec: {{clusterIP: 10.97.{}.{}, selector: {{app: service-{service}}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
---
",
                service / 250,
                service % 250 + 1
            );
            for n in 0..WORKLOADS_EACH {
                let number = service * WORKLOADS_EACH + n;
                text += &format!(
                    "apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: workload-{number}, namespace: many}}
spec: {{address: 10.{}.{}.{}, serviceAccount: service-{service}, labels: {{app: service-{service}, service.istio.io/workload-name: service-{service}}}}}
---
",
                    100 + number / 62_500,
                    number / 250 % 250,
                    number % 250 + 1
                );
            }
        }
        files.push((format!("many-{chunk}.yaml"), text));
    }
    let rig = BenchLab::up(&files)?;
    let resident = |name: &str| wait_until_settled(|| process::resident_mb(&rig.pids(name)?));
    let control = resident("control")?;
    let proxy = resident("proxy")?;
    lines.push(ReportLine::without_baseline(
        "node proxy, 50,000 workloads, added",
        "MB",
        proxy - idle,
        Some(47.0),
    ));
    lines.push(ReportLine::without_baseline(
        "control plane, 50,000 workloads",
        "MB",
        control,
        None,
    ));
    let peak = process::peak_mb(&rig.pids("proxy")?)?;
    lines.push(ReportLine::without_baseline(
        "node proxy, peak while they load",
        "MB",
        peak,
        Some(244.0),
    ));
    Ok(())
}
