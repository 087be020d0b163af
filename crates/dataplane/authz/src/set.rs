//! Set of authorization policies, indexed by name and by scope.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use ambit_model::{Action, ArcStr, Authorization, PolicyKey, Scope, Workload};

use crate::{connection::Peer, rule_index::RuleIndex};

/// How connections to a workload are decided if its record names a policy that was not received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingPolicies {
    /// Deny the connection: the policy might be a DENY that has not been received yet.
    #[default]
    Deny,
    /// Ignore the missing policy, as Istio's ztunnel does.
    Ignore,
}

/// Set of layer 4 authorization policies, indexed by name and scope.
#[derive(Debug, Default)]
pub struct PolicySet {
    by_key: BTreeMap<PolicyKey, Arc<Authorization>>,
    /// Policies that apply to the whole mesh.
    global: ScopePolicies,
    by_namespace: HashMap<ArcStr, ScopePolicies>,
    missing_policies: MissingPolicies,
    /// Number of dry-run policies in the set.
    dry_run_count: usize,
}

/// Policies of one scope, separated by action.
#[derive(Debug, Default)]
pub(crate) struct ScopePolicies {
    deny: RuleIndex,
    allow: RuleIndex,
    dry_run_deny: RuleIndex,
    dry_run_allow: RuleIndex,
}

/// Workloads whose connections a policy change may affect, and which must be evaluated again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffectedWorkloads {
    /// No workload, since the policy did not change.
    None,
    /// All workloads of the mesh.
    All,
    /// All workloads of this namespace.
    Namespace(ArcStr),
    /// Workloads whose records name the policy (`namespace/name`).
    ReferencingPolicy(ArcStr),
    /// Union of several sets of workloads, for a policy whose scope changed.
    Union(Vec<Self>),
}

impl AffectedWorkloads {
    /// Whether the changed policy may apply to a workload.
    pub fn includes(&self, workload: &Workload) -> bool {
        self.includes_any(&workload.namespace, &workload.authorization_policies)
    }

    /// Whether the changed policy may apply to a workload in this namespace whose record names these policies.
    pub fn includes_any(&self, namespace: &str, policies: &[ArcStr]) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Namespace(of) => namespace == of,
            Self::ReferencingPolicy(name) => policies.contains(name),
            Self::Union(parts) => parts
                .iter()
                .any(|part| part.includes_any(namespace, policies)),
        }
    }
}

impl PolicySet {
    /// Creates an empty set of policies, with the decision about missing ones.
    pub fn new(missing: MissingPolicies) -> Self {
        Self {
            missing_policies: missing,
            ..Self::default()
        }
    }

    /// Inserts a policy, or replaces the policy of its name. Returns the affected workloads.
    pub fn insert(&mut self, policy: Authorization) -> AffectedWorkloads {
        let key = policy.key();
        if self.by_key.get(&key).is_some_and(|known| **known == policy) {
            return AffectedWorkloads::None;
        }
        let before = self.remove(&key);
        let policy = Arc::new(policy);
        if let Some(bucket) = self.scope_policies_mut(&policy) {
            bucket
                .index_mut(policy.action, policy.dry_run)
                .insert(&policy);
        }
        let after = affected_workloads(&policy);
        self.dry_run_count += usize::from(policy.dry_run);
        self.by_key.insert(key, policy);
        match before {
            AffectedWorkloads::None => after,
            before if before == after => after,
            before => AffectedWorkloads::Union(vec![before, after]),
        }
    }

    /// Removes a policy. Returns the affected workloads.
    pub fn remove(&mut self, key: &PolicyKey) -> AffectedWorkloads {
        let Some(policy) = self.by_key.remove(key) else {
            return AffectedWorkloads::None;
        };
        self.dry_run_count -= usize::from(policy.dry_run);
        if let Some(bucket) = self.scope_policies_mut(&policy) {
            bucket.index_mut(policy.action, policy.dry_run).remove(key);
        }
        if policy.scope == Scope::Namespace
            && self
                .by_namespace
                .get(&policy.namespace)
                .is_some_and(ScopePolicies::is_empty)
        {
            self.by_namespace.remove(&policy.namespace);
        }
        affected_workloads(&policy)
    }

    /// Removes the policy with this resource name (`namespace/name`). Returns the affected workloads.
    pub fn remove_named(&mut self, name: &str) -> AffectedWorkloads {
        self.remove(&PolicyKey::from_resource_name(name))
    }

    /// Iterates over the policies by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Authorization>> {
        self.by_key.values()
    }

    /// Returns the number of policies.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there are no policies.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Returns the policy with this resource name (`namespace/name`).
    pub fn by_name(&self, name: &str) -> Option<&Arc<Authorization>> {
        self.by_key(&PolicyKey::from_resource_name(name))
    }

    /// Returns the number of fail-closed substitutes for policies that could not be decoded in full.
    pub fn invalid_policies(&self) -> usize {
        let policies = self.by_key.values();
        policies
            .filter(|policy| policy.not_understood.is_some())
            .count()
    }

    pub(crate) fn by_key(&self, key: &PolicyKey) -> Option<&Arc<Authorization>> {
        self.by_key.get(key)
    }

    pub(crate) fn missing_policies(&self) -> MissingPolicies {
        self.missing_policies
    }

    pub(crate) fn has_dry_runs(&self) -> bool {
        self.dry_run_count > 0
    }

    /// Returns the policies with the scope of the whole mesh, and those of the namespace if it has any.
    pub(crate) fn scopes_for_namespace(&self, namespace: &str) -> [Option<&ScopePolicies>; 2] {
        [Some(&self.global), self.by_namespace.get(namespace)]
    }

    fn scope_policies_mut(&mut self, policy: &Authorization) -> Option<&mut ScopePolicies> {
        match policy.scope {
            Scope::Global => Some(&mut self.global),
            Scope::Namespace => Some(
                self.by_namespace
                    .entry(policy.namespace.clone())
                    .or_default(),
            ),
            Scope::WorkloadSelector => None,
        }
    }

    /// Returns the policies that apply to a workload, ordered by name.
    pub(crate) fn applicable_policies(&self, workload: &Workload) -> Vec<&Arc<Authorization>> {
        self.by_key
            .values()
            .filter(|policy| match policy.scope {
                Scope::Global => true,
                Scope::Namespace => policy.namespace == workload.namespace,
                Scope::WorkloadSelector => false,
            } || workload.authorization_policies.iter().any(|name| has_resource_name(name, policy)))
            .collect()
    }
}

impl ScopePolicies {
    pub(crate) fn is_empty(&self) -> bool {
        [
            &self.deny,
            &self.allow,
            &self.dry_run_deny,
            &self.dry_run_allow,
        ]
        .iter()
        .all(|index| index.is_empty())
    }

    pub(crate) fn has_enforced_allow(&self) -> bool {
        !self.allow.is_empty()
    }

    /// Returns the policy that matches the connection; if several match, the first by name.
    pub(crate) fn first_match(
        &self,
        action: Action,
        dry_run: bool,
        peer: &Peer<'_>,
    ) -> Option<PolicyKey> {
        match (action, dry_run) {
            (Action::Deny, false) => &self.deny,
            (Action::Allow, false) => &self.allow,
            (Action::Deny, true) => &self.dry_run_deny,
            (Action::Allow, true) => &self.dry_run_allow,
        }
        .first_match(peer)
    }

    fn index_mut(&mut self, action: Action, dry_run: bool) -> &mut RuleIndex {
        match (action, dry_run) {
            (Action::Deny, false) => &mut self.deny,
            (Action::Allow, false) => &mut self.allow,
            (Action::Deny, true) => &mut self.dry_run_deny,
            (Action::Allow, true) => &mut self.dry_run_allow,
        }
    }
}

fn affected_workloads(policy: &Authorization) -> AffectedWorkloads {
    match policy.scope {
        Scope::Global => AffectedWorkloads::All,
        Scope::Namespace => AffectedWorkloads::Namespace(policy.namespace.clone()),
        Scope::WorkloadSelector => {
            AffectedWorkloads::ReferencingPolicy(policy.key().to_string().into())
        }
    }
}

fn has_resource_name(name: &str, policy: &Authorization) -> bool {
    name.split_once('/')
        .is_some_and(|(namespace, name)| policy.namespace == namespace && policy.name == name)
}
