//! Tests of handwritten Wasm plugins, each for one behaviour.

use ambit_system_tests::{options, wait_until};

use crate::plugins::scene::PluginFixture;

pub(crate) const HEADERS: &str =
    include_str!("../../../../../dataplane/wasm/tests/modules/headers.wat");
/// Module that traps on requests with `x-trap`, and loops forever on requests with `x-spin`.
const HOSTILE_MODULE: &str = r#"(module
    (import "env" "proxy_get_header_map_value" (func $get (param i32 i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 16) "x-trap")
    (data (i32.const 32) "x-spin")
    (func (export "proxy_abi_version_0_2_1"))
    (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 4096))
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (if (i32.eqz (call $get (i32.const 0) (i32.const 16) (i32.const 6) (i32.const 0) (i32.const 4)))
            (then (unreachable)))
        (if (i32.eqz (call $get (i32.const 0) (i32.const 32) (i32.const 6) (i32.const 0) (i32.const 4)))
            (then (loop (br 0))))
        (i32.const 0)))"#;
/// Module whose start function never returns.
const HANGING_START_MODULE: &str = r#"(module
    (memory (export "memory") 1)
    (func (export "proxy_abi_version_0_2_1"))
    (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 4096))
    (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (loop (br 0)) (unreachable)))"#;
/// Module that pauses each request, and never resumes it.
const PAUSING_MODULE: &str = r#"(module
    (memory (export "memory") 1)
    (func (export "proxy_abi_version_0_2_1"))
    (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 4096))
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1)))"#;
/// Module that calls a service of the mesh for each request, and resumes the request after a 200 response.
pub(crate) const CALLING_MODULE: &str = r#"(module
    (import "env" "proxy_http_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))
    (import "env" "proxy_send_local_response" (func $answer (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_set_effective_context" (func $effective (param i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 64) "many.shop.svc.cluster.local:80")
    (data (i32.const 128) "\03\00\00\00\07\00\00\00\03\00\00\00\05\00\00\00\06\00\00\00\0a\00\00\00\05\00\00\00:method\00GET\00:path\00/check\00:authority\00plugs\00")
    (func (export "proxy_abi_version_0_2_1"))
    (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 4096))
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (if (call $call (i32.const 64) (i32.const 30) (i32.const 128) (i32.const 70) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const 2000) (i32.const 0))
            (then (unreachable)))
        (i32.store (call $place (i32.load (i32.const 0))) (local.get 0))
        (i32.const 1))
    (func $place (param $call i32) (result i32)
        (i32.add (i32.const 8192) (i32.mul (i32.const 4) (i32.and (local.get $call) (i32.const 1023)))))
    (func (export "proxy_on_http_call_response") (param i32) (param $call i32) (param i32 i32 i32)
        (drop (call $effective (i32.load (call $place (local.get $call)))))
        (if (i32.gt_u (local.get 2) (i32.const 0))
            (then (drop (call $continue (i32.const 0))))
            (else (drop (call $answer (i32.const 401) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const -1)))))))"#;

#[test]
fn plugin_changes_messages_and_sends_local_responses() {
    let scene = PluginFixture::new();
    scene.wait_for_responses("requests pass", "", |answer| answer.contains("200 OK"));
    // The module does not exist yet: requests are rejected, which is the default.
    scene.apply_plugin("tag", "pluginConfig: {team: bank}");
    let refused = scene.wait_for_responses("requests are refused", "", |answer| {
        answer.contains(" 503 ")
    });
    assert!(!refused.contains("/x?y"), "{refused}");
    let dump = scene.dump();
    assert!(
        dump.contains("shop/tag") && dump.contains("cannot read"),
        "{dump}"
    );
    scene.install_module("tag", HEADERS);
    let asked = |answer: &str| answer.contains("x-plugin: {\"team\":\"bank\"}\r\n");
    let answer = scene.wait_for_responses("the plugin runs", "x-plugin: forged\r\n", asked);
    // In the head of the response, and in the request that the application received.
    assert_eq!(
        answer.matches("x-plugin: {\"team\":\"bank\"}").count(),
        2,
        "{answer}"
    );
    assert!(!answer.contains("forged"), "{answer}");
    let forbidden = scene.get("x-forbidden: 1\r\n");
    assert!(
        forbidden.contains(" 403 ") && forbidden.contains("forbidden by a plugin"),
        "{forbidden}"
    );
    let metrics = scene.metrics();
    assert!(
        metrics.contains("ambit_wasm_plugin_ready{plugin=\"shop/tag\"} 1"),
        "{metrics}"
    );
    // With another configuration, and then deleted.
    scene.apply_plugin("tag", "pluginConfig: {team: shop}");
    scene.wait_for_responses("the configuration is another", "", |answer| {
        answer.contains("{\"team\":\"shop\"}")
    });
    // An invalid object leaves the plugin unchanged.
    scene.apply_plugin("tag", "priority: many");
    scene.mesh.remove("tag");
    scene.wait_for_responses("the plugin is gone", "", |answer| {
        answer.contains(" 200 ") && !answer.contains("x-plugin")
    });
}

#[test]
fn policies_check_requests_changed_by_a_plugin() {
    let scene = PluginFixture::new();
    scene.install_module("tag", HEADERS);
    scene.apply_plugin("tag", "pluginConfig: {team: bank}");
    scene.wait_for_responses("the plugin runs", "", |answer| {
        answer.contains("{\"team\":\"bank\"}")
    });
    // The plugin runs after the policies, which decide again.
    scene.mesh.apply(
        "policy",
        "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-bank, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{when: [{key: 'request.headers[x-plugin]', values: ['*\"bank\"}']}]}]
",
    );
    scene.wait_for_responses("what it makes is denied", "", |answer| {
        answer.contains(" 403 ")
    });
    for phase in ["AUTHN", "AUTHZ", "STATS"] {
        scene.apply_plugin(
            "tag",
            &format!("pluginConfig: {{team: shop}}\n  phase: {phase}"),
        );
        scene.wait_for_responses("another team is not", "", |answer| {
            answer.contains("{\"team\":\"shop\"}")
        });
        scene.apply_plugin(
            "tag",
            &format!("pluginConfig: {{team: bank}}\n  phase: {phase}"),
        );
        scene.wait_for_responses("what it makes is denied", "", |answer| {
            answer.contains(" 403 ")
        });
    }
}

#[test]
fn trapping_or_spinning_plugin_affects_only_its_requests() {
    let scene = PluginFixture::new();
    scene.install_module("tag", HEADERS);
    scene.install_module("hostile", HOSTILE_MODULE);
    scene.apply_plugin("tag", "pluginConfig: {team: bank}");
    // The plugin is for another port, and then for none of them.
    scene.apply_plugin(
        "hostile",
        "phase: AUTHN\n  match: [{ports: [{number: 81}]}]",
    );
    let passes = |answer: &str| answer.contains(" 200 ") && answer.contains("bank");
    scene.wait_for_responses("requests pass", "x-trap: 1\r\n", passes);
    scene.apply_plugin("hostile", "phase: AUTHN");
    let refused = |answer: &str| answer.contains(" 503 ");
    for bad in ["x-trap: 1\r\n", "x-spin: 1\r\n"] {
        scene.wait_for_responses("it fails", bad, refused);
        // The plugin is restarted, and other requests succeed again.
        scene.wait_for_responses("requests pass again", "", passes);
    }
    let metrics = scene.metrics();
    assert!(
        metrics.contains("ambit_wasm_plugin_failures_total{plugin=\"shop/hostile\"}"),
        "{metrics}"
    );
    scene.apply_plugin("hostile", "phase: AUTHN\n  failStrategy: FAIL_OPEN");
    for bad in ["x-trap: 1\r\n", "x-spin: 1\r\n"] {
        scene.wait_for_responses("a request goes on without it", bad, passes);
    }
}

#[test]
fn plugin_pauses_a_request_during_a_service_call() {
    let scene = PluginFixture::new();
    scene.install_module("asking", CALLING_MODULE);
    scene.apply_plugin("asking", "phase: AUTHZ");
    scene.wait_for_responses("a request goes on", "", |answer| {
        answer.contains(" 200 ") && scene.dump().contains("\"ready\"")
    });
    scene.install_module("refused", &CALLING_MODULE.replace("many.shop", "gone.shop"));
    scene.apply_plugin("refused", "phase: AUTHZ");
    scene.wait_for_responses("without an answer it is refused", "", |answer| {
        answer.contains(" 401 ")
    });
}

#[test]
fn plugin_resource_limits_are_settings() {
    let mut options = options();
    for (name, time) in [("START", "170ms"), ("CALLBACK", "70ms"), ("HOLD", "270ms")] {
        let name = format!("AMBIT_WASM_{name}_TIMEOUT");
        options.env.insert(name, time.to_owned());
    }
    let scene = PluginFixture::with("", options);
    for (name, wat) in [
        ("hostile", HOSTILE_MODULE),
        ("endless", HANGING_START_MODULE),
        ("holding", PAUSING_MODULE),
    ] {
        scene.install_module(name, wat);
    }
    let refused = |answer: &str| answer.contains(" 503 ");
    scene.apply_plugin("hostile", "");
    scene.wait_for_responses("the plugin runs", "", |answer| answer.contains(" 200 "));
    scene.wait_for_responses("a callback takes too long", "x-spin: 1\r\n", refused);
    wait_until("the log has the time limit", || {
        let expected = "more than 70ms in proxy_on_request_headers";
        scene.waypoint_log().contains(expected)
    });
    scene.mesh.remove("hostile");
    scene.apply_plugin("endless", "");
    wait_until("a start takes too long", || {
        // It starts for the first request.
        let expected = "more than 170ms in proxy_on_vm_start";
        refused(&scene.get("")) && scene.waypoint_log().contains(expected)
    });
    scene.mesh.remove("endless");
    wait_until("it is gone", || {
        scene.dumped_plugin_state("endless").is_null()
    });
    // The response did not wait for the default timeout of half a minute.
    scene.apply_plugin("holding", "");
    wait_until("its module is ready", || {
        scene.dumped_plugin_state("holding")["state"] == "ready"
    });
    let answer = scene.get("");
    assert!(refused(&answer), "{answer:?}");
}
