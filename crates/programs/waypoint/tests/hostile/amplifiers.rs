//! Retries of a route: clients cannot have a backend that fails asked many times more than one that does not.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use ambit_model::{
    HttpBackend, HttpRetry, HttpRoute, HttpRouteMatch, HttpRouteRule, NamespacedHostname,
    WaypointService,
};
use ambit_testkit::build;
use ambit_xds::WaypointUpdate;
use futures_util::future::join_all;
use tokio::io::AsyncWriteExt as _;

use crate::{
    application::{head, scripted},
    fixture::{HTTP1, World},
};

const VIP: &str = "10.0.0.1";
/// Requests at once, of which a fifth may be retried at a time, and how often the route has each retried.
const REQUESTS: usize = 50;
const ATTEMPTS: u32 = 5;

#[tokio::test]
async fn failing_backend_is_asked_within_the_retry_budget() {
    let world = World::new().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let (failing, _) = scripted(move |_, mut stream| {
        let counted = counted.clone();
        async move {
            head(&mut stream).await;
            counted.fetch_add(1, Relaxed);
            // All of them are under way before the first fails.
            while counted.load(Relaxed) < REQUESTS {
                tokio::task::yield_now().await;
            }
            let answer = b"HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            // The waypoint may have given up.
            let _gone = stream.write_all(answer).await;
        }
    })
    .await;
    world.serve("web", VIP, &[failing]);
    let service = build::service("web", &[], &[]).hostname;
    let retry = HttpRetry {
        codes: vec![503],
        attempts: ATTEMPTS,
        backoff: None,
    };
    let service = NamespacedHostname::new("ns", service);
    let backend = HttpBackend {
        service: Ok(service.clone()),
        port: HTTP1,
        subset: None,
        weight: 1,
        filters: Vec::new(),
    };
    let rule = HttpRouteRule {
        matches: vec![HttpRouteMatch::default()],
        backends: vec![backend],
        retry: Some(retry),
        ..HttpRouteRule::default()
    };
    let route = HttpRoute {
        rules: vec![rule],
        ..HttpRoute::default()
    };
    world.publish(WaypointUpdate::Service(
        "gw/web".into(),
        Box::new(WaypointService {
            service,
            routes: vec![route],
            ..WaypointService::default()
        }),
    ));
    let client = world.client().await;
    let all = join_all((0..REQUESTS).map(|_| client.get(VIP, HTTP1))).await;
    assert!(all.iter().all(|status| *status == 503), "{all:?}");
    let asked = asked.load(Relaxed);
    let retried = asked - REQUESTS;
    let most = REQUESTS / 5 * usize::try_from(ATTEMPTS).unwrap();
    assert!(retried > 0, "nothing is retried");
    assert!(retried <= most, "{retried} retries of {REQUESTS} requests");
}
