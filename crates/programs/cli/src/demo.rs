//! `ambit lab demo`: the example mesh at work. Real programs call each other in the lab; for each call it shows client
//! and server, their identities, the path, and the policy that decided; and from a capture between the nodes, what an
//! eavesdropper could read.
//!
//! It fails when anything differs from what the manifests promise.

mod waypoint;

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use ambit_lab::{
    Client, ExecOutput, FlowKind, FlowReport, IpFamily, LAB_TOOL, LabNetns, LogSource, Options,
    PodStatus, PrimaryCni, Status,
};

use crate::{
    CliError, ErrorKind,
    access_log::AccessLine,
    dump::Dump,
    explain, labs,
    output::{say, table},
    readiness,
    source::Source,
};

/// Sent in every request: readable on the wire wherever traffic is in the clear.
const MARKER: &str = "AMBIT-DEMO-IN-THE-CLEAR";
/// The port of every server of the example.
const PORT: u16 = 8080;
/// Timeout for pods to be ready or captured.
const READY: Duration = Duration::from_secs(60);
/// Tolerated delay of the access log.
const LOG_LAG: Duration = Duration::from_secs(3);

/// Names of the nodes.
const NODES: [&str; 2] = ["node-1", "node-2"];

/// The built-in example: file name and text.
const EXAMPLE: [(&str, &str); 4] = [
    (
        "namespaces.yaml",
        include_str!("../../../../examples/demo/namespaces.yaml"),
    ),
    (
        "shop.yaml",
        include_str!("../../../../examples/demo/shop.yaml"),
    ),
    (
        "legacy.yaml",
        include_str!("../../../../examples/demo/legacy.yaml"),
    ),
    (
        "policies.yaml",
        include_str!("../../../../examples/demo/policies.yaml"),
    ),
];

/// Call with the result that the manifests promise.
struct Call {
    from: (&'static str, &'static str),
    to: (&'static str, &'static str),
    path: Way,
    allowed: bool,
}

/// Transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// mTLS tunnel between node proxies.
    Hbone,
    /// Plaintext, through a node proxy on one side.
    Plaintext,
    /// Plaintext, with both peers outside the mesh.
    Outside,
}

impl Way {
    fn words(self) -> &'static str {
        match self {
            Self::Hbone => "HBONE (mTLS)",
            Self::Plaintext => "plaintext",
            Self::Outside => "plaintext, outside the mesh",
        }
    }
}

const fn call(
    from: (&'static str, &'static str),
    to: (&'static str, &'static str),
    path: Way,
    allowed: bool,
) -> Call {
    Call {
        from,
        to,
        path,
        allowed,
    }
}

const FRONTEND: (&str, &str) = ("shop", "frontend");
const ORDERS: (&str, &str) = ("shop", "orders");
const LEDGER: (&str, &str) = ("shop", "ledger");
const BATCH: (&str, &str) = ("legacy", "batch");
const REPORTS: (&str, &str) = ("legacy", "reports");

const BEFORE: [Call; 8] = [
    call(FRONTEND, ORDERS, Way::Hbone, true),
    call(ORDERS, LEDGER, Way::Hbone, true),
    call(FRONTEND, LEDGER, Way::Hbone, false),
    call(BATCH, FRONTEND, Way::Plaintext, true),
    call(BATCH, ORDERS, Way::Plaintext, false),
    call(BATCH, LEDGER, Way::Plaintext, false),
    call(FRONTEND, REPORTS, Way::Plaintext, true),
    call(BATCH, REPORTS, Way::Outside, true),
];

const AFTER: [Call; 4] = [
    call(BATCH, FRONTEND, Way::Hbone, true),
    call(BATCH, ORDERS, Way::Hbone, false),
    call(FRONTEND, REPORTS, Way::Hbone, true),
    call(BATCH, REPORTS, Way::Hbone, true),
];

/// Runs the demonstration.
pub(crate) fn run(
    name: &str,
    manifests: Option<PathBuf>,
    ip_family: IpFamily,
    keep: bool,
) -> Result<ExitCode, CliError> {
    let name = if name == "default" {
        format!("demo-{}", std::process::id())
    } else {
        name.to_owned()
    };
    let directory = Manifests::prepare(manifests)?;
    let options = options(&name, &directory.0, ip_family)?;
    let client = readiness::launch(&options)?;
    let shown = show(
        &Demo {
            client: client.clone(),
            name: name.clone(),
        },
        &directory.0,
    );
    if keep {
        std::mem::forget(directory);
        say(&format!(
            "\nThe lab stays up: ambit lab --name {name} status"
        ))?;
    } else {
        client.down().map_err(labs::client_error)?;
    }
    match shown? {
        0 => {
            say("\nEverything went as the manifests promise.")?;
            Ok(ExitCode::SUCCESS)
        }
        faults => Err(CliError::new(
            ErrorKind::Failed,
            format!("{faults} things went otherwise"),
        )),
    }
}

/// A copy of the manifests that the demonstration may change; removed with the value.
struct Manifests(PathBuf);

impl Manifests {
    fn prepare(given: Option<PathBuf>) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| {
            CliError::new(ErrorKind::Failed, "cannot write the example's manifests").because(error)
        };
        let path = std::env::temp_dir().join(format!("ambit-demo-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(failed)?;
        let copy = Self(path);
        match given {
            None => {
                for (file, text) in EXAMPLE {
                    fs::write(copy.0.join(file), text).map_err(failed)?;
                }
            }
            Some(given) => {
                for entry in fs::read_dir(&given).map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    fs::copy(entry.path(), copy.0.join(entry.file_name())).map_err(failed)?;
                }
            }
        }
        Ok(copy)
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        let _it_is_gone = fs::remove_dir_all(&self.0);
    }
}

fn options(name: &str, manifests: &Path, ip_family: IpFamily) -> Result<Options, CliError> {
    let ambit = std::env::current_exe().map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot find this binary").because(error)
    })?;
    let bin_dir = ambit.parent().unwrap_or_else(|| Path::new(".")).to_owned();
    if !bin_dir.join(LAB_TOOL).is_file() {
        let what = format!("{} has no {LAB_TOOL}", bin_dir.display());
        return Err(CliError::new(ErrorKind::NotFound, what)
            .hint("pods of the example run it: build all binaries (`cargo build --bins`)"));
    }
    Ok(Options {
        name: name.to_owned(),
        manifests: manifests.to_owned(),
        nodes: 2,
        ip_family,
        node_proxies: BTreeMap::new(),
        bin_dir,
        ambit,
        mesh: true,
        primary_cni: PrimaryCni::Lab,
        cni_dir: "/usr/lib/cni".into(),
        user_namespace: false,
        env: BTreeMap::new(),
    })
}

struct Demo {
    client: Client,
    name: String,
}

fn show(demo: &Demo, manifests: &Path) -> Result<usize, CliError> {
    say("Two nodes; namespace shop is in the mesh, namespace legacy is not.\n")?;
    let status = demo.wait("all pods are ready", readiness::all_ready)?;
    demo.wait_for_proxies(&status)?;
    let mut faults = demo.calls(&status, &BEFORE)?;

    say("\nNow namespace legacy joins: one label, no pod is restarted.\n")?;
    let uids = |status: &Status| {
        status
            .pods
            .iter()
            .map(|pod| pod.uid.clone())
            .collect::<Vec<_>>()
    };
    let label = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: legacy\n  labels:\n    \
                 istio.io/dataplane-mode: ambient\n---\n";
    let path = manifests.join("namespaces.yaml");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let text = text.replace(
        "metadata:\n  name: legacy\n",
        "metadata:\n  name: legacy-was-here\n",
    );
    fs::write(&path, format!("{label}{text}")).map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot change a manifest").because(error)
    })?;
    let joined = demo.wait("all pods are captured", |status| {
        status.pods.iter().all(|pod| pod.captured)
    })?;
    if uids(&status) != uids(&joined) {
        say("  FAULT: a pod was replaced")?;
        faults += 1;
    }
    demo.wait_for_proxies(&joined)?;
    faults += demo.calls(&joined, &AFTER)?;
    faults += waypoint::show(demo, manifests)?;
    Ok(faults)
}

impl Demo {
    fn wait(&self, what: &str, enough: impl FnMut(&Status) -> bool) -> Result<Status, CliError> {
        let waited = self
            .client
            .wait_until(READY, enough)
            .map_err(labs::client_error)?;
        waited.map_err(|status| {
            let pods: Vec<_> = status
                .pods
                .iter()
                .map(|pod| {
                    let message = pod.message.as_deref().unwrap_or_default();
                    format!("{} {} {message}", pod.name, pod.phase)
                })
                .collect();
            CliError::new(ErrorKind::Failed, format!("{what}: not after {READY:?}"))
                .hint(pods.join("; "))
        })
    }

    /// Captured is one thing; every node proxy must also have heard that its peers are.
    fn wait_for_proxies(&self, status: &Status) -> Result<(), CliError> {
        match readiness::wait_for_proxies(&self.client, &self.name, status, READY)? {
            true => Ok(()),
            false => Err(CliError::new(
                ErrorKind::Failed,
                "node proxies do not hear of the pods",
            )),
        }
    }

    fn dump(&self, node: &str) -> Result<Dump, CliError> {
        Source::node(&self.name, node).dump()
    }

    /// Makes the calls, prints their results, and returns the number of failures.
    fn calls(&self, status: &Status, calls: &[Call]) -> Result<usize, CliError> {
        let header = [
            "CALLER",
            "SERVER",
            "CALLER'S IDENTITY",
            "PATH",
            "RESULT",
            "DECIDED BY",
        ];
        self.under_capture(status, &header, calls, |call, faults| {
            let seen = self.call(status, call)?;
            faults.extend(seen.fault(call));
            Ok(seen.row(call))
        })
    }

    /// Runs each step under a capture, prints its row and the traffic on the wire, and returns the number of failures.
    fn under_capture<T>(
        &self,
        status: &Status,
        header: &[&str],
        things: &[T],
        mut each: impl FnMut(&T, &mut Vec<String>) -> Result<Vec<String>, CliError>,
    ) -> Result<usize, CliError> {
        let capture = self
            .client
            .capture(LabNetns::Fabric, vec![MARKER.into()])
            .map_err(labs::client_error)?;
        let mut faults = Vec::new();
        let rows: Result<Vec<_>, _> = things
            .iter()
            .map(|thing| each(thing, &mut faults))
            .collect();
        let rows = rows?;
        // What is on its way when the last answer is here.
        thread::sleep(Duration::from_millis(100));
        let traffic = capture.finish();
        say(&table(header, rows))?;
        say("\nOn the wire between the nodes:\n")?;
        faults.extend(wire(status, &traffic.reports())?);
        for fault in &faults {
            say(&format!("  FAULT: {fault}"))?;
        }
        Ok(faults.len())
    }

    /// Fetches a page from a pod.
    fn get(&self, client: &PodStatus, url: &str) -> Result<ExecOutput, CliError> {
        let command = [LAB_TOOL, "get", "--timeout", "5000", url];
        self.client
            .output(&named(client), &command)
            .map_err(labs::client_error)
    }

    fn call(&self, status: &Status, call: &Call) -> Result<Seen, CliError> {
        let client = pod(status, call.from)?;
        let before = self.access_lines()?.map(|lines| lines.len());
        let url = format!("http://{}.{}/{MARKER}", call.to.1, call.to.0);
        let output = self.get(client, &url)?;
        let line = match call.path {
            Way::Outside => None,
            Way::Hbone | Way::Plaintext => self.access_line(client, call, before)?,
        };
        let server = match line.as_ref().and_then(|line| line.field("dst.workload")) {
            Some(name) => status.pods.iter().find(|pod| pod.name == name),
            None => None,
        };
        let server = server.map_or_else(|| pod(status, call.to), Ok)?;
        let path = match &line {
            Some(line) if line.field("dst.hbone_addr").is_some() => Way::Hbone,
            Some(_) => Way::Plaintext,
            None => Way::Outside,
        };
        let reports = explain::explain(
            &self.dump(&server.node)?,
            &named(client),
            &named(server),
            PORT,
            path != Way::Hbone,
        )?;
        let explained = reports.into_iter().next();
        let identity = line.as_ref().and_then(|line| line.field("src.identity"));
        Ok(Seen {
            identity: identity.map(ToOwned::to_owned),
            path,
            allowed: output.code == 0,
            answer: output.stdout.trim().to_owned(),
            explained,
        })
    }

    /// The line of the server's side where there is one, else of the client's.
    fn access_line(
        &self,
        client: &PodStatus,
        call: &Call,
        before: [usize; 2],
    ) -> Result<Option<AccessLine>, CliError> {
        let deadline = Instant::now() + LOG_LAG;
        // A server in the mesh writes one; a client in the mesh, too.
        let both = call.path == Way::Hbone;
        loop {
            let lines = self.access_lines()?;
            let ours: Vec<_> = lines
                .iter()
                .zip(before)
                .flat_map(|(lines, before)| lines.iter().skip(before))
                .filter(|line| line.field("src.workload") == Some(&client.name))
                .collect();
            let inbound = ours
                .iter()
                .find(|line| line.field("direction") == Some("inbound"));
            let enough = if both {
                inbound.is_some()
            } else {
                !ours.is_empty()
            };
            if enough || Instant::now() > deadline {
                return Ok(inbound.or_else(|| ours.first()).map(|line| (*line).clone()));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Access lines of each node's proxy.
    fn access_lines(&self) -> Result<[Vec<AccessLine>; 2], CliError> {
        let mut lines = [const { Vec::new() }; 2];
        for (node, lines) in NODES.into_iter().zip(&mut lines) {
            let source = LogSource::Daemon {
                name: "proxy".into(),
                node: Some(node.to_owned()),
            };
            let text = self.client.log_text(source).map_err(labs::client_error)?;
            *lines = text.lines().filter_map(AccessLine::parse).collect();
        }
        Ok(lines)
    }
}

fn pod<'a>(status: &'a Status, (namespace, name): (&str, &str)) -> Result<&'a PodStatus, CliError> {
    let of =
        |pod: &&PodStatus| pod.namespace == namespace && pod.name.starts_with(&format!("{name}-"));
    status.pods.iter().find(of).ok_or_else(|| {
        CliError::new(
            ErrorKind::NotFound,
            format!("the manifests have no pod {namespace}/{name}"),
        )
    })
}

/// Observed result of a call.
struct Seen {
    identity: Option<String>,
    path: Way,
    allowed: bool,
    answer: String,
    explained: Option<explain::Report>,
}

impl Seen {
    fn row(&self, call: &Call) -> Vec<String> {
        let decided = match &self.explained {
            Some(report) => match &report.decided_by {
                Some(policy) => policy.clone(),
                None => report.why.clone(),
            },
            None => String::new(),
        };
        vec![
            format!("{}/{}", call.from.0, call.from.1),
            format!("{}/{}", call.to.0, call.to.1),
            self.identity.clone().unwrap_or_else(|| "none".to_owned()),
            self.path.words().to_owned(),
            if self.allowed { "allowed" } else { "DENIED" }.to_owned(),
            decided,
        ]
    }

    fn fault(&self, call: &Call) -> Option<String> {
        let name = format!(
            "{}/{} -> {}/{}",
            call.from.0, call.from.1, call.to.0, call.to.1
        );
        if self.allowed != call.allowed {
            return Some(format!(
                "{name}: expected another result; it got {:?}",
                self.answer
            ));
        }
        if self.path != call.path {
            return Some(format!(
                "{name}: expected {}, was {}",
                call.path.words(),
                self.path.words()
            ));
        }
        if self.identity.is_some() != (call.path == Way::Hbone) {
            return Some(format!(
                "{name}: identity {:?} over {}",
                self.identity,
                self.path.words()
            ));
        }
        let explained = self.explained.as_ref().map(|report| report.allowed);
        (explained != Some(self.allowed))
            .then(|| format!("{name}: `ambit policy explain` predicts another decision"))
    }
}

/// Prints the flows between pods; gives the faults: anything in the clear between captured pods.
fn wire(status: &Status, reports: &[FlowReport]) -> Result<Vec<String>, CliError> {
    let owner = |ip: IpAddr| status.pods.iter().find(|pod| pod.ips.contains(&ip));
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    let (mut sealed, mut clear) = (0, 0);
    for flow in reports {
        let (Some(client), Some(server)) = (owner(flow.client), owner(flow.server.ip())) else {
            continue;
        };
        let both = client.captured && server.captured;
        match flow.kind {
            FlowKind::Hbone => sealed += flow.bytes,
            FlowKind::Plaintext => clear += flow.markers,
            FlowKind::Tls | FlowKind::Empty | FlowKind::Udp => {}
        }
        if both && (flow.kind != FlowKind::Hbone || flow.markers > 0) && flow.bytes > 0 {
            faults.push(format!("{} -> {} was readable", client.name, server.name));
        }
        rows.push(vec![
            short(client),
            format!("{}:{}", short(server), flow.server.port()),
            match flow.kind {
                FlowKind::Hbone => "TLS records only",
                FlowKind::Tls => "TLS",
                FlowKind::Plaintext => "plaintext",
                FlowKind::Empty => "no data",
                FlowKind::Udp => "UDP",
            }
            .to_owned(),
            flow.connections.to_string(),
            flow.bytes.to_string(),
            flow.markers.to_string(),
        ]);
    }
    let header = [
        "FROM",
        "TO",
        "WHAT",
        "CONNECTIONS",
        "BYTES",
        "REQUESTS READABLE",
    ];
    say(&table(&header, rows))?;
    let contrast = match clear {
        0 => "no plaintext carried a request".to_owned(),
        count => format!("{count} requests from or to pods outside were readable"),
    };
    say(&format!(
        "\n{sealed} bytes between captured pods, all of them TLS on port 15008; {contrast}."
    ))?;
    if sealed == 0 {
        faults.push("the capture saw no tunnel at all".to_owned());
    }
    Ok(faults)
}

/// Name of a pod, `namespace/name`.
fn named(pod: &PodStatus) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Name of a pod's Deployment, `namespace/deployment`.
fn short(pod: &PodStatus) -> String {
    let mut name = pod.name.as_str();
    for _ in 0..2 {
        name = name.rsplit_once('-').map_or(name, |(before, _)| before);
    }
    format!("{}/{name}", pod.namespace)
}
