//! Tests of waypoints that the control plane deploys.

mod faults;
mod gateway_crds;
mod gateways;
mod introduction;
mod migration;
mod operators;
mod overlays;
mod requests;
mod rollouts;

use ambit_cluster_tests::{TestNamespace, Waypoint, address};

/// Command line of waypoints' processes.
const PROGRAM: &str = "/ambit-waypoint";
/// kubectl's selector of all pods of the waypoint.
const ALL_PODS: &str = "--selector=gateway.networking.k8s.io/gateway-name=waypoint";

/// Captured pods `client` and `server`, and a waypoint for their namespace.
struct WaypointFixture<'a> {
    space: &'a TestNamespace<'a>,
    waypoint: Waypoint<'a>,
    /// Name of the server's pod.
    server: String,
    /// URLs of the server, by its Service and by its pod's address.
    urls: [String; 2],
}

impl<'a> WaypointFixture<'a> {
    #[track_caller]
    fn new(space: &'a TestNamespace<'a>) -> Self {
        space.label(Some("ambient"));
        space.deploy(
            "server",
            1,
            Some("n2"),
            &["serve", "--port=8080", "--echo=9000"],
        );
        let server = space.wait_until_ready("server", 1).remove(0);
        space.wait_until_captured("server", true);
        space.deploy_client("client", Some("n1"));
        space.wait_until_captured("client", true);
        let waypoint = Waypoint::apply(space);
        let covered = Self {
            space,
            waypoint,
            urls: [
                format!("http://server.{}", space.name()),
                format!("http://{}:8080", address(&server)),
            ],
            server: server.metadata.name.unwrap_or_default(),
        };
        for url in &covered.urls {
            covered.wait_until_via_waypoint(space, url);
        }
        covered
    }

    /// Waits until requests of the pod `client` in a namespace reach the server from its waypoint.
    #[track_caller]
    fn wait_until_via_waypoint(&self, from: &TestNamespace<'_>, url: &str) {
        ambit_cluster_tests::wait_until(&format!("{url} is routed through the waypoint"), || {
            let answer = from.get("client", &format!("{url}/"));
            let caller = answer
                .ok()
                .and_then(|answer| reported_source_address(&answer));
            caller.is_some_and(|caller| self.waypoint.addresses().contains(&caller))
        });
    }

    /// Returns the lines of the server's log about requests for a path.
    fn logged_requests(&self, path: &str) -> Vec<String> {
        let log = self.space.log(&self.server);
        let lines = log.lines().filter(|line| line.contains(path));
        lines.map(str::to_owned).collect()
    }
}

/// Returns the source address of the request, as the server reports it in its response.
fn reported_source_address(answer: &str) -> Option<std::net::IpAddr> {
    let (_, rest) = answer.split_once("called by ")?;
    rest.split_whitespace().next()?.parse().ok()
}
