//! Measures what a resumed TLS session would save between two proxies: the time of one processor for both ends of a full
//! handshake with two certificates, and of a resumed one.
//!
//! Ambit resumes no sessions: see "Handshakes" in `ARCHITECTURE.md`.
//!
//! ```text
//! cargo run --release --package ambit-tls --example resumption
//! ```
#![expect(
    clippy::print_stdout,
    reason = "the output is the purpose of the program"
)]

use std::{
    error::Error,
    io::{self, Read},
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_model::Identity;
use ambit_testkit::Pki;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection,
    client::Resumption, crypto::aws_lc_rs::Ticketer, pki_types::ServerName,
};

/// Number of handshakes of each kind, whose median is printed.
const HANDSHAKES: usize = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let identity = |name| Identity::new("cluster.local", "default", name);
    let (client, server) = (identity("client"), identity("server"));
    let pki = Pki::new();
    let mut to_server = (*pki.cert(&client).client_config(slice::from_ref(&server))?).clone();
    let mut of_server = (*pki.cert(&server).server_config()?).clone();
    let full = median(&to_server, &of_server, HandshakeKind::Full)?;
    to_server.resumption = Resumption::in_memory_sessions(16);
    of_server.ticketer = Ticketer::new()?;
    of_server.send_tls13_tickets = 1;
    let resumed = median(&to_server, &of_server, HandshakeKind::Resumed)?;
    println!("| handshake | both ends |\n|---|---|");
    println!("| full | {} us |", full.as_micros());
    println!("| resumed | {} us |", resumed.as_micros());
    Ok(())
}

/// Returns the median duration of a handshake of this kind.
fn median(
    client: &ClientConfig,
    server: &ServerConfig,
    kind: HandshakeKind,
) -> Result<Duration, Box<dyn Error>> {
    let (client, server) = (Arc::new(client.clone()), Arc::new(server.clone()));
    // Leaves a ticket for the next one.
    handshake(&client, &server)?;
    let mut durations = Vec::with_capacity(HANDSHAKES);
    for _ in 0..HANDSHAKES {
        let (duration, took_place) = handshake(&client, &server)?;
        if took_place != Some(kind) {
            return Err(format!("{took_place:?} instead of {kind:?}").into());
        }
        durations.push(duration);
    }
    durations.sort_unstable();
    Ok(durations.get(HANDSHAKES / 2).copied().unwrap_or_default())
}

/// Performs a handshake in memory, and returns its duration and kind.
fn handshake(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
) -> Result<(Duration, Option<HandshakeKind>), Box<dyn Error>> {
    let start = Instant::now();
    let name = ServerName::try_from("server")?;
    let mut client = ClientConnection::new(client.clone(), name)?;
    let mut server = ServerConnection::new(server.clone())?;
    let mut bytes = Vec::new();
    while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
        while client.wants_write() {
            client.write_tls(&mut bytes)?;
        }
        receive(&mut bytes, |from| server.read_tls(from))?;
        server.process_new_packets()?;
        while server.wants_write() {
            server.write_tls(&mut bytes)?;
        }
        receive(&mut bytes, |from| client.read_tls(from))?;
        client.process_new_packets()?;
    }
    Ok((start.elapsed(), server.handshake_kind()))
}

/// Passes all bytes to `read`, and removes them.
fn receive(
    bytes: &mut Vec<u8>,
    mut read: impl FnMut(&mut dyn Read) -> io::Result<usize>,
) -> io::Result<()> {
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        read(&mut rest)?;
    }
    bytes.clear();
    Ok(())
}
