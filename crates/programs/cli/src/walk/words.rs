//! Text of a predicted result.

use ambit_mesh_json::explain::{Step, StepKind, StepResult};

use super::{Answer, AnswerKind, Part, Report};
use crate::output::table;

/// Formats the report for display.
pub(super) fn of(report: &Report) -> String {
    let Report {
        from,
        to,
        method,
        host,
        path,
        ..
    } = report;
    let parts: Vec<_> = report.parts.iter().map(part).collect();
    let mut text = format!(
        "{from} -> {to}: {method} http://{host}{path}\n\n{}\n\n{}",
        parts.join("\n\n"),
        answer(&report.answer)
    );
    if report.may_differ {
        text.push_str("\nsteps that are OPEN were not evaluated: the result may be another");
    }
    text
}

fn answer(of: &Answer) -> String {
    let Answer {
        status, by, why, ..
    } = of;
    match (of.kind, status) {
        (AnswerKind::Response, Some(status)) => format!("ANSWERED {status} by the {by}: {why}"),
        (AnswerKind::Response | AnswerKind::Reset, _) => format!("RESET by the {by}: {why}"),
        (AnswerKind::Application, _) => format!("REACHES {by}"),
        (AnswerKind::Open, _) => format!("GOES ON to {by}: {why}"),
    }
}

fn part(of: &Part) -> String {
    let rows = of.steps.iter().flat_map(step);
    format!("{}\n{}", of.by, table(&["  STEP", "RESULT", "WHY"], rows))
}

/// Formats a proxy's decision as table rows: one for the step, and one for each object that was evaluated in it.
fn step(of: &Step) -> Vec<Vec<String>> {
    let why = match &of.object {
        Some(object) => format!("{} [{object}]", of.why),
        None => of.why.clone(),
    };
    let mut rows = vec![vec![
        format!("  {}", name(of.step)),
        result(of.result).to_owned(),
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

fn name(of: StepKind) -> &'static str {
    match of {
        StepKind::Capture => "capture",
        StepKind::Name => "name",
        StepKind::Waypoint => "waypoint",
        StepKind::Endpoint => "endpoint",
        StepKind::Tunnel => "caller",
        StepKind::Form => "form",
        StepKind::Plugins => "plugins",
        StepKind::Provider => "provider",
        StepKind::Authentication => "authentication",
        StepKind::Authorization => "authorization",
        StepKind::Route => "route",
        StepKind::Limits => "limits",
        StepKind::Filters => "filters",
        StepKind::BackendAuthorization => "backend's authorization",
        StepKind::Destination => "destination",
    }
}

fn result(of: StepResult) -> &'static str {
    match of {
        StepResult::Passed => "passed",
        StepResult::Refused => "REFUSED",
        StepResult::Answered => "ANSWERED",
        StepResult::Open => "OPEN",
    }
}
