//! Index of policy rules by the values that they require, so that a connection is compared with few of them.
//!
//! Most rules require one of a few exact values: a principal, a namespace, a service account, a port. Such a rule is
//! indexed by these values and evaluated only for connections that have one of them; all other rules are always
//! evaluated. The index only selects candidates: every candidate is then matched in full.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use ambit_model::{ArcStr, Authorization, Clause, Match, PolicyKey, Rule, StringMatch};

use crate::{connection::Peer, matching::rule_matches};

type RuleId = u32;

/// Index of the rules of several policies with the same action.
#[derive(Debug, Default)]
pub(crate) struct RuleIndex {
    rules: Vec<Option<IndexedRule>>,
    free_ids: Vec<RuleId>,
    by_principal: HashMap<ArcStr, Vec<RuleId>>,
    by_namespace: HashMap<ArcStr, Vec<RuleId>>,
    /// Rules by name of the required service account; matching also compares its namespace.
    by_account: HashMap<ArcStr, Vec<RuleId>>,
    by_port: HashMap<u16, Vec<RuleId>>,
    unindexed: Vec<RuleId>,
    /// Ids of each policy's rules, with an empty list for a policy without rules.
    by_policy: HashMap<PolicyKey, Vec<RuleId>>,
}

#[derive(Debug)]
struct IndexedRule {
    policy: Arc<Authorization>,
    rule_position: usize,
}

impl IndexedRule {
    fn rule(&self) -> Option<&Rule> {
        self.policy.rules.get(self.rule_position)
    }
}

/// Values by which one rule is indexed.
enum IndexKeys {
    Principals(Vec<ArcStr>),
    Accounts(Vec<ArcStr>),
    Namespaces(Vec<ArcStr>),
    Ports(Vec<u16>),
    Unindexed,
    /// The rule cannot match any connection.
    NeverMatches,
}

impl RuleIndex {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_policy.is_empty()
    }

    pub(crate) fn insert(&mut self, policy: &Arc<Authorization>) {
        let mut ids = Vec::with_capacity(policy.rules.len());
        for (index, rule) in policy.rules.iter().enumerate() {
            let index_keys = index_keys(rule);
            if matches!(index_keys, IndexKeys::NeverMatches) {
                continue;
            }
            let filed = Some(IndexedRule {
                policy: policy.clone(),
                rule_position: index,
            });
            let id = match self.free_ids.pop() {
                Some(id) => {
                    if let Some(slot) = self.rules.get_mut(id as usize) {
                        *slot = filed;
                    }
                    id
                }
                None => {
                    self.rules.push(filed);
                    RuleId::try_from(self.rules.len() - 1).unwrap_or(RuleId::MAX)
                }
            };
            self.for_each_rule_list(index_keys, |list| list.push(id));
            ids.push(id);
        }
        self.by_policy.insert(policy.key(), ids);
    }

    pub(crate) fn remove(&mut self, key: &PolicyKey) {
        for id in self.by_policy.remove(key).unwrap_or_default() {
            let slot = self.rules.get_mut(id as usize);
            let Some(filed) = slot.and_then(Option::take) else {
                continue;
            };
            if let Some(rule) = filed.rule() {
                self.for_each_rule_list(index_keys(rule), |list| list.retain(|known| *known != id));
            }
            self.free_ids.push(id);
        }
        if self.by_policy.is_empty() {
            *self = Self::default();
        }
    }

    fn for_each_rule_list(&mut self, index_keys: IndexKeys, mut f: impl FnMut(&mut Vec<RuleId>)) {
        match index_keys {
            IndexKeys::Principals(keys) => for_each_list_by_key(&mut self.by_principal, keys, f),
            IndexKeys::Accounts(keys) => for_each_list_by_key(&mut self.by_account, keys, f),
            IndexKeys::Namespaces(keys) => for_each_list_by_key(&mut self.by_namespace, keys, f),
            IndexKeys::Ports(keys) => for_each_list_by_key(&mut self.by_port, keys, f),
            IndexKeys::Unindexed => f(&mut self.unindexed),
            IndexKeys::NeverMatches => {}
        }
    }

    /// Returns the policy that matches the connection; if several match, the first by name.
    pub(crate) fn first_match(&self, peer: &Peer<'_>) -> Option<PolicyKey> {
        if self.is_empty() {
            return None;
        }
        let source = peer.connection.source.as_ref();
        let by_principal = (!self.by_principal.is_empty())
            .then(|| peer.principal())
            .flatten()
            .and_then(|principal| self.by_principal.get(principal));
        let by_account = source.and_then(|id| self.by_account.get(id.service_account.as_str()));
        let by_namespace = source.and_then(|id| self.by_namespace.get(id.namespace.as_str()));
        let by_port = self.by_port.get(&peer.connection.destination.port());
        let lists = [
            Some(&self.unindexed),
            by_principal,
            by_account,
            by_namespace,
            by_port,
        ];

        let mut best: Option<&Authorization> = None;
        for id in lists.into_iter().flatten().flatten() {
            let Some(filed) = self.rules.get(*id as usize).and_then(Option::as_ref) else {
                continue;
            };
            let policy = &*filed.policy;
            let is_better = best.is_none_or(|best| {
                (&policy.namespace, &policy.name) < (&best.namespace, &best.name)
            });
            if is_better && filed.rule().is_some_and(|rule| rule_matches(rule, peer)) {
                best = Some(policy);
            }
        }
        best.map(Authorization::key)
    }
}

fn for_each_list_by_key<K: std::hash::Hash + Eq>(
    lists: &mut HashMap<K, Vec<RuleId>>,
    keys: Vec<K>,
    mut f: impl FnMut(&mut Vec<RuleId>),
) {
    for key in keys {
        let mut entry = match lists.entry(key) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => entry.insert_entry(Vec::new()),
        };
        f(entry.get_mut());
        if entry.get().is_empty() {
            entry.remove();
        }
    }
}

/// Returns the most selective index keys that one clause of the rule allows.
fn index_keys(rule: &Rule) -> IndexKeys {
    let never = |clause: &Clause| !clause.is_empty() && clause.iter().all(Match::is_empty);
    if rule.iter().any(never) {
        return IndexKeys::NeverMatches;
    }
    let demanded = |kind: ClauseKind| rule.iter().find_map(|clause| kind.required_values(clause));
    if let Some(keys) = demanded(ClauseKind::Principal) {
        IndexKeys::Principals(keys)
    } else if let Some(keys) = demanded(ClauseKind::Account) {
        IndexKeys::Accounts(keys)
    } else if let Some(keys) = demanded(ClauseKind::Namespace) {
        IndexKeys::Namespaces(keys)
    } else if let Some(ports) = rule.iter().find_map(required_ports) {
        IndexKeys::Ports(ports)
    } else {
        IndexKeys::Unindexed
    }
}

#[derive(Clone, Copy)]
enum ClauseKind {
    Principal,
    Account,
    Namespace,
}

impl ClauseKind {
    /// Returns the exact values of which a connection must have one for the clause to match; `None`
    /// if the clause also accepts other values.
    fn required_values(self, clause: &Clause) -> Option<Vec<ArcStr>> {
        let mut keys = Vec::new();
        for m in clause.iter().filter(|m| !m.is_empty()) {
            let values: Option<Vec<ArcStr>> = match self {
                Self::Principal => m.principals.iter().map(exact_value).collect(),
                Self::Namespace => m.namespaces.iter().map(exact_value).collect(),
                Self::Account => Some(
                    m.service_accounts
                        .iter()
                        .map(|a| a.service_account.clone())
                        .collect(),
                ),
            };
            keys.extend(values.filter(|values| !values.is_empty())?);
        }
        keys.sort();
        keys.dedup();
        (!keys.is_empty()).then_some(keys)
    }
}

fn required_ports(clause: &Clause) -> Option<Vec<u16>> {
    let mut ports = Vec::new();
    for m in clause.iter().filter(|m| !m.is_empty()) {
        if m.destination_ports.is_empty() {
            return None;
        }
        ports.extend(&m.destination_ports);
    }
    ports.sort_unstable();
    ports.dedup();
    (!ports.is_empty()).then_some(ports)
}

fn exact_value(matcher: &StringMatch) -> Option<ArcStr> {
    match matcher {
        StringMatch::Exact(text) => Some(text.clone()),
        _ => None,
    }
}
