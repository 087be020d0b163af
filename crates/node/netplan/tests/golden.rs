//! Compares complete rulesets with recorded text, so that reviewers see what a change to the plan does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use ambit_netplan::{
    Cgroup, Family, HostMember, HostSpec, ProbePorts, RedirectionSpec, SpecError, Translated,
    host_ruleset, iptables, nft::bridge_table, nft_text, plan, plan_by_bpf, plan_released,
    plan_released_by_bpf,
};

fn ordinary() -> RedirectionSpec {
    RedirectionSpec {
        probe_interfaces: vec!["eth0".into()],
        probe_ports: ProbePorts::Only(vec![8080, 15020]),
        ..RedirectionSpec::default()
    }
}

fn everything() -> RedirectionSpec {
    RedirectionSpec {
        dns_capture: true,
        virtual_interfaces: vec!["k6t-eth0".into(), "docker0".into()],
        probe_ports: ProbePorts::All,
        ..ordinary()
    }
}

fn text(spec: &RedirectionSpec) -> String {
    nft_text::render("ambit", &plan(spec).unwrap())
}

fn restore(spec: &RedirectionSpec, family: Family) -> String {
    let desired = iptables::desired(&plan(spec).unwrap(), family);
    iptables::restore_script(&iptables::State::default(), &desired)
}

#[test]
fn an_ordinary_pod() {
    insta::assert_snapshot!("ordinary", text(&ordinary()));
    insta::assert_snapshot!("ordinary_iptables_v4", restore(&ordinary(), Family::V4));
    insta::assert_snapshot!("ordinary_iptables_v6", restore(&ordinary(), Family::V6));
}

#[test]
fn pod_on_unguarded_interface_has_no_probe_exemption() {
    let text = text(&RedirectionSpec::default());
    assert!(
        !text.contains("169.254.7.127") && !text.contains("fd16:"),
        "{text}"
    );
}

#[test]
fn a_pod_with_everything() {
    insta::assert_snapshot!("everything", text(&everything()));
    insta::assert_snapshot!("everything_iptables_v4", restore(&everything(), Family::V4));
}

#[test]
fn an_ingress_of_one_family() {
    let spec = RedirectionSpec {
        ingress_bypass: true,
        ipv6: false,
        ..Default::default()
    };
    insta::assert_snapshot!("ingress_v4_only", text(&spec));
    assert_eq!(restore(&spec, Family::V6), "");
}

#[test]
fn a_pod_captured_by_bpf() {
    let addresses = ["10.9.0.2", "fd00:9::2"].map(|ip| ip.parse().unwrap());
    let plan =
        |spec: &RedirectionSpec, translated| plan_by_bpf(spec, &addresses, translated).unwrap();
    let ruleset = plan(&ordinary(), Translated::Nothing);
    insta::assert_snapshot!("bpf", nft_text::render("ambit", &ruleset));
    let with_dns = RedirectionSpec {
        dns_capture: true,
        ..ordinary()
    };
    let dns = plan(&with_dns, Translated::Nothing);
    insta::assert_snapshot!("bpf_dns", nft_text::render("ambit", &dns));
    assert_eq!(plan(&with_dns, Translated::Dns), dns);
    let changing = plan(&with_dns, Translated::Connections);
    insta::assert_snapshot!("bpf_dns_translated", nft_text::render("ambit", &changing));
    for (translated, released) in [
        (Translated::Connections, plan_released()),
        (Translated::Dns, plan_released_by_bpf()),
    ] {
        let chains = [ruleset.chains.clone(), released.chains].concat();
        assert_eq!(plan(&ordinary(), translated).chains, chains);
    }
}

#[test]
fn bpf_plan_refuses_settings_that_need_translation() {
    let spec = RedirectionSpec {
        virtual_interfaces: vec!["docker0".into()],
        ..ordinary()
    };
    let refused = plan_by_bpf(&spec, &[], Translated::Nothing);
    let what = "capture of virtual interfaces";
    assert_eq!(refused, Err(SpecError::NeedsTranslation(what)));
}

#[test]
fn a_released_pod() {
    insta::assert_snapshot!("released", nft_text::render("ambit", &plan_released()));
    let (enrolled, released) = (plan(&ordinary()).unwrap(), plan_released());
    let script = iptables::restore_script(
        &iptables::desired(&enrolled, Family::V4),
        &iptables::desired(&released, Family::V4),
    );
    insta::assert_snapshot!("released_iptables_v4", script);
}

#[test]
fn the_node() {
    let spec = HostSpec {
        kubelet_uid: Some(0),
        ..HostSpec::default()
    };
    let text = |every_port| nft_text::render("ambit-probes", &host_ruleset(&spec, every_port));
    insta::assert_snapshot!("node", text(false));
    insta::assert_snapshot!("node_every_port", text(true));
    let by_cgroup = HostSpec {
        kubelet_cgroup: Some(Cgroup { level: 1, id: 77 }),
        ..HostSpec::default()
    };
    insta::assert_snapshot!(
        "node_cgroup",
        nft_text::render("ambit-probes", &host_ruleset(&by_cgroup, false))
    );
    insta::assert_debug_snapshot!("node_bridges", bridge_table(&spec));
    let members = [
        HostMember {
            ip: "10.0.0.1".parse().unwrap(),
            port: Some(8080),
            uid: "7d0c-uid".into(),
        },
        HostMember {
            ip: "fd00::1".parse().unwrap(),
            port: Some(8080),
            uid: "7d0c-uid".into(),
        },
        HostMember {
            ip: "fd00::2".parse().unwrap(),
            port: None,
            uid: "of an agent before --dport 1".into(),
        },
    ];
    let state = iptables::desired_host(&spec, &members, Family::V6);
    insta::assert_snapshot!(
        "node_iptables_v6",
        iptables::restore_script(&iptables::State::default(), &state)
    );
    assert_eq!(iptables::host_members(&state), members[1..]);
    // Without a view of cgroups members stay recorded, and no process is exempt.
    let state = iptables::desired_host(&by_cgroup, &members, Family::V6);
    let script = iptables::restore_script(&iptables::State::default(), &state);
    assert!(!script.contains("SNAT"), "{script}");
    assert_eq!(iptables::host_members(&state), members[1..]);
}
