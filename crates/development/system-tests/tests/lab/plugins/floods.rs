//! Tests that a client whose requests make a plugin call a slow service as often as it can does not affect the plugin's
//! calls for others, and the waypoint holds a bounded number of bytes for the client.

use std::{
    io::{self, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use ambit_system_tests::{
    EchoConnection, LabNetns, answer_ok, is_complete_response, options, read_head, wait_until,
};

use crate::plugins::{handwritten::CALLING_MODULE, scene::PluginFixture};

/// Number of the client's concurrent requests that wait for the plugin: more than one caller's share of calls in
/// flight.
const REQUESTS: usize = 600;
/// Memory limit of the waypoint in bytes, with room for all requests.
const MEMORY: usize = 1 << 30;

/// Maximum delay of the slow service's responses: less than the plugin's timeout, and more than the
/// flood needs to start on a busy machine.
const SLOW_RESPONSE: Duration = Duration::from_secs(50);

/// Phase of the test, which decides when the slow service responds to calls.
#[derive(Clone, Copy, PartialEq)]
enum FloodPhase {
    /// Calls get responses at once.
    Before,
    /// Calls get no responses before the end of the flood.
    DelayedDuring,
    /// Responds to all calls, including the waiting ones.
    After,
}

/// Slow service that the plugin calls.
const SLOW_SERVICE: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: slow, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8095}]
";

#[test]
fn plugin_calls_of_one_caller_do_not_exhaust_those_of_others() {
    let mut options = options();
    let memory = MEMORY.to_string();
    options.env.insert("AMBIT_MEMORY_LIMIT".to_owned(), memory);
    let hold = "60s".to_owned();
    options
        .env
        .insert("AMBIT_WASM_HOLD_TIMEOUT".to_owned(), hold);
    let scene = PluginFixture::with(SLOW_SERVICE, options);
    let calls = Arc::new(AtomicUsize::new(0));
    let phase = Arc::new((Mutex::new(FloodPhase::Before), Condvar::new()));
    let (count, current) = (calls.clone(), phase.clone());
    scene
        .mesh
        .serve_connections("shop/server", 8095, move |mut stream| {
            while read_head(&mut stream)?.is_some() {
                count.fetch_add(1, SeqCst);
                let (phase, changed) = &*current;
                let phase = phase.lock().unwrap();
                if *phase == FloodPhase::DelayedDuring {
                    let holds = |phase: &mut FloodPhase| *phase != FloodPhase::After;
                    let _waited = changed.wait_timeout_while(phase, SLOW_RESPONSE, holds);
                } else {
                    drop(phase);
                }
                answer_ok(&mut stream, "")?;
            }
            Ok(())
        });
    let enter = |next| {
        *phase.0.lock().unwrap() = next;
        phase.1.notify_all();
    };
    let patient = CALLING_MODULE.replace("(i32.const 2000)", "(i32.const 59000)");
    scene.install_module("asking", &patient.replace("many.shop", "slow.shop"));
    scene.apply_plugin("asking", "phase: AUTHZ");
    scene.wait_for_responses("the plugin lets requests go on", "", |answer| {
        answer.contains(" 200 ") && calls.load(SeqCst) > 0
    });

    let pod = SocketAddr::new(scene.mesh.ip("shop/a"), 8090);
    let place = || LabNetns::Pod("legacy/client".to_owned());
    let before = calls.load(SeqCst);
    enter(FloodPhase::DelayedDuring);
    let flood: Vec<TcpStream> = (0..REQUESTS)
        .map(|_| {
            let mut stream = scene.mesh.client().dial(place(), pod).unwrap();
            stream
                .write_all(b"GET /x HTTP/1.1\r\nHost: many\r\n\r\n")
                .unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    // Requests with a response already were rejected; the calls of the others are in flight, or
    // soon will be.
    wait_until("most of the flood is refused", || {
        let waits = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        let answered =
            |stream: &&TcpStream| !stream.peek(&mut [0]).is_err_and(|error| waits(&error));
        flood.iter().filter(answered).count() > REQUESTS / 2
    });
    enter(FloodPhase::Before);
    let answer = scene.get("");
    assert!(answer.contains(" 200 "), "{answer}");
    enter(FloodPhase::After);
    let (mut allowed, mut refused) = (0, 0);
    for stream in flood {
        stream.set_nonblocking(false).unwrap();
        let mut connection = EchoConnection::from_stream(stream).unwrap();
        let answer = connection
            .send_raw(b"", is_complete_response)
            .unwrap_or_default();
        match answer.get(9..12) {
            Some("200") => allowed += 1,
            // Rejected without a call, or for lack of memory for the request or its tunnel.
            Some("401" | "503") | None => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(allowed > 0 && refused > REQUESTS / 2, "{allowed} {refused}");
    let called = calls.load(SeqCst) - before;
    assert!(called < REQUESTS / 2, "{called} calls");
    let metrics = scene.metrics();
    // A module that does not run would have rejected them, too.
    let failures = "ambit_wasm_plugin_failures_total{plugin=\"shop/asking\"} 0";
    assert!(metrics.contains(failures), "{metrics}");
    let held = metrics
        .lines()
        .find_map(|line| line.strip_prefix("ambit_memory_budget_held_bytes "));
    assert!(
        held.is_some_and(|held| held.parse::<usize>().unwrap() < MEMORY / 4),
        "{held:?}"
    );
}
