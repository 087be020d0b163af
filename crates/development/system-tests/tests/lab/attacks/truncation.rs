//! Tests that truncated data never looks complete: when a node proxy is killed in the middle of a connection, the
//! application on the other side gets a reset, never an end of data.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::SocketAddr,
    time::Duration,
};

use ambit_lab::LabNetns;
use ambit_system_tests::{CLIENT_AND_SERVER, Mesh, wait_until};

#[test]
fn killed_proxy_resets_its_connections() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let echo = SocketAddr::new(mesh.ip("shop/server"), 9000);
    for (client, victim) in [
        ("shop/client", "node-1"),
        ("shop/client", "node-2"),
        ("legacy/client", "node-2"),
    ] {
        wait_until("the client is served", || {
            let dialled = mesh.dial(client, echo);
            dialled.is_ok_and(|mut conversation| conversation.exchange_line("hello").is_ok())
        });
        let place = LabNetns::Pod(client.to_owned());
        let mut stream = mesh.client().dial(place, echo).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut received = [0; 6];
        stream.write_all(b"a part").unwrap();
        stream.read_exact(&mut received).unwrap();
        mesh.kill("proxy-worker", Some(victim));
        let rest = stream.read(&mut received);
        assert!(
            matches!(&rest, Err(error) if error.kind() == ErrorKind::ConnectionReset),
            "{client} with the proxy of {victim} killed: {rest:?}"
        );
    }
}
