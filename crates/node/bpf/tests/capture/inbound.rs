//! Connections to the pod, from outside and from its proxy.

use std::io::ErrorKind;

use ambit_bpf::Probe;
use socket2::SockRef;

use crate::world::{
    FAR4, FAR6, MARKS, PEER4, PEER6, POD4, POD6, Place, SILENCE, World, accept, address, canonical,
    connect_within, nobody, talk,
};

#[test]
fn openings_from_outside_reach_the_proxy_with_both_their_addresses() {
    let (world, proxy) = World::captured();
    let application = world.listen(Place::Pod, 80);
    for (pod, peer) in [(POD4, PEER4), (POD6, PEER6)] {
        let to = address(pod, 80);
        let mut client = world.connect(Place::Peer, to).unwrap();
        let (mut accepted, from) = accept(&proxy.inbound);
        assert_eq!(canonical(accepted.local_addr().unwrap()), to);
        assert_eq!(from, address(peer, client.local_addr().unwrap().port()));
        talk(&mut client, &mut accepted);
    }
    nobody(&application);
}

#[test]
fn tunnels_reach_their_own_listener() {
    let (world, proxy) = World::captured();
    for pod in [POD4, POD6] {
        let mut client = world.connect(Place::Peer, address(pod, 15008)).unwrap();
        talk(&mut client, &mut accept(&proxy.tunnel).0);
    }
    nobody(&proxy.inbound);
}

#[test]
fn opening_without_a_proxy_is_refused() {
    let (world, proxy) = World::captured();
    let application = world.listen(Place::Pod, 80);
    drop(proxy);
    for pod in [POD4, POD6] {
        let refused = world.connect(Place::Peer, address(pod, 80)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    nobody(&application);
    // A successor enters its own listeners.
    let proxy = world.proxy();
    world.enter(&proxy);
    let mut client = world.connect(Place::Peer, address(POD4, 80)).unwrap();
    talk(&mut client, &mut accept(&proxy.inbound).0);
}

#[test]
fn connections_from_before_the_capture_continue() {
    let world = World::new();
    let application = world.listen(Place::Pod, 80);
    let mut before = world.connect(Place::Peer, address(POD4, 80)).unwrap();
    let mut accepted = accept(&application).0;
    let proxy = world.proxy();
    world.install();
    world.enter(&proxy);
    talk(&mut before, &mut accepted);
    drop(world.connect(Place::Peer, address(POD4, 80)).unwrap());
    drop(accept(&proxy.inbound));
    nobody(&application);
}

#[test]
fn openings_reach_the_application_while_inbound_is_not_captured() {
    let (mut world, proxy) = World::captured();
    world.settings.inbound = false;
    world.capture().set(&world.settings).unwrap();
    let application = world.listen(Place::Pod, 80);
    let mut client = world.connect(Place::Peer, address(POD4, 80)).unwrap();
    talk(&mut client, &mut accept(&application).0);
    nobody(&proxy.inbound);
}

#[test]
fn probes_reach_the_application_on_their_interface_and_port_only() {
    let (mut world, proxy) = World::captured();
    world.settings.probe_v4 = PEER4.parse().unwrap();
    world.settings.probe_v6 = PEER6.parse().unwrap();
    world.sh(
        Place::Entered,
        "ip link add other type veth peer name another",
    );
    let index = |name: &'static str| {
        world.at(Place::Entered, || {
            std::fs::read_to_string(format!("/proc/thread-self/net/dev_snmp6/{name}"))
                .unwrap()
                .lines()
                .find_map(|line| line.strip_prefix("ifIndex")?.trim().parse::<u32>().ok())
                .unwrap()
        })
    };
    let (eth0, other) = (index("eth0"), index("other"));
    let probe = |interface, port| [Probe { interface, port }].into();
    let listeners = [80, 81].map(|port| world.listen(Place::Pod, port));
    for (probes, exempt) in [
        (probe(eth0, Some(80)), [true, false]),
        (probe(eth0, Some(81)), [false, true]),
        (probe(eth0, None), [true, true]),
        (probe(other, None), [false, false]),
    ] {
        world.settings.probes = probes;
        world.capture().set(&world.settings).unwrap();
        for ((port, listener), is_exempt) in [80, 81].into_iter().zip(&listeners).zip(exempt) {
            for pod in [POD4, POD6] {
                drop(world.connect(Place::Peer, address(pod, port)).unwrap());
                let reached = if is_exempt { listener } else { &proxy.inbound };
                drop(accept(reached));
            }
        }
    }
    // Addresses of others are not exempt on any port.
    world.settings.probe_v4 = FAR4.parse().unwrap();
    world.settings.probe_v6 = FAR6.parse().unwrap();
    world.settings.probes = probe(eth0, None);
    world.capture().set(&world.settings).unwrap();
    for pod in [POD4, POD6] {
        drop(world.connect(Place::Peer, address(pod, 80)).unwrap());
        drop(accept(&proxy.inbound));
    }
}

#[test]
fn proxy_calls_the_application_from_the_clients_address() {
    let (world, proxy) = World::captured();
    let application = world.listen(Place::Pod, 80);
    for (far, pod) in [(FAR4, POD4), (FAR6, POD6)] {
        let mut call = world
            .call_application(address(far, 0), address(pod, 80))
            .unwrap();
        let (mut accepted, from) = accept(&application);
        assert_eq!(from, address(far, call.local_addr().unwrap().port()));
        assert_eq!(canonical(accepted.local_addr().unwrap()), address(pod, 80));
        talk(&mut call, &mut accepted);
    }
    nobody(&proxy.inbound);
    nobody(&proxy.outbound);
}

/// The client whose address the proxy uses may have sent from the same port itself.
#[test]
fn call_from_a_port_that_the_client_uses_itself_reaches_the_application() {
    let (world, proxy) = World::captured();
    let application = world.listen(Place::Pod, 80);
    let to = address(POD4, 80);
    let mut client = world.connect(Place::Peer, to).unwrap();
    let (mut plaintext, from) = accept(&proxy.inbound);
    SockRef::from(&plaintext)
        .bind_device(Some(b"eth0"))
        .unwrap();
    let mut call = world.call_application(from, to).unwrap();
    let mut accepted = accept(&application).0;
    for _ in 0..3 {
        talk(&mut client, &mut plaintext);
        talk(&mut call, &mut accepted);
    }
}

#[test]
fn accepted_calls_take_packets_of_loopback_only() {
    let (world, _proxy) = World::captured();
    let application = world.listen(Place::Pod, 80);
    let _call = world
        .call_application(address(FAR4, 0), address(POD4, 80))
        .unwrap();
    let accepted = accept(&application).0;
    let device = SockRef::from(&accepted).device().unwrap();
    assert_eq!(device.as_deref(), Some(&b"lo"[..]));
    let own = world.connect(Place::Pod, address(POD4, 80)).unwrap();
    let accepted = accept(&application).0;
    assert_eq!(SockRef::from(&accepted).device().unwrap(), None);
    drop(own);
}

/// A mark that some interface lets through from the node does not make an opening the proxy's.
#[test]
fn loopback_openings_from_addresses_of_others_reach_nobody() {
    let (world, proxy) = World::captured();
    let application = world.listen(Place::Pod, 80);
    // A reply would arrive.
    world.sh(Place::Entered, "ip rule add to 198.51.100.1 lookup 100");
    let socket = world.socket(Place::Entered, address(FAR4, 80));
    socket.bind_device(Some(b"lo")).unwrap();
    socket.set_mark(MARKS.spoofed).unwrap();
    socket.set_ip_transparent_v4(true).unwrap();
    socket.bind(&address("198.51.100.1", 0).into()).unwrap();
    let refused = connect_within(socket, address(FAR4, 80), SILENCE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut);
    nobody(&application);
    nobody(&proxy.outbound);
}
