//! Programs of a pod that outlive processes, and change and go while connections are open.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    time::{Duration, Instant},
};

use ambit_bpf::{Capture, Pins, Role, SLOTS};

use crate::world::{FAR4, POD4, Place, World, accept, address, nobody, talk};

#[test]
fn settings_are_read_back_and_differences_are_found() {
    let (mut world, _proxy) = World::captured();
    let capture = world.capture();
    assert!(capture.is_complete().unwrap());
    assert!(capture.has(&world.settings).unwrap());
    world.settings.addresses = BTreeSet::from([POD4.parse().unwrap()]);
    assert!(!capture.has(&world.settings).unwrap());
    capture.set(&world.settings).unwrap();
    assert!(capture.has(&world.settings).unwrap());
    world.settings.inbound = false;
    assert!(!capture.has(&world.settings).unwrap());
}

#[test]
fn another_installation_keeps_connections_and_listeners() {
    let (world, proxy) = World::captured();
    let mut client = world.connect(Place::Pod, address(FAR4, 80)).unwrap();
    let mut captured = accept(&proxy.outbound).0;
    world.install();
    talk(&mut client, &mut captured);
    drop(world.connect(Place::Pod, address(FAR4, 80)).unwrap());
    drop(accept(&proxy.outbound));
    drop(world.connect(Place::Peer, address(POD4, 80)).unwrap());
    drop(accept(&proxy.inbound));
}

#[test]
fn openings_meet_a_program_at_every_moment_of_another_installation() {
    let (world, proxy) = World::captured();
    let application = world.listen(Place::Pod, 80);
    std::thread::scope(|scope| {
        let installing = scope.spawn(|| (0..20).for_each(|_| world.install()));
        while !installing.is_finished() {
            drop(world.connect(Place::Peer, address(POD4, 80)).unwrap());
            drop(accept(&proxy.inbound));
            drop(world.connect(Place::Pod, address(FAR4, 80)).unwrap());
            drop(accept(&proxy.outbound));
        }
    });
    nobody(&application);
}

#[test]
fn partial_installation_is_incomplete_and_completed_by_another() {
    let world = World::new();
    let (capture, proxy) = (world.capture(), world.proxy());
    assert!(!capture.is_complete().unwrap());
    // A namespace is no cgroup: the steps before the failure leave their pins.
    let failed = capture.install(&world.pod, &world.pod, &world.settings);
    let error = failed.unwrap_err().to_string();
    assert!(error.contains("accepted"), "{error}");
    assert!(!capture.is_complete().unwrap());
    world.install();
    assert!(capture.is_complete().unwrap());
    world.enter(&proxy);
    drop(world.connect(Place::Pod, address(FAR4, 80)).unwrap());
    drop(accept(&proxy.outbound));
}

#[test]
fn removal_leaves_nothing_and_can_be_repeated() {
    let (world, proxy) = World::captured();
    let capture = world.capture();
    capture.remove().unwrap();
    capture.remove().unwrap();
    assert!(!capture.is_complete().unwrap());
    let application = world.listen(Place::Pod, 80);
    let mut client = world.connect(Place::Peer, address(POD4, 80)).unwrap();
    talk(&mut client, &mut accept(&application).0);
    nobody(&proxy.inbound);
}

#[test]
fn any_listener_of_a_role_gets_openings() {
    let world = World::new();
    let proxy = world.proxy();
    world.install();
    let mut listeners = world.capture().listeners().unwrap();
    listeners
        .put(Role::Inbound, SLOTS - 1, &proxy.inbound)
        .unwrap();
    assert!(listeners.put(Role::Inbound, SLOTS, &proxy.inbound).is_err());
    drop(world.connect(Place::Peer, address(POD4, 80)).unwrap());
    drop(accept(&proxy.inbound));
}

#[test]
fn listeners_are_entered_before_the_programs_are_attached() {
    let world = World::new();
    let proxy = world.proxy();
    world.capture().prepare().unwrap();
    world.enter(&proxy);
    assert!(!world.capture().is_complete().unwrap());
    world.install();
    drop(world.connect(Place::Peer, address(POD4, 80)).unwrap());
    drop(accept(&proxy.inbound));
}

/// Programs of another layout are those of another version of Ambit.
#[test]
fn another_layout_is_replaced_without_a_gap_and_keeps_the_listeners() {
    let (world, proxy) = World::captured();
    let capture = world.capture();
    let application = world.listen(Place::Pod, 80);
    let directory = world.pins().path_of(world.settings.netns);
    let mut client = world.connect(Place::Pod, address(FAR4, 80)).unwrap();
    let mut captured = accept(&proxy.outbound).0;
    for version in 0..5 {
        let other = directory.join(format!("layout-0{version}"));
        fs::rename(directory.join("layout-1"), &other).unwrap();
        assert!(!capture.is_complete().unwrap());
        std::thread::scope(|scope| {
            let installing = scope.spawn(|| world.install());
            while !installing.is_finished() {
                drop(world.connect(Place::Peer, address(POD4, 80)).unwrap());
                drop(accept(&proxy.inbound));
                drop(world.connect(Place::Pod, address(FAR4, 80)).unwrap());
                drop(accept(&proxy.outbound));
            }
        });
        assert!(capture.is_complete().unwrap() && !other.exists());
    }
    talk(&mut client, &mut captured);
    nobody(&application);
    fs::rename(directory.join("layout-1"), directory.join("layout-2")).unwrap();
    capture.remove().unwrap();
    assert!(!directory.exists());
}

#[test]
fn proxy_answers_each_request_for_its_listeners() {
    let world = World::new();
    let (capture, proxy) = (world.capture(), world.proxy());
    assert!(!capture.is_prepared());
    capture.prepare().unwrap();
    assert!(capture.is_prepared() && !capture.has_proxy().unwrap());
    world.enter(&proxy);
    assert!(capture.has_proxy().unwrap());
    world.install();
    assert!(capture.has_proxy().unwrap());
    capture.prepare().unwrap();
    assert!(!capture.has_proxy().unwrap());
    capture.remove().unwrap();
    assert!(!capture.is_prepared());
    assert!(capture.has_proxy().is_err());
}

/// Installs the programs of a pod in the directory of another one's.
fn install_in(pins: &Pins, pod: &World) -> Capture {
    let cgroup = File::open(&pod.cgroup).unwrap();
    let capture = pins.of(pod.settings.netns);
    capture.install(cgroup, &pod.pod, &pod.settings).unwrap();
    capture
}

#[test]
fn programs_are_swept_once_their_namespace_is_gone() {
    let (one, _proxy) = World::captured();
    let other = World::new();
    let pins = one.pins();
    let capture = install_in(&pins, &other);
    assert_eq!(pins.sweep(&BTreeSet::new()).unwrap(), 0);
    drop(other);
    // The kernel removes namespaces some time after their last user.
    let until = Instant::now() + Duration::from_secs(10);
    while pins.sweep(&BTreeSet::new()).unwrap() == 0 {
        assert!(Instant::now() < until, "the namespace stays");
        std::thread::yield_now();
    }
    assert!(!capture.is_prepared());
    assert!(one.capture().is_complete().unwrap());
}

#[test]
fn maps_without_programs_are_swept_unless_the_pod_is_being_prepared() {
    let world = World::new();
    let (pins, capture) = (world.pins(), world.capture());
    let preparing = BTreeSet::from([world.settings.netns]);
    let other = pins.root().join("notes");
    fs::create_dir(&other).unwrap();
    capture.prepare().unwrap();
    assert_eq!(pins.sweep(&preparing).unwrap(), 0);
    assert!(capture.is_prepared());
    assert_eq!(pins.sweep(&BTreeSet::new()).unwrap(), 1);
    assert!(!capture.exists() && other.exists());
    // Programs that lack one, or are another version's, still capture a pod.
    world.install();
    fs::remove_file(pins.path_of(world.settings.netns).join("layout-1/steer")).unwrap();
    assert_eq!(pins.sweep(&BTreeSet::new()).unwrap(), 0);
    world.install();
    let directory = pins.path_of(world.settings.netns);
    fs::rename(directory.join("layout-1"), directory.join("layout-2")).unwrap();
    assert_eq!(pins.sweep(&BTreeSet::new()).unwrap(), 0);
    assert!(directory.join("layout-2/steer").exists());
}

/// The workers of a proxy share a port, and the kernel chooses among them.
#[test]
fn every_listener_that_shares_a_port_gets_openings() {
    let world = World::new();
    let share = |socket: &socket2::Socket| socket.set_reuse_port(true).unwrap();
    let listeners = [(); 2].map(|()| world.listen_with(Place::Entered, 15006, share));
    world.install();
    let mut map = world.capture().listeners().unwrap();
    map.put(Role::Inbound, 0, &listeners[0]).unwrap();
    let mut clients = Vec::new();
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
    }
    let mut accepted = [0, 0];
    // With 64 openings one of the two gets none once in 2^63 runs.
    for _ in 0..64 {
        clients.push(world.connect(Place::Peer, address(POD4, 80)).unwrap());
    }
    for (listener, count) in listeners.iter().zip(&mut accepted) {
        *count = std::iter::from_fn(|| listener.accept().ok()).count();
    }
    assert_eq!(accepted[0] + accepted[1], clients.len());
    assert!(accepted[0] > 0 && accepted[1] > 0, "{accepted:?}");
}

#[test]
fn programs_go_with_the_pod() {
    let (world, _proxy) = World::captured();
    // The pins remain until the agent removes them, and do no harm.
    let cgroup = File::open(&world.cgroup).unwrap();
    std::fs::remove_dir(&world.cgroup).unwrap();
    drop(cgroup);
    world.capture().remove().unwrap();
    std::fs::create_dir(&world.cgroup).unwrap();
}

#[test]
fn stopped_programs_are_removed_and_then_the_directory() {
    let (one, _proxy) = World::captured();
    let other = World::new();
    let pins = one.pins();
    let capture = install_in(&pins, &other);
    assert_eq!(pins.stopped().unwrap(), BTreeSet::new());
    pins.remove_if_empty().unwrap();
    capture.pause().unwrap();
    let stopped = BTreeSet::from([other.settings.netns]);
    assert_eq!(pins.stopped().unwrap(), stopped);
    pins.remove_all(&stopped).unwrap();
    assert!(!capture.exists() && one.capture().is_complete().unwrap());
    one.capture().pause().unwrap();
    pins.remove_all(&pins.stopped().unwrap()).unwrap();
    pins.remove_if_empty().unwrap();
    assert!(!pins.root().exists());
    assert_eq!(pins.stopped().unwrap(), BTreeSet::new());
    pins.remove_if_empty().unwrap();
}
