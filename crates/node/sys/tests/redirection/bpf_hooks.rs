//! Tests capture by BPF programs beside programs that others attach to the same hooks of cgroups, as Cilium does.

use std::{io, path::PathBuf, time::Instant};

use ambit_bpf::CaptureError;
use ambit_bpf_testkit::{attach, create_threaded_cgroup, new_cgroup, remove_cgroup, try_attach};
use ambit_netplan::{Backend, RedirectionSpec};
use ambit_sys::redirection::{
    Applied, RedirectionError,
    bpf::{apply, prepare},
};

use super::{
    bpf::{Pod, at},
    with,
    world::{
        DEADLINE, PEER4, PEER6, POD4, accept, address, listen, nobody, original_destination, talk,
    },
};

/// Address that no test's host has.
const FAR: &str = "203.0.113.7";

/// Pod whose cgroup is below another one, as pods' are below that of all pods.
struct Nested {
    pod: Option<Pod>,
    parent: PathBuf,
}

impl Nested {
    fn new() -> Self {
        let parent = new_cgroup();
        let cgroup = parent.join("pod");
        create_threaded_cgroup(&cgroup);
        Self {
            pod: Some(Pod::at_cgroup(cgroup)),
            parent,
        }
    }

    fn pod(&self) -> &Pod {
        self.pod.as_ref().unwrap()
    }

    /// Attaches a program of another to the pod's cgroup (`own`) or the one above, before or after Ambit's.
    fn with_hook(own: bool, before: bool, destination: Option<&str>) -> Self {
        let nested = Self::new();
        let cgroup = if own {
            &nested.pod().cgroup
        } else {
            &nested.parent
        };
        if !before {
            nested.pod().apply();
        }
        attach(cgroup, "beside", destination);
        if before {
            nested.pod().apply();
        }
        nested
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        drop(self.pod.take());
        remove_cgroup(&self.parent);
    }
}

const PLACES: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

#[test]
fn programs_of_others_on_the_same_hook_change_nothing() {
    for (own, before) in PLACES {
        let nested = Nested::with_hook(own, before, None);
        let pod = nested.pod();
        for peer in [PEER4, PEER6] {
            let mut client = pod.connect(address(peer, 80)).unwrap();
            let mut captured = accept(&pod.proxy.outbound).0;
            assert_eq!(at(&captured), address(peer, 80), "{own} {before}");
            talk(&mut client, &mut captured);
        }
        assert_eq!(pod.apply(), ambit_sys::redirection::Applied::Unchanged);
    }
}

/// Balancers of Services by sockets rewrite destinations.
#[test]
fn connection_whose_destination_others_rewrite_is_captured() {
    for (own, before) in PLACES {
        let nested = Nested::with_hook(own, before, Some(PEER4));
        let pod = nested.pod();
        let far = listen(&pod.world.peer, 80);
        let mut client = pod.connect(address(FAR, 80)).unwrap();
        let mut captured = accept(&pod.proxy.outbound).0;
        assert_eq!(at(&captured), address(PEER4, 80), "{own} {before}");
        talk(&mut client, &mut captured);
        nobody(&far);
    }
}

/// The programs take such a connection for one of the pod to itself if they see it first.
#[test]
fn connection_that_others_divert_from_the_pod_never_leaves_in_plaintext() {
    for (own, before) in PLACES {
        let nested = Nested::with_hook(own, before, Some(PEER4));
        let pod = nested.pod();
        let far = listen(&pod.world.peer, 80);
        for to in [POD4, "127.0.0.1"] {
            match pod.connect(address(to, 80)) {
                Ok(_) => drop(accept(&pod.proxy.outbound)),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused),
            }
        }
        nobody(&far);
    }
}

#[test]
fn exclusive_program_of_another_is_an_error_and_nothing_is_captured() {
    for own in [true, false] {
        let nested = Nested::new();
        let pod = nested.pod();
        let cgroup = if own { &pod.cgroup } else { &nested.parent };
        attach(cgroup, "alone", None);
        let spec = RedirectionSpec {
            dns_capture: true,
            ..with(Backend::Bpf)
        };
        let refused = apply(&pod.place(), &spec).unwrap_err();
        let RedirectionError::Bpf(error) = refused else {
            panic!("{refused}")
        };
        let text = error.to_string();
        assert!(text.contains("connecting_v4"), "{own} {text}");
        // The remains of the failed attempt are not a capture.
        let Applied::Repaired { what } = pod.apply_rules() else {
            panic!("not repaired")
        };
        assert!(!what.was_captured, "{own} {what}");
    }
}

#[test]
fn exclusive_program_cannot_replace_the_captures() {
    for mode in ["alone", "overridable"] {
        let nested = Nested::new();
        let pod = nested.pod();
        pod.apply();
        let refused = try_attach(&pod.cgroup, mode, Some(PEER4));
        assert!(!refused.status.success());
        // One above is overridden by the capture's.
        let _may_fail = try_attach(&nested.parent, mode, Some(PEER4));
        drop(pod.connect(address(PEER4, 80)).unwrap());
        drop(accept(&pod.proxy.outbound));
    }
}

#[test]
fn program_that_the_capture_would_switch_off_is_an_error() {
    let nested = Nested::new();
    let pod = nested.pod();
    let far = listen(&pod.world.peer, 80);
    let assert_refused = |result: Result<_, RedirectionError>| {
        let Err(RedirectionError::Bpf(CaptureError::Overrides { path, .. })) = result else {
            panic!("{result:?}")
        };
        assert_eq!(path, nested.parent);
    };
    attach(&nested.parent, "overridable", Some(PEER4));
    assert_refused(prepare(&pod.place(), &with(Backend::Bpf)).map(drop));
    assert_refused(apply(&pod.place(), &with(Backend::Bpf)).map(drop));
    drop(pod.connect(address(FAR, 80)).unwrap());
    drop(accept(&far));
}

#[test]
fn program_that_is_switched_off_later_is_reported_and_rules_let_it_run() {
    let nested = Nested::new();
    let pod = nested.pod();
    pod.apply();
    attach(&nested.parent, "overridable", Some(PEER4));
    let refused = apply(&pod.place(), &with(Backend::Bpf)).unwrap_err();
    assert!(
        matches!(
            refused,
            RedirectionError::Bpf(CaptureError::Overrides { .. })
        ),
        "{refused}"
    );
    // The first call stops the capture, and the second one detaches the programs.
    pod.apply_rules();
    pod.apply_rules();
    // The kernel detaches programs some time after their pins are gone.
    let until = Instant::now() + DEADLINE;
    loop {
        let _client = pod.connect(address(FAR, 80)).unwrap();
        let captured = accept(&pod.proxy.outbound).0;
        let destination = original_destination(&captured);
        if destination == address(PEER4, 80) {
            break;
        }
        assert!(Instant::now() < until, "{destination}");
    }
}
