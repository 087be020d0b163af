//! Tests that bound the number of requests that one client request causes: retries of a failing backend; mirrors that
//! are slow, unreachable or mirror themselves; and redirects, which the waypoint does not follow.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use ambit_model::{
    HttpFilter, HttpMirror, HttpRetry, HttpRoute, HttpRouteMatch, HttpRouteRule, WaypointRecord,
    WaypointService,
};
use ambit_testkit::wait_until;
use ambit_xds::WaypointUpdate;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    application::{StrictServer, read_request_head, run_scripted_server},
    fixture::{HTTP1, World, bind_listener},
    routes::{BACK_VIP, Scene, backend, prefix, route, rule, service},
};

const VIP: &str = "10.0.0.1";
/// Number of concurrent requests, and of the retries that the route allows for each. The retry budget allows a fifth of
/// the requests at a time.
const REQUESTS: usize = 50;
const ATTEMPTS: u32 = 5;

#[tokio::test]
async fn retries_to_a_failing_backend_stay_within_budget() {
    let world = World::new().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let (failing, _) = run_scripted_server(move |_, mut stream| {
        let counted = counted.clone();
        async move {
            read_request_head(&mut stream).await;
            counted.fetch_add(1, Relaxed);
            // All requests are in flight before the first fails.
            while counted.load(Relaxed) < REQUESTS {
                tokio::task::yield_now().await;
            }
            let answer = b"HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            // The waypoint may have closed the connection.
            let _gone = stream.write_all(answer).await;
        }
    })
    .await;
    world.serve("web", VIP, &[failing]);
    let retry = HttpRetry {
        codes: vec![503],
        attempts: ATTEMPTS,
        backoff: None,
    };
    publish_self_route(&world, Vec::new(), Some(retry));
    let client = world.client().await;
    let all = join_all((0..REQUESTS).map(|_| client.get(VIP, HTTP1))).await;
    assert!(all.iter().all(|status| *status == 503), "{all:?}");
    let asked = asked.load(Relaxed);
    let retried = asked - REQUESTS;
    let most = REQUESTS / 5 * usize::try_from(ATTEMPTS).unwrap();
    assert!(retried > 0, "nothing is retried");
    assert!(retried <= most, "{retried} retries of {REQUESTS} requests");
}

/// Publishes a route of the service `web` to itself, with these filters and this retry policy.
fn publish_self_route(world: &World, filters: Vec<HttpFilter>, retry: Option<HttpRetry>) {
    let rule = HttpRouteRule {
        matches: vec![HttpRouteMatch::default()],
        filters,
        backends: vec![backend("web")],
        retry,
        ..HttpRouteRule::default()
    };
    let route = HttpRoute {
        rules: vec![rule],
        ..HttpRoute::default()
    };
    world.publish(WaypointUpdate::Upserted(
        "gw/web".into(),
        WaypointRecord::from(WaypointService {
            service: service("web"),
            routes: vec![route],
            ..WaypointService::default()
        }),
    ));
}

fn mirror(name: &str) -> HttpFilter {
    HttpFilter::Mirror(HttpMirror {
        service: service(name),
        port: HTTP1,
        numerator: 1,
        denominator: 1,
    })
}

/// Returns the number of mirrored requests that metrics have counted with this outcome.
fn mirrored_count(world: &World, outcome: &str) -> u64 {
    let label = format!("outcome=\"{outcome}\"");
    world.metric_sum("ambit_requests_mirrored_total", &[&label])
}

#[tokio::test]
async fn retries_of_a_mirrored_request_reach_its_backend_alone() {
    let world = World::new().await;
    let (failing, asked) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        let answer = b"HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let _gone = stream.write_all(answer).await;
    })
    .await;
    let mut shadow = StrictServer::start().await;
    world.serve("web", VIP, &[failing]);
    world.serve("shadow", "10.0.0.2", &[shadow.address]);
    let retry = HttpRetry {
        codes: vec![503],
        attempts: ATTEMPTS,
        backoff: None,
    };
    publish_self_route(&world, vec![mirror("shadow")], Some(retry));
    let client = world.client().await;
    assert_eq!(client.get(VIP, HTTP1).await, 503);
    wait_until("the mirror has answered", || {
        mirrored_count(&world, "answered") > 0
    })
    .await;
    let asked = asked.load(Relaxed);
    let most = 1 + usize::try_from(ATTEMPTS).unwrap();
    assert!((2..=most).contains(&asked), "{asked} attempts");
    assert_eq!(shadow.received().len(), 1);
}

#[tokio::test]
async fn mirrored_requests_are_not_mirrored_repeatedly() {
    let mut scene = Scene::new().await;
    for (name, other) in [("web", "back"), ("back", "web")] {
        let mirrors = vec![mirror(other), mirror(other)];
        let rules = vec![rule(prefix("/"), mirrors, backend(name))];
        scene.publish_routes(name, vec![route(None, rules)]);
    }
    let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    for round in 1..=2 {
        let response = scene.client.send_bytes(VIP, HTTP1, request).await;
        assert_eq!(response.statuses(), [200]);
        wait_until("both mirrors have answered", || {
            mirrored_count(&scene.world, "answered") == 2 * round
        })
        .await;
    }
    let got = scene.received_requests();
    let count = |name: &str| got.iter().filter(|one| one.starts_with(name)).count();
    assert_eq!((count("web "), count("back ")), (2, 4), "{got:?}");
}

#[tokio::test]
async fn stalled_mirrors_buffer_a_bounded_part_of_the_body() {
    const MIRRORS: usize = 4;
    const BODY: usize = 16 << 20;
    // Bytes by which a mirror may lag, including those in flight to it.
    const MAX_HELD_BYTES: usize = 2 << 20;
    // Windows that do not grow with the rate of the body, which is charged as well.
    let window = "131072";
    let world = World::with_env(&[
        ("HTTP2_STREAM_WINDOW_SIZE", window),
        ("HTTP2_CONNECTION_WINDOW_SIZE", window),
    ])
    .await;
    let (taking, _) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        let mut left = BODY;
        let mut buffer = vec![0; 64 << 10];
        while left > 0 {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => left -= read,
            }
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let _gone = stream.write_all(answer).await;
    })
    .await;
    let (stuck, _) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    // An address without a listener.
    let (gone, _) = bind_listener().await;
    let dead = gone.local_addr().unwrap();
    drop(gone);
    world.serve("web", VIP, &[taking]);
    world.serve("stuck", "10.0.0.2", &[stuck]);
    world.serve("dead", "10.0.0.3", &[dead]);
    let mut mirrors = vec![mirror("stuck"); MIRRORS];
    mirrors.push(mirror("dead"));
    publish_self_route(&world, mirrors, None);
    let before = world.memory_budget().0;
    let client = world.client().await;
    let head = format!(
        "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: {BODY}\r\nConnection: close\r\n\r\n"
    );
    let request = [head.as_bytes(), &vec![b'x'; BODY]].concat();
    let mut most = 0;
    let response = {
        let mut asking = std::pin::pin!(client.send_bytes(VIP, HTTP1, &request));
        loop {
            tokio::select! {
                biased;
                response = &mut asking => break response,
                () = tokio::task::yield_now() => most = most.max(world.memory_budget().0),
            }
        }
    };
    assert_eq!(response.statuses(), [200]);
    wait_until("all mirrors have been given up", || {
        mirrored_count(&world, "too_slow") == MIRRORS as u64
            && mirrored_count(&world, "failed") == 1
    })
    .await;
    let held = most - before;
    assert!(
        held > 0 && held <= (MIRRORS + 1) * MAX_HELD_BYTES,
        "{held} bytes"
    );
    drop(client);
    wait_until("nothing is held any more", || {
        world.memory_budget().0 <= before
    })
    .await;
}

#[tokio::test]
async fn redirects_of_applications_are_not_followed() {
    let mut scene = Scene::new().await;
    let (redirecting, asked) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        let answer = format!(
            "HTTP/1.1 307 There\r\nlocation: http://{BACK_VIP}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let _gone = stream.write_all(answer.as_bytes()).await;
    })
    .await;
    scene.world.serve("away", "10.0.0.7", &[redirecting]);
    // Redirects of the client's request and of its mirrored request are not followed.
    let rules = vec![rule(prefix("/"), vec![mirror("away")], backend("away"))];
    scene.publish_routes("away", vec![route(None, rules)]);
    let request = b"GET / HTTP/1.1\r\nHost: away\r\nConnection: close\r\n\r\n";
    let response = scene.client.send_bytes("10.0.0.7", HTTP1, request).await;
    assert_eq!(response.statuses(), [307]);
    assert!(
        response.text().contains("location: http://10.0.0."),
        "{response:?}"
    );
    wait_until("the mirror has answered", || {
        mirrored_count(&scene.world, "answered") == 1
    })
    .await;
    assert_eq!(asked.load(Relaxed), 2);
    assert_eq!(scene.received_requests(), Vec::<String>::new());
}
