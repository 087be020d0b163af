//! Tests which pods' pre-capture connections are closed, and which pods' continue.

use super::*;

const NOBODY: [u32; 0] = [];

fn labelled_pod(uid: &str, ip: &str, with: &[(&str, &str)]) -> PodView {
    PodView {
        labels: labels(with),
        ..pod(uid, ip)
    }
}

fn without_status(view: PodView) -> PodView {
    PodView {
        unchanged: true,
        ..view
    }
}

fn record(namespace: &[(&str, &str)], pods: &[&str]) -> SourceEvent {
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
        world.source(record);
    }
    // The lists of pods and of namespaces come in no order.
    world.source(SourceEvent::Pod(view));
    world.namespace(namespace);
    world.source(SourceEvent::Synced);
    world.settle();
    world
}

#[test]
fn pod_captured_late_has_its_earlier_connections_closed() {
    for (namespace, own) in [(AMBIENT, &[][..]), (&[][..], AMBIENT)] {
        let mut world = TestAgent::started(namespace, vec![]);
        world.source(SourceEvent::Pod(labelled_pod("web", "", own)));
        world.settle();
        // It runs, and the plugin never called.
        world.running.insert("web".into(), 7);
        world.source(SourceEvent::Pod(labelled_pod("web", "10.0.0.7", own)));
        world.advance_time(Duration::from_secs(1));
        assert!(world.captured("web", 7));
        assert_eq!(world.closed, [7]);
        // Whatever else happens to it, once.
        world.event(Event::Reconcile);
        world.advance_time(Duration::from_secs(60));
        assert_eq!(world.closed, [7]);
    }
}

#[test]
fn a_pod_that_is_labelled_while_it_runs_keeps_its_connections() {
    // By its namespace, and by its own label.
    let mut world = TestAgent::started(&[], vec![pod("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.namespace(AMBIENT);
    world.advance_time(Duration::from_secs(1));
    assert!(world.captured("web", 7));
    let mut other = TestAgent::started(&[], vec![pod("web", "10.0.0.7")]);
    other.running.insert("web".into(), 7);
    other.source(SourceEvent::Pod(labelled_pod("web", "10.0.0.7", AMBIENT)));
    other.advance_time(Duration::from_secs(1));
    assert!(other.captured("web", 7));
    assert_eq!((world.closed, other.closed), (vec![], vec![]));
}

#[test]
fn a_pod_that_is_labelled_while_it_starts_keeps_its_connections() {
    // Its address may be known a while after it has begun to talk.
    let mut world = TestAgent::started(&[], vec![pod("web", "")]);
    world.running.insert("web".into(), 7);
    world.namespace(AMBIENT);
    world.source(SourceEvent::Pod(pod("web", "10.0.0.7")));
    world.advance_time(Duration::from_secs(1));
    assert!(world.captured("web", 7));
    assert_eq!(world.closed, NOBODY);
}

#[test]
fn connections_opened_outside_the_mesh_survive_a_return() {
    let mut world = TestAgent::started(AMBIENT, vec![pod("web", "")]);
    world.cni_add(1, "web", 7, "10.0.0.7");
    world.source(SourceEvent::Pod(pod("web", "10.0.0.7")));
    world.running.insert("web".into(), 7);
    world.namespace(&[]);
    world.advance_time(Duration::from_secs(5));
    world.namespace(AMBIENT);
    world.advance_time(Duration::from_secs(1));
    assert!(world.captured("web", 7));
    assert_eq!(world.closed, NOBODY);
}

#[test]
fn after_a_boot_without_the_plugin_connections_are_closed() {
    let was_captured = PodView {
        reported: RedirectionStatus::Enabled,
        ..pod("web", "10.0.0.7")
    };
    let world = agent_started_with(None, AMBIENT, was_captured.clone());
    assert!(world.captured("web", 7));
    assert_eq!(world.closed, [7]);
    // An agent that finds it captured ignores its annotation.
    let mut world = TestAgent::new();
    world.running.insert("web".into(), 7);
    world.rules.insert(7);
    world.namespace(AMBIENT);
    world.source(SourceEvent::Pod(was_captured));
    world.source(SourceEvent::Synced);
    world.settle();
    assert!(world.captured("web", 7));
    assert_eq!(world.closed, NOBODY);
}

#[test]
fn sandbox_remade_without_the_plugin_has_its_connections_closed() {
    let mut world = TestAgent::started(&[], vec![pod("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.namespace(AMBIENT);
    world.advance_time(Duration::from_secs(1));
    assert_eq!(world.closed, NOBODY);
    world.running.insert("web".into(), 8);
    world.source(SourceEvent::Pod(pod("web", "10.0.0.8")));
    world.advance_time(Duration::from_secs(1));
    assert!(world.captured("web", 8));
    assert_eq!(world.closed, [8]);
}

#[test]
fn unobserved_connections_are_closed_only_in_known_order() {
    let plain = || pod("web", "10.0.0.7");
    let opted_in = || labelled_pod("web", "10.0.0.7", AMBIENT);
    let unlabelled: &[(&str, &str)] = &[];
    // What an agent before has left, the namespace's labels now, the pod.
    let certain = [
        (
            record(AMBIENT, &["other"]),
            AMBIENT,
            without_status(plain()),
        ),
        (
            record(unlabelled, &[]),
            unlabelled,
            without_status(opted_in()),
        ),
        // Its own label, so the namespace's does not matter.
        (record(unlabelled, &[]), AMBIENT, without_status(opted_in())),
    ];
    for (left, namespace, view) in certain {
        let case = format!("{left:?} {namespace:?} {view:?}");
        let world = agent_started_with(Some(left), namespace, view);
        assert!(world.captured("web", 7));
        assert_eq!(world.closed, [7], "{case}");
    }
    let uncertain = [
        // No agent was there before: the mesh is new on this node.
        (None, AMBIENT, without_status(plain())),
        (None, unlabelled, without_status(opted_in())),
        // Somebody has changed its labels since it was made.
        (Some(record(AMBIENT, &[])), AMBIENT, plain()),
        (Some(record(unlabelled, &[])), unlabelled, opted_in()),
        // The namespace was labelled while no agent ran.
        (
            Some(record(unlabelled, &[])),
            AMBIENT,
            without_status(plain()),
        ),
        // The agent before us knew the pod.
        (
            Some(record(AMBIENT, &["web"])),
            AMBIENT,
            without_status(plain()),
        ),
    ];
    for (left, namespace, view) in uncertain {
        let case = format!("{left:?} {namespace:?} {view:?}");
        let world = agent_started_with(left, namespace, view);
        assert!(world.captured("web", 7), "{case}");
        assert_eq!(world.closed, NOBODY, "{case}");
    }
}

#[test]
fn a_late_pod_counts_by_the_label_it_was_created_with() {
    for (view, closed) in [
        (
            without_status(labelled_pod("web", "10.0.0.7", AMBIENT)),
            vec![7],
        ),
        (labelled_pod("web", "10.0.0.7", AMBIENT), vec![]),
        // The label of its namespace may be younger than the pod.
        (without_status(pod("web", "10.0.0.7")), vec![]),
    ] {
        let mut world = TestAgent::started(AMBIENT, vec![]);
        world.running.insert("web".into(), 7);
        world.source(SourceEvent::Pod(view));
        world.advance_time(Duration::from_secs(1));
        assert!(world.captured("web", 7));
        assert_eq!(world.closed, closed);
    }
}
