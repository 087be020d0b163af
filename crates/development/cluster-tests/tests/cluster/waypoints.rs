//! Tests of waypoints that the control plane deploys.

mod definitions;
mod faults;
mod gateways;
mod introduction;
mod migration;
mod operators;
mod overlays;
mod requests;
mod rollouts;

use ambit_cluster_tests::{Space, Waypoint, address};

/// Command line of waypoints' processes.
const PROGRAM: &str = "/ambit-waypoint";
/// kubectl's selector of all pods of the waypoint.
const ALL_PODS: &str = "--selector=gateway.networking.k8s.io/gateway-name=waypoint";

/// Captured pods `client` and `server`, and a waypoint for their namespace.
struct Covered<'a> {
    space: &'a Space<'a>,
    waypoint: Waypoint<'a>,
    /// Name of the server's pod.
    server: String,
    /// URLs of the server, by its Service and by its pod's address.
    urls: [String; 2],
}

impl<'a> Covered<'a> {
    #[track_caller]
    fn new(space: &'a Space<'a>) -> Self {
        space.label(Some("ambient"));
        space.deploy(
            "server",
            1,
            Some("n2"),
            &["serve", "--port=8080", "--echo=9000"],
        );
        let server = space.ready("server", 1).remove(0);
        space.until_captured("server", true);
        space.client("client", Some("n1"));
        space.until_captured("client", true);
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
            covered.until_through(space, url);
        }
        covered
    }

    /// Waits until requests of the pod `client` in a namespace reach the server from its waypoint.
    #[track_caller]
    fn until_through(&self, from: &Space<'_>, url: &str) {
        ambit_cluster_tests::until(&format!("{url} leads through the waypoint"), || {
            let answer = from.get("client", &format!("{url}/"));
            let caller = answer.ok().and_then(|answer| caller(&answer));
            caller.is_some_and(|caller| self.waypoint.addresses().contains(&caller))
        });
    }

    /// Returns the lines of the server's log about requests for a path.
    fn seen(&self, path: &str) -> Vec<String> {
        let log = self.space.log(&self.server);
        let lines = log.lines().filter(|line| line.contains(path));
        lines.map(str::to_owned).collect()
    }
}

/// Returns the source address of the request, as the server reports it in its response.
fn caller(answer: &str) -> Option<std::net::IpAddr> {
    let (_, rest) = answer.split_once("called by ")?;
    rest.split_whitespace().next()?.parse().ok()
}
