//! Tests which pods' pre-capture connections are closed, and which pods' continue.

use super::*;

const NO_NAMESPACES: [u32; 0] = [];

fn labelled_pod(uid: &str, ip: &str, with: &[(&str, &str)]) -> PodView {
    PodView {
        labels: labels(with),
        ..pod_view(uid, ip)
    }
}

fn without_status(view: PodView) -> PodView {
    PodView {
        unchanged: true,
        ..view
    }
}

fn recorded_event(namespace: &[(&str, &str)], pods: &[&str]) -> SourceEvent {
    SourceEvent::Recorded(EarlierObjects {
        namespaces: BTreeMap::from([("shop".into(), labels(namespace))]),
        pods: pods.iter().map(|uid| PodUid::from(*uid)).collect(),
    })
}

/// Creates an agent that finds the uncaptured pod `web` running in namespace 7 at its start; `left` is the previous
/// agent's record.
fn agent_started_with(
    left: Option<SourceEvent>,
    namespace: &[(&str, &str)],
    view: PodView,
) -> TestAgent {
    let mut world = TestAgent::new();
    world.running.insert("web".into(), 7);
    if let Some(record) = left {
        world.source_event(record);
    }
    // The lists of pods and of namespaces come in no order.
    world.source_event(SourceEvent::Pod(view));
    world.label_namespace(namespace);
    world.source_event(SourceEvent::Synced);
    world.perform_all_effects();
    world
}

#[test]
fn pod_captured_late_has_its_earlier_connections_closed() {
    for (namespace, own) in [(AMBIENT_LABELS, &[][..]), (&[][..], AMBIENT_LABELS)] {
        let mut world = TestAgent::start_with_pods(namespace, vec![]);
        world.source_event(SourceEvent::Pod(labelled_pod("web", "", own)));
        world.perform_all_effects();
        // It runs, and the plugin never called.
        world.running.insert("web".into(), 7);
        world.source_event(SourceEvent::Pod(labelled_pod("web", "10.0.0.7", own)));
        world.advance_time(Duration::from_secs(1));
        assert!(world.is_captured("web", 7));
        assert_eq!(world.closed_netns, [7]);
        // Whatever else happens to it, once.
        world.handle_event(Event::Reconcile);
        world.advance_time(Duration::from_secs(60));
        assert_eq!(world.closed_netns, [7]);
    }
}

#[test]
fn a_pod_that_is_labelled_while_it_runs_keeps_its_connections() {
    // By its namespace, and by its own label.
    let mut world = TestAgent::start_with_pods(&[], vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.label_namespace(AMBIENT_LABELS);
    world.advance_time(Duration::from_secs(1));
    assert!(world.is_captured("web", 7));
    let mut other = TestAgent::start_with_pods(&[], vec![pod_view("web", "10.0.0.7")]);
    other.running.insert("web".into(), 7);
    other.source_event(SourceEvent::Pod(labelled_pod(
        "web",
        "10.0.0.7",
        AMBIENT_LABELS,
    )));
    other.advance_time(Duration::from_secs(1));
    assert!(other.is_captured("web", 7));
    assert_eq!((world.closed_netns, other.closed_netns), (vec![], vec![]));
}

#[test]
fn a_pod_that_is_labelled_while_it_starts_keeps_its_connections() {
    // Its address may be known a while after it has begun to talk.
    let mut world = TestAgent::start_with_pods(&[], vec![pod_view("web", "")]);
    world.running.insert("web".into(), 7);
    world.label_namespace(AMBIENT_LABELS);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.7")));
    world.advance_time(Duration::from_secs(1));
    assert!(world.is_captured("web", 7));
    assert_eq!(world.closed_netns, NO_NAMESPACES);
}

#[test]
fn connections_opened_outside_the_mesh_survive_a_return() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.7")));
    world.running.insert("web".into(), 7);
    world.label_namespace(&[]);
    world.advance_time(Duration::from_secs(5));
    world.label_namespace(AMBIENT_LABELS);
    world.advance_time(Duration::from_secs(1));
    assert!(world.is_captured("web", 7));
    assert_eq!(world.closed_netns, NO_NAMESPACES);
}

#[test]
fn after_a_boot_without_the_plugin_connections_are_closed() {
    let was_captured = PodView {
        reported: RedirectionStatus::Enabled,
        ..pod_view("web", "10.0.0.7")
    };
    let world = agent_started_with(None, AMBIENT_LABELS, was_captured.clone());
    assert!(world.is_captured("web", 7));
    assert_eq!(world.closed_netns, [7]);
    // An agent that finds it captured ignores its annotation.
    let mut world = TestAgent::new();
    world.running.insert("web".into(), 7);
    world.redirected.insert(7);
    world.label_namespace(AMBIENT_LABELS);
    world.source_event(SourceEvent::Pod(was_captured));
    world.source_event(SourceEvent::Synced);
    world.perform_all_effects();
    assert!(world.is_captured("web", 7));
    assert_eq!(world.closed_netns, NO_NAMESPACES);
}

#[test]
fn sandbox_remade_without_the_plugin_has_its_connections_closed() {
    let mut world = TestAgent::start_with_pods(&[], vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.label_namespace(AMBIENT_LABELS);
    world.advance_time(Duration::from_secs(1));
    assert_eq!(world.closed_netns, NO_NAMESPACES);
    world.running.insert("web".into(), 8);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.8")));
    world.advance_time(Duration::from_secs(1));
    assert!(world.is_captured("web", 8));
    assert_eq!(world.closed_netns, [8]);
}

#[test]
fn unobserved_connections_are_closed_only_in_known_order() {
    let plain = || pod_view("web", "10.0.0.7");
    let opted_in = || labelled_pod("web", "10.0.0.7", AMBIENT_LABELS);
    let unlabelled: &[(&str, &str)] = &[];
    // What an agent before has left, the namespace's labels now, the pod.
    let certain = [
        (
            recorded_event(AMBIENT_LABELS, &["other"]),
            AMBIENT_LABELS,
            without_status(plain()),
        ),
        (
            recorded_event(unlabelled, &[]),
            unlabelled,
            without_status(opted_in()),
        ),
        // Its own label, so the namespace's does not matter.
        (
            recorded_event(unlabelled, &[]),
            AMBIENT_LABELS,
            without_status(opted_in()),
        ),
    ];
    for (left, namespace, view) in certain {
        let case = format!("{left:?} {namespace:?} {view:?}");
        let world = agent_started_with(Some(left), namespace, view);
        assert!(world.is_captured("web", 7));
        assert_eq!(world.closed_netns, [7], "{case}");
    }
    let uncertain = [
        // No agent was there before: the mesh is new on this node.
        (None, AMBIENT_LABELS, without_status(plain())),
        (None, unlabelled, without_status(opted_in())),
        // Somebody has changed its labels since it was made.
        (
            Some(recorded_event(AMBIENT_LABELS, &[])),
            AMBIENT_LABELS,
            plain(),
        ),
        (
            Some(recorded_event(unlabelled, &[])),
            unlabelled,
            opted_in(),
        ),
        // The namespace was labelled while no agent ran.
        (
            Some(recorded_event(unlabelled, &[])),
            AMBIENT_LABELS,
            without_status(plain()),
        ),
        // The agent before us knew the pod.
        (
            Some(recorded_event(AMBIENT_LABELS, &["web"])),
            AMBIENT_LABELS,
            without_status(plain()),
        ),
    ];
    for (left, namespace, view) in uncertain {
        let case = format!("{left:?} {namespace:?} {view:?}");
        let world = agent_started_with(left, namespace, view);
        assert!(world.is_captured("web", 7), "{case}");
        assert_eq!(world.closed_netns, NO_NAMESPACES, "{case}");
    }
}

#[test]
fn a_late_pod_counts_by_the_label_it_was_created_with() {
    for (view, closed) in [
        (
            without_status(labelled_pod("web", "10.0.0.7", AMBIENT_LABELS)),
            vec![7],
        ),
        (labelled_pod("web", "10.0.0.7", AMBIENT_LABELS), vec![]),
        // The label of its namespace may be younger than the pod.
        (without_status(pod_view("web", "10.0.0.7")), vec![]),
    ] {
        let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![]);
        world.running.insert("web".into(), 7);
        world.source_event(SourceEvent::Pod(view));
        world.advance_time(Duration::from_secs(1));
        assert!(world.is_captured("web", 7));
        assert_eq!(world.closed_netns, closed);
    }
}
