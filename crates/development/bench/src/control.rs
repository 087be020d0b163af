//! Benchmarks of the control plane at scale: the real program follows a simulated API server and serves simulated node
//! proxies. The CPU time of the control plane is that of its process alone; both simulations run in another process.

mod attacks;
mod control_plane_process;
mod delivery_board;
mod frames;
mod new_pods;
mod population;
mod proxies;

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use ambit_testkit::ApiServer;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::report::ReportLine;
use attacks::Attack;
use control_plane_process::ControlPlaneProcess;
use delivery_board::DeliveryBoard;
use population::{ClusterSize, PODS, POLICIES, SLICES};
use proxies::ProxyFleet;

/// Default numbers of objects in the simulated cluster.
const DEFAULT_SIZE: ClusterSize = ClusterSize {
    nodes: 1000,
    services: 5000,
    pods_per_service: 10,
    namespaces: 250,
};
/// Number of pods that are added or removed per second during the churn.
const CHANGES_PER_SECOND: u32 = 100;
/// Duration for which pods are added and removed at a steady rate.
const CHURN_DURATION: Duration = Duration::from_secs(30);
/// Number of changes between the creation of a pod and its removal.
const POD_LIFETIME_CHANGES: u32 = 200;
/// Distance between the pod numbers of two rounds of new pods, with and without an attack on the control plane.
const POD_NUMBERS_PER_ROUND: u32 = 10_000;
/// Number of policies that are created one after the other.
const POLICY_CHANGES: usize = 30;
/// Number in the name of the first created policy, larger than the number of any pod.
const FIRST_POLICY_NUMBER: usize = 100_000;
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// Runs the benchmarks of the control plane. `AMBIT_BENCH_SCALE=0.1` measures a tenth of the cluster, for trials.
pub(crate) fn run() -> Result<Vec<ReportLine>> {
    let mut bench = ControlPlaneBench::start(scaled(DEFAULT_SIZE)?)?;
    bench.initial_state()?;
    bench.idle()?;
    bench.churn()?;
    bench.attacks()?;
    bench.policies()?;
    Ok(bench.lines)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts far below 2^32"
)]
fn scaled(size: ClusterSize) -> Result<ClusterSize> {
    let scale: f64 = match std::env::var("AMBIT_BENCH_SCALE") {
        Ok(scale) => scale.parse()?,
        Err(_) => 1.0,
    };
    let of = |count: u32| ((f64::from(count) * scale).ceil() as u32).max(1);
    Ok(ClusterSize {
        nodes: of(size.nodes),
        services: of(size.services),
        namespaces: of(size.namespaces),
        ..size
    })
}

struct ControlPlaneBench {
    size: ClusterSize,
    api: ApiServer,
    plane: ControlPlaneProcess,
    fleet: Option<ProxyFleet>,
    lines: Vec<ReportLine>,
    _directory: tempfile::TempDir,
}

impl ControlPlaneBench {
    /// Fills the simulated API server, and then starts the control plane.
    fn start(size: ClusterSize) -> Result<Self> {
        let api = ApiServer::start();
        fill(&api, size);
        let directory = tempfile::tempdir()?;
        let mut plane = ControlPlaneProcess::start(&api.kubeconfig(), directory.path())?;
        let none = plane.usage()?;
        let ready = plane
            .wait_until_ready(Duration::from_secs(300))
            .inspect_err(|_| {
                let log = std::fs::read_to_string(directory.path().join("control.log"));
                eprintln!("{}", log.unwrap_or_default());
            })?;
        let usage = plane.usage()?;
        let mut bench = Self {
            size,
            api,
            plane,
            fleet: None,
            lines: Vec::new(),
            _directory: directory,
        };
        let what = format!("{} pods, {} services", size.pods(), size.services);
        bench.report_value(&format!("start to ready, {what}"), "s", ready.as_secs_f64());
        bench.report_value("CPU time of that", "s", usage.seconds_since(none));
        bench.report_value("memory with every object read", "MB", usage.resident);
        Ok(bench)
    }

    /// Measures the time until all proxies have connected and received the initial state.
    fn initial_state(&mut self) -> Result<()> {
        let board = Arc::new(DeliveryBoard::new(FIRST_POLICY_NUMBER + POLICY_CHANGES));
        let before = self.plane.usage()?;
        let start = Instant::now();
        let fleet = ProxyFleet::start(self.size.nodes, &self.plane.target()?, board);
        fleet.wait_until_synced(Duration::from_secs(900))?;
        let took = start.elapsed();
        let after = self.plane.usage()?;
        let bytes = fleet.totals.bytes.load(Ordering::Relaxed);
        self.fleet = Some(fleet);
        let what = format!("{} proxies get everything", self.size.nodes);
        self.report_value(&what, "s", took.as_secs_f64());
        self.report_value("CPU time of that", "s", after.seconds_since(before));
        let each = count(bytes) / f64::from(self.size.nodes) / 1e6;
        self.report_value("sent to each for that", "MB", each);
        self.report_value("memory, peak so far", "MB", self.plane.peak_mb()?);
        Ok(())
    }

    fn idle(&mut self) -> Result<()> {
        let resident = crate::rig::wait_until_settled(|| Ok(self.plane.usage()?.resident))?;
        self.report_value("memory with all proxies", "MB", resident);
        let before = self.plane.usage()?;
        thread::sleep(Duration::from_secs(5));
        let cores = self.plane.usage()?.cores_since(before);
        self.report_value("CPU while nothing changes", "cores", cores);
        Ok(())
    }

    /// Measures the delivery of changes while pods are added and removed at a steady rate.
    fn churn(&mut self) -> Result<()> {
        let fleet = self.fleet()?;
        let (totals, board) = (Arc::clone(&fleet.totals), Arc::clone(&fleet.board));
        let before = self.plane.usage()?;
        let bytes = totals.bytes.load(Ordering::Relaxed);
        let pushes = totals.pushes.load(Ordering::Relaxed);
        let start = Instant::now();
        let mut peak: f64 = 0.0;
        for change in 0.. {
            let due = Duration::from_secs(1) * change / CHANGES_PER_SECOND;
            if due >= CHURN_DURATION {
                break;
            }
            thread::sleep(due.saturating_sub(start.elapsed()));
            // At first pods are only added; then each addition is followed by a removal.
            if change < POD_LIFETIME_CHANGES {
                self.create_pod(change, &board);
            } else if change.is_multiple_of(2) {
                self.create_pod(
                    POD_LIFETIME_CHANGES + (change - POD_LIFETIME_CHANGES) / 2,
                    &board,
                );
            } else {
                self.delete_pod((change - POD_LIFETIME_CHANGES) / 2, &board);
            }
            if change.is_multiple_of(CHANGES_PER_SECOND) {
                peak = peak.max(self.plane.usage()?.resident);
            }
        }
        let elapsed = start.elapsed();
        let after = self.plane.usage()?;
        // What was sent until now belongs to these changes; the last may still be in flight.
        let bytes = totals.bytes.load(Ordering::Relaxed) - bytes;
        let pushes = totals.pushes.load(Ordering::Relaxed) - pushes;
        thread::sleep(Duration::from_secs(2));
        self.fleet()?.check_streams()?;
        let latencies = board.latencies(0, self.size.nodes);
        let seconds = elapsed.as_secs_f64() * f64::from(self.size.nodes);
        self.report_value(
            &format!("CPU, {CHANGES_PER_SECOND} pod changes a second"),
            "cores",
            after.cores_since(before),
        );
        self.report_value("sent to a node", "kB/s", count(bytes) / seconds / 1e3);
        self.report_value("pushes to a node", "1/s", count(pushes) / seconds);
        self.report_value("memory meanwhile", "MB", peak.max(after.resident));
        self.report_latency("pod change to the last proxy", &latencies)
    }

    /// Measures the time until new pods have certificates, each over its node's own connection, first without and then
    /// with an attack on the control plane.
    fn attacks(&mut self) -> Result<()> {
        for node in 0..self.size.nodes {
            self.api.put(PODS, population::proxy_pod(node));
        }
        let (target, fleet) = (self.plane.target()?, self.fleet()?);
        let board = Arc::clone(&fleet.board);
        let mut quiet = None;
        for (round, attack) in (0..).zip(Attack::ALL) {
            let under_way =
                attack.map(|attack| attack.start(&target, self.plane.monitoring_port()));
            let under_way = under_way.transpose()?;
            let first = POD_NUMBERS_PER_ROUND * (round + 1);
            let numbers = first..first + self.size.nodes;
            let certificates = new_pods::certificates(&target, self.size, numbers, |number| {
                self.create_pod(number, &board);
            })?;
            thread::sleep(Duration::from_secs(2));
            self.fleet()?.check_streams()?;
            let records = board.latencies(index(first), self.size.nodes);
            drop(under_way);
            let figures = [
                ("new pod to its certificate", certificates),
                (
                    "new pod to the last proxy",
                    records.into_iter().flatten().collect(),
                ),
            ]
            .map(|(what, latencies)| (what, LatencyQuantiles::of(latencies)));
            let Some(attack) = attack else {
                quiet = Some(figures);
                continue;
            };
            for ((what, attacked), (_, quiet)) in figures.iter().zip(quiet.iter().flatten()) {
                self.lines
                    .extend(attacked.compare_with_quiet(what, attack.name(), quiet));
            }
        }
        Ok(())
    }

    /// Measures the time until each of a sequence of new policies has reached all proxies.
    fn policies(&mut self) -> Result<()> {
        let board = Arc::clone(&self.fleet()?.board);
        for number in FIRST_POLICY_NUMBER..FIRST_POLICY_NUMBER + POLICY_CHANGES {
            board.record_change(true, number);
            self.api.put(POLICIES, self.size.deny(number));
            thread::sleep(Duration::from_millis(400));
        }
        let policies = board.latencies(FIRST_POLICY_NUMBER, self.size.nodes);
        self.report_latency("policy to the last proxy", &policies)
    }

    /// Creates a pod and adds it to its service: first scheduled without an address, then running.
    fn create_pod(&self, number: u32, board: &DeliveryBoard) {
        self.api.put(PODS, self.size.churning_pod(number, false));
        board.record_change(true, index(number));
        self.api.put(PODS, self.size.churning_pod(number, true));
        self.update_endpoint_slice(number);
    }

    fn delete_pod(&self, number: u32, board: &DeliveryBoard) {
        board.record_change(false, index(number));
        let namespace = self.size.churning_namespace(number);
        self.api
            .delete(PODS, &namespace, &population::churning_name(number));
        self.update_endpoint_slice(number);
    }

    fn update_endpoint_slice(&self, number: u32) {
        let service = number % self.size.services;
        self.api.put(SLICES, self.size.slice(service, number));
    }

    fn fleet(&self) -> Result<&ProxyFleet> {
        self.fleet
            .as_ref()
            .ok_or_else(|| anyhow::anyhow!("the proxies are not connected"))
    }

    fn report_latency(&mut self, what: &str, latencies: &[Option<Duration>]) -> Result<()> {
        let lost = latencies.iter().filter(|latency| latency.is_none()).count();
        ensure!(
            lost == 0,
            "{what}: {lost} of {} changes did not reach every proxy",
            latencies.len()
        );
        let mut all: Vec<_> = latencies.iter().flatten().copied().collect();
        all.sort_unstable();
        let at = |share: usize| {
            let index = (all.len() * share / 100).min(all.len().saturating_sub(1));
            all.get(index).map_or(f64::NAN, |d| d.as_secs_f64() * 1e3)
        };
        self.report_value(&format!("{what}, median"), "ms", at(50));
        self.report_value(&format!("{what}, 99 of 100"), "ms", at(99));
        self.report_value(&format!("{what}, worst of {}", all.len()), "ms", at(100));
        Ok(())
    }

    fn report_value(&mut self, what: &str, unit: &'static str, mesh: f64) {
        self.lines
            .push(ReportLine::without_baseline(what, unit, mesh, None));
    }
}

/// Median and 99th percentile of latencies, in milliseconds.
struct LatencyQuantiles([f64; 2]);

impl LatencyQuantiles {
    fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let at = |share: usize| {
            let index = (latencies.len() * share / 100).min(latencies.len().saturating_sub(1));
            latencies
                .get(index)
                .map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
        };
        Self([at(50), at(99)])
    }

    /// Returns one report line for each quantile, compared with the `quiet` result without the attack.
    fn compare_with_quiet(&self, what: &str, attack: &str, quiet: &Self) -> Vec<ReportLine> {
        let lines = ["median", "99 of 100"].into_iter().zip(self.0).zip(quiet.0);
        lines
            .map(|((which, attacked), quiet)| {
                let what = format!("{what}, {attack}, {which}");
                ReportLine {
                    without_mesh: Some(quiet),
                    ..ReportLine::without_baseline(&what, "ms", attacked, None)
                }
            })
            .collect()
    }
}

fn fill(api: &ApiServer, size: ClusterSize) {
    let start = Instant::now();
    for (collection, kind) in population::EMPTY_COLLECTIONS {
        api.serve(collection, kind);
    }
    for (collection, object) in size.objects() {
        api.put(collection, object);
    }
    api.compact();
    api.set_review_handler(TOKEN_REVIEWS, token_review_response);
    eprintln!(
        "  (simulated cluster of {} nodes and {} pods made in {:.1} s)",
        size.nodes,
        size.pods(),
        start.elapsed().as_secs_f64()
    );
}

/// Responds to a TokenReview: every token of a simulated proxy is valid.
fn token_review_response(asked: &Value) -> Value {
    let token = asked.pointer("/spec/token").and_then(Value::as_str);
    let status = match token.and_then(proxies::proxy_of) {
        Some(number) => json!({
            "authenticated": true,
            "audiences": ["istio-ca"],
            "user": {
                "username": "system:serviceaccount:istio-system:ztunnel",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:istio-system",
                    "system:authenticated"],
                "extra": {
                    "authentication.kubernetes.io/pod-name": [format!("ztunnel-{number}")],
                    "authentication.kubernetes.io/pod-uid": [format!("uid-of-ztunnel-{number}")],
                    "authentication.kubernetes.io/node-name": [format!("node-{number}")],
                },
            },
        }),
        None => json!({"authenticated": false, "error": "not a token of a simulated proxy"}),
    };
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
        "spec": asked.get("spec"), "status": status})
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts and bytes, far below 2^52"
)]
fn count(value: u64) -> f64 {
    value as f64
}
