//! Finds the rules of Istio's agent in all nftables tables, and removes them in one transaction.
//!
//! The standard tables (`nat`, `mangle`, `raw` of families ip and ip6) are what iptables' nft
//! variant writes to. Rules of third parties in the same tables stay; a table without such rules is
//! removed as a whole.

use std::{collections::BTreeSet, io};

use ambit_netplan::foreign::{ISTIO_CHAINS, ISTIO_TABLES, STANDARD_TABLES, is_istio_capture};

use super::{
    Nft, NftError,
    protocol::{BATCH_BEGIN, BATCH_END, GET_CHAIN, GET_RULE, NFGENMSG_BYTES, SUBSYSTEM, UNSPEC},
};
use crate::netlink::{Attrs, NLM_F_ACK, NLM_F_REQUEST, attr, attrs, message, text, u32_be};

const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const DELETE_CHAIN: u16 = SUBSYSTEM | 5;
const DELETE_RULE: u16 = SUBSYSTEM | 8;
const NFPROTO_INET: u8 = 1;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
const NF_ACCEPT: u32 = 1;

/// nftables chain of any table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Chain {
    family: u8,
    table: String,
    name: String,
    /// Whether deleting the chain changes no verdict on packets: it has no hook, or its policy is accept.
    is_neutral: bool,
}

/// Rule in a standard table (`nat`, `mangle`, `raw`), reduced to its handle and jump target.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    chain: String,
    handle: Vec<u8>,
    /// Target chain, if the rule jumps.
    jump_target: Option<String>,
}

/// Deletion of a table, chain or rule in the removal transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Removal {
    Table(u8, String),
    Rule(u8, String, String, Vec<u8>),
    /// Deletes all rules of a chain.
    ChainRules(u8, String, String),
    Chain(u8, String, String),
}

/// Tables and chains of Istio's agent that exist in the namespace.
#[derive(Debug, Default)]
pub(crate) struct ForeignChains {
    istio_tables: Vec<&'static str>,
    /// Address families whose standard tables (`nat`, `mangle`, `raw`) have chains of Istio's agent.
    families: Vec<u8>,
    chains: Vec<Chain>,
}

impl ForeignChains {
    pub(crate) fn is_empty(&self) -> bool {
        self.istio_tables.is_empty() && self.families.is_empty()
    }
}

impl Nft {
    /// Finds the tables and chains of Istio's agent by one dump of all chains.
    pub(crate) fn find_istio_chains(&mut self) -> Result<ForeignChains, NftError> {
        let mut chains = Vec::new();
        self.socket
            .dump(GET_CHAIN, &[&[UNSPEC, 0, 0, 0]], |payload| {
                chains.extend(decode_chain(payload));
            })
            .map_err(|source| read_error("(all)", source))?;
        let own_tables = ISTIO_TABLES
            .into_iter()
            .filter(|name| {
                let mut of_inet = chains.iter().filter(|chain| chain.family == NFPROTO_INET);
                of_inet.any(|chain| chain.table == *name)
            })
            .collect();
        let families = [NFPROTO_IPV4, NFPROTO_IPV6]
            .into_iter()
            .filter(|family| {
                let standard = chains.iter().filter(|chain| {
                    chain.family == *family && STANDARD_TABLES.contains(&&*chain.table)
                });
                is_istio_capture(standard.map(|chain| (&*chain.table, &*chain.name)))
            })
            .collect();
        Ok(ForeignChains {
            istio_tables: own_tables,
            families,
            chains,
        })
    }

    /// Removes the rules of Istio's agent in one transaction.
    pub(crate) fn remove_istio_rules(&mut self, found: &ForeignChains) -> Result<(), NftError> {
        let mut removals: Vec<_> = found
            .istio_tables
            .iter()
            .map(|name| Removal::Table(NFPROTO_INET, (*name).to_owned()))
            .collect();
        for family in &found.families {
            for table in STANDARD_TABLES {
                let chains: Vec<_> = found
                    .chains
                    .iter()
                    .filter(|chain| chain.family == *family && chain.table == table)
                    .collect();
                if chains
                    .iter()
                    .any(|chain| ISTIO_CHAINS.contains(&&*chain.name))
                {
                    let rules = self.rules_of(*family, table)?;
                    removals.extend(table_removals(*family, table, &chains, &rules));
                }
            }
        }
        self.commit_removals(&removals)
            .map_err(|source| NftError::Refused {
                table: "of Istio's agent".to_owned(),
                step: "removal".to_owned(),
                source,
            })
    }

    fn rules_of(&mut self, family: u8, table: &str) -> Result<Vec<Rule>, NftError> {
        let mut rules = Vec::new();
        let filter = Attrs::new().text(1, table).into_bytes();
        self.socket
            .dump(GET_RULE, &[&[family, 0, 0, 0], &filter], |payload| {
                let found = payload.get(NFGENMSG_BYTES..).unwrap_or_default();
                if attr(found, 1).and_then(text) == Some(table) {
                    rules.extend(decode_rule(found));
                }
            })
            .map_err(|source| read_error(table, source))?;
        Ok(rules)
    }

    fn commit_removals(&mut self, removals: &[Removal]) -> io::Result<()> {
        if removals.is_empty() {
            return Ok(());
        }
        let mut out = Vec::new();
        let frame = [0, 0, 0, 10];
        message(&mut out, BATCH_BEGIN, NLM_F_REQUEST, 0, &[&frame]);
        let last = u32::try_from(removals.len()).unwrap_or(u32::MAX);
        for (seq, removal) in (1..).zip(removals) {
            let ack = if seq == last { NLM_F_ACK } else { 0 };
            let (kind, family, attrs) = removal.encode();
            let body = attrs.into_bytes();
            message(
                &mut out,
                kind,
                NLM_F_REQUEST | ack,
                seq,
                &[&[family, 0, 0, 0], &body],
            );
        }
        let end = last.wrapping_add(1);
        message(&mut out, BATCH_END, NLM_F_REQUEST, end, &[&frame]);
        self.socket.send(&out)?;
        self.socket.wait_for_ack(last).map_err(|(_, error)| error)
    }
}

/// Returns the deletions that remove the chains of Istio's agent from a standard table: the whole table if nothing else
/// is in it, since iptables recreates it.
fn table_removals(family: u8, table: &str, chains: &[&Chain], rules: &[Rule]) -> Vec<Removal> {
    let is_theirs = |name: &str| ISTIO_CHAINS.contains(&name);
    let jumps_to_istio = |rule: &&Rule| rule.jump_target.as_deref().is_some_and(is_theirs);
    let others: Vec<_> = rules
        .iter()
        .filter(|rule| !is_theirs(&rule.chain))
        .collect();
    let builtin: BTreeSet<_> = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"].into();
    let empty = others.iter().copied().all(|rule| jumps_to_istio(&rule))
        && chains.iter().all(|chain| {
            is_theirs(&chain.name) || (chain.is_neutral && builtin.contains(&*chain.name))
        });
    if empty {
        return vec![Removal::Table(family, table.to_owned())];
    }
    let within = |chain: &str| (family, table.to_owned(), chain.to_owned());
    let theirs: Vec<_> = chains
        .iter()
        .filter(|chain| is_theirs(&chain.name))
        .collect();
    let jumps = others.into_iter().filter(jumps_to_istio).map(|rule| {
        let (family, table, chain) = within(&rule.chain);
        Removal::Rule(family, table, chain, rule.handle.clone())
    });
    let emptied = theirs.iter().map(|chain| {
        let (family, table, chain) = within(&chain.name);
        Removal::ChainRules(family, table, chain)
    });
    let deleted = theirs.iter().map(|chain| {
        let (family, table, chain) = within(&chain.name);
        Removal::Chain(family, table, chain)
    });
    jumps.chain(emptied).chain(deleted).collect()
}

impl Removal {
    fn encode(&self) -> (u16, u8, Attrs) {
        let within = |table: &str| Attrs::new().text(1, table);
        match self {
            Self::Table(family, table) => (DELETE_TABLE, *family, within(table)),
            Self::Rule(family, table, chain, handle) => (
                DELETE_RULE,
                *family,
                within(table).text(2, chain).bytes(3, handle),
            ),
            Self::ChainRules(family, table, chain) => {
                (DELETE_RULE, *family, within(table).text(2, chain))
            }
            Self::Chain(family, table, chain) => {
                (DELETE_CHAIN, *family, within(table).text(3, chain))
            }
        }
    }
}

fn read_error(table: &str, source: io::Error) -> NftError {
    NftError::Read {
        table: table.to_owned(),
        source,
    }
}

fn decode_chain(payload: &[u8]) -> Option<Chain> {
    let found = payload.get(NFGENMSG_BYTES..)?;
    let policy = attr(found, 5).and_then(u32_be);
    Some(Chain {
        family: *payload.first()?,
        table: attr(found, 1).and_then(text)?.to_owned(),
        name: attr(found, 3).and_then(text)?.to_owned(),
        is_neutral: policy.is_none_or(|policy| policy == NF_ACCEPT),
    })
}

fn decode_rule(found: &[u8]) -> Option<Rule> {
    let list = attr(found, 4).unwrap_or_default();
    Some(Rule {
        chain: attr(found, 2).and_then(text)?.to_owned(),
        handle: attr(found, 3)?.to_vec(),
        jump_target: attrs(list).find_map(|(_, one)| decode_jump_target(one)),
    })
}

/// Returns the target chain of an expression, if it is a jump.
fn decode_jump_target(expression: &[u8]) -> Option<String> {
    if attr(expression, 1).and_then(text)? != "immediate" {
        return None;
    }
    let verdict = attr(attr(attr(expression, 2)?, 2)?, 2)?;
    attr(verdict, 2).and_then(text).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(name: &str, is_neutral: bool) -> Chain {
        Chain {
            family: NFPROTO_IPV4,
            table: "nat".to_owned(),
            name: name.to_owned(),
            is_neutral,
        }
    }

    fn rule(chain: &str, handle: u8, target: Option<&str>) -> Rule {
        Rule {
            chain: chain.to_owned(),
            handle: vec![handle],
            jump_target: target.map(str::to_owned),
        }
    }

    fn removals(chains: &[Chain], rules: &[Rule]) -> Vec<Removal> {
        table_removals(
            NFPROTO_IPV4,
            "nat",
            &chains.iter().collect::<Vec<_>>(),
            rules,
        )
    }

    #[test]
    fn table_without_rules_of_others_is_removed_whole() {
        let chains = [chain("OUTPUT", true), chain("ISTIO_OUTPUT", true)];
        let theirs = [
            rule("OUTPUT", 1, Some("ISTIO_OUTPUT")),
            rule("ISTIO_OUTPUT", 2, None),
        ];
        let whole = [Removal::Table(NFPROTO_IPV4, "nat".to_owned())];
        assert_eq!(removals(&chains, &theirs), whole);

        let in_part = [
            Removal::Rule(NFPROTO_IPV4, "nat".into(), "OUTPUT".into(), vec![1]),
            Removal::ChainRules(NFPROTO_IPV4, "nat".into(), "ISTIO_OUTPUT".into()),
            Removal::Chain(NFPROTO_IPV4, "nat".into(), "ISTIO_OUTPUT".into()),
        ];
        let others_rule = [&theirs[..], &[rule("OUTPUT", 3, None)]].concat();
        assert_eq!(removals(&chains, &others_rule), in_part);
        let others_chain = [&chains[..], &[chain("OTHERS", true)]].concat();
        assert_eq!(removals(&others_chain, &theirs), in_part);
        let refuses = [chain("OUTPUT", false), chain("ISTIO_OUTPUT", true)];
        assert_eq!(removals(&refuses, &theirs), in_part);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes: Vec<u8>) {
            let _any = (super::decode_chain(&bytes), super::decode_rule(&bytes), decode_jump_target(&bytes));
        }
    }
}
