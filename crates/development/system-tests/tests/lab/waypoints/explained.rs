//! Tests that `ambit policy explain` predicts the results of requests: random policies, every
//! caller and address, with a waypoint and without.

use ambit_system_tests::{CLIENT_AND_SERVER, Mesh, wait_until, with_waypoint};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

/// Number of random sets of policies in each mesh.
const POLICY_ROUNDS: u32 = 14;

/// Names of the calling pods: the first is captured, the second is not.
const CALLERS: [&str; 2] = ["shop/client", "legacy/client"];

/// Returns sources for policy rules: none, all, single callers, and the waypoint, whose connections have its own
/// identity.
fn sources(mesh: &Mesh) -> Vec<String> {
    let of = |pod: &str| mesh.ip(pod);
    vec![
        "{}".to_owned(),
        "{principals: [cluster.local/ns/shop/sa/client]}".to_owned(),
        "{notPrincipals: [cluster.local/ns/shop/sa/client]}".to_owned(),
        "{principals: [cluster.local/ns/shop/sa/waypoint]}".to_owned(),
        "{namespaces: [shop]}".to_owned(),
        "{notNamespaces: [shop]}".to_owned(),
        "{namespaces: [legacy]}".to_owned(),
        format!("{{ipBlocks: [{}]}}", of("legacy/client")),
        format!("{{notIpBlocks: [{}]}}", of("shop/client")),
    ]
}

const OPERATIONS: [&str; 4] = [
    "",
    ", to: [{operation: {ports: ['8080']}}]",
    ", to: [{operation: {notPorts: ['8080']}}]",
    ", to: [{operation: {ports: ['80', '9000']}}]",
];

const SCOPES: [(&str, &str); 4] = [
    ("shop", "selector: {matchLabels: {app: server}}"),
    ("shop", "selector: {matchLabels: {app: nobody}}"),
    ("shop", "{}"),
    ("istio-system", "{}"),
];

const MODES: [&str; 4] = [
    "mtls: {mode: PERMISSIVE}",
    "mtls: {mode: STRICT}",
    "selector: {matchLabels: {app: server}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: PERMISSIVE}}",
    "selector: {matchLabels: {app: server}}, mtls: {mode: PERMISSIVE}, portLevelMtls: {8080: {mode: STRICT}}",
];

/// Returns random policies for one round, whose names contain the round.
fn random_policies(rng: &mut StdRng, round: u32, sources: &[String]) -> String {
    let mode = MODES.choose(rng).unwrap();
    let mut text = format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
         metadata: {{name: round-{round}, namespace: shop}}\nspec: {{{mode}}}\n"
    );
    for number in 0..rng.random_range(1..=3) {
        let (namespace, scope) = SCOPES.choose(rng).unwrap();
        let action = ["ALLOW", "DENY"].choose(rng).unwrap();
        let (source, operation) = (
            sources.choose(rng).unwrap(),
            OPERATIONS.choose(rng).unwrap(),
        );
        let scope = match *scope {
            "{}" => String::new(),
            scope => format!("{scope}, "),
        };
        text += &format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: round-{round}-{number}, namespace: {namespace}}}\n\
             spec: {{{scope}action: {action}, rules: [{{from: [{{source: {source}}}]{operation}}}]}}\n"
        );
    }
    text
}

/// Runs `ambit policy explain`; returns whether it predicts that the request is allowed, and its output.
fn explain_policy(mesh: &Mesh, from: &str, (to, port): (&str, &str)) -> (bool, String) {
    let question = [
        "policy", "explain", "--from", from, "--to", to, "--port", port, "-o", "json",
    ];
    let explanation = mesh.ambit(&question);
    let reports: serde_json::Value = serde_json::from_str(&explanation.stdout)
        .unwrap_or_else(|error| panic!("{from} to {to}: {error}: {}", explanation.stdout));
    let all = reports.as_array().expect("a list of reports");
    let is_allowed = all.iter().all(|report| report["allowed"] == true);
    assert_eq!(
        explanation.code,
        i32::from(!is_allowed),
        "{}",
        explanation.stdout
    );
    (is_allowed, explanation.stdout)
}

fn compare(mesh: &Mesh, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let sources = sources(mesh);
    let server = mesh.ip("shop/server").to_string();
    let targets = [(server.as_str(), "8080"), ("server.shop", "80")];
    let mut outcomes = [0, 0];
    for round in 0..POLICY_ROUNDS {
        let policies = random_policies(&mut rng, round, &sources);
        mesh.apply("round", &policies);
        let names = |node| mesh.proxy_dump(node)["policies"].to_string();
        let own = format!("round-{round}");
        let is_current = |node| {
            let names = names(node);
            let others = names.matches("round-").count();
            names.contains(&own) && names.matches(&own).count() == others
        };
        wait_until("both node proxies have the round's policies", || {
            ["node-1", "node-2"].into_iter().all(is_current)
        });
        for from in CALLERS {
            for (to, port) in targets {
                // A client outside of the mesh cannot reach a Service's VIP here.
                if from == "legacy/client" && port == "80" {
                    continue;
                }
                let (is_allowed, explanation) = explain_policy(mesh, from, (to, port));
                let answer = mesh.get(from, &format!("http://{to}:{port}/"));
                assert_eq!(
                    answer.succeeded(),
                    is_allowed,
                    "round {round}, {from} to {to}:{port}: {}\n{explanation}\n{policies}",
                    answer.body
                );
                outcomes[usize::from(is_allowed)] += 1;
            }
        }
    }
    // Both results occur.
    assert!(outcomes.iter().all(|count| *count >= 5), "{outcomes:?}");
}

#[test]
fn explanations_match_results_without_a_waypoint() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    compare(&mesh, 1);
}

#[test]
fn explanations_match_results_through_a_waypoint() {
    let (mesh, _) = with_waypoint("");
    compare(&mesh, 2);
}
