//! Tests of waypoints that receive records later than their clients. The clients call targets that the waypoint does
//! not serve yet.

use std::time::Duration;

use ambit_model::{GatewayAddress, GatewayDestination, NamespacedHostname};
use ambit_testkit::build;
use tokio::time::{Instant, timeout};

use crate::fixture::{HTTP1, World, bind_listener};

/// Time after which a tunnel must still wait for its target's record; an immediate rejection takes much less.
const MIN_WAIT_FOR_RECORD: Duration = Duration::from_millis(100);

#[tokio::test]
async fn tunnel_waits_for_the_record_of_its_target() {
    let world = World::new().await;
    let client = world.client().await;
    let (_listener, application) = bind_listener().await;
    let mut tunnel = Box::pin(client.try_tunnel("10.1.0.9", HTTP1));
    assert!(timeout(MIN_WAIT_FOR_RECORD, &mut tunnel).await.is_err());
    world.serve("late", "10.1.0.9", &[application]);
    assert!(tunnel.await.is_ok());
}

#[tokio::test]
async fn tunnel_waits_until_its_pod_is_behind_the_waypoint() {
    let world = World::new().await;
    let client = world.client().await;
    let (_listener, application) = bind_listener().await;
    let ip = application.ip().to_string();
    let mut pod = build::workload("late", &[&ip]);
    world.publish_workload(pod.clone());
    let mut tunnel = Box::pin(client.try_tunnel(&ip, application.port()));
    assert!(timeout(MIN_WAIT_FOR_RECORD, &mut tunnel).await.is_err());
    let hostname = NamespacedHostname::new("ns", "waypoint.ns.svc.cluster.local");
    pod.waypoint = Some(GatewayAddress {
        destination: GatewayDestination::Hostname(hostname),
        hbone_mtls_port: 15008,
    });
    world.publish_workload(pod);
    assert!(tunnel.await.is_ok());
}

#[tokio::test]
async fn unserved_target_is_refused_after_a_moment() {
    let world = World::new().await;
    let client = world.client().await;
    let begin = Instant::now();
    let refused = client.try_tunnel("10.1.0.9", HTTP1).await;
    assert!(refused.is_err());
    assert!(begin.elapsed() >= MIN_WAIT_FOR_RECORD);
    // Changes of other records neither permit the tunnel nor delay its refusal.
    let (_listener, application) = bind_listener().await;
    let refused = client.try_tunnel("10.1.0.9", HTTP1);
    let others = async {
        loop {
            world.serve("other", "10.1.0.8", &[application]);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        refused = refused => assert!(refused.is_err()),
        () = others => {}
    }
}
