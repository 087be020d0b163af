//! Tests of hand-written modules in the host: inputs of callbacks, results of host functions, and failures.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ambit_wasm::{
    CallKind, CallResponse, ContextId, Direction, Effect, Engine, GrpcStreamEvent, HeaderSection,
    Limits, Metrics, Module, ModuleError, PropertySource, PropertyValue, Settings, SharedState,
    StreamDecision, Vm, VmError,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

const HEADERS: &str = include_str!("modules/headers.wat");

struct TestProperties;

impl PropertySource for TestProperties {
    fn property(&self, path: &[&str]) -> Option<PropertyValue> {
        match path {
            ["source", "address"] => Some(PropertyValue::Text("10.0.0.1:1".to_owned())),
            _ => None,
        }
    }
}

fn settings(configuration: &str) -> Arc<Settings> {
    Arc::new(Settings {
        name: "shop/tag".to_owned(),
        root_id: String::new(),
        vm_id: "vm".to_owned(),
        configuration: Bytes::copy_from_slice(configuration.as_bytes()),
        vm_configuration: Bytes::new(),
        environment: BTreeMap::new(),
        limits: Limits {
            max_memory_bytes: 4 << 20,
            callback_timeout: Duration::from_millis(50),
            start_timeout: Duration::from_millis(50),
            max_body_bytes: 64,
            max_outstanding_calls: 2,
        },
    })
}

fn compile(wat: &str) -> Result<(Engine, Module), ModuleError> {
    let engine = Engine::new()?;
    let bytes = wat::parse_str(wat).expect("WAT");
    let module = engine.compile(&bytes)?;
    Ok((engine, module))
}

fn start(wat: &str, configuration: &str) -> Result<(Engine, Vm), VmError> {
    let (engine, module) = compile(wat).expect("a module");
    let vm = Vm::start(
        &module,
        settings(configuration),
        SharedState::default(),
        Metrics::default(),
    )?;
    Ok((engine, vm))
}

/// Builds the text of a module with these imports and functions, and the required exports.
fn module(imports: &str, functions: &str) -> String {
    format!(
        "(module {imports} (memory (export \"memory\") 1)
            (func (export \"proxy_abi_version_0_2_1\"))
            (global $heap (mut i32) (i32.const 4096))
            (func (export \"proxy_on_memory_allocate\") (param i32) (result i32)
                (global.get $heap)
                (global.set $heap (i32.add (global.get $heap) (local.get 0))))
            {functions})"
    )
}

fn on_request(body: &str) -> String {
    format!("(func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32) {body})")
}

fn request_head(headers: &[(&'static str, &'static str)]) -> HeaderSection {
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        all.append(*name, HeaderValue::from_static(value));
    }
    HeaderSection {
        pseudo_headers: vec![(":method", "GET".to_owned()), (":path", "/a?b".to_owned())],
        headers: all,
    }
}

fn open_context(vm: &mut Vm) -> ContextId {
    vm.create_stream_context(Arc::new(TestProperties))
        .expect("a request")
}

fn send_request_headers(
    vm: &mut Vm,
    headers: &[(&'static str, &'static str)],
) -> (ContextId, Result<StreamDecision, VmError>) {
    let id = open_context(vm);
    let outcome = vm.on_headers(Direction::Request, id, request_head(headers), true);
    (id, outcome)
}

#[test]
fn plugin_changes_headers_and_responds() {
    let (_engine, mut vm) = start(HEADERS, "{\"a\":1}").unwrap();
    let (id, outcome) = send_request_headers(&mut vm, &[("x-plugin", "forged")]);
    assert_eq!(outcome, Ok(StreamDecision::Continue));
    let changed = vm.take_head(Direction::Request, id).unwrap();
    assert_eq!(changed.headers["x-plugin"], "{\"a\":1}");
    assert_eq!(changed.pseudo_header(":path"), Some("/a?b"));
    let answer = vm.on_headers(Direction::Response, id, request_head(&[]), false);
    assert_eq!(answer, Ok(StreamDecision::Continue));
    let changed = vm.take_head(Direction::Response, id).unwrap();
    assert_eq!(changed.headers["x-plugin"], "{\"a\":1}");
    vm.end_stream(id).unwrap();
    let (_, outcome) = send_request_headers(&mut vm, &[("x-forbidden", "1")]);
    let Ok(StreamDecision::LocalResponse(answer)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (answer.status, &answer.body[..]),
        (403, &b"forbidden by a plugin\n"[..])
    );
    assert_eq!(answer.response_code_details, "wat_forbidden");
    // Any number of times, without growing.
    for _ in 0..5000 {
        let (id, outcome) = send_request_headers(&mut vm, &[]);
        assert_eq!(outcome, Ok(StreamDecision::Continue));
        vm.end_stream(id).unwrap();
    }
}

#[test]
fn invalid_modules_are_rejected() {
    let engine = Engine::new().unwrap();
    assert!(matches!(
        engine.compile(b"MZ"),
        Err(ModuleError::Invalid(_))
    ));
    assert!(matches!(
        compile("(module)"),
        Err(ModuleError::UnsupportedAbi)
    ));
    let strange = module("(import \"env\" \"proxy_fly\" (func))", "");
    let Err(ModuleError::UnknownImports(why)) = compile(&strange) else {
        panic!("it was taken");
    };
    assert!(why.contains("proxy_fly"), "{why}");
    let other_type = module(
        "",
        "(func (export \"proxy_on_tick\") (result i64) (i64.const 0))",
    );
    assert!(matches!(start(&other_type, ""), Err(VmError::Start(_))));
    let refuses = module(
        "",
        "(func (export \"proxy_on_configure\") (param i32 i32) (result i32) (i32.const 0))",
    );
    assert_eq!(
        start(&refuses, "").err(),
        Some(VmError::Configuration("proxy_on_configure"))
    );
    // Unimplemented system functions fail when they are called.
    let system = module(
        "(import \"wasi_snapshot_preview1\" \"path_open\" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))",
        &on_request(
            "(call $open (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 0))
             (i32.eq (i32.const 58)) (if (then) (else (unreachable))) (i32.const 0)",
        ),
    );
    let (_engine, mut vm) = start(&system, "").unwrap();
    assert_eq!(
        send_request_headers(&mut vm, &[]).1,
        Ok(StreamDecision::Continue)
    );
}

#[test]
fn instance_is_unusable_after_a_trap() {
    let wat = module("", &on_request("(unreachable)"));
    let (_engine, mut vm) = start(&wat, "").unwrap();
    let (id, outcome) = send_request_headers(&mut vm, &[]);
    assert!(
        matches!(
            outcome,
            Err(VmError::Trapped {
                callback: "proxy_on_request_headers",
                ..
            })
        ),
        "{outcome:?}"
    );
    assert!(vm.has_failed());
    assert_eq!(
        vm.stream_decision(Direction::Request, id),
        Err(VmError::InstanceFailed)
    );
    assert_eq!(
        vm.create_stream_context(Arc::new(TestProperties)),
        Err(VmError::InstanceFailed)
    );
}

/// Runs a function while a thread advances the engine's clock.
fn run_while_ticking<R>(engine: &Engine, run: impl FnOnce() -> R) -> R {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stopped = stopped;
            let waits = || stopped.recv_timeout(Engine::TICK_INTERVAL);
            while waits() == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                engine.tick();
            }
        });
        let result = run();
        drop(stop);
        result
    })
}

#[test]
fn spinning_module_is_interrupted() {
    let wat = module("", &on_request("(loop (br 0)) (i32.const 0)"));
    let (engine, mut vm) = start(&wat, "").unwrap();
    let (_, outcome) = run_while_ticking(&engine, || send_request_headers(&mut vm, &[]));
    let callback = "proxy_on_request_headers";
    let limit = Duration::from_millis(50);
    assert_eq!(outcome, Err(VmError::TimedOut { callback, limit }));
    let wat = module("", "(func $spin (loop (br 0))) (start $spin)");
    let (engine, module) = compile(&wat).unwrap();
    let started = run_while_ticking(&engine, || {
        Vm::start(
            &module,
            settings(""),
            SharedState::default(),
            Metrics::default(),
        )
    });
    assert!(matches!(started, Err(VmError::Start(_))), "{started:?}");
}

#[test]
fn memory_growth_is_limited() {
    let grows = |pages: u32| {
        module(
            "",
            &on_request(&format!(
                "(i32.eq (memory.grow (i32.const {pages})) (i32.const -1)) (if (then (unreachable))) (i32.const 0)"
            )),
        )
    };
    let (_engine, mut vm) = start(&grows(32), "").unwrap();
    assert_eq!(
        send_request_headers(&mut vm, &[]).1,
        Ok(StreamDecision::Continue)
    );
    assert!(
        send_request_headers(&mut vm, &[]).1.is_err(),
        "more than its limit"
    );
    // Also for the initial memory.
    let large =
        "(module (memory (export \"memory\") 100) (func (export \"proxy_abi_version_0_2_1\")))";
    assert!(matches!(start(large, ""), Err(VmError::Start(_))));
    let recursion = module(
        "",
        &format!(
            "(func $f (call $f)) {}",
            on_request("(call $f) (i32.const 0)")
        ),
    );
    let (_engine, mut vm) = start(&recursion, "").unwrap();
    assert!(matches!(
        send_request_headers(&mut vm, &[]).1,
        Err(VmError::Trapped { .. })
    ));
}

#[test]
fn out_of_bounds_pointers_are_rejected() {
    let add = "(import \"env\" \"proxy_add_header_map_value\" (func $add (param i32 i32 i32 i32 i32) (result i32)))";
    for (arguments, status) in [
        // Name and value, each as pointer and length.
        ("-1 4 0 4", 6),
        ("65535 2 0 4", 6),
        ("0 4 65536 1", 6),
        ("0 -1 0 4", 2),
        ("0 1048577 0 4", 2),
        // No name is given.
        ("0 4 0 0", 2),
    ] {
        let arguments: String = arguments
            .split(' ')
            .map(|one| format!("(i32.const {one}) "))
            .collect();
        let body = format!(
            "(i32.ne (call $add (i32.const 0) {arguments}) (i32.const {status})) (if (then (unreachable))) (i32.const 0)"
        );
        let (_engine, mut vm) = start(&module(add, &on_request(&body)), "").unwrap();
        let (id, outcome) = send_request_headers(&mut vm, &[]);
        assert_eq!(outcome, Ok(StreamDecision::Continue), "{arguments}");
        assert!(
            vm.take_head(Direction::Request, id)
                .unwrap()
                .headers
                .is_empty()
        );
    }
    // The address of the result is invalid.
    let get =
        "(import \"env\" \"proxy_get_property\" (func $get (param i32 i32 i32 i32) (result i32)))";
    let data = "(data (i32.const 0) \"source\\00address\")";
    for (at, length_at) in [("-1", "0"), ("0", "65533"), ("65533", "100")] {
        let body = format!(
            "(i32.ne (call $get (i32.const 0) (i32.const 14) (i32.const {at}) (i32.const {length_at})) (i32.const 6)) (if (then (unreachable))) (i32.const 0)"
        );
        let wat = module(get, &format!("{data} {}", on_request(&body)));
        let (_engine, mut vm) = start(&wat, "").unwrap();
        assert_eq!(
            send_request_headers(&mut vm, &[]).1,
            Ok(StreamDecision::Continue),
            "{at} {length_at}"
        );
    }
}

const PAUSING_IMPORTS: &str =
    "(import \"env\" \"proxy_continue_stream\" (func $continue (param i32) (result i32)))
    (import \"env\" \"proxy_set_tick_period_milliseconds\" (func $period (param i32) (result i32)))
    (import \"env\" \"proxy_set_effective_context\" (func $effective (param i32) (result i32)))";

#[test]
fn paused_request_waits_for_its_plugin() {
    let functions = format!(
        "(global $id (mut i32) (i32.const 0))
         (func (export \"proxy_on_vm_start\") (param i32 i32) (result i32) (drop (call $period (i32.const 100))) (i32.const 1))
         {}
         (func (export \"proxy_on_tick\") (param i32)
            (drop (call $effective (global.get $id)))
            (drop (call $continue (i32.const 0))))",
        on_request("(global.set $id (local.get 0)) (i32.const 1)")
    );
    let (_engine, mut vm) = start(&module(PAUSING_IMPORTS, &functions), "").unwrap();
    assert_eq!(vm.tick_period(), Some(Duration::from_millis(100)));
    let (id, outcome) = send_request_headers(&mut vm, &[]);
    assert_eq!(outcome, Ok(StreamDecision::Paused));
    assert_eq!(
        vm.stream_decision(Direction::Request, id),
        Ok(StreamDecision::Paused)
    );
    assert!(vm.take_effects().is_empty());
    vm.on_tick().unwrap();
    assert!(matches!(vm.take_effects()[..], [Effect::StreamDecisionChanged(of)] if of == id));
    assert_eq!(
        vm.stream_decision(Direction::Request, id),
        Ok(StreamDecision::Continue)
    );
    // A finished request receives no callback.
    vm.end_stream(id).unwrap();
    vm.on_tick().unwrap();
    assert!(vm.take_effects().is_empty());
}

#[test]
fn body_is_held_up_to_the_limit_until_released() {
    let set = "(import \"env\" \"proxy_set_buffer_bytes\" (func $set (param i32 i32 i32 i32 i32) (result i32)))";
    // Held until its end; the first two bytes are replaced.
    let functions = "(data (i32.const 0) \"new\")
        (func (export \"proxy_on_request_body\") (param i32 i32 i32) (result i32)
            (if (i32.eqz (local.get 2)) (then (return (i32.const 1))))
            (drop (call $set (i32.const 0) (i32.const 0) (i32.const 2) (i32.const 0) (i32.const 3)))
            (i32.const 0))";
    let (_engine, mut vm) = start(&module(set, functions), "").unwrap();
    assert!(vm.has_body_callback(Direction::Request) && !vm.has_body_callback(Direction::Response));
    let id = open_context(&mut vm);
    assert_eq!(
        vm.on_body(Direction::Request, id, b"ab", false),
        Ok(StreamDecision::Paused)
    );
    assert_eq!(
        vm.on_body(Direction::Request, id, b"cd", false),
        Ok(StreamDecision::Paused)
    );
    assert_eq!(
        vm.on_body(Direction::Request, id, b"ef", true),
        Ok(StreamDecision::Continue)
    );
    assert_eq!(vm.take_body(Direction::Request, id), "newcdef");
    assert_eq!(vm.take_body(Direction::Request, id), "");
    let id = open_context(&mut vm);
    assert_eq!(
        vm.on_body(Direction::Request, id, &[0; 64], false),
        Ok(StreamDecision::Paused)
    );
    assert_eq!(
        vm.on_body(Direction::Request, id, &[0; 1], false),
        Ok(StreamDecision::BodyTooLarge)
    );
}

#[test]
fn call_is_an_effect_and_gets_one_response() {
    let call = "(import \"env\" \"proxy_http_call\" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import \"env\" \"proxy_continue_stream\" (func $continue (param i32) (result i32)))
        (import \"env\" \"proxy_set_effective_context\" (func $effective (param i32) (result i32)))";
    let pairs: [(&[u8], &[u8]); 3] = [
        (b":method", b"GET"),
        (b":path", b"/check"),
        (b":authority", b"auth"),
    ];
    let pairs = ambit_wasm::write_pairs(pairs.into_iter());
    let text: String = pairs.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let functions = format!(
        "(data (i32.const 0) \"auth:80\") (data (i32.const 16) \"{text}\")
         {}
         (func (export \"proxy_on_http_call_response\") (param i32 i32 i32 i32 i32)
            {}
            (if (i32.ne (local.get 3) (i32.const 2)) (then (unreachable)))
            (drop (call $effective (i32.const 2)))
            (drop (call $continue (i32.const 0))))",
        on_request(&format!(
            "(call $call (i32.const 0) (i32.const 7) (i32.const 16) (i32.const {}) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 700) (i32.const 1024))
             (if (then (return (i32.const 0)))) (i32.const 1)",
            pairs.len()
        )),
        // The callback runs in the plugin's root context.
        expect_status(1, "(local.get 0)"),
    );
    let (_engine, mut vm) = start(&module(call, &functions), "").unwrap();
    let (id, outcome) = send_request_headers(&mut vm, &[]);
    assert_eq!(outcome, Ok(StreamDecision::Paused));
    let mut effects = vm.take_effects();
    let Some(Effect::StartCall(token, asked)) = effects.pop() else {
        panic!("no call");
    };
    assert_eq!(
        (asked.upstream.as_str(), asked.kind, asked.timeout),
        ("auth:80", CallKind::Http, Duration::from_millis(700))
    );
    assert_eq!(asked.head.pseudo_header(":path"), Some("/check"));
    // At most two calls are outstanding.
    assert_eq!(
        send_request_headers(&mut vm, &[]).1,
        Ok(StreamDecision::Paused)
    );
    assert_eq!(
        send_request_headers(&mut vm, &[]).1,
        Ok(StreamDecision::Continue)
    );
    let response = || CallResponse {
        body: Bytes::from_static(b"ok"),
        ..CallResponse::default()
    };
    vm.on_call_response(token, CallKind::Http, response())
        .unwrap();
    assert_eq!(
        vm.stream_decision(Direction::Request, id),
        Ok(StreamDecision::Continue)
    );
    // A second response, of another size, would trap.
    vm.on_call_response(token, CallKind::Http, CallResponse::default())
        .unwrap();
    let effects = vm.take_effects();
    assert!(
        matches!(
            effects[..],
            [Effect::StartCall(..), Effect::StreamDecisionChanged(_)]
        ),
        "{effects:?}"
    );
}

const STREAM_IMPORT: &str = "(import \"env\" \"proxy_grpc_stream\" (func $open (param i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import \"env\" \"proxy_grpc_send\" (func $send (param i32 i32 i32 i32) (result i32)))
    (import \"env\" \"proxy_grpc_cancel\" (func $cancel (param i32) (result i32)))
    (import \"env\" \"proxy_grpc_close\" (func $close (param i32) (result i32)))
    (import \"env\" \"proxy_get_status\" (func $status (param i32 i32 i32) (result i32)))";

/// Statement that opens a stream and writes its number to address 1024.
const OPEN_STREAM_STATEMENT: &str = "(call $open (i32.const 0) (i32.const 7) (i32.const 16) (i32.const 1) (i32.const 17) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 1024))";

/// Builds a statement that calls a function and traps unless it returns `status`.
fn expect_status(status: u32, call: &str) -> String {
    format!("(if (i32.ne {call} (i32.const {status})) (then (unreachable)))")
}

#[test]
fn empty_messages_are_bounded() {
    let send = "(call $send (i32.load (i32.const 1024)) (i32.const 0) (i32.const 0) (i32.const 0))";
    let sends = on_request(&format!(
        "{} (loop $again (br_if $again (i32.eqz {send}))) {} (i32.const 1)",
        expect_status(0, OPEN_STREAM_STATEMENT),
        expect_status(10, send),
    ));
    let functions =
        format!("(data (i32.const 0) \"auth:80\") (data (i32.const 16) \"sm\") {sends}");
    let (_engine, mut vm) = start(&module(STREAM_IMPORT, &functions), "").unwrap();
    assert_eq!(
        send_request_headers(&mut vm, &[]).1,
        Ok(StreamDecision::Paused)
    );
    let sent = vm.take_effects().into_iter();
    let sent = sent.filter(|effect| matches!(effect, Effect::SendMessage(..)));
    assert_eq!(sent.count(), 1024);
}

#[test]
fn stream_events_are_reported_until_it_closes() {
    let token = "(i32.load (i32.const 1024))";
    let send = |length: u32, is_end: u32| {
        format!("(call $send {token} (i32.const 0) (i32.const {length}) (i32.const {is_end}))")
    };
    let opens = on_request(&format!(
        "{} {} {} {} (i32.const 1)",
        expect_status(0, OPEN_STREAM_STATEMENT),
        expect_status(0, &send(7, 0)),
        // At most the limit of 64 bytes waits to be sent.
        expect_status(10, &send(58, 0)),
        expect_status(
            1,
            "(call $send (i32.const 99) (i32.const 0) (i32.const 0) (i32.const 0))"
        ),
    ));
    // All callbacks run in the plugin's root context.
    let own = expect_status(1, "(local.get 0)");
    // The module ends the stream when a message arrives; later messages are ignored.
    let functions = format!(
        "(data (i32.const 0) \"auth:80\") (data (i32.const 16) \"sm\")
         {opens}
         (func (export \"proxy_on_grpc_receive_initial_metadata\") (param i32 i32 i32) {own} {})
         (func (export \"proxy_on_grpc_receive\") (param i32 i32 i32) {own} {} {} {} {})
         (func (export \"proxy_on_grpc_receive_trailing_metadata\") (param i32 i32 i32) {own} {})
         (func (export \"proxy_on_grpc_close\") (param i32 i32 i32) {own} {} {} {})",
        expect_status(1, "(local.get 2)"),
        expect_status(5, "(local.get 2)"),
        expect_status(0, &format!("(call $close {token})")),
        expect_status(0, &format!("(call $close {token})")),
        expect_status(2, &send(1, 0)),
        expect_status(2, "(local.get 2)"),
        expect_status(9, "(local.get 2)"),
        expect_status(
            0,
            "(call $status (i32.const 2048) (i32.const 2052) (i32.const 2056))"
        ),
        expect_status(9, "(i32.load (i32.const 2048))"),
    );
    let (_engine, mut vm) = start(&module(STREAM_IMPORT, &functions), "").unwrap();
    let (id, outcome) = send_request_headers(&mut vm, &[]);
    assert_eq!(outcome, Ok(StreamDecision::Paused));
    let mut effects = vm.take_effects().into_iter();
    let Some(Effect::OpenStream(token, call)) = effects.next() else {
        panic!("no stream");
    };
    assert_eq!(
        (call.kind, call.head.pseudo_header(":path")),
        (CallKind::Grpc, Some("/s/m"))
    );
    let Some(Effect::SendMessage(to, message)) = effects.next() else {
        panic!("no message");
    };
    assert_eq!((to, message.end_of_stream), (token, false));
    assert_eq!(message.bytes.as_deref(), Some(&b"auth:80"[..]));
    assert!(effects.next().is_none());
    let headers = |count: usize| {
        let names = (0..count).map(|n| format!("x-{n}").parse::<HeaderName>().unwrap());
        names
            .map(|name| (name, HeaderValue::from_static("1")))
            .collect::<HeaderMap>()
    };
    let tell = |vm: &mut Vm, event| vm.on_stream_event(token, event);
    assert_eq!(
        tell(&mut vm, GrpcStreamEvent::Headers(headers(1))),
        Ok(true)
    );
    let hello = GrpcStreamEvent::Message(Bytes::from_static(b"hello"));
    assert_eq!(tell(&mut vm, hello.clone()), Ok(true));
    let effects = vm.take_effects();
    assert!(
        matches!(&effects[..], [Effect::SendMessage(_, end)] if end.end_of_stream && end.bytes.is_none()),
        "{effects:?}"
    );
    assert_eq!(
        tell(&mut vm, GrpcStreamEvent::Trailers(headers(2))),
        Ok(true)
    );
    let closed = GrpcStreamEvent::Closed(9, "why".to_owned());
    assert_eq!(tell(&mut vm, closed.clone()), Ok(false));
    // There is no second callback: a second end would belong to no stream.
    assert_eq!(tell(&mut vm, closed), Ok(false));
    assert_eq!(tell(&mut vm, hello), Ok(false));
    drop(message);
    // Calls of a request are cancelled with it.
    vm.end_stream(id).unwrap();
    assert!(vm.take_effects().is_empty());
    let id = send_request_headers(&mut vm, &[]).0;
    vm.end_stream(id).unwrap();
    let effects = vm.take_effects();
    assert!(
        matches!(
            effects[..],
            [
                Effect::OpenStream(..),
                Effect::SendMessage(..),
                Effect::CancelCall(_)
            ]
        ),
        "{effects:?}"
    );
}

#[test]
fn stream_is_reset_once() {
    let cancels = on_request(&format!(
        "{} {} {} (i32.const 0)",
        expect_status(0, OPEN_STREAM_STATEMENT),
        expect_status(
            0,
            &format!(
                "(call $cancel {token_at})",
                token_at = "(i32.load (i32.const 1024))"
            )
        ),
        expect_status(1, "(call $cancel (i32.load (i32.const 1024)))"),
    ));
    let data = "(data (i32.const 0) \"auth:80\") (data (i32.const 16) \"sm\")";
    let (_engine, mut vm) =
        start(&module(STREAM_IMPORT, &format!("{data} {cancels}")), "").unwrap();
    assert_eq!(
        send_request_headers(&mut vm, &[]).1,
        Ok(StreamDecision::Continue)
    );
    let effects = vm.take_effects();
    assert!(
        matches!(effects[..], [Effect::OpenStream(..), Effect::CancelCall(_)]),
        "{effects:?}"
    );
}

#[test]
fn poll_never_blocks_and_files_are_unsupported() {
    let poll = "(import \"wasi_snapshot_preview1\" \"poll_oneoff\" (func $poll (param i32 i32 i32 i32) (result i32)))";
    // A clock that expires in an hour, and a file; the events have their userdata.
    let body = format!(
        "(i64.store (i32.const 0) (i64.const 7)) (i64.store (i32.const 24) (i64.const 3600000000000))
         (i64.store (i32.const 48) (i64.const 8)) (i32.store8 (i32.const 56) (i32.const 1))
         {} {} {} {} {} {} {} (i32.const 0)",
        expect_status(0, "(call $poll (i32.const 0) (i32.const 1024) (i32.const 2) (i32.const 2048))"),
        expect_status(2, "(i32.load (i32.const 2048))"),
        expect_status(7, "(i32.load (i32.const 1024))"),
        expect_status(0, "(i32.load16_u (i32.const 1032))"),
        expect_status(8, "(i32.load (i32.const 1056))"),
        expect_status(8, "(i32.load16_u (i32.const 1064))"),
        expect_status(21, "(call $poll (i32.const 65530) (i32.const 1024) (i32.const 1) (i32.const 2048))"),
    );
    let (_engine, mut vm) = start(&module(poll, &on_request(&body)), "").unwrap();
    assert_eq!(
        send_request_headers(&mut vm, &[]).1,
        Ok(StreamDecision::Continue)
    );
}
