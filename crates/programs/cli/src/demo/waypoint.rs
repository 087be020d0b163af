//! Third part of the demonstration: a namespace with a waypoint, which authorizes and routes by method and path.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ambit_lab::{LogSource, PodStatus, Status};

use super::{
    lab::{Demo, MAX_LOG_DELAY, PLAINTEXT_MARKER, READY_TIMEOUT},
    pods::{BATCH, FRONTEND, deployment_name, pod, pod_name},
};
use crate::{CliError, ErrorKind, labs, output::print_line, readiness};

/// Manifests that are added to the example: file name and text.
const EXAMPLE_MANIFESTS: [(&str, &str); 2] = [
    (
        "catalog.yaml",
        include_str!("../../../../../examples/waypoint/catalog.yaml"),
    ),
    (
        "waypoint.yaml",
        include_str!("../../../../../examples/waypoint/waypoint.yaml"),
    ),
];
/// Deployment of the waypoint, `namespace/name`.
const WAYPOINT_NAME: &str = "store/waypoint";
const WAYPOINT_SERVERS: [(&str, &str); 2] = [("store", "catalog"), ("store", "catalog-next")];

/// Request to the waypoint's namespace, with the result that the manifests imply.
struct ExpectedRequest {
    /// Namespace and Deployment of the client.
    client: (&'static str, &'static str),
    path: &'static str,
    /// Deployment that responds; `None` if the waypoint rejects the request.
    server: Option<&'static str>,
}

const REQUESTS: [ExpectedRequest; 5] = [
    expected_request(FRONTEND, "/items/", Some("catalog")),
    expected_request(FRONTEND, "/items/new/", Some("catalog-next")),
    expected_request(FRONTEND, "/prices/", None),
    expected_request(BATCH, "/items/", None),
    expected_request(BATCH, "/prices/", None),
];

const fn expected_request(
    client: (&'static str, &'static str),
    path: &'static str,
    server: Option<&'static str>,
) -> ExpectedRequest {
    ExpectedRequest {
        client,
        path,
        server,
    }
}

/// Applies the waypoint's manifests, makes the requests, and returns the number of unexpected results.
pub(super) fn run_steps(demo: &Demo, manifests: &Path) -> Result<usize, CliError> {
    print_line(
        "\nNow a namespace with a waypoint: it authorizes by method and path, and routes requests.\n",
    )?;
    for (file, text) in EXAMPLE_MANIFESTS {
        fs::write(manifests.join(file), text).map_err(|error| {
            CliError::new(ErrorKind::Failed, "cannot write a manifest").with_source(error)
        })?;
    }
    let mut status = demo.wait("the waypoint and its servers are ready", |status| {
        let is_there = |name: &(&str, &str)| pod(status, *name).is_ok_and(|pod| pod.captured);
        status
            .pods
            .iter()
            .any(|pod| deployment_name(pod) == WAYPOINT_NAME)
            && WAYPOINT_SERVERS.iter().all(is_there)
            && readiness::all_ready(status)
    })?;
    demo.wait_for_proxies(&status)?;
    // It is an end of tunnels itself: nothing from or to it is in the clear either.
    for pod in &mut status.pods {
        pod.captured |= deployment_name(pod) == WAYPOINT_NAME;
    }
    demo.run_requests(&status)
}

impl Demo {
    /// Makes the requests, prints their results, and returns the number that differ from the expectation.
    fn run_requests(&self, status: &Status) -> Result<usize, CliError> {
        let header = [
            "CALLER",
            "REQUEST",
            "STATUS",
            "ANSWERED BY",
            "WHY, IN THE WAYPOINT'S LOG",
            "ROUTE",
        ];
        self.with_packet_capture(status, &header, &REQUESTS, |request, faults| {
            let before = self.read_access_log(status)?.len();
            let HttpResponse { code, text } = self.send_request(status, request)?;
            let name = format!("{}/{}", request.client.0, request.client.1);
            let what = format!("GET http://catalog.store{}", request.path);
            let expected = match request.server {
                Some(server) => text.starts_with(&format!("200 {server} in ")),
                None => text.starts_with("403 "),
            };
            if !expected {
                faults.push(format!("{name}: {what}: it got {text:?}"));
            }
            let logged = self.wait_for_log_line(status, before)?.unwrap_or_default();
            if logged.code != code {
                faults.push(format!(
                    "{name}: {what}: the waypoint's log has no line for it"
                ));
            }
            let answered = text.split_whitespace().nth(1).filter(|_| code == 200);
            Ok(vec![
                name,
                what,
                code.to_string(),
                answered.unwrap_or("the waypoint").to_owned(),
                logged.details,
                logged.route,
            ])
        })
    }

    /// Repeats a request until it gets an HTTP response, since node proxies may not know the waypoint yet.
    fn send_request(
        &self,
        status: &Status,
        request: &ExpectedRequest,
    ) -> Result<HttpResponse, CliError> {
        let client = pod(status, request.client)?;
        let url = format!("http://catalog.store{}{PLAINTEXT_MARKER}", request.path);
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let output = self.http_get(client, &url)?;
            let text = output.stdout.trim().to_owned();
            let code = text
                .split_whitespace()
                .next()
                .and_then(|code| code.parse().ok());
            match code {
                Some(code) => return Ok(HttpResponse { code, text }),
                None if Instant::now() > deadline => {
                    let what = format!("{}: {url} is not answered: {text}", pod_name(client));
                    return Err(CliError::new(ErrorKind::Failed, what));
                }
                None => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Waits for the waypoint to write more than `lines_before` access log lines, and returns the last one.
    fn wait_for_log_line(
        &self,
        status: &Status,
        lines_before: usize,
    ) -> Result<Option<AccessLogLine>, CliError> {
        let deadline = Instant::now() + MAX_LOG_DELAY;
        loop {
            let line = self
                .read_access_log(status)?
                .into_iter()
                .skip(lines_before)
                .last();
            if line.is_some() || Instant::now() > deadline {
                return Ok(line);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Reads the waypoint's access log.
    fn read_access_log(&self, status: &Status) -> Result<Vec<AccessLogLine>, CliError> {
        let is_it = |pod: &&PodStatus| deployment_name(pod) == WAYPOINT_NAME;
        let waypoint = status.pods.iter().find(is_it).ok_or_else(|| {
            CliError::new(ErrorKind::NotFound, "the waypoint has no pod any more")
        })?;
        let source = LogSource::Pod {
            pod: pod_name(waypoint),
            container: None,
        };
        let log = self.client.log_text(source).map_err(labs::client_error)?;
        Ok(log.lines().filter_map(AccessLogLine::parse).collect())
    }
}

/// HTTP response that a client received.
struct HttpResponse {
    code: u16,
    text: String,
}

/// Line of the waypoint's access log, in Envoy's default format.
#[derive(Debug, Default, PartialEq)]
struct AccessLogLine {
    code: u16,
    details: String,
    route: String,
}

impl AccessLogLine {
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once(" HTTP/1.1\" ")?;
        let mut words = rest.split_whitespace();
        let code = words.next()?.parse().ok()?;
        let details = words.nth(1)?.to_owned();
        let route = words.next_back()?.to_owned();
        Some(Self {
            code,
            details,
            route,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_log_lines_have_status_reason_and_route() {
        let line = "[2026-11-23T18:19:05.978Z] \"GET /items/ HTTP/1.1\" 200 - via_upstream - \"-\" 0 57 6 5 \
                    \"10.244.1.3\" \"-\" \"id\" \"catalog.store\" \"10.244.2.3:8080\" catalog - 10.96.1.0:80 \
                    10.244.1.3:59402 - HTTPRoute/store/catalog";
        let expected = AccessLogLine {
            code: 200,
            details: "via_upstream".to_owned(),
            route: "HTTPRoute/store/catalog".to_owned(),
        };
        assert_eq!(AccessLogLine::parse(line), Some(expected));
        assert_eq!(
            AccessLogLine::parse("2026-11-23 info ambit_rt: readiness"),
            None
        );
        assert_eq!(AccessLogLine::parse("\"GET / HTTP/1.1\" no"), None);
    }
}
