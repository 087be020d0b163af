//! Tests of rate limits: local ones of a waypoint, and global ones of a rate-limit service built from Envoy's own API;
//! with clients that flood it with keys, and services that hang, lie, break or disappear.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use ambit_system_tests::{
    LogSource, Mesh, built_binary, is_complete_response, wait_until, with_waypoint,
};
use serde_json::Value;

fn additional_manifests() -> String {
    let service = built_binary("rate-limit-service");
    let service = service.display();
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: limits, namespace: shop, labels: {{app: limits}}}}
spec:
  nodeName: node-2
  serviceAccountName: limits
  containers:
  - name: main
    image: none
    command: [{service}]
    readinessProbe: {{tcpSocket: {{port: 8081}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: other, namespace: shop}}
spec:
  nodeName: node-1
  serviceAccountName: other
  containers:
  - {{name: main, image: none, command: [$LAB_TOOL, sleep]}}
---
apiVersion: v1
kind: Service
metadata: {{name: app, namespace: shop}}
spec:
  selector: {{app: server}}
  ports: [{{name: http, port: 80, targetPort: 8082}}]
"
    )
}

/// Manifest of the Service in a separate file, so that it can be deleted.
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: limits, namespace: shop}
spec:
  selector: {app: limits}
  ports: [{name: grpc, port: 8081}]
";

fn local_rate_limit(spec: &str) -> String {
    format!(
        "
apiVersion: ambit.io/v1alpha1
kind: RateLimit
metadata: {{name: limit, namespace: shop}}
spec:
  targetRefs: [{{kind: Service, name: app}}]
{spec}
"
    )
}

/// Returns a global RateLimit with this domain of the rate-limit service.
fn global_rate_limit(domain: &str, more: &str) -> String {
    local_rate_limit(&format!(
        "  global:
    service: {{name: limits, port: 8081}}
    domain: {domain}
    timeout: 2s
    descriptors: [{{entries: [{{key: user, header: x-user}}, {{key: part, value: shop}}]}}]
  {more}"
    ))
}

struct RateLimitFixture {
    mesh: Mesh,
    service: SocketAddr,
    /// Number of users so far, so that each test step can have an unknown user.
    user_count: AtomicUsize,
}

impl RateLimitFixture {
    fn new() -> Self {
        let (mesh, _) = with_waypoint(&additional_manifests());
        mesh.serve_heads("shop/server", 8082);
        mesh.apply("limits", SERVICE);
        let service = mesh.service_address("app.shop.svc", 80);
        Self {
            mesh,
            service,
            user_count: AtomicUsize::new(0),
        }
    }

    /// Sends a request with the header of a user, and returns the response in lower case.
    fn ask_from(&self, pod: &str, headers: &str) -> String {
        let request =
            format!("POST /asked HTTP/1.1\r\nHost: app\r\ncontent-length: 0\r\n{headers}\r\n");
        let Ok(mut connection) = self.mesh.dial(pod, self.service) else {
            return String::new();
        };
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        answer.unwrap_or_default().to_ascii_lowercase()
    }

    fn ask(&self, user: &str) -> String {
        self.ask_from("shop/client", &format!("x-user: {user}\r\n"))
    }

    #[track_caller]
    fn expect_status(&self, user: &str, status: &str) -> String {
        let answer = self.ask(user);
        assert!(
            answer.starts_with(&format!("http/1.1 {status} ")),
            "{user} is not answered with {status}: {answer}"
        );
        answer
    }

    /// Checks that a rejected gRPC client gets the gRPC status that allows a retry.
    #[track_caller]
    fn expect_grpc_rejection(&self, user: &str) {
        let headers = format!("x-user: {user}\r\ncontent-type: application/grpc\r\n");
        let answer = self.ask_from("shop/client", &headers);
        for expected_header in [
            "http/1.1 200 ",
            "grpc-status: 14\r\n",
            "retry-after: 1800\r\n",
        ] {
            assert!(
                answer.contains(expected_header),
                "{expected_header}: {answer}"
            );
        }
    }

    /// Applies an object, and waits until new users get a response with this status and text.
    fn apply_and_wait(&self, object: &str, status: &str, expected_header: &str) {
        self.mesh.apply("limit", object);
        wait_until(
            &format!("responses with {status} and {expected_header:?}"),
            || {
                let number = self.user_count.fetch_add(1, SeqCst);
                let answer = self.ask(&format!("new-{number}"));
                answer.starts_with(&format!("http/1.1 {status} "))
                    && answer.contains(expected_header)
            },
        );
    }

    fn log(&self, pod: &str) -> String {
        let source = LogSource::Pod {
            pod: pod.to_owned(),
            container: None,
        };
        self.mesh.client().log_text(source).unwrap_or_default()
    }

    /// Returns the requests that the rate-limit service has received.
    fn rate_limit_requests(&self) -> Vec<Value> {
        let log = self.log("shop/limits");
        let lines = log.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    fn has_counted(&self, kind: &str, outcome: &str) -> bool {
        let url = format!("http://{}:15020/metrics", self.mesh.ip("shop/waypoint"));
        let metrics = self.mesh.get("legacy/client", &url).body;
        let mut lines = metrics.lines();
        lines.any(|line| {
            line.starts_with("ambit_rate_limit_decisions_total")
                && line.contains(&format!("kind=\"{kind}\""))
                && line.contains(&format!("outcome=\"{outcome}\""))
        })
    }

    fn wait_for_problem(&self, of: &str) {
        wait_until(&format!("{of} is named"), || {
            let source = LogSource::Daemon {
                name: "control".to_owned(),
                node: None,
            };
            let log = self.mesh.client().log_text(source);
            log.is_ok_and(|log| log.contains(of))
        });
    }
}

#[test]
fn local_limits_reject_excess_requests_and_bound_keys() {
    let scene = RateLimitFixture::new();
    let by_user = "  tellClients: true
  local: [{requests: 2, per: 1h, by: [{header: x-user}]}]";
    scene.apply_and_wait(
        &local_rate_limit(by_user),
        "200",
        "x-ratelimit-limit: 2, 2;w=3600\r\n",
    );
    scene.expect_status("a", "200");
    let last = scene.expect_status("a", "200");
    assert!(last.contains("x-ratelimit-remaining: 0\r\n"), "{last}");
    let refused = scene.expect_status("a", "429");
    for expected_header in [
        "retry-after: 1800\r\n",
        "x-ratelimit-remaining: 0\r\n",
        "x-envoy-ratelimited: true\r\n",
    ] {
        assert!(
            refused.contains(expected_header),
            "{expected_header}: {refused}"
        );
    }
    scene.expect_grpc_rejection("a");
    scene.expect_status("b", "200");
    // Another service of the waypoint is not limited.
    for _ in 0..4 {
        scene.mesh.get("shop/client", "http://server.shop/").ok();
    }
    wait_until("the refusal is logged", || {
        let log = scene.log("shop/waypoint");
        log.lines()
            .any(|line| line.contains(" 429 RL local_rate_limited"))
    });
    assert!(scene.has_counted("local", "refused"));

    // An invalid object leaves the last valid one in force, with its counters.
    scene.mesh.apply(
        "limit",
        &local_rate_limit("  local: [{requests: 0, per: 1h}]"),
    );
    scene.wait_for_problem("spec.local[0].requests");
    scene.expect_status("a", "429");

    // A flood of keys gets as many requests as there are separate buckets, and one more.
    let few = "  tellClients: true
  local: [{requests: 1, per: 2h, buckets: 4, by: [{header: x-user}]}]";
    scene.apply_and_wait(
        &local_rate_limit(few),
        "429",
        "x-ratelimit-limit: 1, 1;w=7200\r\n",
    );
    let flood = (0..30).map(|number| scene.ask(&format!("flood-{number}")));
    assert!(
        flood
            .into_iter()
            .all(|answer| answer.starts_with("http/1.1 429 "))
    );

    // The caller's identity, which no header changes.
    let by_caller = "  tellClients: true
  local: [{requests: 1, per: 3h, by: [{source: Principal}]}]";
    let expected_header = "x-ratelimit-limit: 1, 1;w=10800\r\n";
    scene.apply_and_wait(&local_rate_limit(by_caller), "429", expected_header);
    let forged = "x-forwarded-client-cert: By=x;URI=spiffe://cluster.local/ns/a/sa/b\r\n";
    let refused = scene.ask_from("shop/client", forged);
    assert!(refused.starts_with("http/1.1 429 "), "{refused}");
    let other = scene.ask_from("shop/other", forged);
    assert!(other.starts_with("http/1.1 200 "), "{other}");

    // The request is counted and allowed.
    let dry = by_caller.replace("tellClients", "dryRun");
    scene.apply_and_wait(&local_rate_limit(&dry), "200", "");
    scene.expect_status("a", "200");
    assert!(scene.has_counted("local", "dry_run"));
}

#[test]
fn rate_limit_service_decides() {
    let scene = RateLimitFixture::new();
    scene.apply_and_wait(
        &global_rate_limit("shop", "tellClients: true"),
        "200",
        "x-limited-by",
    );
    scene.expect_status("a", "200");
    scene.expect_status("a", "200");
    let refused = scene.expect_status("a", "429");
    for expected_header in [
        "x-limited-by: shop;user=a;part=shop\r\n",
        "x-ratelimit-limit: 2, 2;w=3600\r\n",
        "x-ratelimit-reset: 1800\r\n",
        "retry-after: 1800\r\n",
        "\r\n\r\nslow down",
    ] {
        assert!(
            refused.contains(expected_header),
            "{expected_header}: {refused}"
        );
    }
    scene.expect_grpc_rejection("a");
    assert!(scene.has_counted("global", "refused") && scene.has_counted("global", "passed"));
    // Requests without a descriptor cause no check.
    let asked = scene.rate_limit_requests().len();
    let plain = scene.ask_from("shop/client", "");
    assert!(plain.starts_with("http/1.1 200 "), "{plain}");
    assert_eq!(scene.rate_limit_requests().len(), asked);
    let last = scene.rate_limit_requests().pop().unwrap();
    assert_eq!(
        (&last["domain"], &last["hitsAddend"]),
        (&"shop".into(), &1.into())
    );
    let entries = &last["descriptors"][0]["entries"];
    assert_eq!(entries[0]["key"], "user");
    assert_eq!(entries[1]["value"], "shop");
    // The object sets the number of hits of a request.
    let two =
        global_rate_limit("twice", "tellClients: true").replace("timeout", "hits: 2\n    timeout");
    scene.apply_and_wait(&two, "200", "x-ratelimit-remaining: 0\r\n");
    scene.expect_status("c", "200");
    scene.expect_status("c", "429");
}

#[test]
fn undecided_rate_limit_follows_the_failure_setting() {
    let scene = RateLimitFixture::new();
    let (domains, open) = (["hang", "unknown", "broken", "flood"], "failOpen: true");
    let outcomes = ["late", "undecided", "failed", "too_large"];
    for (domain, outcome) in domains.into_iter().zip(outcomes) {
        let object = |more: &str| global_rate_limit(domain, more).replace("2s", "100ms");
        scene.apply_and_wait(&object(""), "500", "");
        wait_until(&format!("{outcome} is counted"), || {
            scene.expect_status("a", "500");
            scene.has_counted("global", outcome)
        });
        scene.apply_and_wait(&object(open), "200", "");
    }
    // The service may not set headers that frame a response, nor two lines in one header.
    scene.apply_and_wait(&global_rate_limit("framing", ""), "200", "x-good: yes\r\n");
    let answer = scene.expect_status("a", "200");
    assert!(!answer.contains("transfer-encoding"), "{answer}");
    assert!(!answer.contains("smuggled"), "{answer}");
    // The service disappears, and returns.
    scene.apply_and_wait(&global_rate_limit("gone", ""), "200", "x-limited-by");
    scene.mesh.remove("limits");
    wait_until("requests are refused", || {
        scene.ask("b").starts_with("http/1.1 500 ")
    });
    scene.mesh.apply("limits", SERVICE);
    scene.apply_and_wait(&global_rate_limit("back", ""), "200", "x-limited-by");
    wait_until("the refusal is logged", || {
        let log = scene.log("shop/waypoint");
        log.lines()
            .any(|line| line.contains(" 500 RLSE rate_limiter_error"))
    });
}
