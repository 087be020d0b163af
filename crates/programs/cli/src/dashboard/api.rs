//! HTTP API that the dashboard's page calls: requests and JSON responses.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use ambit_rt::{
    http::{Request, Response, json, method_not_allowed, not_found, query_parameters},
    spawn,
};
use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{feed::Feed, mesh::run_query, pods};
use crate::{
    CliError, ErrorKind,
    cluster::block_on,
    explain,
    flows::FlowTarget,
    labs,
    output::OutputFormat,
    policy_test, problems,
    request_explain::{self, RequestExplainArgs},
    rollout,
    source::Source,
    status,
    waypoint::{self, WaypointScope},
};

/// Maximum number of concurrent queries of the mesh's components; further queries wait.
const MAX_CONCURRENT_QUERIES: usize = 4;

/// HTTP API of the dashboard.
pub(super) struct DashboardApi {
    source: Source,
    feed: Arc<Feed>,
    query_permits: Semaphore,
}

impl DashboardApi {
    /// Starts the tasks that read flow events and the mesh's state, and creates the API.
    pub(super) fn start(source: Source) -> Arc<Self> {
        let feed = Arc::new(Feed::new());
        let (looking, looked_at) = (feed.clone(), source.clone());
        spawn("dashboard mesh", async move {
            looking.read_mesh(&looked_at).await
        });
        let place = FlowTarget {
            lab: source.lab.clone(),
            target: source.target.clone(),
        };
        let listening = feed.clone();
        spawn("dashboard events", async move {
            listening.read_flow_events(&place).await;
        });
        Arc::new(Self {
            source,
            feed,
            query_permits: Semaphore::new(MAX_CONCURRENT_QUERIES),
        })
    }

    /// Adds a flow event to the dashboard's data, as if a proxy had sent it.
    #[cfg(test)]
    pub(super) fn receive_flow_event(&self, received: crate::flows::FlowUpdate) {
        self.feed.receive(received);
    }

    /// Responds to a request of the page.
    pub(super) async fn respond(&self, request: &Request) -> Response {
        let parameters: HashMap<_, _> = query_parameters(request.uri()).collect();
        let text = |name: &str| parameters.get(name).cloned().unwrap_or_default();
        let number = |name: &str| text(name).parse().unwrap_or_default();
        let path = request.uri().path();
        let method = if path == "/api/rehearse" {
            Method::POST
        } else {
            Method::GET
        };
        if request.method() != method {
            return method_not_allowed(if method == Method::POST {
                "POST"
            } else {
                "GET"
            });
        }
        let is_set = |name: &str| text(name) == "true";
        match path {
            "/api/traffic" => json(200, &self.feed.traffic(number("after")).await),
            "/api/mesh" => json(200, &self.feed.mesh(number("after")).await),
            "/api/about" => self.run_query(|source| Ok(dashboard_info(source))).await,
            "/api/health" => self.run_query(mesh_health).await,
            "/api/pods" => {
                let namespace = text("namespace");
                self.run_query(move |source| pods::list_pods(source, &namespace))
                    .await
            }
            "/api/waypoint" => {
                let (namespace, name) = (text("namespace"), text("name"));
                self.run_query(move |source| waypoint_records(source, &namespace, &name))
                    .await
            }
            "/api/explain" => {
                let question = ExplainQuery {
                    from: text("from"),
                    to: text("to"),
                    port: text("port").parse().unwrap_or_default(),
                    method: text("method"),
                    path: text("path"),
                };
                self.run_query(move |source| question.explain(source)).await
            }
            "/api/rehearse" => {
                let policies = String::from_utf8_lossy(request.body()).into_owned();
                let enforce = is_set("enforceDryRun");
                self.run_query(move |source| rehearse_policies(source, &policies, enforce))
                    .await
            }
            _ => not_found(),
        }
    }

    /// Runs a blocking query of the mesh, at most [`MAX_CONCURRENT_QUERIES`] at once, and returns its result as JSON.
    async fn run_query<T: Serialize + Send + 'static>(
        &self,
        question: impl FnOnce(&Source) -> Result<T, CliError> + Send + 'static,
    ) -> Response {
        let _permit = self.query_permits.acquire().await;
        match run_query(self.source.clone(), question).await {
            Ok(answer) => json(200, &answer),
            Err(error) => {
                let status = match error.kind() {
                    ErrorKind::Usage => 400,
                    ErrorKind::NotFound => 404,
                    ErrorKind::Unreachable => 502,
                    ErrorKind::Failed => 500,
                };
                json(status, &json!({"error": error.message_with_sources()}))
            }
        }
    }
}

/// Connection or request whose result the page asks to predict.
struct ExplainQuery {
    from: String,
    to: String,
    port: u16,
    method: String,
    path: String,
}

impl ExplainQuery {
    /// Predicts the result of a request from a pod. For a bare identity or address as client, only the decisions of
    /// policies can be predicted.
    fn explain(self, source: &Source) -> Result<Value, CliError> {
        let Self { from, to, port, .. } = self;
        if from.starts_with("spiffe://") || from.parse::<IpAddr>().is_ok() {
            let reports = explain::explain(&source.load_dump()?, &from, &to, port, false)?;
            return Ok(json!({"policies": reports}));
        }
        let to = match to.parse::<Ipv6Addr>() {
            Ok(ip) => format!("[{ip}]:{port}"),
            Err(_) => format!("{to}:{port}"),
        };
        let report = request_explain::explain(&RequestExplainArgs {
            from,
            to,
            method: self.method,
            path: self.path,
            headers: Vec::new(),
            token: None,
            lab: source.lab_name(),
            target: source.target.clone(),
            output: OutputFormat::default(),
        })?;
        Ok(json!({"request": report}))
    }
}

/// Returns the name of the lab or cluster that the dashboard shows, and the version of this program.
fn dashboard_info(source: &Source) -> Value {
    let name = match source.lab_name() {
        Some(lab) => format!("lab {lab}"),
        None => source.target.describe(),
    };
    json!({"source": name, "version": env!("CARGO_PKG_VERSION")})
}

/// Returns the state of nodes and control plane, the rollout, and problems of objects. Unavailable parts are null, with
/// the reason in `troubles`.
fn mesh_health(source: &Source) -> Result<Value, CliError> {
    let mut troubles = Vec::new();
    let problems = problems::fetch_problems(&source.control_plane());
    let problems = problems
        .map_err(|error| troubles.push(error.message_with_sources()))
        .ok();
    if let Some(lab) = source.lab_name() {
        let status = labs::find_lab(&lab)?.status().map_err(labs::client_error)?;
        return Ok(json!({"problems": problems, "lab": status, "troubles": troubles}));
    }
    let mesh = source.target.mesh_namespace.as_str();
    let (status, rollout) = block_on(async {
        let cluster = source.target.connect().await?;
        let (status, _words) = status::gather_report(&cluster, mesh).await?;
        Ok((status, rollout::read_view(&cluster, mesh).await))
    })?;
    let rollout = rollout
        .map_err(|error| troubles.push(error.message_with_sources()))
        .ok();
    Ok(json!({
        "problems": problems, "status": status, "rollout": rollout, "troubles": troubles,
    }))
}

fn waypoint_records(source: &Source, namespace: &str, name: &str) -> Result<Value, CliError> {
    let place = WaypointScope::of(source);
    let found = place.list_waypoints(true)?;
    let is_one =
        |one: &&waypoint::GatewayObject| one.namespace() == namespace && one.name() == name;
    let gateway = found.iter().find(is_one).ok_or_else(|| {
        let what = format!("there is no waypoint {namespace}/{name}");
        CliError::new(ErrorKind::NotFound, what)
    })?;
    waypoint::sections(&place, gateway)
}

fn rehearse_policies(
    source: &Source,
    policies: &str,
    enforce: bool,
) -> Result<policy_test::Report, CliError> {
    policy_test::run_with_text(source.lab_name(), source.target.clone(), policies, enforce)
}
