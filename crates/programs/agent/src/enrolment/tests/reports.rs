//! Tests the status annotations, the reports to pods' owners and those to operators.

use super::*;
use crate::capture::CaptureMethod;
use crate::report::{PodReport, PodState};

fn pod_with_status(uid: &str, ip: &str, reported: RedirectionStatus) -> PodView {
    PodView {
        reported,
        ..pod_view(uid, ip)
    }
}

impl TestAgent {
    /// Creates an agent that starts after an earlier agent captured the pod `web`; the step called `failing`
    /// fails.
    fn restarted_agent(failing: &'static str) -> Self {
        let mut world = Self::new();
        world.failing_step = Some(failing);
        world.running.insert("web".into(), 7);
        world.label_namespace(AMBIENT_LABELS);
        world.source_event(SourceEvent::Pod(pod_with_status(
            "web",
            "10.0.0.7",
            RedirectionStatus::Enabled,
        )));
        world.source_event(SourceEvent::Synced);
        world
    }

    fn report(&self, uid: &str) -> PodReport {
        let mut reports = self.machine.reports(|netns| u64::from(*netns)).into_iter();
        reports.find(|report| report.uid == uid).unwrap()
    }
}

#[test]
fn old_annotation_is_corrected_after_a_reboot() {
    let enabled = pod_with_status("web", "10.0.0.7", RedirectionStatus::Enabled);
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![enabled]);
    assert_eq!(world.status["shop/web"], RedirectionStatus::Pending);
    assert_eq!(world.report("web").state, PodState::NoNamespace);
    // Long after: the next look would be half a minute away.
    world.advance_time(Duration::from_secs(120));
    world.take_log();
    // The kubelet publishes the new sandbox's address, and its process is there.
    world.running.insert("web".into(), 8);
    world.source_event(SourceEvent::Pod(pod_with_status(
        "web",
        "10.0.0.8",
        RedirectionStatus::Pending,
    )));
    world.perform_all_effects();
    assert_eq!(world.take_log()[0], "scan", "at once");
    assert!(world.is_captured("web", 8));
}

#[test]
fn a_returning_agent_leaves_annotations_of_captured_pods() {
    for failing in ["announce", "apply", "probe"] {
        let mut world = TestAgent::restarted_agent(failing);
        world.advance_time(Duration::from_secs(60));
        let log = world.take_log();
        assert!(log.contains(&format!("web {failing}")), "{log:?}");
        assert_eq!(world.status.get("shop/web"), None, "{failing}");
        assert!(
            !world.reported_failures.is_empty(),
            "{failing}: owners learn it"
        );
        world.failing_step = None;
        world.handle_event(Event::ProxySynced);
        world.advance_time(Duration::from_secs(20));
        assert!(world.is_captured("web", 7), "{failing}");
    }
}

#[test]
fn annotations_stay_while_scans_fail() {
    let mut world = TestAgent::restarted_agent("scan");
    world.advance_time(Duration::from_secs(300));
    let tries = world.take_log().len();
    assert!((5..30).contains(&tries), "{tries}");
    assert_eq!(world.status.get("shop/web"), None);
    assert!(!world.machine.is_ready());
    assert!(!world.zds_open, "what runs is not known");
    world.failing_step = None;
    world.advance_time(Duration::from_secs(60));
    assert!(world.is_captured("web", 7));
    assert!(world.machine.is_ready() && world.zds_open);
}

#[test]
fn a_sandbox_that_changes_unseen_is_found_when_its_address_is_published() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(60));
    assert!(world.is_captured("web", 7));
    world.running.insert("web".into(), 8);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.8")));
    world.advance_time(Duration::from_secs(1));
    assert!(world.is_captured("web", 8));
}

#[test]
fn stale_annotation_outside_the_mesh_is_removed() {
    let claims = pod_with_status("web", "10.0.0.7", RedirectionStatus::Enabled);
    let mut world = TestAgent::start_with_pods(&[], vec![claims]);
    assert_eq!(world.status["shop/web"], RedirectionStatus::None);
    // One made from a template that has it.
    world.source_event(SourceEvent::Pod(pod_with_status(
        "new",
        "",
        RedirectionStatus::Pending,
    )));
    world.perform_all_effects();
    assert_eq!(world.status["shop/new"], RedirectionStatus::None);
    // And one without a report is left alone.
    world.source_event(SourceEvent::Pod(pod_view("other", "10.0.0.9")));
    world.perform_all_effects();
    assert_eq!(world.status.get("shop/other"), None);
}

#[test]
fn stale_annotation_of_an_ended_pod_is_removed_by_the_next_agent() {
    let mut ended = pod_with_status("job", "10.0.0.7", RedirectionStatus::Enabled);
    ended.terminal = true;
    let world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![ended]);
    assert_eq!(world.status["shop/job"], RedirectionStatus::None);
}

#[test]
fn failure_and_its_end_are_reported_once() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.failing_step = Some("announce");
    world.advance_time(Duration::from_secs(60));
    let [(uid, Some(text))] = world.reported_failures.as_slice() else {
        panic!("{:?}", world.reported_failures);
    };
    assert_eq!(&**uid, "web");
    assert!(text.ends_with("announce fails"), "{text}");
    let report = world.report("web");
    assert_eq!((report.state, report.belongs), (PodState::Failing, true));
    assert!(report.error.unwrap().ends_with("announce fails"));
    world.failing_step = None;
    world.advance_time(Duration::from_secs(60));
    assert_eq!(
        world.reported_failures.last().unwrap(),
        &("web".into(), None)
    );
    assert_eq!(world.reported_failures.len(), 2);
    assert_eq!(world.report("web").state, PodState::Captured);
}

#[test]
fn report_has_the_state_of_a_pod_and_its_reason() {
    let mut host = pod_view("host", "10.1.0.1");
    host.host_network = true;
    let mut opted = pod_view("opted", "10.0.0.9");
    opted.labels = labels(OPT_OUT_LABELS);
    let mut job = pod_view("job", "10.0.0.4");
    job.terminal = true;
    let mut odd = pod_view("odd", "10.0.0.5");
    odd.annotations = labels(&[("istio.io/reroute-virtual-interfaces", "a b")]);
    let pods = vec![
        pod_view("web", "10.0.0.7"),
        pod_view("new", ""),
        host,
        opted,
        job,
        odd,
    ];
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, pods);
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(60));
    let repaired = Event::Repaired {
        uid: "web".into(),
        what: "x".to_owned(),
    };
    world.handle_event(repaired);
    let web = world.report("web");
    assert_eq!(
        (web.state, web.netns_inode, web.drifts),
        (PodState::Captured, Some(7), 1)
    );
    assert!(web.listeners && web.redirected && web.error.is_none());
    assert_eq!(
        (web.annotation, web.annotation_seen),
        (RedirectionStatus::Enabled, RedirectionStatus::None)
    );
    for (uid, state, why) in [
        ("new", PodState::NoNamespace, "has not started"),
        ("host", PodState::Outside, "node's network"),
        ("opted", PodState::Outside, "dataplane-mode=none"),
        ("job", PodState::Ended, "ended"),
        ("odd", PodState::Failing, "annotations"),
    ] {
        let report = world.report(uid);
        assert_eq!(report.state, state, "{uid}");
        assert!(report.why.contains(why), "{uid}: {}", report.why);
    }
}

#[test]
fn remains_of_a_release_are_no_drift() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(60));
    world.label_namespace(&[]);
    world.advance_time(Duration::from_secs(60));
    world.label_namespace(AMBIENT_LABELS);
    world.handle_event(Event::Repaired {
        uid: "web".into(),
        what: "x".to_owned(),
    });
    assert_eq!(world.report("web").drifts, 0);
}

#[test]
fn the_report_has_the_fields_that_are_documented() {
    let world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    let json = serde_json::to_value(world.report("web")).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "namespace": "shop", "name": "web", "uid": "web", "serviceAccount": "sa",
            "addresses": ["10.0.0.7"], "wanted": true, "state": "no-namespace",
            "why": "no process of it has been found in a network namespace with its address",
            "listeners": false, "redirected": false, "drifts": 0,
            "annotation": "none", "annotationSeen": "none",
        })
    );
}

#[test]
fn method_of_capture_is_reported_with_its_reason() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(60));
    let mut methods = |method| {
        world.handle_event(Event::Applied {
            uid: "web".into(),
            method,
            warnings: Vec::new(),
        });
        let report = world.report("web");
        (report.captured_by, report.not_by_bpf)
    };
    assert_eq!(methods(CaptureMethod::Bpf), (Some("bpf"), None));
    assert_eq!(methods(CaptureMethod::Rules), (Some("rules"), None));
    let reason = "no cgroup".to_owned();
    let fallback = methods(CaptureMethod::RulesInsteadOfBpf(reason.clone()));
    assert_eq!(fallback, (Some("rules"), Some(reason)));
}

#[test]
fn unexpected_state_of_a_captured_pod_is_reported() {
    let mut world = TestAgent::start_with_pods(AMBIENT_LABELS, vec![pod_view("web", "10.0.0.7")]);
    world.running.insert("web".into(), 7);
    world.advance_time(Duration::from_secs(60));
    assert!(world.is_captured("web", 7));
    let warn = |world: &mut TestAgent, warnings: &[&str]| {
        world.handle_event(Event::Applied {
            uid: "web".into(),
            method: CaptureMethod::Rules,
            warnings: warnings.iter().map(|one| (*one).to_owned()).collect(),
        });
        (world.report("web").warnings, world.machine.counts().warned)
    };
    assert_eq!(warn(&mut world, &["odd"]), (vec!["odd".to_owned()], 1));
    assert_eq!(world.report("web").state, PodState::Captured);
    assert_eq!(warn(&mut world, &[]), (vec![], 0));
    warn(&mut world, &["odd"]);
    world.running.insert("web".into(), 8);
    world.source_event(SourceEvent::Pod(pod_view("web", "10.0.0.8")));
    world.advance_time(Duration::from_secs(1));
    assert!(world.is_captured("web", 8) && world.report("web").warnings.is_empty());
}
