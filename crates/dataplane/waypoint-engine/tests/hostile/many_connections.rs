//! Tests one caller with a thousand connections, which all send a request at the same instant.

use std::sync::Arc;

use ambit_hbone::TunnelIo;
use futures_util::future::join_all;
use tokio::{io::AsyncWriteExt as _, sync::Barrier, time::timeout};

use crate::{
    application::{read_request_head, run_tunnel_server},
    fixture::{HTTP1, TIMEOUT, World},
};

const VIP: &str = "10.0.0.1";
/// Memory limit of the waypoint: that of the chart's default.
const MEMORY_LIMIT: (&str, &str) = ("AMBIT_MEMORY_LIMIT", "1073741824");
/// Client connections, each as full of tunnels as a node proxy's.
const CONNECTIONS: usize = 10;
const TUNNELS: usize = 100;

/// Responds to each request of a tunnel with 200, once all tunnels have sent one.
async fn respond(mut tunnel: TunnelIo, all: Arc<Barrier>) {
    while read_request_head(&mut tunnel).await {
        all.wait().await;
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        // A client that is gone needs no response.
        let _gone = tunnel.write_all(response).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_requests_of_one_caller_at_once_find_room() {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let all = Arc::new(Barrier::new(CONNECTIONS * TUNNELS));
    let _endpoint = run_tunnel_server(&world, "web", "127.0.11.1", move |tunnel, _| {
        respond(tunnel, all.clone())
    })
    .await;
    world.serve_by_tunnel("web", VIP, "127.0.11.1");
    let clients = join_all((0..CONNECTIONS).map(|_| world.client())).await;
    let requests = clients
        .iter()
        .flat_map(|client| (0..TUNNELS).map(move |_| client.get(VIP, HTTP1)));
    let statuses = timeout(TIMEOUT, join_all(requests)).await;
    let refused = world.refused_charges("connection");
    let (charged, limit) = world.memory_budget();
    let succeeded = statuses.map(|all| all.iter().filter(|status| **status == 200).count());
    assert_eq!(
        succeeded,
        Ok(CONNECTIONS * TUNNELS),
        "{refused} charges refused, {charged} of {limit} bytes charged"
    );
    assert_eq!(refused, 0);
}
