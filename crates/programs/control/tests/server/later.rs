//! Tests of clients of later versions, which subscribe to unknown resource types.

use super::*;

#[tokio::test]
async fn later_waypoint_gets_all_records_known_here() {
    let plane = ControlPlane::start_with(&format!("{MANIFESTS}---{WAYPOINT}"), &[]).await;
    let token = plane.token_of("shop", "wp", "wp-1", "wu1");
    let mut stream = plane.stream_as(&token).await.unwrap();
    let later = "type.googleapis.com/ambit.v1.WaypointOfTomorrow";
    // Sends all subscriptions at once, as a waypoint does, which is ready when each is answered.
    let types = [later, WaypointGateway::TYPE_URL, WaypointService::TYPE_URL];
    for url in types {
        stream
            .send(DeltaDiscoveryRequest {
                node: Some(waypoint_node()),
                type_url: url.to_owned(),
                ..DeltaDiscoveryRequest::default()
            })
            .await;
    }
    let mut answered = Vec::new();
    while answered.len() < types.len() {
        let response = stream.next().await.unwrap();
        let records = response.resources.len();
        answered.push((response.type_url.clone(), records));
        stream
            .send(DeltaDiscoveryRequest {
                type_url: response.type_url,
                response_nonce: response.nonce,
                ..DeltaDiscoveryRequest::default()
            })
            .await;
    }
    let expected = types.map(|url| (url.to_owned(), usize::from(url != later)));
    assert_eq!(answered, expected);
    plane.running.stop().await;
}
