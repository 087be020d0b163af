//! Tests of notifications, waiting and on-demand requests. The crates of the table and the policies test their
//! decisions.

use std::time::Duration;

use ambit_authz::DecisionReason;
use ambit_model::{Action, Authorization, GatewayAddress, Scope, Service};
use tokio::time::timeout;

use super::*;

fn config() -> StateConfig {
    StateConfig {
        node: "n1".into(),
        ..StateConfig::default()
    }
}

fn pod(name: &str) -> PodName {
    PodName {
        name: name.into(),
        namespace: "ns".into(),
        service_account: "sa".into(),
    }
}

fn workload(name: &str, node: &str, ip: &str) -> Workload {
    Workload {
        uid: format!("Kubernetes//Pod/ns/{name}").into(),
        name: name.into(),
        namespace: "ns".into(),
        service_account: "sa".into(),
        node: node.into(),
        protocol: Protocol::Hbone,
        workload_ips: vec![ip.parse().unwrap()],
        ..Workload::default()
    }
}

fn workload_added(workload: Workload) -> MeshUpdate {
    MeshUpdate::Workload(Box::new(workload))
}

fn policy(name: &str, scope: Scope, namespace: &str) -> Authorization {
    Authorization {
        name: name.into(),
        namespace: namespace.into(),
        scope,
        action: Action::Deny,
        rules: vec![vec![]],
        ..Authorization::default()
    }
}

fn apply(state: &SharedState, updates: impl IntoIterator<Item = MeshUpdate>) {
    let mut batch: Vec<_> = updates.into_iter().collect();
    state.apply(&mut batch);
    assert!(batch.is_empty());
}

fn take_change(watch: &mut watch::Receiver<u64>) -> bool {
    let changed = watch.has_changed().unwrap();
    watch.mark_unchanged();
    changed
}

fn state() -> SharedState {
    let state = SharedState::new(config());
    state.mark_addresses_known();
    state.mark_policies_known();
    state
}

#[tokio::test(start_paused = true)]
async fn nothing_is_passed_through_before_the_mesh_is_known() {
    let state = SharedState::new(config());
    let source = state.synthesize_workload(&pod("a"), &[]);
    let dst = "10.0.0.2:80".parse().unwrap();
    let route = state.route(&source, dst).await;
    assert!(
        matches!(route, Err(RouteError::ControlPlaneTimeout { .. })),
        "{route:?}"
    );

    let waiting = {
        let (state, source) = (state.clone(), source.clone());
        ambit_rt::spawn("waiting", async move { state.route(&source, dst).await })
    };
    tokio::task::yield_now().await;
    apply(&state, [workload_added(workload("b", "n2", "10.0.0.2"))]);
    state.mark_addresses_known();
    let route = waiting.await.unwrap();
    assert!(matches!(route, Ok(Route::Hbone(_))), "{route:?}");
}

#[tokio::test]
async fn no_pod_is_known_before_the_policies_are() {
    let state = SharedState::new(config());
    let mut watch = state.watch_pod(&pod("a"));
    apply(&state, [workload_added(workload("a", "n1", "10.0.0.1"))]);
    watch.mark_unchanged();
    assert!(state.local_workload(&pod("a")).is_none());
    let waiting = {
        let state = state.clone();
        ambit_rt::spawn("waiting", async move {
            let deadline = Instant::now() + Duration::from_secs(30);
            state.wait_for_workload(&pod("a"), deadline).await
        })
    };
    tokio::task::yield_now().await;
    state.mark_policies_known();
    assert!(waiting.await.unwrap().is_some());
    assert!(take_change(&mut watch));
}

#[tokio::test]
async fn a_pod_that_is_known_needs_no_waiting() {
    let state = state();
    apply(&state, [workload_added(workload("a", "n1", "10.0.0.1"))]);
    let found = state.wait_for_workload(&pod("a"), Instant::now()).await;
    assert_eq!(found.unwrap().name, "a");
}

#[tokio::test]
async fn published_pod_wakes_its_waiters() {
    let state = state();
    let waiting = {
        let state = state.clone();
        ambit_rt::spawn("waiting", async move {
            let deadline = Instant::now() + Duration::from_secs(30);
            state.wait_for_workload(&pod("a"), deadline).await
        })
    };
    tokio::task::yield_now().await;
    apply(
        &state,
        [workload_added(workload("other", "n1", "10.0.0.9"))],
    );
    tokio::task::yield_now().await;
    apply(&state, [workload_added(workload("a", "n1", "10.0.0.1"))]);
    assert_eq!(waiting.await.unwrap().unwrap().name, "a");
}

#[tokio::test(start_paused = true)]
async fn unknown_pod_times_out_at_the_deadline() {
    let state = state();
    // On another node, or under another account: not this pod.
    apply(&state, [workload_added(workload("a", "n2", "10.0.0.1"))]);
    apply(
        &state,
        [workload_added(Workload {
            service_account: "other".into(),
            ..workload("b", "n1", "10.0.0.2")
        })],
    );
    let started = Instant::now();
    for name in ["a", "b"] {
        let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
        assert!(
            state
                .wait_for_workload(&pod(name), deadline)
                .await
                .is_none()
        );
    }
    assert!(started.elapsed() >= 2 * LOCAL_WORKLOAD_TIMEOUT);
}

#[test]
fn pod_watch_reports_only_relevant_changes() {
    let state = SharedState::new(config());
    let mine = Workload {
        authorization_policies: vec!["ns/chosen".into()],
        ..workload("a", "n1", "10.0.0.1")
    };
    apply(
        &state,
        [
            workload_added(mine.clone()),
            workload_added(workload("b", "n1", "10.0.0.2")),
        ],
    );
    let mut watch = state.watch_pod(&pod("a"));
    watch.mark_unchanged();

    let indifferent = [
        workload_added(mine.clone()),
        workload_added(workload("b", "n1", "10.0.0.3")),
        workload_added(workload("far", "n2", "10.0.0.4")),
        MeshUpdate::Service(Box::new(Service {
            hostname: "h".into(),
            ..Service::default()
        })),
        MeshUpdate::Policy(policy("p", Scope::Namespace, "other")),
        MeshUpdate::Policy(policy("not-chosen", Scope::WorkloadSelector, "ns")),
        MeshUpdate::PolicyRemoved("ns/unknown".into()),
        MeshUpdate::AddressRemoved("Kubernetes//Pod/ns/b".into()),
    ];
    for update in indifferent {
        let what = format!("{update:?}");
        apply(&state, [update]);
        assert!(!take_change(&mut watch), "{what}");
    }
    let concerning = [
        MeshUpdate::Policy(policy("g", Scope::Global, "root")),
        MeshUpdate::Policy(policy("p", Scope::Namespace, "ns")),
        MeshUpdate::Policy(policy("chosen", Scope::WorkloadSelector, "ns")),
        MeshUpdate::PolicyRemoved("ns/chosen".into()),
        workload_added(Workload {
            authorization_policies: vec![],
            ..mine
        }),
        MeshUpdate::AddressRemoved("Kubernetes//Pod/ns/a".into()),
    ];
    for update in concerning {
        let what = format!("{update:?}");
        apply(&state, [update]);
        assert!(take_change(&mut watch), "{what}");
    }
}

#[test]
fn dropped_watches_are_removed() {
    let state = SharedState::new(config());
    for number in 0..100 {
        drop(state.watch_pod(&pod(&format!("p{number}"))));
    }
    apply(
        &state,
        [MeshUpdate::Policy(policy("g", Scope::Global, "root"))],
    );
    assert!(state.0.pod_watchers.lock().is_empty());
}

#[test]
fn a_workload_that_names_an_unknown_policy_is_refused_until_it_comes() {
    let state = SharedState::new(config());
    let naming = Workload {
        authorization_policies: vec!["ns/coming".into()],
        ..workload("a", "n1", "10.0.0.1")
    };
    let connection = Connection {
        source: None,
        source_ip: "10.0.0.9".parse().unwrap(),
        destination: "10.0.0.1:80".parse().unwrap(),
    };
    let decision = state.authorize(&naming, &connection);
    assert_eq!(
        (decision.allowed, decision.reason),
        (false, DecisionReason::MissingPolicy("ns/coming".into()))
    );
    let mut coming = policy("coming", Scope::WorkloadSelector, "ns");
    coming.rules.clear();
    apply(&state, [MeshUpdate::Policy(coming)]);
    assert!(state.authorize(&naming, &connection).allowed);
}

#[test]
fn enrolled_pod_connects_before_it_is_published() {
    let state = SharedState::new(StateConfig {
        network: "net".into(),
        trust_domain: "td".into(),
        cluster_id: "c1".into(),
        ..config()
    });
    let mut far = workload("b", "n2", "10.0.0.2");
    far.network = "net".into();
    apply(&state, [workload_added(far)]);
    let source = state.synthesize_workload(&pod("a"), &["::ffff:10.0.0.1".parse().unwrap()]);
    assert_eq!(source.uid, "c1//Pod/ns/a");
    assert_eq!(source.identity().to_string(), "spiffe://td/ns/ns/sa/sa");
    assert_eq!(source.workload_ips[0].to_string(), "10.0.0.1");
    let route = state
        .table()
        .outbound(&source, "10.0.0.2:80".parse().unwrap(), &mut rand::rng())
        .unwrap();
    assert!(matches!(route, Route::Hbone(_)));
}

#[tokio::test]
async fn certificates_follow_the_local_identities() {
    let state = SharedState::new(config());
    let (sender, mut events) = mpsc::unbounded_channel();
    let following = follow_identities(state.clone(), move |event| sender.send(event).unwrap());
    let _following = ambit_rt::spawn_abortable("following", following);
    let id = Identity::new("cluster.local", "ns", "sa");

    let plain = Workload {
        protocol: Protocol::Tcp,
        ..workload("plain", "n1", "10.0.0.7")
    };
    apply(
        &state,
        [
            workload_added(plain),
            workload_added(workload("far", "n2", "10.0.0.8")),
            workload_added(workload("a", "n1", "10.0.0.1")),
        ],
    );
    assert_eq!(
        events.recv().await,
        Some(IdentityEvent::Appeared(id.clone()))
    );
    // A second pod of the identity changes nothing; only when both are gone is it.
    apply(&state, [workload_added(workload("b", "n1", "10.0.0.2"))]);
    apply(
        &state,
        [MeshUpdate::AddressRemoved("Kubernetes//Pod/ns/a".into())],
    );
    apply(
        &state,
        [MeshUpdate::AddressRemoved("Kubernetes//Pod/ns/b".into())],
    );
    assert_eq!(events.recv().await, Some(IdentityEvent::Gone(id)));
    assert!(events.try_recv().is_err());
}

// === on demand ===

/// Answers on-demand requests with the records that `answer` returns; an empty list means that the resource does not
/// exist.
fn serve_demands(
    state: &SharedState,
    mut demands: mpsc::Receiver<AddressDemand>,
    answer: impl Fn(&str) -> Vec<MeshUpdate> + Send + 'static,
) -> (ambit_rt::AbortOnDrop<()>, Arc<Mutex<Vec<String>>>) {
    let requested = Arc::new(Mutex::new(Vec::new()));
    let (state, log) = (state.clone(), requested.clone());
    let serving = async move {
        while let Some(AddressDemand {
            name,
            resolved_sender: done,
        }) = demands.recv().await
        {
            apply(&state, answer(&name));
            log.lock().push(name);
            done.send(()).ok();
        }
    };
    (
        ambit_rt::spawn_abortable("control plane", serving),
        requested,
    )
}

fn service_with_waypoint() -> Service {
    Service {
        name: "web".into(),
        namespace: "ns".into(),
        hostname: "web.example".into(),
        vips: vec!["/10.96.0.1".parse().unwrap()],
        ports: [(80, 80)].into(),
        waypoint: Some(GatewayAddress {
            destination: "/10.0.0.9".parse().unwrap(),
            hbone_mtls_port: 15008,
        }),
        ..Service::default()
    }
}

#[tokio::test]
async fn unknown_destination_is_resolved_and_then_its_waypoint() {
    let (state, demands) = SharedState::on_demand(config());
    let (_serving, requested) = serve_demands(&state, demands, |name| match name {
        "/10.96.0.1" => vec![MeshUpdate::Service(Box::new(service_with_waypoint()))],
        "/10.0.0.9" => vec![workload_added(workload("waypoint", "n2", "10.0.0.9"))],
        _ => vec![],
    });
    let source = state.synthesize_workload(&pod("a"), &[]);
    let route = state
        .route(&source, "10.96.0.1:80".parse().unwrap())
        .await
        .unwrap();
    let Route::Hbone(route) = route else {
        panic!("{route:?}")
    };
    assert_eq!(
        (route.waypoint.is_some(), route.authority.as_str()),
        (true, "10.96.0.1:80")
    );
    assert_eq!(*requested.lock(), ["/10.96.0.1", "/10.0.0.9"]);
    // The second time nothing is requested.
    state
        .route(&source, "10.96.0.1:80".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(requested.lock().len(), 2);
}

#[tokio::test]
async fn absent_address_passes_through_and_unknown_waypoint_fails() {
    let (state, demands) = SharedState::on_demand(config());
    let (_serving, _) = serve_demands(&state, demands, |name| match name {
        "/10.96.0.1" => vec![MeshUpdate::Service(Box::new(service_with_waypoint()))],
        _ => vec![],
    });
    let source = state.synthesize_workload(&pod("a"), &[]);
    let route = state.route(&source, "8.8.8.8:53".parse().unwrap()).await;
    assert!(matches!(route, Ok(Route::Passthrough { .. })), "{route:?}");
    let route = state.route(&source, "10.96.0.1:80".parse().unwrap()).await;
    assert!(
        matches!(route, Err(RouteError::UnknownWaypoint { .. })),
        "{route:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_response_connections_fail_instead_of_plaintext() {
    let (state, demands) = SharedState::on_demand(config());
    let source = state.synthesize_workload(&pod("a"), &[]);
    let route = state.route(&source, "10.0.0.2:80".parse().unwrap()).await;
    assert!(
        matches!(route, Err(RouteError::ControlPlaneTimeout { .. })),
        "{route:?}"
    );
    drop(demands);
    let without_client = state.route(&source, "10.0.0.2:80".parse().unwrap());
    let route = timeout(Duration::from_secs(1), without_client)
        .await
        .unwrap();
    assert!(
        matches!(route, Err(RouteError::ControlPlaneTimeout { .. })),
        "{route:?}"
    );
}

#[tokio::test]
async fn own_record_of_the_pod_is_requested() {
    let (state, demands) = SharedState::on_demand(config());
    state.mark_policies_known();
    let (_serving, requested) = serve_demands(&state, demands, |_| {
        vec![workload_added(workload("a", "n1", "10.0.0.1"))]
    });
    let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
    assert!(state.wait_for_workload(&pod("a"), deadline).await.is_some());
    assert_eq!(*requested.lock(), ["Kubernetes//Pod/ns/a"]);
}

#[test]
fn readers_get_through_while_a_large_push_comes_in() {
    let state = SharedState::new(config());
    apply(&state, [workload_added(workload("a", "n2", "10.0.0.1"))]);
    let writer = {
        let state = state.clone();
        std::thread::spawn(move || {
            for batch in 0..200 {
                let workloads = (0..64).map(|number| {
                    let ip = format!("10.1.{batch}.{number}");
                    workload_added(workload(&format!("p-{batch}-{number}"), "n2", &ip))
                });
                apply(&state, workloads);
            }
        })
    };
    let source = state.synthesize_workload(&pod("c"), &[]);
    while !writer.is_finished() {
        let route =
            state
                .table()
                .outbound(&source, "10.0.0.1:80".parse().unwrap(), &mut rand::rng());
        assert!(matches!(route, Ok(Route::Hbone(_))));
    }
    writer.join().unwrap();
    assert_eq!(state.table().size().workloads, 200 * 64 + 1);
}
