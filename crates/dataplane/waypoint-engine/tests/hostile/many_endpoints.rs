//! Tests callers that use more endpoints behind tunnels than their memory budget has room for at the same time.

use std::sync::Arc;

use ambit_hbone::TunnelIo;
use ambit_rt::AbortOnDrop;
use futures_util::{StreamExt as _, stream};
use tokio::io::AsyncWriteExt as _;

use crate::{
    application::{read_request_head, run_tunnel_server},
    fixture::{HTTP1, World},
};

/// Memory limit of the waypoint, with which the connections of one caller may use 18 MiB: about 80 endpoints.
const MEMORY_LIMIT: (&str, &str) = ("AMBIT_MEMORY_LIMIT", "100663296");
const ENDPOINTS: usize = 160;

/// Responds to requests with 200 until the tunnel ends.
async fn respond(mut tunnel: TunnelIo) {
    loop {
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        if !read_request_head(&mut tunnel).await || tunnel.write_all(response).await.is_err() {
            return;
        }
    }
}

/// Serves a service with one endpoint behind a tunnel, and returns its address.
async fn serve(world: &World, number: usize) -> (String, AbortOnDrop<()>) {
    let (name, ip) = (format!("web-{number}"), format!("127.0.10.{number}"));
    let vip = format!("10.1.0.{number}");
    let endpoint = run_tunnel_server(world, &name, &ip, |tunnel, _| respond(tunnel)).await;
    world.serve_by_tunnel(&name, &vip, &ip);
    (vip, endpoint)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_make_room_for_those_to_other_endpoints() {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let (mut vips, mut endpoints) = (Vec::new(), Vec::new());
    for number in 1..=ENDPOINTS {
        let (vip, endpoint) = serve(&world, number).await;
        vips.push(vip);
        endpoints.push(endpoint);
    }
    let client = Arc::new(world.client().await);
    for concurrency in [1, 16] {
        let get = async |vip: &String| client.get(vip, HTTP1).await;
        let statuses = stream::iter(&vips).map(get).buffer_unordered(concurrency);
        let statuses: Vec<u16> = statuses.collect().await;
        assert_eq!(statuses, [200; ENDPOINTS], "{concurrency} at a time");
    }
    let (charged, limit) = world.memory_budget();
    assert!(charged > limit / 32, "{charged} of {limit} charged");
}
