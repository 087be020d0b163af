//! Checks for any two tables, or iptables states, that applying their difference to the first gives the second.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;

use ambit_netplan::{
    Family, HostMember, HostSpec, ProbePorts, RedirectionSpec,
    iptables::{self, State, TableName},
    nft::{self, Change, Expr, Hook, MetaKey, Set, SetKey, SetMember, Table, TableChain},
    plan, plan_released,
};
use proptest::prelude::*;

fn spec() -> impl Strategy<Value = RedirectionSpec> {
    (any::<[bool; 3]>(), 0..3usize, 0..3u8).prop_map(|([dns, ingress, many], n, one)| {
        RedirectionSpec {
            ipv4: one != 1,
            ipv6: one != 2,
            dns_capture: dns,
            ingress_bypass: ingress,
            probe_interfaces: (0..2 - n.min(2)).map(|i| format!("e{i}")).collect(),
            probe_ports: if many {
                ProbePorts::All
            } else {
                ProbePorts::Only((0..u16::from(one)).collect())
            },
            virtual_interfaces: (0..n).map(|i| format!("v{i}{}", u8::from(many))).collect(),
            ..RedirectionSpec::default()
        }
    })
}

fn hook() -> impl Strategy<Value = Option<Hook>> {
    proptest::option::of((0..5u32, -300..300i32, any::<bool>()).prop_map(
        |(number, priority, accepts)| Hook {
            kind: "filter".into(),
            number,
            priority,
            accepts,
        },
    ))
}

fn rule() -> impl Strategy<Value = Vec<Expr>> {
    let expr = prop_oneof![
        Just(Expr::Accept),
        Just(Expr::Meta(MetaKey::Mark)),
        any::<u8>().prop_map(|n| Expr::Data(vec![n])),
        Just(Expr::Lookup("s1".into())),
        any::<u8>().prop_map(|n| Expr::Foreign {
            name: "counter".into(),
            data: vec![n]
        }),
    ];
    proptest::collection::vec(expr, 0..3)
}

fn arbitrary_table() -> impl Strategy<Value = Table> {
    let chain = (hook(), proptest::collection::vec(rule(), 0..4))
        .prop_map(|(hook, rules)| TableChain { hook, rules });
    let chains = proptest::collection::btree_map("[a-c]", chain, 0..4);
    let member = any::<(std::net::IpAddr, Option<u16>)>();
    let member = member.prop_map(|(ip, port)| SetMember { ip, port });
    let members = proptest::collection::btree_map(member, "[a-z]{0,3}", 0..4);
    let set = (any::<[bool; 2]>(), members).prop_map(|([v4, has_port], members)| Set {
        key: SetKey {
            family: if v4 { Family::V4 } else { Family::V6 },
            has_port,
        },
        members,
    });
    let sets = proptest::collection::btree_map("s[0-2]", set, 0..3);
    (chains, sets).prop_map(|(chains, sets)| Table { chains, sets })
}

fn host_members() -> impl Strategy<Value = Vec<HostMember>> {
    let members = any::<std::collections::BTreeSet<(std::net::IpAddr, Option<u16>)>>();
    members.prop_map(|members| {
        let member = |(ip, port)| HostMember {
            ip,
            port,
            uid: "uid".into(),
        };
        members.into_iter().map(member).collect()
    })
}

/// Generates a table that Ambit plans, any other table, or none.
fn table() -> impl Strategy<Value = Option<Table>> {
    let planned = prop_oneof![
        spec().prop_map(|spec| nft::lower(&plan(&spec).unwrap())),
        Just(nft::lower(&plan_released())),
        host_members().prop_map(|members| nft::host_table(&HostSpec::default(), &members)),
    ];
    prop_oneof![
        1 => Just(None),
        4 => planned.prop_map(Some),
        4 => arbitrary_table().prop_map(Some),
    ]
}

proptest! {
    #[test]
    fn applying_a_diff_gives_the_other_table(a in table(), b in table()) {
        let changes = nft::diff(a.as_ref(), b.as_ref());
        let made = nft::apply(a.clone(), &changes);
        prop_assert_eq!(&made, &b);
        prop_assert_eq!(changes.is_empty(), a == b);
    }

    /// Checks that guard chains are removed before the redirects change, and added afterwards.
    #[test]
    fn steps_lead_to_the_other_table_without_guards_that_only_one_has(a in planned_table(), b in planned_table()) {
        let guards = |table: &Option<Table>| -> Vec<String> {
            let chains = table.iter().flat_map(|table| table.chains.keys());
            chains.filter(|name| name.starts_with("guard-")).cloned().collect()
        };
        let both: Vec<_> = guards(&a).into_iter().filter(|name| guards(&b).contains(name)).collect();
        let mut now = a.clone();
        let redirects = |table: &Option<Table>| {
            table.as_ref().map(|table| table.chains.get("nat-prerouting").cloned())
        };
        for step in nft::steps(a.as_ref(), b.as_ref()) {
            prop_assert!(!step.is_empty());
            let before = now.clone();
            now = nft::apply(now, &step);
            if redirects(&before) != redirects(&now) {
                prop_assert!(guards(&before) == both || before.is_none() || now.is_none());
                prop_assert!(guards(&now) == both);
            }
        }
        prop_assert_eq!(now, b);
    }

    /// Checks that a set or chain is removed only when no rule refers to it, and used only when it
    /// exists.
    #[test]
    fn changes_are_in_an_order_the_kernel_accepts(a in table(), b in table()) {
        let changes = nft::diff(a.as_ref(), b.as_ref());
        let at = |matches: &dyn Fn(&Change) -> bool| changes.iter().position(matches);
        let last_at = |matches: &dyn Fn(&Change) -> bool| changes.iter().rposition(matches);
        let first_rule = at(&|c| matches!(c, Change::AddRule(..)));
        let last_flush = last_at(&|c| matches!(c, Change::FlushChain(..)));
        let first_delete =
            at(&|c| matches!(c, Change::DeleteChain(..) | Change::DeleteSet(..)));
        let last_set = last_at(&|c| matches!(c, Change::AddSet(..)));
        if let (Some(rule), Some(flush)) = (first_rule, last_flush) {
            prop_assert!(flush < rule);
        }
        if let (Some(delete), Some(flush)) = (first_delete, last_flush) {
            prop_assert!(flush < delete);
        }
        if let (Some(rule), Some(set)) = (first_rule, last_set) {
            prop_assert!(set < rule);
        }
    }

    #[test]
    fn iptables_script_produces_the_desired_rules(a in any_iptables_state(), b in planned_iptables(), theirs in foreign_rules()) {
        let script = iptables::restore_script(&a, &b);
        let mut kernel = SimulatedIptables::of(&a, &theirs);
        kernel.restore(&script);
        prop_assert_eq!(&iptables::parse_save(&kernel.save()), &b);
        prop_assert_eq!(script.is_empty(), a == b);
        prop_assert_eq!(iptables::differences(&a, &b).is_empty(), a == b);
        prop_assert_eq!(kernel.foreign(), theirs);
    }

    #[test]
    fn parsing_never_panics(text in "(\\*nat\n|:AMBIT_[A-Z]* -\n|-A [A-Z_]* [ -~]*\n|[ -~]*\n){0,10}") {
        let state = iptables::parse_save(&text);
        prop_assert!(iptables::host_members(&state).len() <= text.len());
    }

    #[test]
    fn members_are_read_back_from_iptables(
        members in proptest::collection::btree_set(any::<(std::net::Ipv4Addr, Option<u16>)>(), 0..5),
        uid in "[a-z0-9-]{1,36}",
    ) {
        let member = |(ip, port): (std::net::Ipv4Addr, _)| HostMember {
            ip: ip.into(),
            port,
            uid: uid.clone(),
        };
        let members: Vec<_> = members.into_iter().map(member).collect();
        let state = iptables::desired_host(&HostSpec::default(), &members, Family::V4);
        prop_assert_eq!(iptables::host_members(&state), members);
    }

    #[test]
    fn members_are_read_back_from_the_table(members in host_members()) {
        let table = nft::host_table(&HostSpec::default(), &members);
        let mut found = nft::host_members(&table);
        found.sort();
        prop_assert_eq!(found, members);
    }
}

fn planned_table() -> impl Strategy<Value = Option<Table>> {
    prop_oneof![
        1 => Just(None),
        4 => spec().prop_map(|spec| Some(nft::lower(&plan(&spec).unwrap()))),
        2 => Just(Some(nft::lower(&plan_released()))),
    ]
}

fn planned_iptables() -> impl Strategy<Value = State> {
    let some = (spec(), any::<bool>(), any::<bool>()).prop_map(|(spec, released, v4)| {
        let ruleset = if released {
            plan_released()
        } else {
            plan(&spec).unwrap()
        };
        iptables::desired(&ruleset, if v4 { Family::V4 } else { Family::V6 })
    });
    prop_oneof![1 => Just(State::default()), 6 => some]
}

fn any_iptables_state() -> impl Strategy<Value = State> {
    // Damaged: chains lost or altered, jumps lost or doubled, outdated chains of ours.
    (planned_iptables(), any::<u16>()).prop_map(|(mut state, dice)| {
        let bit = |n: u16| dice >> n & 1 == 1;
        if bit(0)
            && let Some(rules) = state.chains.values_mut().next()
        {
            rules.push("-j RETURN".into());
        }
        if bit(1)
            && let Some(times) = state.jumps.values_mut().next()
        {
            *times += 2;
        }
        if bit(2) {
            state.jumps.pop_last();
        }
        if bit(3) {
            let old = (TableName::Nat, "AMBIT_OLD".to_owned());
            state.chains.insert(old, vec!["-j RETURN".into()]);
            state
                .jumps
                .insert((TableName::Nat, "INPUT".into(), "AMBIT_OLD".into()), 1);
        }
        state
    })
}

fn foreign_rules() -> impl Strategy<Value = Vec<(TableName, String)>> {
    let rule = "-p tcp --dport [1-9] -j (ACCEPT|DROP)";
    let table = prop_oneof![Just(TableName::Raw), Just(TableName::Nat)];
    proptest::collection::vec((table, rule), 0..4).prop_map(|mut rules| {
        rules.sort();
        rules
    })
}

/// Simulates iptables with the features that the scripts use: chains as lists of rule lines.
#[derive(Debug, Default)]
struct SimulatedIptables {
    chains: BTreeMap<(TableName, String), Vec<String>>,
}

impl SimulatedIptables {
    fn of(state: &State, theirs: &[(TableName, String)]) -> Self {
        let mut kernel = Self {
            chains: state.chains.clone(),
        };
        for (table, rule) in theirs {
            kernel.chain(*table, "OUTPUT").push(rule.clone());
        }
        for ((table, builtin, ours), times) in &state.jumps {
            for _ in 0..*times {
                kernel.chain(*table, builtin).push(format!("-j {ours}"));
            }
        }
        kernel
    }

    fn chain(&mut self, table: TableName, name: &str) -> &mut Vec<String> {
        self.chains.entry((table, name.to_owned())).or_default()
    }

    fn restore(&mut self, script: &str) {
        let mut table = TableName::Raw;
        for line in script.lines() {
            let words: Vec<_> = line.splitn(3, ' ').collect();
            match words.as_slice() {
                [name] if name.starts_with('*') => {
                    table = TableName::ALL
                        .into_iter()
                        .find(|t| t.name() == &name[1..])
                        .unwrap();
                }
                ["COMMIT"] => {}
                [name, "-", "[0:0]"] => self.chain(table, &name[1..]).clear(),
                ["-A", chain, rule] => {
                    assert!(
                        self.chains.contains_key(&(table, (*chain).to_owned())),
                        "{line}"
                    );
                    self.chain(table, chain).push((*rule).to_owned());
                }
                ["-I", chain, rule] => {
                    let rule = rule.strip_prefix("1 ").unwrap();
                    self.chain(table, chain).insert(0, rule.to_owned());
                }
                ["-D", chain, rule] => {
                    let rules = self.chain(table, chain);
                    let at = rules.iter().position(|r| r == rule).expect("no such rule");
                    rules.remove(at);
                }
                ["-X", chain] => {
                    let jump = format!("-j {chain}");
                    let referred = self
                        .chains
                        .iter()
                        .any(|((t, _), r)| *t == table && r.contains(&jump));
                    assert!(!referred, "{chain} is still referred to");
                    let gone = self.chains.remove(&(table, (*chain).to_owned()));
                    assert_eq!(gone.as_deref(), Some(&[][..]), "{chain} is not empty");
                }
                other => panic!("not understood: {other:?}"),
            }
        }
    }

    fn save(&self) -> String {
        let mut out = String::new();
        for table in TableName::ALL {
            out.push_str(&format!("*{}\n", table.name()));
            let chains = || self.chains.iter().filter(|((t, _), _)| *t == table);
            for ((_, name), _) in chains() {
                out.push_str(&format!(":{name} - [0:0]\n"));
            }
            for ((_, name), rules) in chains() {
                rules
                    .iter()
                    .for_each(|rule| out.push_str(&format!("-A {name} {rule}\n")));
            }
            out.push_str("COMMIT\n");
        }
        out
    }

    fn foreign(&self) -> Vec<(TableName, String)> {
        let mut rules: Vec<_> = self
            .chains
            .iter()
            .filter(|((_, name), _)| !name.starts_with(iptables::CHAIN_PREFIX))
            .flat_map(|((table, _), rules)| rules.iter().map(|r| (*table, r.clone())))
            .filter(|(_, rule)| !rule.contains(iptables::CHAIN_PREFIX))
            .collect();
        rules.sort();
        rules
    }
}
