//! Calls between pods of the example, with the expected transport and policy decision of each.

use std::{
    thread,
    time::{Duration, Instant},
};

use ambit_lab::{LogSource, PodStatus, Status};

use super::{
    lab::{Demo, MAX_LOG_DELAY, PLAINTEXT_MARKER},
    pods::{BATCH, FRONTEND, LEDGER, ORDERS, REPORTS, pod, pod_name},
};
use crate::{CliError, access_log::AccessLogLine, explain, labs};

/// Names of the lab's nodes.
const NODES: [&str; 2] = ["node-1", "node-2"];

/// Port of the example's servers.
const SERVER_PORT: u16 = 8080;

/// Call from one Deployment to another, with the result that the manifests imply.
pub(super) struct ExpectedCall {
    from: (&'static str, &'static str),
    to: (&'static str, &'static str),
    transport: CallTransport,
    allowed: bool,
}

/// Transport of a call between pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallTransport {
    /// mTLS tunnel between node proxies.
    Hbone,
    /// Plaintext, with one of the pods in the mesh.
    Plaintext,
    /// Plaintext, with both pods outside the mesh.
    Outside,
}

impl CallTransport {
    fn describe(self) -> &'static str {
        match self {
            Self::Hbone => "HBONE (mTLS)",
            Self::Plaintext => "plaintext",
            Self::Outside => "plaintext, outside the mesh",
        }
    }
}

const fn expected_call(
    from: (&'static str, &'static str),
    to: (&'static str, &'static str),
    path: CallTransport,
    allowed: bool,
) -> ExpectedCall {
    ExpectedCall {
        from,
        to,
        transport: path,
        allowed,
    }
}

pub(super) const CALLS_BEFORE_POLICIES: [ExpectedCall; 8] = [
    expected_call(FRONTEND, ORDERS, CallTransport::Hbone, true),
    expected_call(ORDERS, LEDGER, CallTransport::Hbone, true),
    expected_call(FRONTEND, LEDGER, CallTransport::Hbone, false),
    expected_call(BATCH, FRONTEND, CallTransport::Plaintext, true),
    expected_call(BATCH, ORDERS, CallTransport::Plaintext, false),
    expected_call(BATCH, LEDGER, CallTransport::Plaintext, false),
    expected_call(FRONTEND, REPORTS, CallTransport::Plaintext, true),
    expected_call(BATCH, REPORTS, CallTransport::Outside, true),
];

pub(super) const CALLS_AFTER_POLICIES: [ExpectedCall; 4] = [
    expected_call(BATCH, FRONTEND, CallTransport::Hbone, true),
    expected_call(BATCH, ORDERS, CallTransport::Hbone, false),
    expected_call(FRONTEND, REPORTS, CallTransport::Hbone, true),
    expected_call(BATCH, REPORTS, CallTransport::Hbone, true),
];

/// Observed result of a call, with the decision that `ambit policy explain` predicts.
struct CallResult {
    identity: Option<String>,
    transport: CallTransport,
    allowed: bool,
    response: String,
    explained: Option<explain::Report>,
}

impl CallResult {
    fn table_row(&self, call: &ExpectedCall) -> Vec<String> {
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
            self.transport.describe().to_owned(),
            if self.allowed { "allowed" } else { "DENIED" }.to_owned(),
            decided,
        ]
    }

    fn unexpected_result(&self, call: &ExpectedCall) -> Option<String> {
        let name = format!(
            "{}/{} -> {}/{}",
            call.from.0, call.from.1, call.to.0, call.to.1
        );
        if self.allowed != call.allowed {
            return Some(format!(
                "{name}: expected another result; it got {:?}",
                self.response
            ));
        }
        if self.transport != call.transport {
            return Some(format!(
                "{name}: expected {}, was {}",
                call.transport.describe(),
                self.transport.describe()
            ));
        }
        if self.identity.is_some() != (call.transport == CallTransport::Hbone) {
            return Some(format!(
                "{name}: identity {:?} over {}",
                self.identity,
                self.transport.describe()
            ));
        }
        let explained = self.explained.as_ref().map(|report| report.allowed);
        (explained != Some(self.allowed))
            .then(|| format!("{name}: `ambit policy explain` predicts another decision"))
    }
}

impl Demo {
    /// Makes the calls, prints their results, and returns the number that differ from the expectation.
    pub(super) fn run_calls(
        &self,
        status: &Status,
        calls: &[ExpectedCall],
    ) -> Result<usize, CliError> {
        let header = [
            "CALLER",
            "SERVER",
            "CALLER'S IDENTITY",
            "PATH",
            "RESULT",
            "DECIDED BY",
        ];
        self.with_packet_capture(status, &header, calls, |call, faults| {
            let seen = self.run_call(status, call)?;
            faults.extend(seen.unexpected_result(call));
            Ok(seen.table_row(call))
        })
    }

    fn run_call(&self, status: &Status, call: &ExpectedCall) -> Result<CallResult, CliError> {
        let client = pod(status, call.from)?;
        let before = self.read_access_lines()?.map(|lines| lines.len());
        let url = format!("http://{}.{}/{PLAINTEXT_MARKER}", call.to.1, call.to.0);
        let output = self.http_get(client, &url)?;
        let line = match call.transport {
            CallTransport::Outside => None,
            CallTransport::Hbone | CallTransport::Plaintext => {
                self.wait_for_access_line(client, call, before)?
            }
        };
        let server = match line.as_ref().and_then(|line| line.field("dst.workload")) {
            Some(name) => status.pods.iter().find(|pod| pod.name == name),
            None => None,
        };
        let server = server.map_or_else(|| pod(status, call.to), Ok)?;
        let path = match &line {
            Some(line) if line.field("dst.hbone_addr").is_some() => CallTransport::Hbone,
            Some(_) => CallTransport::Plaintext,
            None => CallTransport::Outside,
        };
        let reports = explain::explain(
            &self.load_dump(&server.node)?,
            &pod_name(client),
            &pod_name(server),
            SERVER_PORT,
            path != CallTransport::Hbone,
        )?;
        let explained = reports.into_iter().next();
        let identity = line.as_ref().and_then(|line| line.field("src.identity"));
        Ok(CallResult {
            identity: identity.map(ToOwned::to_owned),
            transport: path,
            allowed: output.code == 0,
            response: output.stdout.trim().to_owned(),
            explained,
        })
    }

    /// Waits for the access log line of this call: the server's node proxy's, or else the client's.
    fn wait_for_access_line(
        &self,
        client: &PodStatus,
        call: &ExpectedCall,
        before: [usize; 2],
    ) -> Result<Option<AccessLogLine>, CliError> {
        let deadline = Instant::now() + MAX_LOG_DELAY;
        // A server in the mesh writes one; a client in the mesh, too.
        let both = call.transport == CallTransport::Hbone;
        loop {
            let lines = self.read_access_lines()?;
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

    /// Reads the access log lines of each node's proxy.
    fn read_access_lines(&self) -> Result<[Vec<AccessLogLine>; 2], CliError> {
        let mut lines = [const { Vec::new() }; 2];
        for (node, lines) in NODES.into_iter().zip(&mut lines) {
            let source = LogSource::Daemon {
                name: "proxy".into(),
                node: Some(node.to_owned()),
            };
            let text = self.client.log_text(source).map_err(labs::client_error)?;
            *lines = text.lines().filter_map(AccessLogLine::parse).collect();
        }
        Ok(lines)
    }
}
