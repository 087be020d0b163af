//! Tests that rules are applied, compared, repaired and removed in a namespace.

use ambit_netplan::{Backend, RedirectionSpec, plan};
use ambit_sys::redirection::{Applied, apply, observe, purge, release};

use super::{
    BACKENDS, with,
    world::{World, new_netns, sh},
};

/// Lists the chains of Ambit's table sorted by name, since `nft` lists them in the order of creation.
fn ambit_table_chains(netns: &ambit_sys::netns::Netns) -> Vec<String> {
    let listing = sh(netns, "nft -s list table inet ambit");
    let mut chains: Vec<_> = listing
        .split("\tchain ")
        .map(|chain| chain.trim_end_matches(['}', '\n', '\t']).to_owned())
        .collect();
    chains.sort();
    chains
}

/// Returns the netfilter and policy routing state of the pod as text, without link-local addresses, which appear when
/// duplicate address detection ends.
fn pod_netfilter_state(world: &World) -> String {
    sh(
        &world.pod,
        "nft -s list ruleset 2>/dev/null; iptables-legacy-save | grep -v '^#' | sed 's/\\[.*\\]//'; \
         ip6tables-legacy-save | grep -v '^#' | sed 's/\\[.*\\]//'; ip rule; ip -6 rule; \
         (ip route show table all; ip -6 route show table all) | grep -v fe80",
    )
}

#[test]
fn the_first_apply_installs_and_the_second_changes_nothing() {
    for backend in BACKENDS {
        let world = World::new();
        let spec = with(backend);
        let drift = observe(&world.pod, &spec).unwrap();
        assert!(
            drift.nothing_found && !drift.is_empty(),
            "{backend}: {drift}"
        );
        assert_eq!(
            apply(&world.pod, &spec).unwrap(),
            Applied::Installed,
            "{backend}"
        );
        let first = pod_netfilter_state(&world);
        assert_eq!(
            observe(&world.pod, &spec).unwrap().items,
            Vec::<String>::new(),
            "{backend}"
        );
        assert_eq!(
            apply(&world.pod, &spec).unwrap(),
            Applied::Unchanged,
            "{backend}"
        );
        assert_eq!(pod_netfilter_state(&world), first, "{backend}");
    }
}

#[test]
fn every_kind_of_spec_is_in_place_after_apply() {
    let specs = [
        RedirectionSpec {
            dns_capture: true,
            ..Default::default()
        },
        RedirectionSpec {
            ingress_bypass: true,
            ..Default::default()
        },
        RedirectionSpec {
            ipv6: false,
            ..Default::default()
        },
        RedirectionSpec {
            ipv4: false,
            ..Default::default()
        },
        RedirectionSpec {
            virtual_interfaces: vec!["k6t-eth0".into(), "docker0".into()],
            dns_capture: true,
            ingress_bypass: true,
            ..Default::default()
        },
    ];
    for backend in BACKENDS {
        let world = World::new();
        for spec in &specs {
            let spec = RedirectionSpec {
                backend,
                ..spec.clone()
            };
            assert_ne!(
                apply(&world.pod, &spec).unwrap(),
                Applied::Unchanged,
                "{spec:?}"
            );
            assert_eq!(
                observe(&world.pod, &spec).unwrap().items,
                Vec::<String>::new(),
                "{spec:?}"
            );
        }
    }
}

/// Checks that `nft` accepts Ambit's rules in their readable form.
#[test]
fn nft_lists_the_rules_as_they_are_rendered() {
    let spec = RedirectionSpec {
        virtual_interfaces: vec!["k6t-eth0".into()],
        dns_capture: true,
        ..with(Backend::Nftables)
    };
    let (direct, through_tool) = (new_netns(), new_netns());
    for netns in [&direct, &through_tool] {
        sh(netns, "ip link set lo up");
    }
    apply(&direct, &spec).unwrap();
    let text = ambit_netplan::nft_text::render("ambit", &plan(&spec).unwrap());
    sh(&through_tool, &format!("nft -f - <<'END'\n{text}\nEND"));
    assert_eq!(
        ambit_table_chains(&direct),
        ambit_table_chains(&through_tool)
    );
    // The rules that the tool wrote read back without differences.
    let drift = observe(&through_tool, &spec).unwrap();
    assert!(
        drift.items.iter().all(|item| !item.contains("chain")),
        "{drift}"
    );
}

#[test]
fn drift_is_detected_reported_and_repaired() {
    let damages = [
        ("nft delete table inet ambit", "the table is missing"),
        (
            "nft flush chain inet ambit nat-output",
            "the rules of chain nat-output differ",
        ),
        (
            "nft insert rule inet ambit nat-output accept",
            "the rules of chain nat-output differ",
        ),
        (
            "nft add rule inet ambit raw-output counter",
            "the rules of chain raw-output differ",
        ),
        (
            "nft add chain inet ambit extra",
            "chain extra should not be there",
        ),
        (
            "nft 'add chain inet ambit extra; add rule inet ambit nat-output jump extra'",
            "chain extra should not be there",
        ),
        (
            "nft 'add set inet ambit s { type ipv4_addr; }'",
            "set s should not be there",
        ),
        (
            "nft 'delete chain inet ambit nat-prerouting'",
            "chain nat-prerouting is missing",
        ),
        (
            "nft 'delete chain inet ambit nat-prerouting; add chain inet ambit nat-prerouting \
             { type nat hook prerouting priority 5; }'",
            "the table is not as it should be",
        ),
        ("ip rule del pref 32764", "the IPv4 policy rule is missing"),
        (
            "ip -6 rule del pref 32764",
            "the IPv6 policy rule is missing",
        ),
        (
            "ip route flush table 100",
            "the IPv4 local route is missing",
        ),
        (
            "ip -6 route flush table 100",
            "the IPv6 local route is missing",
        ),
    ];
    let world = World::new();
    let spec = with(Backend::Nftables);
    apply(&world.pod, &spec).unwrap();
    let good = ambit_table_chains(&world.pod);
    for (damage, name) in damages {
        sh(&world.pod, damage);
        let drift = observe(&world.pod, &spec).unwrap();
        assert!(
            drift.items.iter().any(|item| item == name),
            "{damage}: {drift}"
        );
        let Applied::Repaired { what } = apply(&world.pod, &spec).unwrap() else {
            panic!("{damage}: not repaired")
        };
        assert!(
            what.items.iter().any(|item| item == name),
            "{damage}: {what}"
        );
        assert_eq!(
            observe(&world.pod, &spec).unwrap().items,
            Vec::<String>::new(),
            "{damage}"
        );
        assert_eq!(ambit_table_chains(&world.pod), good, "{damage}");
    }
}

#[test]
fn drift_of_iptables_is_found_and_repaired() {
    for (backend, tool) in [
        (Backend::IptablesNft, "iptables-nft"),
        (Backend::IptablesLegacy, "iptables-legacy"),
    ] {
        let world = World::new();
        let spec = with(backend);
        apply(&world.pod, &spec).unwrap();
        let good = pod_netfilter_state(&world);
        for damage in [
            format!("{tool} -t nat -D OUTPUT -j AMBIT_OUTPUT"),
            format!("{tool} -t nat -A OUTPUT -j AMBIT_OUTPUT"),
            format!("{tool} -t nat -F AMBIT_OUTPUT"),
            format!("{tool} -t mangle -I AMBIT_OUTPUT -j RETURN"),
            format!("{tool} -t nat -N AMBIT_OLD; {tool} -t nat -A OUTPUT -j AMBIT_OLD"),
            format!("ip6{} -t nat -F AMBIT_PRERT", &tool[2..]),
        ] {
            sh(&world.pod, &damage);
            assert!(!observe(&world.pod, &spec).unwrap().is_empty(), "{damage}");
            let applied = apply(&world.pod, &spec).unwrap();
            assert!(
                matches!(applied, Applied::Repaired { .. }),
                "{damage}: {applied:?}"
            );
            assert_eq!(
                observe(&world.pod, &spec).unwrap().items,
                Vec::<String>::new(),
                "{damage}"
            );
            assert_eq!(pod_netfilter_state(&world), good, "{damage}");
        }
    }
}

#[test]
fn rules_of_others_are_never_touched() {
    for backend in BACKENDS {
        let world = World::new();
        sh(
            &world.pod,
            "nft 'add table inet theirs; add chain inet theirs c { type filter hook output priority 0; }; \
             add rule inet theirs c tcp dport 1 counter drop'; \
             iptables-nft -t nat -A OUTPUT -p tcp --dport 2 -j REDIRECT --to-ports 3; \
             iptables-nft -N ISTIO_TEST; iptables-legacy -t nat -A OUTPUT -p tcp --dport 4 -j RETURN; \
             ip6tables-legacy -t filter -A INPUT -p tcp --dport 5 -j DROP; \
             ip rule add pref 100 fwmark 0x111 lookup 55; ip route add 192.0.2.0/24 dev lo table 100",
        );
        let theirs = pod_netfilter_state(&world);
        let spec = with(backend);
        assert_eq!(
            apply(&world.pod, &spec).unwrap(),
            Applied::Installed,
            "{backend}"
        );
        assert_eq!(
            observe(&world.pod, &spec).unwrap().items,
            Vec::<String>::new(),
            "{backend}"
        );
        let ours = |line: &&str| !line.contains("AMBIT") && !line.is_empty();
        let after = pod_netfilter_state(&world);
        for line in theirs.lines().filter(ours) {
            assert!(after.lines().any(|l| l == line), "{backend}: lost {line}");
        }
        release(&world.pod).unwrap();
        purge(&world.pod).unwrap();
        let end = pod_netfilter_state(&world);
        for line in theirs.lines().filter(ours) {
            assert!(end.lines().any(|l| l == line), "{backend}: lost {line}");
        }
        assert!(
            !end.to_lowercase().contains("ambit"),
            "{backend}: left behind\n{end}"
        );
    }
}

#[test]
fn purge_leaves_nothing_behind() {
    for backend in BACKENDS {
        let world = World::new();
        let spec = RedirectionSpec {
            dns_capture: true,
            ..with(backend)
        };
        let before = sh(
            &world.pod,
            "ip rule; ip -6 rule; ip route show table all | grep -v '^local'",
        );
        apply(&world.pod, &spec).unwrap();
        release(&world.pod).unwrap();
        purge(&world.pod).unwrap();
        purge(&world.pod).unwrap();
        let after = pod_netfilter_state(&world).to_lowercase();
        assert!(
            !after.contains("ambit") && !after.contains("0x111"),
            "{backend}: {after}"
        );
        assert_eq!(
            sh(
                &world.pod,
                "ip rule; ip -6 rule; ip route show table all | grep -v '^local'"
            ),
            before
        );
    }
}

#[test]
fn changing_the_backend_leaves_one_set_of_rules() {
    let world = World::new();
    for backend in BACKENDS.into_iter().chain(BACKENDS.into_iter().rev()) {
        let spec = with(backend);
        apply(&world.pod, &spec).unwrap();
        assert_eq!(
            observe(&world.pod, &spec).unwrap().items,
            Vec::<String>::new(),
            "{backend}"
        );
        let all = pod_netfilter_state(&world);
        assert_eq!(
            all.contains("table inet ambit"),
            backend == Backend::Nftables,
            "{all}"
        );
        assert_eq!(
            sh(&world.pod, "iptables-legacy-save").contains("AMBIT"),
            backend == Backend::IptablesLegacy
        );
        assert_eq!(
            sh(&world.pod, "iptables-nft-save").contains("AMBIT"),
            backend == Backend::IptablesNft
        );
    }
}

#[test]
fn a_pod_without_ipv6_is_captured_without_its_ipv6_parts() {
    for backend in BACKENDS {
        let world = World::new();
        sh(
            &world.pod,
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6",
        );
        let spec = with(backend);
        assert_eq!(
            apply(&world.pod, &spec).unwrap(),
            Applied::Installed,
            "{backend}"
        );
        assert_eq!(
            apply(&world.pod, &spec).unwrap(),
            Applied::Unchanged,
            "{backend}"
        );
        assert!(!sh(&world.pod, "ip -6 rule").contains("0x111"));
        // After enabling IPv6, its parts are missing and added.
        sh(
            &world.pod,
            "echo 0 > /proc/sys/net/ipv6/conf/lo/disable_ipv6",
        );
        assert!(!observe(&world.pod, &spec).unwrap().is_empty(), "{backend}");
        apply(&world.pod, &spec).unwrap();
        assert!(sh(&world.pod, "ip -6 rule").contains("0x111"), "{backend}");
    }
}

#[test]
fn applying_from_many_threads_at_once_ends_in_one_good_state() {
    for backend in BACKENDS {
        let world = World::new();
        let spec = with(backend);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..3 {
                        apply(&world.pod, &spec).unwrap();
                    }
                });
            }
        });
        let left = observe(&world.pod, &spec).unwrap();
        assert_eq!(left.items, Vec::<String>::new(), "{backend}");
    }
}

#[test]
fn release_of_a_namespace_without_redirection_does_nothing() {
    let world = World::new();
    let before = pod_netfilter_state(&world);
    release(&world.pod).unwrap();
    assert_eq!(pod_netfilter_state(&world), before);
}

/// Checks that sysctls are set although `/proc/sys` is read-only, as in containers regardless of capabilities.
#[test]
fn settings_are_made_where_proc_is_read_only() {
    let pod = World::new().pod.clone();
    std::thread::spawn(move || {
        #[expect(deprecated, reason = "a thread of its own, and only its mounts")]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS).unwrap();
        sh(
            &pod,
            "mount --make-rprivate /; mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys",
        );
        let loose = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";
        apply(&pod, &with(Backend::Nftables)).unwrap();
        assert_eq!(sh(&pod, &format!("cat {loose}")).trim(), "0");
        let read_only = sh(&pod, &format!("echo 1 2>&1 > {loose} || echo read-only"));
        assert!(read_only.contains("read-only"), "{read_only}");
        release(&pod).unwrap();
        assert_eq!(sh(&pod, &format!("cat {loose}")).trim(), "1");
    })
    .join()
    .unwrap();
}
