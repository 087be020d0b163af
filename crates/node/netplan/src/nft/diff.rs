//! Computes the changes that turn one nftables table into another in one transaction.

use std::{collections::BTreeMap, fmt};

use super::{Expr, Hook, Set, SetKey, SetMember, Table, TableChain, lower::GUARDS};

/// Change of an nftables table. Changes are valid only in the order of [`diff`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates the table, without chains and sets.
    AddTable,
    /// Removes the table with its chains and sets.
    DeleteTable,
    /// Creates a chain without rules.
    AddChain(String, Option<Hook>),
    /// Removes all rules of a chain.
    FlushChain(String),
    /// Removes an empty chain.
    DeleteChain(String),
    /// Appends a rule to a chain.
    AddRule(String, Vec<Expr>),
    /// Creates an empty set.
    AddSet(String, SetKey),
    /// Removes a set that no rule references.
    DeleteSet(String),
    /// Adds a member to a set.
    AddMember(String, SetMember, String),
    /// Removes a member from a set.
    DeleteMember(String, SetMember),
}

impl fmt::Display for Change {
    /// Describes the difference that the change repairs, such as "the rules of chain nat-output differ".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddTable => f.write_str("the table is missing"),
            Self::DeleteTable => f.write_str("the table is not as it should be"),
            Self::AddChain(name, _) => write!(f, "chain {name} is missing"),
            Self::FlushChain(name) => write!(f, "the rules of chain {name} differ"),
            Self::DeleteChain(name) => write!(f, "chain {name} should not be there"),
            Self::AddRule(name, _) => write!(f, "chain {name} lacks a rule"),
            Self::AddSet(name, _) => write!(f, "set {name} is missing"),
            Self::DeleteSet(name) => write!(f, "set {name} should not be there"),
            Self::AddMember(name, member, _) => write!(f, "set {name} lacks {member}"),
            Self::DeleteMember(name, member) => {
                write!(f, "set {name} should not hold {member}")
            }
        }
    }
}

/// Returns the changes from `current` to `desired`; `None` means that the table does not exist. The list is empty
/// exactly when both are equal.
pub fn diff(current: Option<&Table>, desired: Option<&Table>) -> Vec<Change> {
    let mut out = Vec::new();
    match (current, desired) {
        (None, None) => {}
        (Some(_), None) => out.push(Change::DeleteTable),
        (None, Some(desired)) => {
            out.push(Change::AddTable);
            change_table(&Table::default(), desired, &mut out);
        }
        (Some(current), Some(desired)) if needs_rebuild(current, desired) => {
            out.extend([Change::DeleteTable, Change::AddTable]);
            change_table(&Table::default(), desired, &mut out);
        }
        (Some(current), Some(desired)) => change_table(current, desired, &mut out),
    }
    out
}

/// Returns the transactions from `current` to `desired`. Guard chains, which drop packets that would bypass the proxy,
/// are removed before anything else changes and added last: in a single transaction, a packet in flight might miss a
/// redirect and be dropped by the guard.
pub fn steps(current: Option<&Table>, desired: Option<&Table>) -> Vec<Vec<Change>> {
    let mut steps = Vec::new();
    let mut now = current.cloned();
    let mut step = |next: Option<Table>| {
        let changes = diff(now.as_ref(), next.as_ref());
        if !changes.is_empty() {
            steps.push(changes);
        }
        now = next;
    };
    step(current.map(|current| without_guards(current, desired)));
    step(desired.map(|desired| without_guards(desired, current)));
    step(desired.cloned());
    steps
}

/// Returns the table without those guard chains (drops of packets that bypass the proxy) that `other` lacks.
fn without_guards(table: &Table, other: Option<&Table>) -> Table {
    let mut table = table.clone();
    for name in GUARDS {
        if other.is_none_or(|other| !other.chains.contains_key(name)) {
            table.chains.remove(name);
        }
    }
    table
}

/// Whether the table must be deleted and created anew: the kernel cannot change a chain's hook or a set's key type.
fn needs_rebuild(current: &Table, desired: &Table) -> bool {
    let chain = |(name, chain): (&String, &TableChain)| {
        desired
            .chains
            .get(name)
            .is_some_and(|target| target.hook != chain.hook)
    };
    let set = |(name, set): (&String, &Set)| {
        desired
            .sets
            .get(name)
            .is_some_and(|target| target.key != set.key)
    };
    current.chains.iter().any(chain) || current.sets.iter().any(set)
}

fn change_table(current: &Table, desired: &Table, out: &mut Vec<Change>) {
    // Rules go first: a chain or set they refer to could not be removed otherwise.
    for (name, chain) in &current.chains {
        let is_unchanged = desired
            .chains
            .get(name)
            .is_some_and(|target| target.rules == chain.rules);
        // Also an empty chain: another process may be filling it at this very moment.
        if !is_unchanged {
            out.push(Change::FlushChain(name.clone()));
        }
    }
    for name in current
        .chains
        .keys()
        .filter(|name| !desired.chains.contains_key(*name))
    {
        out.push(Change::DeleteChain(name.clone()));
    }
    change_sets(&current.sets, &desired.sets, out);
    for (name, target) in &desired.chains {
        let present = current.chains.get(name);
        if present.is_none() {
            out.push(Change::AddChain(name.clone(), target.hook.clone()));
        }
        if present.is_none_or(|chain| chain.rules != target.rules) {
            out.extend(
                target
                    .rules
                    .iter()
                    .map(|r| Change::AddRule(name.clone(), r.clone())),
            );
        }
    }
}

fn change_sets(
    current: &BTreeMap<String, Set>,
    desired: &BTreeMap<String, Set>,
    out: &mut Vec<Change>,
) {
    for name in current.keys().filter(|name| !desired.contains_key(*name)) {
        out.push(Change::DeleteSet(name.clone()));
    }
    let nothing = BTreeMap::new();
    for (name, target) in desired {
        let present = current.get(name);
        if present.is_none() {
            out.push(Change::AddSet(name.clone(), target.key));
        }
        let members = present.map_or(&nothing, |set| &set.members);
        // The kernel does not change the comment of an existing member, so it is removed and added.
        for (member, comment) in members {
            if target.members.get(member) != Some(comment) {
                out.push(Change::DeleteMember(name.clone(), *member));
            }
        }
        for (member, comment) in &target.members {
            if members.get(member) != Some(comment) {
                out.push(Change::AddMember(name.clone(), *member, comment.clone()));
            }
        }
    }
}

/// Applies changes to a table as the kernel does; tests check [`diff`] with it.
pub fn apply(table: Option<Table>, changes: &[Change]) -> Option<Table> {
    let mut table = table;
    for change in changes {
        match change {
            Change::AddTable => {
                table.get_or_insert_default();
            }
            Change::DeleteTable => table = None,
            other => {
                if let Some(table) = &mut table {
                    apply_to_table(table, other);
                }
            }
        }
    }
    table
}

fn apply_to_table(table: &mut Table, change: &Change) {
    match change {
        Change::AddTable | Change::DeleteTable => {}
        Change::AddChain(name, hook) => {
            let chain = TableChain {
                hook: hook.clone(),
                rules: Vec::new(),
            };
            table.chains.entry(name.clone()).or_insert(chain);
        }
        Change::FlushChain(name) => {
            if let Some(chain) = table.chains.get_mut(name) {
                chain.rules.clear();
            }
        }
        Change::DeleteChain(name) => {
            table.chains.remove(name);
        }
        Change::AddRule(name, rule) => {
            if let Some(chain) = table.chains.get_mut(name) {
                chain.rules.push(rule.clone());
            }
        }
        Change::AddSet(name, key) => {
            let set = Set {
                key: *key,
                members: BTreeMap::new(),
            };
            table.sets.entry(name.clone()).or_insert(set);
        }
        Change::DeleteSet(name) => {
            table.sets.remove(name);
        }
        Change::AddMember(name, member, comment) => {
            if let Some(set) = table.sets.get_mut(name) {
                set.members
                    .entry(*member)
                    .or_insert_with(|| comment.clone());
            }
        }
        Change::DeleteMember(name, member) => {
            if let Some(set) = table.sets.get_mut(name) {
                set.members.remove(member);
            }
        }
    }
}
