//! Lab of the demonstration: waits for its pods, and runs steps under a packet capture.

use std::{thread, time::Duration};

use ambit_lab::{Client, ExecOutput, LAB_TOOL, LabNetns, PodStatus, Status};

use super::{pods::pod_name, wire::print_captured_flows};
use crate::{
    CliError, ErrorKind,
    dump::Dump,
    labs,
    output::{format_table, print_line},
    readiness,
    source::Source,
};

/// Text in every request of the demonstration, by which the packet capture recognizes plaintext.
pub(super) const PLAINTEXT_MARKER: &str = "AMBIT-DEMO-IN-THE-CLEAR";

/// Timeout for pods to become ready, or to be captured.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time to wait for a call's line in the access log.
pub(super) const MAX_LOG_DELAY: Duration = Duration::from_secs(3);

/// Running lab of the demonstration.
pub(super) struct Demo {
    pub(super) client: Client,
    pub(super) name: String,
}

impl Demo {
    pub(super) fn wait(
        &self,
        what: &str,
        enough: impl FnMut(&Status) -> bool,
    ) -> Result<Status, CliError> {
        let waited = self
            .client
            .wait_until(READY_TIMEOUT, enough)
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
            CliError::new(
                ErrorKind::Failed,
                format!("{what}: not after {READY_TIMEOUT:?}"),
            )
            .with_hint(pods.join("; "))
        })
    }

    /// Waits until every node proxy has received the records of the captured pods.
    pub(super) fn wait_for_proxies(&self, status: &Status) -> Result<(), CliError> {
        match readiness::wait_for_proxies(&self.client, &self.name, status, READY_TIMEOUT)? {
            true => Ok(()),
            false => Err(CliError::new(
                ErrorKind::Failed,
                "node proxies do not hear of the pods",
            )),
        }
    }

    pub(super) fn load_dump(&self, node: &str) -> Result<Dump, CliError> {
        Source::lab_node_proxy(&self.name, node).load_dump()
    }

    /// Runs `each` on all `things` under a packet capture. Prints the rows that `each` returns and the captured
    /// traffic, and returns the number of unexpected results.
    pub(super) fn with_packet_capture<T>(
        &self,
        status: &Status,
        header: &[&str],
        things: &[T],
        mut each: impl FnMut(&T, &mut Vec<String>) -> Result<Vec<String>, CliError>,
    ) -> Result<usize, CliError> {
        let capture = self
            .client
            .capture(LabNetns::Fabric, vec![PLAINTEXT_MARKER.into()])
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
        print_line(&format_table(header, rows))?;
        print_line("\nOn the wire between the nodes:\n")?;
        faults.extend(print_captured_flows(status, &traffic.reports())?);
        for fault in &faults {
            print_line(&format!("  FAULT: {fault}"))?;
        }
        Ok(faults.len())
    }

    /// Fetches a URL from within a pod.
    pub(super) fn http_get(&self, client: &PodStatus, url: &str) -> Result<ExecOutput, CliError> {
        let command = [LAB_TOOL, "get", "--timeout", "5000", url];
        self.client
            .output(&pod_name(client), &command)
            .map_err(labs::client_error)
    }
}
