//! Tests of the chart's dashboards and alert rules: Prometheus' own engine evaluates every query over scrapes of a
//! mesh's programs, and each must have data.

mod alerts;
mod prometheus;
mod traffic;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use ambit_system_tests::TIMEOUT;
use prometheus::{Input, Output, QueryResult, Scrape};
use serde_json::Value;
use traffic::TrafficFixture;

/// Time range that replaces Grafana's variable `$__rate_interval`.
const RATE_INTERVAL: &str = "5m";

/// Returns the path of the chart's alert rules.
fn alert_rules_path() -> PathBuf {
    dashboard_directory().join("alerts.yaml")
}

fn dashboard_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../charts/ambit/files")
}

/// Grafana dashboard of the chart.
struct Dashboard {
    name: String,
    json: Value,
}

impl Dashboard {
    fn all() -> Vec<Self> {
        let directory = fs::read_dir(dashboard_directory().join("dashboards")).unwrap();
        let files = directory.map(|file| file.unwrap().path());
        let dashboards = files.map(|path| Self {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            json: serde_json::from_slice(&fs::read(&path).unwrap()).unwrap(),
        });
        dashboards.collect()
    }

    /// Returns the names and PromQL queries of the dashboard's query variables, in order.
    fn variables(&self) -> Vec<(String, String, String)> {
        let variables = self.json["templating"]["list"].as_array().unwrap().iter();
        let queried = variables.filter(|variable| variable["type"] == "query");
        queried
            .map(|variable| {
                let name = variable["name"].as_str().unwrap().to_owned();
                let query = variable["query"]["query"].as_str().unwrap();
                let (function, inside) = query.split_once('(').unwrap();
                let inside = inside.strip_suffix(')').unwrap();
                match function {
                    "label_values" => {
                        let (series, label) = inside.rsplit_once(", ").unwrap();
                        let query = format!("count by ({label}) ({series})");
                        (name, query, label.to_owned())
                    }
                    // The regular expression extracts one label of the result's text.
                    "query_result" => {
                        let regex = variable["regex"].as_str().unwrap();
                        let (label, _) = regex.trim_start_matches('/').split_once('=').unwrap();
                        (name, inside.to_owned(), label.to_owned())
                    }
                    other => panic!("{other} of Grafana's is not known here"),
                }
            })
            .collect()
    }

    /// Returns the dashboard's queries, each with the title of its panel.
    fn queries(&self) -> Vec<(String, String)> {
        let panels = self.json["panels"].as_array().unwrap().iter();
        let queries = panels.flat_map(|panel| {
            let title = panel["title"].as_str().unwrap_or_default();
            let targets = panel["targets"].as_array().into_iter().flatten();
            targets.map(move |target| {
                let expr = target["expr"].as_str().unwrap().to_owned();
                (title.to_owned(), expr)
            })
        });
        queries.collect()
    }
}

/// Evaluates queries over scrapes, at the time of the last scrape.
fn evaluate_queries(scrapes: &[Scrape], queries: Vec<String>) -> Output {
    prometheus::query(&Input {
        rules: alert_rules_path().display().to_string(),
        scrapes: scrapes.to_vec(),
        time: scrapes.last().unwrap().time,
        queries,
        ..Input::default()
    })
}

/// Replaces the variables in a query by their values, as Grafana does before sending it.
fn substitute_variables(query: &str, values: &[(String, String)]) -> String {
    let query = query.replace("$__rate_interval", RATE_INTERVAL);
    let mut query = query.replace("$__range", RATE_INTERVAL);
    for (name, value) in values {
        query = query.replace(&format!("${name}"), value);
    }
    query
}

/// Returns the values of a dashboard's variables: all values of each, as Grafana uses for "All".
fn variable_values(dashboard: &Dashboard, scrapes: &[Scrape]) -> Vec<(String, String)> {
    let mut values = Vec::new();
    for (name, query, label) in dashboard.variables() {
        let output = evaluate_queries(scrapes, vec![substitute_variables(&query, &values)]);
        let samples = output.results[0].samples.iter();
        let all: Vec<_> = samples
            .map(|sample| sample.labels[&label].clone())
            .collect();
        assert!(!all.is_empty(), "{}: ${name} has no values", dashboard.name);
        values.push((name, format!("({})", all.join("|"))));
    }
    values
}

/// Returns the queries of panels that have no data, with their dashboards and results.
fn queries_without_data(scrapes: &[Scrape]) -> Vec<(String, QueryResult)> {
    let mut empty = Vec::new();
    for dashboard in Dashboard::all() {
        let values = variable_values(&dashboard, scrapes);
        let queries = dashboard.queries();
        let filled: Vec<_> = queries
            .iter()
            .map(|(_, query)| substitute_variables(query, &values))
            .collect();
        let results = evaluate_queries(scrapes, filled.clone()).results;
        for (((title, _), query), answer) in queries.iter().zip(&filled).zip(results) {
            if !answer.has_data() || !answer.missing.is_empty() {
                empty.push((format!("{} / {title}: {query}", dashboard.name), answer));
            }
        }
    }
    empty
}

#[test]
fn every_panel_and_every_alert_has_data() {
    let scene = TrafficFixture::new();
    let mut scrapes = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        scene.send_all_traffic();
        scrapes.extend(prometheus::scrape(&scene.mesh));
        let left = queries_without_data(&scrapes);
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "without data: {left:#?}");
    }
    // The conditions of alerts do not occur here, but their series exist.
    let alerts = evaluate_queries(&scrapes, Vec::new()).alerts;
    let queries = alerts.iter().map(|alert| alert.expr.clone()).collect();
    for (alert, answer) in alerts
        .iter()
        .zip(evaluate_queries(&scrapes, queries).results)
    {
        assert!(
            answer.error.is_empty() && answer.unknown.is_empty(),
            "{}: {answer:#?}",
            alert.name
        );
    }
}
