//! Attacks on the control plane from one unauthenticated pod.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{new_pods, proxies, proxies::ControlPlaneTarget};

/// Source address of the attacker.
const SOURCE: [u8; 4] = [127, 200, 0, 1];
/// Number of concurrent requests or connections of the attacker.
const CONCURRENCY: usize = 32;
/// Maximum idle connections that the attacker holds.
const MAX_IDLE_CONNECTIONS: usize = 17_000;
/// Timeout until an attack has reached its full rate.
const PREPARATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Kind of attack on the control plane.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attack {
    /// Requests debug pages repeatedly.
    DebugPages,
    /// Holds idle TLS connections.
    IdleTls,
    /// Calls the CSR API with forged tokens.
    ForgedTokens,
}

/// Running attack, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct RunningAttack(Arc<AtomicBool>);

impl Drop for RunningAttack {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Attack {
    /// Rounds of the benchmark: the first without an attack (`None`), then one for each kind of attack.
    pub(super) const ALL: [Option<Self>; 4] = [
        None,
        Some(Self::DebugPages),
        Some(Self::IdleTls),
        Some(Self::ForgedTokens),
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DebugPages => "debug pages",
            Self::IdleTls => "idle TLS",
            Self::ForgedTokens => "made up tokens",
        }
    }

    /// Starts the attack on a thread; returns once the attack has reached its full rate.
    pub(super) fn start(
        self,
        target: &ControlPlaneTarget,
        monitoring: u16,
    ) -> Result<RunningAttack> {
        let over = Arc::<AtomicBool>::default();
        let (ended, target) = (Arc::clone(&over), target.clone());
        let pages = SocketAddr::new(non_loopback_address()?, monitoring);
        let runtime = ambit_rt::current_thread_runtime()?;
        let idle = Arc::<AtomicUsize>::default();
        let held = Arc::clone(&idle);
        thread::spawn(move || {
            runtime.block_on(async {
                let mut attackers = Vec::new();
                for number in 0..CONCURRENCY {
                    let (ended, target) = (Arc::clone(&ended), target.clone());
                    let idle = Arc::clone(&idle);
                    attackers.push(ambit_rt::spawn("attacker", async move {
                        while !ended.load(Ordering::Relaxed) {
                            // Refused attempts are repeated.
                            let tried = match self {
                                Self::DebugPages => read_page(pages).await,
                                Self::IdleTls => {
                                    hold_idle_connections(&target, &idle, &ended).await
                                }
                                Self::ForgedTokens => {
                                    send_forged_tokens(&target, number, &ended).await
                                }
                            };
                            if tried.is_err() {
                                tokio::time::sleep(Duration::from_millis(1)).await;
                            }
                        }
                    }));
                }
                for attacker in attackers {
                    drop(attacker.await);
                }
            });
        });
        let begin = Instant::now();
        let prepares = matches!(self, Self::IdleTls);
        while prepares
            && held.load(Ordering::Relaxed) < MAX_IDLE_CONNECTIONS
            && begin.elapsed() < PREPARATION_TIMEOUT
        {
            thread::sleep(Duration::from_millis(100));
        }
        Ok(RunningAttack(over))
    }
}

/// Returns an address of this machine that is not loopback.
fn non_loopback_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // Nothing is sent: this only looks up the route.
    socket
        .connect("198.51.100.1:9")
        .context("this machine has no address but loopback")?;
    Ok(socket.local_addr()?.ip())
}

async fn read_page(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"GET /debug/ambientz HTTP/1.1\r\nHost: istiod\r\nConnection: close\r\n\r\n")
        .await?;
    let mut buffer = vec![0; 1 << 16];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

/// Holds idle connections to the control plane for one of the attacker's tasks, and replaces connections that are
/// closed.
async fn hold_idle_connections(
    target: &ControlPlaneTarget,
    held: &AtomicUsize,
    ended: &AtomicBool,
) -> Result<()> {
    let mut open = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let before = open.len();
        open.retain(|(_, driver): &(_, ambit_rt::AbortOnDrop<()>)| !driver.is_finished());
        held.fetch_sub(before - open.len(), Ordering::Relaxed);
        if open.len() >= MAX_IDLE_CONNECTIONS / CONCURRENCY {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        match target.connect(SOURCE.into(), |stream| stream).await {
            Ok(connection) => {
                open.push(connection);
                held.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    Ok(())
}

/// Sends forged tokens on a connection until it is closed.
async fn send_forged_tokens(
    target: &ControlPlaneTarget,
    attacker: usize,
    ended: &AtomicBool,
) -> Result<()> {
    let (mut send, _driver) = target.connect(SOURCE.into(), |stream| stream).await?;
    let request = new_pods::certificate_request(String::new(), None);
    let begin = Instant::now();
    for number in 0_u64.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let token =
            proxies::token_with_signature(&format!("{attacker} {number} {:?}", begin.elapsed()));
        new_pods::send_certificate_request(&mut send, &request, &token).await?;
    }
    Ok(())
}
