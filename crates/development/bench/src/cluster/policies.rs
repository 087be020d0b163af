//! Benchmarks of the time until a policy is enforced, for new connections and for open ones, on every node.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use anyhow::{Context, Result};

use super::{
    load::Load,
    rig::{BenchCluster, pause, unix_seconds},
    stats::MeasuredSample,
    table::ClusterRow,
};
use crate::report::ReportLine;

const DENY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: bench-policy}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{to: [{operation: {ports: [\"8080\"]}}]}]
";
/// Policy that denies all clients on the servers of all nodes.
const DENY_ALL: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: bench-nodes}
spec:
  action: DENY
  rules: [{to: [{operation: {ports: [\"8080\"]}}]}]
";

/// Measures the time until a DENY policy with a selector takes effect on new and on open connections, and until its
/// deletion does, under 500 requests per second on each kind of connection.
pub(super) async fn deny_policy_enforcement(rig: &BenchCluster) -> Result<ClusterRow> {
    const ROUNDS: usize = 10;
    rig.namespace("bench-policy", true).await?;
    let server = rig.server("bench-policy", "server", 2).await?;
    let rate = "--rate-new 500 --rate-keepalive 500 --long 0";
    let load = Load::start(rig, "bench-policy", "load", &server, 45, rate).await?;
    let mut moments = Vec::new();
    for _ in 0..ROUNDS {
        pause(1.5).await;
        let made = unix_seconds();
        rig.apply(DENY).await?;
        pause(1.0).await;
        let gone = unix_seconds();
        rig.delete(DENY).await?;
        moments.push((made, gone));
    }
    let report = load.stop().await?;
    rig.remove_namespace("bench-policy").await?;
    let (mut new, mut open, mut lifted) =
        <(MeasuredSample, MeasuredSample, MeasuredSample)>::default();
    let mut never = 0;
    for (index, (made, gone)) in moments.iter().enumerate() {
        let next = moments.get(index + 1).map_or(f64::MAX, |next| next.0);
        let first = report.between("new", *made, *gone).next();
        new.add(first.context("new connections were never refused")?.unix - made);
        let mut broken = report
            .between("keep-alive", *made, *gone)
            .filter(|failure| !failure.opening);
        match broken.next() {
            Some(first) => open.add(first.unix - made),
            None => never += 1,
        }
        let last = report.between("new", *gone, next).last();
        lifted.add(last.map_or(0.0, |last| last.unix - gone));
    }
    Ok(ClusterRow {
        scenario: "DENY with a selector",
        istio_result: "new connections in 0.20 s, existing ones never; lifted in 0.18 s",
        target: "both, within 0.2 s",
        measured: format!(
            "new {:.3} s, worst {:.3}; existing {:.3}, worst {:.3}, never {never}; lifted {:.3}, worst {:.3} (of {ROUNDS})",
            new.median(),
            new.worst(),
            open.median(),
            open.worst(),
            lifted.median(),
            lifted.worst(),
        ),
        times_better: Some(0.197 / new.median()),
        is_target_reached: never == 0 && new.worst() <= 0.2 && open.worst() <= 0.2,
    }
    .print_row())
}

/// Measures the time from a policy's creation until both nodes enforce it, and from its deletion until neither does.
pub(super) async fn enforcement_on_all_nodes(rig: &BenchCluster) -> Result<Vec<ReportLine>> {
    const ROUNDS: usize = 100;
    rig.namespace("bench-nodes", true).await?;
    let mut watchers = Vec::new();
    for node in [1, 2] {
        let name = format!("server-{node}");
        let address = rig.server("bench-nodes", &name, node).await?;
        watchers.push(PolicyWatcher::start(format!("{address}:8080").parse()?));
    }
    rig.wait_until_captured("bench-nodes", true).await?;
    let (mut refused, mut allowed) = <(MeasuredSample, MeasuredSample)>::default();
    for _ in 0..ROUNDS {
        let made = unix_seconds();
        rig.apply(DENY_ALL).await?;
        refused.add(1e3 * (slowest_node(&watchers, false)? - made));
        let gone = unix_seconds();
        rig.delete(DENY_ALL).await?;
        allowed.add(1e3 * (slowest_node(&watchers, true)? - gone));
    }
    drop(watchers);
    rig.remove_namespace("bench-nodes").await?;
    Ok(vec![
        ReportLine::without_baseline(
            "policy made to enforced on the last node, median",
            "ms",
            refused.median(),
            Some(197.0),
        ),
        ReportLine::without_baseline("the same, worst of 100", "ms", refused.worst(), Some(237.0)),
        ReportLine::without_baseline(
            "policy deleted to lifted on the last node, median",
            "ms",
            allowed.median(),
            Some(180.0),
        ),
        ReportLine::without_baseline("the same, worst of 100", "ms", allowed.worst(), Some(198.0)),
    ])
}

/// Returns the time at which the last of the watched servers started (`answers`) or stopped responding.
fn slowest_node(watchers: &[PolicyWatcher], answers: bool) -> Result<f64> {
    let mut turns = watchers
        .iter()
        .map(|watched| watched.wait_until_changed(answers));
    turns.try_fold(0.0, |last, turn| Ok(f64::max(last, turn?)))
}

/// Watcher that repeatedly calls a server from outside the mesh on new connections, and records when it starts or stops
/// responding.
struct PolicyWatcher {
    availability_changes: mpsc::Receiver<(bool, f64)>,
    stop_requested: Arc<AtomicBool>,
}

impl PolicyWatcher {
    fn start(server: SocketAddr) -> Self {
        let (sender, turns) = mpsc::channel();
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        std::thread::spawn(move || {
            let mut before = None;
            while !end.load(Ordering::Relaxed) {
                let answers = send_get(server).is_ok();
                if before.replace(answers) != Some(answers)
                    && sender.send((answers, unix_seconds())).is_err()
                {
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self {
            availability_changes: turns,
            stop_requested: ended,
        }
    }

    fn wait_until_changed(&self, answers: bool) -> Result<f64> {
        loop {
            let turn = self
                .availability_changes
                .recv_timeout(Duration::from_secs(30));
            let (now, unix) = turn.with_context(|| format!("no change to answering: {answers}"))?;
            if now == answers {
                return Ok(unix);
            }
        }
    }
}

impl Drop for PolicyWatcher {
    fn drop(&mut self) {
        self.stop_requested.store(true, Ordering::Relaxed);
    }
}

fn send_get(server: SocketAddr) -> std::io::Result<()> {
    let timeout = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&server, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")?;
    stream.read_exact(&mut [0; 12])
}
