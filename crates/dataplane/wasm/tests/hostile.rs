//! Tests that the resources of modules that loop, allocate, flood and pass invalid sizes are bounded.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ambit_wasm::{
    ContextId, Direction, Effect, Engine, HeaderSection, Limits, Metrics, PropertySource,
    PropertyValue, Settings, SharedState, StreamDecision, Vm, VmError,
};
use bytes::Bytes;
use http::HeaderMap;

const MEMORY_LIMIT_BYTES: usize = 64 << 20;

struct NoProperties;

impl PropertySource for NoProperties {
    fn property(&self, _: &[&str]) -> Option<PropertyValue> {
        None
    }
}

fn settings() -> Arc<Settings> {
    Arc::new(Settings {
        name: "tenant/hostile".to_owned(),
        root_id: String::new(),
        vm_id: "tenant/hostile".to_owned(),
        configuration: Bytes::new(),
        vm_configuration: Bytes::new(),
        environment: BTreeMap::new(),
        limits: Limits {
            max_memory_bytes: MEMORY_LIMIT_BYTES,
            callback_timeout: Duration::from_millis(500),
            start_timeout: Duration::from_secs(5),
            max_body_bytes: 1 << 20,
            max_outstanding_calls: 8,
        },
    })
}

/// Builds the text of a module of 17 memory pages, with these imports and functions, whose memory begins with `data`.
fn module(imports: &str, data: &str, functions: &str) -> String {
    format!(
        "(module {imports} (memory (export \"memory\") 17)
            (data (i32.const 0) \"{data}\")
            (func (export \"proxy_abi_version_0_2_1\"))
            (func (export \"proxy_on_memory_allocate\") (param i32) (result i32) (i32.const 4096))
            {functions})"
    )
}

fn on_request(body: &str) -> String {
    format!(
        "(func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32) (local $n i32) {body} (i32.const 1))"
    )
}

/// Builds a loop that executes a statement `count` times.
fn repeat_statement(count: u32, statement: &str) -> String {
    format!(
        "(local.set $n (i32.const {count}))
         (loop $again {statement}
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))"
    )
}

fn engine() -> Engine {
    Engine::new().expect("an engine")
}

fn start(engine: &Engine, wat: &str) -> Result<Vm, VmError> {
    let bytes = wat::parse_str(wat).expect("WAT");
    let module = engine.compile(&bytes).expect("a module");
    Vm::start(
        &module,
        settings(),
        SharedState::default(),
        Metrics::default(),
    )
}

fn send_request(vm: &mut Vm) -> (ContextId, Result<StreamDecision, VmError>) {
    let id = vm
        .create_stream_context(Arc::new(NoProperties))
        .expect("a request");
    let head = HeaderSection {
        pseudo_headers: vec![(":method", "GET".to_owned()), (":path", "/".to_owned())],
        headers: HeaderMap::new(),
    };
    let outcome = vm.on_headers(Direction::Request, id, head, true);
    (id, outcome)
}

/// Runs a request in a module whose request callback executes `statement`, with one import and initial memory `data`.
fn run_statement(import: &str, data: &str, statement: &str) -> (Vm, ContextId) {
    let engine = engine();
    let wat = module(import, data, &on_request(statement));
    let mut vm = start(&engine, &wat).expect("an instance");
    let (id, outcome) = send_request(&mut vm);
    assert_eq!(outcome, Ok(StreamDecision::Paused));
    (vm, id)
}

#[test]
fn a_million_headers_are_bounded_in_number_and_bytes() {
    let add = "(import \"env\" \"proxy_add_header_map_value\" (func $add (param i32 i32 i32 i32 i32) (result i32)))";
    // One byte, and the maximum size of one piece.
    for length in [1, 60_000, 1 << 20] {
        let call = format!(
            "(drop (call $add (i32.const 0) (i32.const 0) (i32.const 3) (i32.const 1024) (i32.const {length})))"
        );
        let fill = "(memory.fill (i32.const 1024) (i32.const 97) (i32.const 1048576))";
        let body = format!("{fill} {}", repeat_statement(100_000, &call));
        let (mut vm, id) = run_statement(add, "x-a", &body);
        let head = vm.take_head(Direction::Request, id).expect("a head");
        let bytes: usize = head.headers.values().map(http::HeaderValue::len).sum();
        assert!(head.headers.len() <= 512 && bytes <= 256 << 10, "{bytes}");
    }
    let path = "(drop (call $add (i32.const 0) (i32.const 0) (i32.const 5) (i32.const 1024) (i32.const 1048576)))";
    let fill = "(memory.fill (i32.const 1024) (i32.const 97) (i32.const 1048576))";
    let (mut vm, id) = run_statement(add, ":path", &format!("{fill} {path}"));
    let head = vm.take_head(Direction::Request, id).expect("a head");
    assert_eq!(head.pseudo_header(":path"), Some("/"));
}

#[test]
fn properties_of_a_request_are_bounded_in_bytes() {
    let imports =
        "(import \"env\" \"proxy_set_property\" (func $set (param i32 i32 i32 i32) (result i32)))";
    let refused = "(if (i32.eqz (call $set (i32.const 0) (i32.const 1) (i32.const 1024) (i32.const 1048576))) (then (unreachable)))";
    let taken = "(if (call $set (i32.const 0) (i32.const 1) (i32.const 1024) (i32.const 60000)) (then (unreachable)))";
    let second = "(if (i32.eqz (call $set (i32.const 1) (i32.const 1) (i32.const 1024) (i32.const 60000))) (then (unreachable)))";
    // The same value again replaces the previous one.
    run_statement(
        imports,
        "ab",
        &format!("{refused} {taken} {taken} {second}"),
    );
}

const CALL_IMPORT: &str = "(import \"env\" \"proxy_http_call\" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import \"env\" \"proxy_grpc_cancel\" (func $cancel (param i32) (result i32)))";

/// Builds memory data with the name of an upstream, and with the headers of a call at address 16.
fn call_data() -> (String, usize) {
    let pairs: [(&[u8], &[u8]); 3] = [
        (b":method", b"GET"),
        (b":path", b"/"),
        (b":authority", b"a"),
    ];
    let pairs = ambit_wasm::write_pairs(pairs.into_iter());
    let text: String = pairs.iter().map(|byte| format!("\\{byte:02x}")).collect();
    (
        format!("vault:80\\00\\00\\00\\00\\00\\00\\00\\00{text}"),
        pairs.len(),
    )
}

fn call_statement(length: usize, body: usize) -> String {
    format!(
        "(drop (call $call (i32.const 0) (i32.const 8) (i32.const 16) (i32.const {length}) (i32.const 2048) (i32.const {body}) (i32.const 0) (i32.const 0) (i32.const 1000) (i32.const 1024)))"
    )
}

#[test]
fn cancelled_calls_count_until_they_end() {
    let (data, length) = call_data();
    let both = format!(
        "{} (drop (call $cancel (i32.load (i32.const 1024))))",
        call_statement(length, 0)
    );
    let (mut vm, _) = run_statement(CALL_IMPORT, &data, &repeat_statement(10_000, &both));
    let effects = vm.take_effects();
    let calls = |effects: &[Effect]| {
        let calls = effects.iter();
        calls
            .filter(|effect| matches!(effect, Effect::StartCall(..)))
            .count()
    };
    assert_eq!(calls(&effects), 8);
    assert!(effects.len() <= 16, "{}", effects.len());
    // Rejected while the first calls are outstanding, and accepted afterwards.
    assert_eq!(send_request(&mut vm).1, Ok(StreamDecision::Paused));
    assert_eq!(calls(&vm.take_effects()), 0);
    drop(effects);
    assert_eq!(send_request(&mut vm).1, Ok(StreamDecision::Paused));
    assert_eq!(calls(&vm.take_effects()), 8);
}

#[test]
fn bytes_of_calls_are_bounded() {
    let (data, length) = call_data();
    let (mut vm, _) = run_statement(
        CALL_IMPORT,
        &data,
        &repeat_statement(1_000, &call_statement(length, 1 << 20)),
    );
    let effects = vm.take_effects();
    let bytes: usize = effects
        .iter()
        .map(|effect| match effect {
            Effect::StartCall(_, call) => call.body.len(),
            _ => 0,
        })
        .sum();
    assert!(bytes > 0 && bytes <= 8 << 20, "{bytes}");
}

#[test]
fn repeated_events_are_one_effect() {
    let imports = "(import \"env\" \"proxy_continue_stream\" (func $continue (param i32) (result i32)))
        (import \"env\" \"proxy_register_shared_queue\" (func $register (param i32 i32 i32) (result i32)))
        (import \"env\" \"proxy_enqueue_shared_queue\" (func $enqueue (param i32 i32 i32) (result i32)))
        (import \"env\" \"proxy_dequeue_shared_queue\" (func $dequeue (param i32 i32 i32) (result i32)))";
    let flood = "(drop (call $continue (i32.const 0)))
        (drop (call $register (i32.const 0) (i32.const 1) (i32.const 1024)))
        (drop (call $enqueue (i32.load (i32.const 1024)) (i32.const 0) (i32.const 1)))
        (drop (call $dequeue (i32.load (i32.const 1024)) (i32.const 1028) (i32.const 1032)))";
    let (mut vm, _) = run_statement(imports, "q", &repeat_statement(10_000, flood));
    assert_eq!(vm.take_effects().len(), 3);
}

#[test]
fn oversized_lengths_are_rejected_without_allocation() {
    let imports = "(import \"env\" \"proxy_log\" (func $log (param i32 i32 i32) (result i32)))
        (import \"env\" \"proxy_set_shared_data\" (func $share (param i32 i32 i32 i32 i32) (result i32)))
        (import \"env\" \"proxy_set_header_map_pairs\" (func $pairs (param i32 i32 i32) (result i32)))
        (import \"env\" \"proxy_send_local_response\" (func $respond (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import \"wasi_snapshot_preview1\" \"random_get\" (func $random (param i32 i32) (result i32)))
        (import \"wasi_snapshot_preview1\" \"fd_write\" (func $write (param i32 i32 i32 i32) (result i32)))
        (import \"wasi_snapshot_preview1\" \"poll_oneoff\" (func $poll (param i32 i32 i32 i32) (result i32)))";
    let refused = |call: &str| format!("(if (i32.eqz {call}) (then (unreachable)))");
    let huge = "(i32.const -1)";
    let calls = [
        format!("(call $log (i32.const 2) (i32.const 0) {huge})"),
        format!("(call $share (i32.const 0) {huge} (i32.const 0) {huge} (i32.const 0))"),
        format!("(call $share (i32.const 0) (i32.const 1) (i32.const 0) {huge} (i32.const 0))"),
        format!("(call $pairs (i32.const 0) (i32.const 0) {huge})"),
        // A list of pairs that declares four billion of them.
        "(call $pairs (i32.const 0) (i32.const 0) (i32.const 64))".to_owned(),
        format!(
            "(call $respond (i32.const 200) (i32.const 0) {huge} (i32.const 0) {huge} (i32.const 0) {huge} (i32.const -1))"
        ),
        // Random bytes beyond the maximum size of one piece are not generated.
        "(call $random (i32.const 1114000) (i32.const -1))".to_owned(),
        format!("(call $write (i32.const 1) {huge} {huge} (i32.const 0))"),
        format!("(call $poll {huge} (i32.const 0) {huge} (i32.const 0))"),
    ];
    let all: String = calls.iter().map(|call| refused(call)).collect();
    run_statement(imports, "\\ff\\ff\\ff\\ff\\ff\\ff\\ff\\ff", &all);
}

#[test]
fn log_lines_are_rate_limited() {
    let imports = "(import \"env\" \"proxy_log\" (func $log (param i32 i32 i32) (result i32)))
        (import \"wasi_snapshot_preview1\" \"fd_write\" (func $write (param i32 i32 i32 i32) (result i32)))";
    // Log lines, and output without a line end.
    let flood = "(drop (call $log (i32.const 2) (i32.const 64) (i32.const 4096)))
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 1048576))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32)))";
    run_statement(imports, "", &repeat_statement(20, flood));
}

#[test]
fn instances_share_the_memory_of_the_process() {
    // Each instance takes as much as it may.
    let grows = |pages: usize| {
        module(
            "",
            "",
            &format!(
                "(func (export \"proxy_on_vm_start\") (param i32 i32) (result i32)
                    (i32.ne (memory.grow (i32.const {pages})) (i32.const -1)))"
            ),
        )
    };
    let engine = engine();
    let most = (MEMORY_LIMIT_BYTES >> 16) - 17;
    let mut running = Vec::new();
    let refused = loop {
        match start(&engine, &grows(most)) {
            Ok(vm) => running.push(vm),
            Err(failure) => break failure,
        }
        assert!(running.len() <= 4, "256 MiB are four times 64");
    };
    assert!(
        matches!(refused, VmError::Configuration(_) | VmError::Start(_)),
        "{refused:?}"
    );
    assert_eq!(running.len(), 4);
    // Memory that one instance releases is available to another.
    running.pop();
    start(&engine, &grows(most)).expect("room again");
}

#[test]
fn recursion_through_the_host_traps() {
    let wat = "(module
        (import \"env\" \"proxy_get_property\" (func $get (param i32 i32 i32 i32) (result i32)))
        (memory (export \"memory\") 1)
        (data (i32.const 0) \"plugin_name\")
        (func (export \"proxy_abi_version_0_2_1\"))
        (func $again (export \"proxy_on_memory_allocate\") (param i32) (result i32)
            (call $get (i32.const 0) (i32.const 11) (i32.const 64) (i32.const 68)))
        (func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32)
            (drop (call $again (i32.const 1))) (i32.const 1)))";
    let engine = engine();
    let mut vm = start(&engine, wat).expect("an instance");
    assert!(matches!(
        send_request(&mut vm).1,
        Err(VmError::Trapped { .. })
    ));
}
