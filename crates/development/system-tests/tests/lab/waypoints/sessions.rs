//! Tests of session persistence in routes: requests of a client stay at an endpoint, regardless of
//! the weights, until it is removed; and a forged session selects only backends of the route.

use std::{collections::BTreeSet, net::SocketAddr};

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, Mesh, answer_ok, is_complete_response, read_head, wait_until,
};

const PODS: [(&str, &str); 4] = [("a", "one"), ("b", "one"), ("c", "two"), ("d", "two")];

fn pod(name: &str, app: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}
spec:
  nodeName: node-1
  serviceAccountName: many
  containers:
  - {{name: main, image: none, command: [$LAB_TOOL, sleep]}}
"
    )
}

fn service(name: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{app: {name}}}
  ports: [{{name: http, port: 80, targetPort: 8090}}]
"
    )
}

/// Returns route rules with session persistence, by path; the first splits requests by these weights.
fn route(one: u32, two: u32) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: many, namespace: shop}}
spec:
  parentRefs: [{{group: '', kind: Service, name: one}}]
  rules:
  - matches: [{{path: {{value: /split}}}}]
    sessionPersistence: {{sessionName: split}}
    backendRefs: [{{name: one, port: 80, weight: {one}}}, {{name: two, port: 80, weight: {two}}}]
  - matches: [{{path: {{value: /two}}}}]
    sessionPersistence: {{sessionName: split}}
    backendRefs: [{{name: two, port: 80}}]
  - matches: [{{path: {{value: /header}}}}]
    sessionPersistence: {{type: Header, sessionName: X-Session}}
    backendRefs: [{{name: one, port: 80}}]
  - matches: [{{path: {{value: /permanent}}}}]
    sessionPersistence: {{sessionName: permanent, absoluteTimeout: 1h, cookieConfig: {{lifetimeType: Permanent}}}}
    backendRefs: [{{name: one, port: 80}}]
  - matches: [{{path: {{value: /short}}}}]
    sessionPersistence: {{sessionName: short, absoluteTimeout: 1ms}}
    backendRefs: [{{name: one, port: 80}}]
  - matches: [{{path: {{value: /bad}}}}]
    sessionPersistence: {{type: IP}}
    backendRefs: [{{name: one, port: 80}}]
  - backendRefs: [{{name: one, port: 80}}]
"
    )
}

struct SessionFixture {
    mesh: Mesh,
    service: SocketAddr,
}

/// Response, with the name of the pod that sent it.
struct SessionResponse {
    pod: String,
    text: String,
}

impl SessionResponse {
    /// Returns the value of a response header.
    fn header(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}: ");
        self.text
            .lines()
            .find_map(|line| line.strip_prefix(&prefix))
    }

    /// Returns the response's cookie as the client sends it back.
    fn cookie(&self) -> Option<String> {
        let (pair, _) = self.header("set-cookie")?.split_once(';')?;
        Some(format!("cookie: a=b; {pair}\r\n"))
    }
}

impl SessionFixture {
    fn new() -> Self {
        let services = service("one") + &service("two");
        let mesh = Mesh::up(&format!("{CLIENT_AND_SERVER}\n---{GATEWAY}{services}"));
        for (name, app) in PODS {
            mesh.apply(name, &pod(name, app));
        }
        mesh.wait_for_status("the pods are ready", |status| {
            PODS.iter().all(|(name, _)| {
                let full = format!("shop/{name}");
                ambit_system_tests::find_pod(status, &full).is_some_and(|pod| pod.ready)
            })
        });
        for (name, _) in PODS {
            mesh.serve_connections(&format!("shop/{name}"), 8090, move |mut stream| {
                while read_head(&mut stream)?.is_some() {
                    let body = format!("from {name}");
                    answer_ok(&mut stream, &body)?;
                }
                Ok(())
            });
        }
        let scene = Self {
            service: mesh.service_address("one.shop.svc", 80),
            mesh,
        };
        scene.mesh.apply("route", &route(1, 1));
        scene.wait_until_responding("/split", "", ["a", "b", "c", "d"]);
        scene
    }

    fn ask(&self, path: &str, headers: &str) -> SessionResponse {
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: one\r\ncontent-length: 0\r\n{headers}\r\n");
        let connection = self.mesh.dial("shop/client", self.service);
        let answer =
            connection.and_then(|mut to| to.send_raw(request.as_bytes(), is_complete_response));
        let text = answer.unwrap_or_default();
        let from = text.rsplit_once("from ").map(|(_, from)| from.to_owned());
        SessionResponse {
            pod: from.unwrap_or_default(),
            text,
        }
    }

    /// Sends a dozen requests, and returns the pods that respond.
    fn responding_pods(&self, path: &str, headers: &str) -> BTreeSet<String> {
        let asked = (0..12).map(|_| self.ask(path, headers).pod);
        asked.collect()
    }

    #[track_caller]
    fn wait_until_responding<const N: usize>(&self, path: &str, headers: &str, pods: [&str; N]) {
        let expected: BTreeSet<String> = pods.into_iter().map(str::to_owned).collect();
        let mut seen = BTreeSet::new();
        wait_until(&format!("{path} is answered by {pods:?}"), || {
            seen = self.responding_pods(path, headers);
            seen == expected
        });
    }
}

#[test]
fn session_stays_at_its_endpoint_until_it_is_removed() {
    let scene = SessionFixture::new();
    // Clients without a session get one, and the cookie is not repeated for existing ones.
    let first = scene.ask("/split", "");
    let cookie = first.cookie().unwrap();
    assert!(
        first.text.contains("; Path=/; HttpOnly\r\n"),
        "{}",
        first.text
    );
    let of_first = BTreeSet::from([first.pod.clone()]);
    assert_eq!(scene.responding_pods("/split", &cookie), of_first);
    assert!(scene.ask("/split", &cookie).cookie().is_none());
    // An existing session takes precedence over weights.
    let (one, two) = (["a", "b"], ["c", "d"]);
    let (weights, others) = match one.contains(&first.pod.as_str()) {
        true => (route(0, 1), two),
        false => (route(1, 0), one),
    };
    scene.mesh.apply("route", &weights);
    scene.wait_until_responding("/split", "", others);
    assert_eq!(scene.responding_pods("/split", &cookie), of_first);
    // Its endpoint is removed: a new session starts, by the weights.
    scene.mesh.remove(&first.pod);
    let mut moved = None;
    wait_until("the session has gone elsewhere", || {
        let answer = scene.ask("/split", &cookie);
        let has_moved = others.contains(&answer.pod.as_str());
        moved = answer
            .cookie()
            .filter(|_| has_moved)
            .map(|to| (to, answer.pod));
        moved.is_some()
    });
    let (cookie, to) = moved.unwrap();
    assert_eq!(
        scene.responding_pods("/split", &cookie),
        BTreeSet::from([to])
    );
}

#[test]
fn sessions_are_carried_by_their_rules_type() {
    let scene = SessionFixture::new();
    let header = scene.ask("/header", "");
    assert!(header.cookie().is_none());
    let value = header.header("x-session").unwrap().to_owned();
    let sent = format!("x-session: {value}\r\n");
    assert_eq!(
        scene.responding_pods("/header", &sent),
        BTreeSet::from([header.pod])
    );
    let permanent = scene.ask("/permanent", "");
    assert!(
        permanent.text.contains("; Max-Age=3600\r\n"),
        "{}",
        permanent.text
    );
    let cookie = permanent.cookie().unwrap();
    assert_eq!(
        scene.responding_pods("/permanent", &cookie),
        BTreeSet::from([permanent.pod])
    );
    // An expired one selects no endpoint.
    let short = scene.ask("/short", "").cookie().unwrap();
    scene.wait_until_responding("/short", &short, ["a", "b"]);
    // A rule with unsupported settings does not serve without them.
    let bad = scene.ask("/bad", "");
    assert!(bad.text.starts_with("HTTP/1.1 500 "), "{}", bad.text);
}

#[test]
fn forged_sessions_stay_within_the_route() {
    let scene = SessionFixture::new();
    scene.mesh.apply("route", &route(1, 0));
    scene.wait_until_responding("/split", "", ["a", "b"]);
    // A session of another rule with the same name: its backend may be reached here as well.
    let of_two = scene.ask("/two", "").cookie().unwrap();
    scene.mesh.apply(
        "route",
        &route(1, 0).replace(", {name: two, port: 80, weight: 0}", ""),
    );
    scene.wait_until_responding("/split", &of_two, ["a", "b"]);
    assert!(scene.ask("/split", &of_two).cookie().is_some());
    let own = scene.ask("/split", "").cookie().unwrap();
    let (_, value) = own.trim_end().rsplit_once('=').unwrap();
    let other = scene.mesh.ip("legacy/server");
    // A backend's mark with an unknown endpoint, a future date, addresses, and malformed values.
    let (backend, rest) = value.split_at(16);
    let (endpoint, _) = rest.split_at(16);
    for made_up in [
        format!("{backend}{}{}", "0".repeat(16), &rest[16..]),
        format!("{backend}{endpoint}{}", "f".repeat(32)),
        format!("{other}:8080"),
        "f".repeat(64),
        "é".repeat(32),
        value.repeat(100),
        String::new(),
    ] {
        let cookie = format!("cookie: split={made_up}\r\n");
        let answer = scene.ask("/split", &cookie);
        assert!(
            ["a", "b"].contains(&answer.pod.as_str()),
            "{made_up}: {}",
            answer.text
        );
        assert!(answer.cookie().is_some(), "{made_up}: {}", answer.text);
    }
    // Of several cookies of the name the first applies, and other cookies are not changed.
    let both = format!("cookie: split=; {}", own.trim_start_matches("cookie: "));
    assert!(scene.ask("/split", &both).cookie().is_some());
}
