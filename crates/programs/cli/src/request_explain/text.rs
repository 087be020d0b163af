//! Formats the predicted result of a request as text.

use ambit_mesh_json::explain::{Step, StepKind, StepResult};

use super::{FinalResponse, FinalResponseKind, ProxySteps, Report};
use crate::output::format_table;

/// Formats the report for display.
pub(super) fn format_report(report: &Report) -> String {
    let Report {
        from,
        to,
        method,
        host,
        path,
        ..
    } = report;
    let parts: Vec<_> = report.parts.iter().map(format_proxy).collect();
    let mut text = format!(
        "{from} -> {to}: {method} http://{host}{path}\n\n{}\n\n{}",
        parts.join("\n\n"),
        format_response(&report.answer)
    );
    if report.may_differ {
        text.push_str("\nsteps that are OPEN were not evaluated: the result may be another");
    }
    text
}

fn format_response(response: &FinalResponse) -> String {
    let FinalResponse {
        status, by, why, ..
    } = response;
    match (response.kind, status) {
        (FinalResponseKind::Response, Some(status)) => {
            format!("ANSWERED {status} by the {by}: {why}")
        }
        (FinalResponseKind::Response | FinalResponseKind::Reset, _) => {
            format!("RESET by the {by}: {why}")
        }
        (FinalResponseKind::Application, _) => format!("REACHES {by}"),
        (FinalResponseKind::Open, _) => format!("GOES ON to {by}: {why}"),
    }
}

fn format_proxy(proxy: &ProxySteps) -> String {
    let rows = proxy.steps.iter().flat_map(step_rows);
    format!(
        "{}\n{}",
        proxy.by,
        format_table(&["  STEP", "RESULT", "WHY"], rows)
    )
}

/// Formats a proxy's decision as table rows: one for the step, and one for each object that was evaluated in it.
fn step_rows(of: &Step) -> Vec<Vec<String>> {
    let why = match &of.object {
        Some(object) => format!("{} [{object}]", of.why),
        None => of.why.clone(),
    };
    let mut rows = vec![vec![
        format!("  {}", step_name(of.step)),
        result_text(of.result).to_owned(),
        why,
    ]];
    rows.extend(of.considered.iter().map(|one| {
        let effect = match one.effect.as_str() {
            "" => String::new(),
            effect => format!(" {effect}"),
        };
        let text = format!("  {}{effect}: {}", one.object, one.result);
        vec![String::new(), String::new(), text]
    }));
    rows
}

fn step_name(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Capture => "capture",
        StepKind::NameResolution => "name",
        StepKind::Waypoint => "waypoint",
        StepKind::Endpoint => "endpoint",
        StepKind::Tunnel => "caller",
        StepKind::RequestValidity => "form",
        StepKind::Plugins => "plugins",
        StepKind::ExternalAuthorization => "provider",
        StepKind::Authentication => "authentication",
        StepKind::Authorization => "authorization",
        StepKind::Route => "route",
        StepKind::RateLimits => "limits",
        StepKind::Filters => "filters",
        StepKind::BackendAuthorization => "backend's authorization",
        StepKind::TrafficPolicy => "destination",
    }
}

fn result_text(result: StepResult) -> &'static str {
    match result {
        StepResult::Passed => "passed",
        StepResult::Refused => "REFUSED",
        StepResult::Responded => "ANSWERED",
        StepResult::NotEvaluated => "OPEN",
    }
}
