//! Predicted policy decision on a connection, and its text.

use std::net::SocketAddr;

use serde::Serialize;

use super::{delivery::WaypointDelivery, policies::PolicyReport};
use crate::output::format_table;

/// Predicted policy decision on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Client: a pod, an address or a SPIFFE identity.
    pub(crate) from: String,
    /// Identity of the client that the server's node proxy will have verified; `None` for plaintext.
    pub(crate) identity: Option<String>,
    /// Pod of the server, `namespace/name`.
    pub(crate) to: String,
    /// Address and port of the application.
    pub(crate) destination: SocketAddr,
    /// Whether the server has a node proxy that enforces policies for it.
    pub(crate) enforced: bool,
    /// Waypoint on the connection's path, whose policies are not evaluated here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waypoint: Option<String>,
    /// Decision on the waypoint's own connection to the server, if the waypoint's identity is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delivery: Option<WaypointDelivery>,
    /// Whether the connection is allowed; with a waypoint, whether node proxies allow each leg.
    pub(crate) allowed: bool,
    /// Policy that decides; `None` if the decision is a default.
    pub(crate) decided_by: Option<String>,
    /// Reason of the decision in words.
    pub(crate) why: String,
    /// Evaluation of every policy that applies to the server.
    pub(crate) policies: Vec<PolicyReport>,
    /// Policies that the server's record names, but that the dump does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<String>,
}

/// Formats the report for display.
pub(crate) fn format_report(report: &Report) -> String {
    let who = match &report.identity {
        Some(identity) if *identity == report.from => identity.clone(),
        Some(identity) => format!("{} as {identity}", report.from),
        None => format!("{} without an identity (plaintext)", report.from),
    };
    // A waypoint delivers only connections that were routed to it.
    let is_allowed = report.allowed || report.delivery.is_some();
    let at = report.waypoint.as_ref().map(|_| " at the node proxy");
    let mut text = format!(
        "{who}\n  -> {} ({})\n{}{}{}: {}",
        report.to,
        report.destination,
        decision_text(is_allowed),
        at.unwrap_or_default(),
        decided_by_text(report.decided_by.as_deref()),
        report.why
    );
    match (&report.waypoint, &report.delivery) {
        (Some(waypoint), None) => text.push_str(&format!(
            "\ngoes through the waypoint {waypoint}, whose policies are not evaluated here; its connections are \
             checked against the server's policies, with the waypoint as client"
        )),
        (Some(waypoint), Some(_)) => text.push_str(&format!(
            "\ngoes through the waypoint {waypoint}, whose policies are not evaluated here"
        )),
        _ => {}
    }
    push_policies(&mut text, &report.policies);
    if let Some(delivery) = &report.delivery {
        text.push_str(&format!(
            "\n\nthe waypoint as {}\n  -> {} ({})\n{}{}: {}",
            delivery.identity,
            report.to,
            report.destination,
            decision_text(delivery.allowed),
            decided_by_text(delivery.decided_by.as_deref()),
            delivery.why
        ));
        if !delivery.allowed {
            text.push_str(
                "\nthe server's policies refuse the waypoint, and so every caller behind it",
            );
        }
        push_policies(&mut text, &delivery.policies);
    }
    for missing in &report.missing {
        text.push_str(&format!("\nnot known: {missing}"));
    }
    text
}

fn decision_text(is_allowed: bool) -> &'static str {
    if is_allowed { "ALLOWED" } else { "DENIED" }
}

fn decided_by_text(policy: Option<&str>) -> String {
    policy
        .map(|policy| format!(" by {policy}"))
        .unwrap_or_default()
}

fn push_policies(text: &mut String, policies: &[PolicyReport]) {
    if policies.is_empty() {
        return;
    }
    let rows = policies.iter().map(|policy| {
        let dry = if policy.dry_run { " (dry run)" } else { "" };
        vec![
            policy.policy.clone(),
            format!("{:?}{dry}", policy.action.0).to_uppercase(),
            format!("{:?}", policy.scope.0),
            match policy.matching_rule {
                Some(rule) => format!("rule {rule} matches"),
                None => "no rule matches".to_owned(),
            },
        ]
    });
    text.push_str("\n\n");
    text.push_str(&format_table(
        &["POLICY", "ACTION", "SCOPE", "RESULT"],
        rows,
    ));
}
