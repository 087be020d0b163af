//! `ambit bug-report`: an archive with which others can diagnose a mesh. Secrets are never read, and values that look
//! like secrets are redacted.

use std::{fs::File, io, path::PathBuf};

use ambit_install::{
    cluster::ClusterApi,
    object::{name, namespace_of},
};
use ambit_k8s_api::Pod;
use clap::Args;
use flate2::{Compression, write::GzEncoder};
use hyper::Method;
use serde_json::json;

use crate::{
    CliError, ErrorKind, check,
    cluster::{Target, block_on},
    install::print_progress,
    output::print_line,
    pod_access::{self, AGENT_DEBUG, CONTROL_PLANE_DEBUG, NODE_PROXY_ADMIN},
    status, waypoint,
};

mod redact;

/// Kinds whose objects are collected from all namespaces: API version and kind.
const REPORTED_KINDS: &[(&str, &str)] = &[
    ("v1", "Node"),
    ("v1", "Namespace"),
    ("v1", "Service"),
    ("apps/v1", "DaemonSet"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("security.istio.io/v1", "AuthorizationPolicy"),
    ("security.istio.io/v1", "PeerAuthentication"),
    ("networking.istio.io/v1", "ServiceEntry"),
    ("networking.istio.io/v1", "WorkloadEntry"),
    ("security.istio.io/v1", "RequestAuthentication"),
    ("networking.istio.io/v1", "DestinationRule"),
    ("telemetry.istio.io/v1", "Telemetry"),
    ("extensions.istio.io/v1alpha1", "WasmPlugin"),
    ("gateway.networking.k8s.io/v1", "GatewayClass"),
    ("gateway.networking.k8s.io/v1", "Gateway"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    ("gateway.networking.k8s.io/v1", "GRPCRoute"),
    ("ambit.io/v1alpha1", "HTTPFault"),
    ("ambit.io/v1alpha1", "RateLimit"),
];
/// Kinds whose objects are collected from the mesh's own namespace alone: API version and kind.
const MESH_NAMESPACE_KINDS: &[(&str, &str)] = &[
    ("v1", "Pod"),
    ("v1", "ConfigMap"),
    ("v1", "Event"),
    ("apps/v1", "Deployment"),
    ("coordination.k8s.io/v1", "Lease"),
];
/// Debug pages that are fetched from every pod of a component: its label, its port and the paths.
const DEBUG_PAGES: &[(&str, u16, &[&str])] = &[
    (AGENT_DEBUG.0, AGENT_DEBUG.1, &["/v1/status", "/metrics"]),
    (NODE_PROXY_ADMIN.0, NODE_PROXY_ADMIN.1, &["/config_dump"]),
    (NODE_PROXY_ADMIN.0, 15020, &["/metrics"]),
    (
        CONTROL_PLANE_DEBUG.0,
        CONTROL_PLANE_DEBUG.1,
        &[
            "/debug/syncz",
            "/debug/problems",
            "/debug/ambientz",
            "/debug/waypointz",
            "/version",
            "/metrics",
        ],
    ),
];

/// Flags of `ambit bug-report`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BugReportArgs {
    #[command(flatten)]
    target: Target,
    /// The archive to write
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "ambit-bug-report.tar.gz"
    )]
    output: PathBuf,
    /// Lines of each log, from its end; 0 takes all
    #[arg(long, default_value_t = 10_000)]
    log_lines: i64,
}

/// Collects diagnostics of the cluster and writes them to the archive.
pub(crate) fn run(args: &BugReportArgs) -> Result<(), CliError> {
    let unwritable = |error: io::Error| {
        let what = format!("cannot write {}", args.output.display());
        CliError::new(ErrorKind::Failed, what).with_source(error)
    };
    let files = block_on(async {
        let cluster = args.target.connect().await?;
        // Nothing but this must work: whatever cannot be had is a line in the archive.
        let version = cluster.version().await;
        let (version, _) = version.map_err(|error| crate::install::install_error(error.into()))?;
        let mut report = ReportFiles::default();
        report.add_json(
            "versions.json",
            &json!({
                "ambit": env!("CARGO_PKG_VERSION"),
                "kubernetes": version,
            }),
        );
        report.collect(&cluster, args).await;
        Ok(report.files)
    })?;
    let file = File::create(&args.output).map_err(unwritable)?;
    write_archive(&files, file).map_err(unwritable)?;
    print_line(&format!(
        "{}: {} files. Look through it before you give it away: names of pods, services and policies are in it.",
        args.output.display(),
        files.len()
    ))
}

/// Files of the archive: path in it, and redacted text.
#[derive(Debug, Default)]
struct ReportFiles {
    files: Vec<(String, String)>,
}

impl ReportFiles {
    async fn collect(&mut self, cluster: &ClusterApi, args: &BugReportArgs) {
        let namespace = args.target.mesh_namespace.as_str();
        print_progress("status");
        match status::gather_report(cluster, namespace).await {
            Ok((report, words)) => {
                self.add_json("status.json", &report);
                self.add_text("status.txt", &words);
            }
            Err(error) => self.add_text("status.txt", &error.message_with_sources()),
        }
        match check::report(cluster, namespace).await {
            Ok(words) => self.add_text("check.txt", &words),
            Err(error) => self.add_text("check.txt", &error.message_with_sources()),
        }
        print_progress("objects");
        for (api_version, kind) in REPORTED_KINDS {
            self.collect_objects(cluster, api_version, kind, None).await;
        }
        for (api_version, kind) in MESH_NAMESPACE_KINDS {
            self.collect_objects(cluster, api_version, kind, Some(namespace))
                .await;
        }
        for (labels, port, paths) in DEBUG_PAGES {
            let pods = pod_access::list_pods(cluster, namespace, labels).await;
            for pod in self.listed(labels, pods) {
                self.collect_debug_pages(cluster, &pod, *port, paths).await;
            }
        }
        let gateways = waypoint::list_in_cluster(cluster).await;
        for gateway in self.listed("waypoints", gateways) {
            let pods = waypoint::waypoint_pods(cluster, &gateway).await;
            let name = format!("{}.{}", gateway.name(), gateway.namespace());
            for pod in self.listed(&name, pods) {
                self.collect_debug_pages(cluster, &pod, NODE_PROXY_ADMIN.1, &["/config_dump"])
                    .await;
                self.collect_debug_pages(cluster, &pod, 15020, &["/metrics"])
                    .await;
                self.collect_logs(cluster, &pod, args.log_lines).await;
            }
        }
        for labels in [AGENT_DEBUG.0, NODE_PROXY_ADMIN.0, CONTROL_PLANE_DEBUG.0] {
            let pods = pod_access::list_pods(cluster, namespace, labels).await;
            for pod in self.listed(labels, pods) {
                self.collect_logs(cluster, &pod, args.log_lines).await;
            }
        }
    }

    /// Returns the objects of a list; if there is none, adds the error to the report under the list's name.
    fn listed<T>(&mut self, name: &str, list: Result<Vec<T>, CliError>) -> Vec<T> {
        list.unwrap_or_else(|error| {
            self.add_text(
                &format!("unlisted/{name}.txt"),
                &error.message_with_sources(),
            );
            Vec::new()
        })
    }

    /// Adds a pod's responses to requests for `paths` to the report.
    async fn collect_debug_pages(
        &mut self,
        cluster: &ClusterApi,
        pod: &Pod,
        port: u16,
        paths: &[&str],
    ) {
        let (namespace, name) = (namespace_of(pod), name(pod));
        for path in paths {
            print_progress(&format!("{name} {path}"));
            let answer =
                pod_access::query_pod(cluster, namespace, name, port, Method::GET, path).await;
            let answer = match answer {
                Ok(answer) => String::from_utf8_lossy(&answer.body).into_owned(),
                Err(error) => error.message_with_sources(),
            };
            let file = path.trim_start_matches('/').replace('/', "-");
            self.add_text(&format!("pods/{name}/{file}"), &answer);
        }
    }

    async fn collect_objects(
        &mut self,
        cluster: &ClusterApi,
        api_version: &str,
        kind: &str,
        namespace: Option<&str>,
    ) {
        let path = format!("objects/{kind}.json");
        match cluster.list(api_version, kind, namespace, None).await {
            Ok(objects) => {
                let objects: Vec<_> = objects.into_iter().map(redact::redact_object).collect();
                self.add_json(&path, &objects);
            }
            Err(error) => self.add_text(
                &path,
                &crate::install::install_error(error.into()).message_with_sources(),
            ),
        }
    }

    async fn collect_logs(&mut self, cluster: &ClusterApi, pod: &Pod, lines: i64) {
        let (namespace, name) = (namespace_of(pod), name(pod));
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        for container in containers.map(|container| container.name.as_str()) {
            for (previous, ending) in [(false, "log"), (true, "previous.log")] {
                let lines = Some(lines).filter(|lines| *lines > 0);
                if let Some(log) = cluster
                    .logs(namespace, name, container, lines, previous)
                    .await
                {
                    self.add_text(&format!("pods/{name}/{container}.{ending}"), &log);
                }
            }
        }
    }

    fn add_json(&mut self, path: &str, value: &impl serde::Serialize) {
        let text = serde_json::to_string_pretty(value);
        self.add_text(path, &text.unwrap_or_else(|error| error.to_string()));
    }

    fn add_text(&mut self, path: &str, text: &str) {
        self.files
            .push((path.to_owned(), redact::redact_text(text)));
    }
}

fn write_archive(files: &[(String, String)], out: impl io::Write) -> io::Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(out, Compression::default()));
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        tar.append_data(
            &mut header,
            format!("ambit-bug-report/{path}"),
            text.as_bytes(),
        )?;
    }
    tar.into_inner()?.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_archive_has_every_file_and_no_secret() {
        let mut report = ReportFiles::default();
        report.add_text("a.txt", "text");
        report.add_json("b/c.json", &json!({"token": "eyJhbGciOi.eyJzdWIi.c2ln"}));
        let mut bytes = Vec::new();
        write_archive(&report.files, &mut bytes).unwrap();
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let files: Vec<_> = tar
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let path = entry.path().unwrap().display().to_string();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (path, text)
            })
            .collect();
        assert_eq!(
            files[0],
            ("ambit-bug-report/a.txt".to_owned(), "text".to_owned())
        );
        assert_eq!(files[1].0, "ambit-bug-report/b/c.json");
        assert!(!files[1].1.contains("c2ln"), "{}", files[1].1);
    }
}
