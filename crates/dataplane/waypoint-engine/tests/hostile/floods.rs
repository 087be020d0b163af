//! Tests of floods: the memory that one client makes a waypoint hold, and the latency that other clients observe.

mod table;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ambit_rt::AbortOnDrop;
use ambit_testkit::wait_until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    application::{StrictServer, read_request_head, run_scripted_server},
    fixture::{Client, HTTP1, TIMEOUT, World},
    http2::resident_bytes,
    receive_windows::run_flooding_server,
};
use table::{Flood, floods};

/// Service address of an application that responds normally. The next two applications never respond, and respond
/// without end.
const VIP: &str = "10.0.0.1";
const HANGING_VIP: &str = "10.0.0.2";
const ENDLESS_VIP: &str = "10.0.0.3";
/// Service address of an application that switches to WebSocket, and then sends without end. The next one does so
/// behind HBONE tunnels.
const SWITCHING_VIP: &str = "10.0.0.4";
const TUNNEL_VIP: &str = "10.0.0.5";
const TUNNEL_ENDPOINT_IP: &str = "127.0.9.2";

/// Response by which an application switches to WebSocket.
const SWITCHING_RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Flood of incomplete TLS handshakes, each of which sends most of the longest possible ClientHello.
const HALF_OPEN: HandshakeFlood = HandshakeFlood { connections: 500 };

struct HandshakeFlood {
    connections: usize,
}

impl HandshakeFlood {
    const DESCRIPTION: &'static str = "TLS handshakes that do not end";

    fn partial_client_hello() -> Vec<u8> {
        let record = |payload: &[u8]| {
            let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
            [&[0x16, 3, 1, length[0], length[1]], payload].concat()
        };
        let rest = record(&[0; 16_000]).repeat(3);
        [record(&[1, 0, 0xff, 0xff]), rest].concat()
    }

    /// Starts the flood of TLS handshakes from a source address that no other client uses, since handshakes are limited
    /// by address.
    fn begin(&self, world: &World, scale: usize, sent: &SentBytes) -> Vec<AbortOnDrop<()>> {
        let of = 0..self.connections * scale;
        let address = world.address();
        of.map(|_| {
            let sent = sent.clone();
            ambit_rt::spawn_abortable("half open", async move {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind(SocketAddr::from(([127, 0, 8, 1], 0))).unwrap();
                let Ok(mut stream) = socket.connect(address).await else {
                    return;
                };
                let hello = Self::partial_client_hello();
                if stream.write_all(&hello).await.is_ok() {
                    sent.fetch_add(u64::try_from(hello.len()).unwrap(), Relaxed);
                }
                std::future::pending::<()>().await;
            })
        })
        .collect()
    }
}

/// Creates the runtime of attackers and their applications. It gets less CPU time than the waypoint, other clients and
/// their application, since in production attackers run on other machines.
fn background_runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime
        .worker_threads(1)
        .on_thread_start(|| {
            rustix::process::nice(19).unwrap();
        })
        .enable_all()
        .build()
        .unwrap()
}

/// Runs a test with the background runtime on which attackers run.
fn with_background<F: Future<Output = ()>>(test: impl FnOnce(tokio::runtime::Handle) -> F) {
    let background = background_runtime();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test(background.handle().clone()));
    background.shutdown_background();
}

/// Number of bytes that attacking clients have sent.
type SentBytes = Arc<AtomicU64>;

/// Runs one tunnel of a flood until it ends.
async fn run_flood_tunnel(client: Arc<Client>, flood: &'static Flood, sent: SentBytes) {
    let (vip, port) = flood.target;
    let Ok(tunnel) = client.try_tunnel(vip, port).await else {
        return;
    };
    let (mut read, mut write) = tokio::io::split(tunnel);
    let writing = async {
        let first = std::iter::once_with(flood.initial_bytes);
        let all = first.chain((0..flood.repetitions).map(flood.repeated_bytes));
        for bytes in all {
            if write.write_all(&bytes).await.is_err() {
                return;
            }
            sent.fetch_add(u64::try_from(bytes.len()).unwrap(), Relaxed);
        }
        std::future::pending::<()>().await;
    };
    let reading = async {
        if flood.reads_responses {
            let _ended = tokio::io::copy(&mut read, &mut tokio::io::sink()).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::join!(writing, reading);
}

/// Starts a flood that continues until the returned guards are dropped.
async fn begin_flood(
    world: Arc<World>,
    flood: &'static Flood,
    scale: usize,
    sent: SentBytes,
) -> Vec<AbortOnDrop<()>> {
    let mut clients = Vec::new();
    for _ in 0..flood.connections * scale {
        match timeout(TIMEOUT, world.attacker()).await {
            Ok(Some(client)) => clients.push(Arc::new(client)),
            _ => break,
        }
    }
    if clients.is_empty() {
        return Vec::new();
    }
    let of = clients.iter().cycle().take(flood.tunnels * scale);
    of.map(|client| {
        ambit_rt::spawn_abortable(
            "flood",
            run_flood_tunnel(client.clone(), flood, sent.clone()),
        )
    })
    .collect()
}

/// Sends an HTTP/1.1 request, and returns whether its status is 200; `None` if the tunnel fails.
async fn request(client: &Client) -> Option<bool> {
    let mut tunnel = client.try_tunnel(VIP, HTTP1).await.ok()?;
    let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    tunnel.write_all(request).await.ok()?;
    let mut answer = Vec::new();
    tunnel.read_to_end(&mut answer).await.ok()?;
    Some(answer.starts_with(b"HTTP/1.1 200"))
}

/// Maximum latency that a flood may add to requests of other clients during a soak.
const MAX_DELAY: Duration = Duration::from_millis(50);

/// Number of requests of other clients whose latency is measured. The second longest latency is compared.
const REQUESTS: usize = 100;

/// Sends requests of a client that does not attack, four at a time. Returns the second longest latency, and the number
/// of failures.
async fn measure_other_clients(client: &Client) -> (Duration, usize) {
    let some = || async {
        let mut all = Vec::new();
        for _ in 0..REQUESTS / 4 {
            let began = Instant::now();
            let answered = timeout(TIMEOUT, request(client)).await;
            all.push((began.elapsed(), answered == Ok(Some(true))));
        }
        all
    };
    let (a, b, c, d) = tokio::join!(some(), some(), some(), some());
    let mut all = [a, b, c, d].concat();
    all.sort();
    let failed = all.iter().filter(|(_, is_good)| !is_good).count();
    (all[REQUESTS - 2].0, failed)
}

/// Waits until neither the bytes sent by a flood nor the memory of the process grow.
async fn wait_until_settled(sent: &SentBytes) {
    let now = || (sent.load(Relaxed), resident_bytes() >> 20);
    let mut last = now();
    let mut every = tokio::time::interval(Duration::from_millis(500));
    every.tick().await;
    for _ in 0..30 {
        every.tick().await;
        if now() == last {
            return;
        }
        last = now();
    }
}

/// Creates a waypoint with this memory limit, and its applications. The application that other clients call runs in the
/// foreground, all others in the background.
async fn scene(
    memory: &'static str,
    background: &tokio::runtime::Handle,
) -> (Arc<World>, Vec<AbortOnDrop<()>>) {
    ambit_rt::limits::raise_open_files();
    let world = Arc::new(World::with_env(&[("AMBIT_MEMORY_LIMIT", memory)]).await);
    let strict = StrictServer::start().await;
    world.serve("web", VIP, &[strict.address]);
    let keep = ambit_rt::spawn_abortable("application", async move {
        let _strict = strict;
        std::future::pending::<()>().await;
    });
    let tunnels = background
        .spawn(run_attacked_applications(world.clone()))
        .await
        .unwrap();
    (world, vec![keep, tunnels])
}

/// Runs the applications that attackers call.
async fn run_attacked_applications(world: Arc<World>) -> AbortOnDrop<()> {
    let (hangs, _) = run_scripted_server(|_, mut stream| async move {
        let _read = stream.read(&mut [0; 1024]).await;
        std::future::pending::<()>().await;
    })
    .await;
    let (endless, _) = run_scripted_server(|_, mut stream: TcpStream| async move {
        read_request_head(&mut stream).await;
        let mut piece = &b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"[..];
        while stream.write_all(piece).await.is_ok() {
            piece = &[b'd'; 16 << 10];
        }
    })
    .await;
    world.serve("hangs", HANGING_VIP, &[hangs]);
    world.serve("endless", ENDLESS_VIP, &[endless]);
    let (switches, _) = run_scripted_server(|_, mut stream: TcpStream| async move {
        read_request_head(&mut stream).await;
        let mut piece = SWITCHING_RESPONSE;
        while stream.write_all(piece).await.is_ok() {
            piece = &[b'd'; 16 << 10];
        }
    })
    .await;
    world.serve("switches", SWITCHING_VIP, &[switches]);
    let (_, tunnels) = run_flooding_server(&world, "tunnels", TUNNEL_ENDPOINT_IP).await;
    world.serve_by_tunnel("tunnels", TUNNEL_VIP, TUNNEL_ENDPOINT_IP);
    tunnels
}

/// Formats a number of bytes in MiB, with one decimal digit.
fn format_mib(bytes: u64) -> String {
    format!("{}.{}", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20)
}

/// Memory and latency measured during a flood.
struct Measurements {
    sent_bytes: u64,
    /// Growth of the process's memory, in bytes.
    memory_growth: u64,
    /// Bytes charged to the waypoint's memory budget.
    charged_bytes: usize,
    latency_before: Duration,
    latency_during: Duration,
    failed_requests: usize,
}

/// Floods that run at the same time.
#[derive(Default)]
struct Attack<'a> {
    floods: &'a [&'static Flood],
    handshakes: Option<&'a HandshakeFlood>,
    /// Scope of the memory budget that is exhausted before memory is measured.
    exhausts: Option<&'static str>,
}

async fn measure(
    (world, background): (&Arc<World>, &tokio::runtime::Handle),
    attack: Attack<'_>,
    scale: usize,
) -> Measurements {
    let other = world.client().await;
    let (before, _) = measure_other_clients(&other).await;
    let resident_before = resident_bytes();
    let (charged_before, _) = world.memory_budget();
    let sent = SentBytes::default();
    let mut held = Vec::new();
    for flood in attack.floods {
        let beginning = begin_flood(world.clone(), flood, scale, sent.clone());
        held.extend(background.spawn(beginning).await.unwrap());
    }
    if let Some(handshakes) = attack.handshakes {
        let _background = background.enter();
        held.extend(handshakes.begin(world, scale, &sent));
    }
    let (mut during, mut failed) = measure_other_clients(&other).await;
    if let Some(scope) = attack.exhausts {
        wait_until(&format!("the budget of the {scope} is exhausted"), || {
            world.refused_charges(scope) > 0
        })
        .await;
    }
    wait_until_settled(&sent).await;
    let grown = resident_bytes().saturating_sub(resident_before);
    let (charged, _) = world.memory_budget();
    let (later, more) = measure_other_clients(&other).await;
    during = during.max(later);
    failed += more;
    Measurements {
        sent_bytes: sent.load(Relaxed),
        memory_growth: grown,
        charged_bytes: charged.saturating_sub(charged_before),
        latency_before: before,
        latency_during: during,
        failed_requests: failed,
    }
}

/// Prints the measurements of one flood, as a line of the table of `cargo xtask bench floods`.
#[expect(clippy::print_stdout, reason = "a table for who has asked for it")]
fn print_row(what: &str, measured: &Measurements) {
    let Measurements {
        sent_bytes: sent,
        memory_growth: grown,
        charged_bytes: charged,
        latency_before: before,
        latency_during: during,
        failed_requests: failed,
    } = measured;
    let charged = u64::try_from(*charged).unwrap();
    println!(
        "{what:34} sent {:>7} MiB, held {:>7} MiB, charged {:>6} MiB, others' p99 {before:.1?} -> {during:.1?}, {failed} failed",
        format_mib(*sent),
        format_mib(*grown),
        format_mib(charged),
    );
}

fn assert_within_budgets(world: &World, measured: &Measurements) {
    let (_, process) = world.memory_budget();
    // Three accounts share three quarters of the budget: the attacker's connections, its requests, and connections of its
    // address before its identity is verified. One after the other, each takes half of the free bytes: 7/8 in total.
    let most = process / 32 * 21;
    assert!(
        measured.charged_bytes <= most,
        "{} bytes",
        measured.charged_bytes
    );
    // Half of the process's memory limit, although clients and applications run in the same process.
    let half = u64::try_from(process).unwrap();
    assert!(
        measured.memory_growth < half,
        "{} bytes",
        measured.memory_growth
    );
    assert_eq!(measured.failed_requests, 0);
}

/// Describes a flood during which requests of other clients are too slow; `None` if they are fast enough. Only soaks
/// measure latency, since other tests share the machine.
fn describe_slowdown(what: &str, measured: &Measurements) -> Option<String> {
    let Measurements {
        latency_before: before,
        latency_during: during,
        ..
    } = measured;
    (*during >= *before + MAX_DELAY).then(|| format!("{what}: {before:?} -> {during:?}"))
}

/// Lock under which a test measures memory, since the process's memory includes all floods.
static MEASUREMENT_LOCK: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Environment variable with the factor by which floods are enlarged; `cargo xtask bench floods` sets it.
const SCALE_VARIABLE: &str = "AMBIT_FLOODS";

#[test]
fn floods_at_once_stay_within_budgets_and_others_go_on() {
    with_background(all_floods);
}

async fn all_floods(background: tokio::runtime::Handle) {
    let _alone = MEASUREMENT_LOCK.lock().await;
    let all: &'static [Flood] = Box::leak(floods().into_boxed_slice());
    let scale = std::env::var(SCALE_VARIABLE)
        .ok()
        .map(|scale| scale.parse().unwrap());
    let mut slow = Vec::new();
    if let Some(scale) = scale {
        for flood in all {
            let (world, _applications) = scene("1073741824", &background).await;
            let attack = Attack {
                floods: &[flood],
                ..Attack::default()
            };
            let measured = measure((&world, &background), attack, scale).await;
            print_row(flood.description, &measured);
            slow.extend(describe_slowdown(flood.description, &measured));
        }
        let (world, _applications) = scene("1073741824", &background).await;
        let attack = Attack {
            handshakes: Some(&HALF_OPEN),
            ..Attack::default()
        };
        print_row(
            HandshakeFlood::DESCRIPTION,
            &measure((&world, &background), attack, scale).await,
        );
    }
    let memory = if scale.is_some() {
        "1073741824"
    } else {
        "268435456"
    };
    let (world, _applications) = scene(memory, &background).await;
    let attack = Attack {
        floods: &all.iter().collect::<Vec<_>>(),
        handshakes: Some(&HALF_OPEN),
        // Which budgets below the caller's are exhausted first depends on the order in which the floods advance.
        exhausts: Some("caller"),
    };
    let measured = measure((&world, &background), attack, scale.unwrap_or(1)).await;
    print_row("all at once", &measured);
    assert_within_budgets(&world, &measured);
    if scale.is_some() {
        slow.extend(describe_slowdown("all at once", &measured));
    }
    assert_eq!(
        world.refused_charges("process"),
        0,
        "one caller used the process's budget up"
    );
    assert!(slow.is_empty(), "others wait too long: {slow:#?}");
}

/// Checks all floods against the memory budgets. The test runs alone, since other tests charge the budgets of the same
/// clients.
#[test]
fn floods_that_are_not_read_stay_within_budgets() {
    with_background(unread_floods);
}

async fn unread_floods(background: tokio::runtime::Handle) {
    let _alone = MEASUREMENT_LOCK.lock().await;
    let all: &'static [Flood] = Box::leak(floods().into_boxed_slice());
    let unread = [
        "unread upgrades",
        "unread tunnels",
        "unread endpoints behind tunnels",
    ];
    for flood in all
        .iter()
        .filter(|flood| unread.contains(&flood.description))
    {
        let (world, _applications) = scene("268435456", &background).await;
        let attack = Attack {
            floods: &[flood],
            // Thousands of tunnels exhaust what the connections of a caller may be charged together.
            exhausts: (flood.tunnels > 1000).then_some("connection"),
            ..Attack::default()
        };
        let measured = measure((&world, &background), attack, 1).await;
        print_row(flood.description, &measured);
        assert_within_budgets(&world, &measured);
        assert!(measured.charged_bytes > 0, "{}", flood.description);
    }
}
