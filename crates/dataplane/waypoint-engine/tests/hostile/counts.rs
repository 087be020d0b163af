//! Tests of metrics for connections that are not HTTP, and for policies that are removed.

use ambit_model::{HttpAction, HttpPolicy, HttpRule, PolicyKey, WaypointRecord};
use ambit_testkit::wait_until;
use ambit_xds::WaypointUpdate;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    application::run_scripted_server,
    fixture::{TCP, TIMEOUT, World, log_lines_about, record_name},
};

const VIP: &str = "10.0.0.1";

fn policy(name: &str, action: HttpAction, dry_run: bool) -> WaypointUpdate {
    let policy = HttpPolicy {
        key: PolicyKey::from_resource_name(&format!("ns/{name}")),
        for_gateway: true,
        action,
        dry_run,
        rules: vec![HttpRule::default()],
        ..HttpPolicy::default()
    };
    WaypointUpdate::Upserted(record_name(name), WaypointRecord::from(policy))
}

#[tokio::test]
async fn connections_count_for_dry_run_and_audit_policies() {
    let world = World::new().await;
    let (echo, _) = run_scripted_server(|_, mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _ended = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    world.serve("web", VIP, &[echo]);
    world.publish(policy("trial", HttpAction::Deny, true));
    world.publish(policy("audit", HttpAction::Audit, false));
    let denied = || world.metric_sum("ambit_policy_dry_run_denied_total", &["ns/trial"]);
    let client = world.client().await;
    for number in 1..=2 {
        let mut tunnel = client.tunnel(VIP, TCP).await;
        tunnel.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        let reading = tunnel.read_exact(&mut answer);
        timeout(TIMEOUT, reading).await.expect("no answer").unwrap();
        assert_eq!(denied(), number);
    }
    let lines = log_lines_about(client.address);
    let audited = lines
        .iter()
        .filter(|line| line.contains("a connection is audited"));
    assert_eq!(audited.count(), 2, "{lines:?}");
    // A denied connection counts, too.
    world.publish(policy("no", HttpAction::Deny, false));
    assert!(client.try_tunnel(VIP, TCP).await.is_err());
    wait_until("it is counted", || denied() == 3).await;
}
