//! Tests that explanations predict the results of requests: for random meshes of policies, tokens and routes, the
//! prediction of `POST /explain` is compared with the response, the access log, and the application that receives the
//! request.

mod random_mesh;

use std::{
    collections::HashMap,
    time::{SystemTime, UNIX_EPOCH},
};

use ambit_mesh_json::explain::{
    ExplainedResult, Explanation, HttpQuery, Peer, Step, StepKind, StepResult, WaypointQuery,
};
use ambit_model::{Authentication, JwtKeys, JwtRule, PolicyKey, WaypointRecord, WaypointService};
use ambit_testkit::build;
use ambit_waypoint_engine::explain::Explainer;
use ambit_xds::WaypointUpdate;
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use base64::Engine as _;
use http_body_util::BodyExt as _;
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::json;

use crate::{
    application::StrictServer,
    fixture::{Client, HTTP1, World, log_lines_about, record_name},
    routes::{BACK_VIP, VIP, service},
};
use random_mesh::MeshGenerator;

/// Number of random meshes; `REQUESTS` is the number of requests to each.
const MESHES: usize = 250;
const REQUESTS: usize = 5;

const ISSUER: &str = "https://issuer.example";

/// Issuer of the JWTs in these tests, with its signing key.
struct Issuer(EcdsaKeyPair);

fn encode(bytes: &[u8]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    fn new() -> Self {
        Self(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    fn rule(&self) -> JwtRule {
        let point = self.0.public_key().as_ref();
        let key = json!({"kty": "EC", "crv": "P-256", "x": encode(&point[1..33]), "y": encode(&point[33..])});
        JwtRule {
            issuer: ISSUER.into(),
            keys: JwtKeys::Known(json!({"keys": [key]}).to_string().into()),
            ..JwtRule::default()
        }
    }

    /// Issues a JWT that expires in `seconds`.
    fn token(&self, seconds: i64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let expires = i64::try_from(now.as_secs()).unwrap() + seconds;
        let claims = json!({"iss": ISSUER, "sub": "alice", "exp": expires});
        let header = json!({"alg": "ES256"}).to_string();
        let signed = format!(
            "{}.{}",
            encode(header.as_bytes()),
            encode(claims.to_string().as_bytes())
        );
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes());
        format!("{signed}.{}", encode(signature.unwrap().as_ref()))
    }
}

/// Waypoint with clients, and applications for the services `web` and `back`.
struct Scene {
    world: World,
    explainer: Explainer,
    clients: [(&'static str, Client); 2],
    web: StrictServer,
    back: StrictServer,
    issuer: Issuer,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new().await;
        let (web, back) = (StrictServer::start().await, StrictServer::start().await);
        world.serve("web", VIP, &[web.address]);
        world.serve("back", BACK_VIP, &[back.address]);
        let clients = [
            ("client", world.client_as("client").await),
            ("other", world.client_as("other").await),
        ];
        Self {
            explainer: world.explainer(),
            clients,
            web,
            back,
            issuer: Issuer::new(),
            world,
        }
    }

    /// Publishes another random mesh. Returns whether the access log contains query strings. It omits them while an
    /// object that cannot be decoded might name query parameters that hold tokens.
    fn publish(&self, draws: &mut MeshGenerator) -> bool {
        for policy in draws.policies() {
            self.world.publish(policy);
        }
        let is_there = draws.rng.random_bool(0.6);
        let authentication = Authentication {
            key: PolicyKey::from_resource_name("ns/tokens"),
            for_gateway: draws.rng.random_bool(0.5),
            services: vec![service("web")],
            rules: if is_there {
                vec![self.issuer.rule()]
            } else {
                Vec::new()
            },
            not_understood: draws.rng.random_bool(0.02).then(|| "a test".into()),
        };
        let is_understood = authentication.not_understood.is_none();
        let authentication = WaypointRecord::from(authentication);
        self.world.publish(WaypointUpdate::Upserted(
            record_name("tokens"),
            authentication,
        ));
        let routed = WaypointService {
            service: service("web"),
            routes: draws.routes(),
            ..WaypointService::default()
        };
        self.world
            .publish(WaypointUpdate::Upserted("gw/web".into(), routed.into()));
        is_understood
    }

    /// Generates a random request of a client, marked with its number.
    fn request(&self, rng: &mut StdRng, number: usize) -> HttpQuery {
        let paths = [
            "/", "/a", "/a/b", "/a/c", "/b", "/a%2Fb", "//a", "/%zz", "/a/../b",
        ];
        let mut headers = Vec::new();
        let mut add = |name: &str, value: String| headers.push((name.to_owned(), value));
        if rng.random_bool(0.5) {
            add("x-a", ["1", "2"].choose(rng).unwrap().to_string());
        }
        match rng.random_range(0..5) {
            0 => add(
                "authorization",
                format!("Bearer {}", self.issuer.token(3600)),
            ),
            1 => add(
                "authorization",
                format!("Bearer {}", self.issuer.token(-3600)),
            ),
            2 => add("authorization", "Bearer a.b.c".to_owned()),
            _ => {}
        }
        if rng.random_bool(0.03) {
            add("connection", "host".to_owned());
        }
        HttpQuery {
            method: (*["GET", "POST", "DELETE"].choose(rng).unwrap()).to_owned(),
            path: format!("{}?n={number}.", paths.choose(rng).unwrap()),
            host: (*["web", "web", "web:80", "other", "a@b"]
                .choose(rng)
                .unwrap())
            .to_owned(),
            headers,
        }
    }

    /// Compares the prediction of a request with its actual status, and with the application that has received the
    /// request.
    async fn compare(&mut self, request: &HttpQuery, account: usize) -> (Explanation, u16, String) {
        let (name, client) = &self.clients[account];
        let query = WaypointQuery {
            authority: format!("{VIP}:{HTTP1}"),
            peer: Peer {
                identity: Some(build::identity("ns", name).to_string()),
                address: client.address.ip(),
            },
            original: None,
            request: request.clone(),
        };
        let explained = self.explainer.explain(&query).await.unwrap();
        assert!(self.web.received().is_empty() && self.back.received().is_empty());
        let mut bytes = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\n",
            request.method, request.path, request.host
        );
        for (name, value) in &request.headers {
            bytes += &format!("{name}: {value}\r\n");
        }
        bytes += "\r\n";
        let reply = client.send_bytes(VIP, HTTP1, bytes.as_bytes()).await;
        let status = *reply.statuses().first().expect("a response");
        let reached = match (self.web.received().len(), self.back.received().len()) {
            (0, 0) => String::new(),
            (1, 0) => self.web.address.to_string(),
            (0, 1) => self.back.address.to_string(),
            other => panic!("{other:?}"),
        };
        (explained, status, reached)
    }
}

fn find_step<'a>(explained: &'a Explanation, kinds: &[StepKind]) -> Option<&'a Step> {
    let mut steps = explained.steps.iter().rev();
    steps.find(|step| kinds.contains(&step.step))
}

/// Returns the expected end of `response_code_details` in the access log, if the predicted policy decision is a denial.
fn expected_details(explained: &Explanation) -> Option<String> {
    let kinds = [StepKind::Authorization, StepKind::BackendAuthorization];
    let step = find_step(explained, &kinds).filter(|step| step.result == StepResult::Refused)?;
    Some(match &step.object {
        Some(object) => {
            let (namespace, name) = object.split_once(' ').unwrap().1.split_once('/').unwrap();
            format!("matched_policy[ns[{namespace}]-policy[{name}]-rule[")
        }
        None => "matched_policy[none]".to_owned(),
    })
}

#[tokio::test]
async fn explanations_predict_responses() {
    let mut scene = Scene::new().await;
    let mut draws = MeshGenerator::new(7);
    let mut predicted = HashMap::new();
    let mut statuses = HashMap::<u16, usize>::new();
    let before = scene.world.request_count();
    for mesh in 0..MESHES {
        let has_queries = scene.publish(&mut draws);
        for nth in 0..REQUESTS {
            let number = mesh * REQUESTS + nth;
            let request = scene.request(&mut draws.rng, number);
            let account = draws.rng.random_range(0..2);
            let (explained, status, reached) = scene.compare(&request, account).await;
            let (expected, address) = match &explained.end {
                ExplainedResult::Responded { status, .. } => (*status, String::new()),
                ExplainedResult::Forwarded(hop) => (200, hop.address.to_string()),
                other => panic!("{other:?}"),
            };
            let context = format!("mesh {mesh}: {request:?} {}: {explained:#?}", request.path);
            assert_eq!((status, reached), (expected, address), "{context}");
            *statuses.entry(status).or_default() += 1;
            if has_queries {
                predicted.insert(number, explained);
            }
        }
    }
    for status in [200, 302, 400, 401, 403, 404, 418, 500] {
        let count = statuses.get(&status).copied().unwrap_or_default();
        assert!(count >= 10, "{status}: {statuses:?}");
    }
    let counted = scene.world.request_count() - before;
    assert_eq!(
        counted,
        (MESHES * REQUESTS) as u64,
        "explanations are not counted"
    );
    let lines = scene
        .clients
        .iter()
        .flat_map(|(_, client)| log_lines_about(client.address));
    let lines: Vec<_> = lines.collect();
    for (number, explained) in &predicted {
        let mark = format!("n={number}.");
        let line = lines.iter().find(|line| line.contains(&mark));
        let line = line.unwrap_or_else(|| panic!("no line about {mark}: {explained:?}"));
        match expected_details(explained) {
            Some(details) => assert!(line.contains(&details), "{details}: {line}"),
            None => assert!(
                !line.contains("rbac_access_denied"),
                "{line}: {explained:?}"
            ),
        }
        let rule = find_step(explained, &[StepKind::Route]).and_then(|step| step.object.clone());
        match rule {
            Some(route) => assert!(line.contains(&route.replace(' ', "/")), "{route}: {line}"),
            None => assert!(!line.contains("HTTPRoute/"), "{line}: {explained:?}"),
        }
    }
}

async fn response_text(response: ambit_rt::http::Response) -> String {
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8_lossy(&body.to_bytes()).into_owned()
}

#[tokio::test]
async fn invalid_queries_are_rejected_without_an_echo() {
    let scene = Scene::new().await;
    let good = WaypointQuery {
        authority: format!("{VIP}:{HTTP1}"),
        peer: Peer {
            identity: None,
            address: [127, 0, 0, 1].into(),
        },
        original: None,
        request: HttpQuery {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            host: "web".to_owned(),
            headers: vec![("authorization".to_owned(), "Bearer secret".to_owned())],
        },
    };
    let change = |change: fn(&mut WaypointQuery)| {
        let mut query = good.clone();
        change(&mut query);
        serde_json::to_vec(&query).unwrap()
    };
    for body in [
        change(|query| query.authority = "secret".to_owned()),
        change(|query| query.peer.identity = Some("secret".to_owned())),
        change(|query| query.request.method = "sec ret".to_owned()),
        change(|query| query.request.path = "\u{1}secret".to_owned()),
        change(|query| query.request.headers[0].1 = "secret\u{1}".to_owned()),
        b"{\"secret\": 1}".to_vec(),
    ] {
        let response = scene.explainer.respond(&body).await;
        assert_eq!(response.status(), 400);
        let text = response_text(response).await;
        assert!(!text.contains("secret"), "{text}");
    }
    let response = scene.explainer.respond(&change(|_| {})).await;
    assert_eq!(response.status(), 200);
    let text = response_text(response).await;
    assert!(!text.contains("secret"), "{text}");
}
