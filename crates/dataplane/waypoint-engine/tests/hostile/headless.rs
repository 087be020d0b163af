//! Tests of headless Services, which clients call by name: the attachments of other Services that select the same pods
//! apply.

use ambit_model::{HttpOperation, PathPattern, StringMatch};

use crate::{
    application::{ReceivedRequest, StrictServer},
    fixture::{HTTP1, World},
    routes::{VIP, deny},
};

#[tokio::test]
async fn a_headless_service_does_not_bypass_other_services_of_its_pods() {
    let (world, mut application) = (World::new().await, StrictServer::start().await);
    world.serve("web", VIP, &[application.address]);
    world.serve_headless("twin", "web", application.address);
    let paths = |path: &str| HttpOperation {
        paths: vec![PathPattern::Text(StringMatch::from_pattern(path))],
        ..HttpOperation::default()
    };
    world.publish(deny("web", &["web"], paths("/web")));
    world.publish(deny("twin", &["twin"], paths("/twin")));
    let client = world.client().await;
    let mut statuses = Vec::new();
    for to in ["twin.ns.svc.cluster.local", VIP] {
        for path in ["/open", "/web", "/twin"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let response = client.send_bytes(to, HTTP1, request.as_bytes()).await;
            statuses.push((to == VIP, path, response.statuses()));
        }
    }
    let expected = [
        (false, "/open", 200),
        (false, "/web", 403),
        (false, "/twin", 403),
        (true, "/open", 200),
        (true, "/web", 403),
        // Only objects attached to a Service with an address apply to it.
        (true, "/twin", 200),
    ];
    assert_eq!(
        statuses,
        expected.map(|(is_vip, path, status)| (is_vip, path, vec![status]))
    );
    let received = application.received();
    let is_whole = |one: &&ReceivedRequest| matches!(one, ReceivedRequest::Complete { .. });
    assert_eq!(received.iter().filter(is_whole).count(), 3);
}
