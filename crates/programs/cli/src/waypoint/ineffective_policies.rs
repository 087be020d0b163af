//! Layer 4 policies that name callers and become ineffective behind a waypoint: pods see the waypoint as the caller of
//! all requests that it forwards. Pure: objects in, findings and manifests out.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    AuthorizationPolicy, Kind, ObjectMeta, Service,
    gateway::GROUP,
    istio::{
        AuthorizationPolicySpec, Condition, PolicyAction, PolicyTargetReference, Rule, RuleFrom,
        Source, selected_labels,
    },
    labels,
};
use k8s_openapi::Resource as _;
use serde::Deserialize;
use serde_json::Value;

/// Name suffix of a policy's copy that is attached to the waypoint.
const COPY_SUFFIX: &str = "-waypoint";
/// Name suffix of the additional ALLOW policy by which pods admit the waypoint.
const ADMISSION_SUFFIX: &str = "-from-waypoint";

/// Waypoint that pods would see as the caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waypoint<'a> {
    pub(super) trust_domain: &'a str,
    /// Namespace whose policies apply to the whole mesh.
    pub(super) root_namespace: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Effect that a policy has at the pods on requests which the waypoint forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IneffectivePolicyEffect {
    /// The policy denies the waypoint, and so every caller whose requests it forwards.
    DeniesAllCallers,
    /// The policy allows the waypoint, and so every caller whose requests it forwards.
    AllowsAllCallers,
    /// The policy denies no caller whose requests the waypoint forwards.
    DeniesNoCaller,
}

/// Policy that becomes ineffective behind a waypoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IneffectivePolicy {
    /// Name of the policy, `namespace/name`.
    pub(super) policy: String,
    pub(super) action: PolicyAction,
    pub(super) effect: IneffectivePolicyEffect,
    /// Callers that the policy names, grouped by attribute, such as `principals a, b`.
    pub(super) callers: Vec<String>,
    /// Changes that preserve the policy's meaning, or the reason why it cannot be preserved.
    pub(super) migration: Result<PolicyMigration, String>,
}

/// Objects to write so that a policy keeps its meaning behind a waypoint, in the order of the fields.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PolicyMigration {
    /// New policies: a copy attached to the waypoint, and one by which pods admit the waypoint.
    pub(super) added_policies: Vec<AuthorizationPolicy>,
    /// New `spec.rules` of the migrated policy itself, if they change.
    pub(super) changed_rules: Option<Vec<Rule>>,
}

impl Waypoint<'_> {
    fn principal(&self) -> String {
        let Self {
            trust_domain,
            namespace,
            name,
            ..
        } = self;
        format!("{trust_domain}/ns/{namespace}/sa/{name}")
    }

    fn names_waypoint(&self, source: &Source) -> bool {
        let principal = self.principal();
        let mut principals = source.principals.iter().chain(&source.not_principals);
        let accounts = source.service_accounts.iter();
        let mut accounts = accounts.chain(&source.not_service_accounts);
        principals.any(|one| *one == principal) || accounts.any(|one| self.is_account(one))
    }

    fn is_account(&self, account: &str) -> bool {
        match account.split_once('/') {
            Some((namespace, name)) => namespace == self.namespace && name == self.name,
            None => account == self.name,
        }
    }

    /// Whether a policy's source matches connections from the waypoint. Address blocks never match: the waypoint's
    /// address is unknown.
    fn matches_source(&self, source: &Source) -> bool {
        let principal = self.principal();
        let is_principal = |pattern: &String| matches_pattern(pattern, &principal);
        let is_namespace = |pattern: &String| matches_pattern(pattern, self.namespace);
        let is_domain = |pattern: &String| matches_pattern(pattern, self.trust_domain);
        let is_account = |one: &String| self.is_account(one);
        let is_empty_or_matches =
            |list: &[String], is: &dyn Fn(&String) -> bool| list.is_empty() || list.iter().any(is);
        let is_unknown = [
            &source.ip_blocks,
            &source.remote_ip_blocks,
            &source.request_principals,
        ];
        is_unknown.iter().all(|list| list.is_empty())
            && is_empty_or_matches(&source.principals, &is_principal)
            && is_empty_or_matches(&source.namespaces, &is_namespace)
            && is_empty_or_matches(&source.trust_domains, &is_domain)
            && is_empty_or_matches(&source.service_accounts, &is_account)
            && !source.not_principals.iter().any(is_principal)
            && !source.not_namespaces.iter().any(is_namespace)
            && !source.not_trust_domains.iter().any(is_domain)
            && !source.not_service_accounts.iter().any(is_account)
    }

    fn matches_rule(&self, rule: &Rule) -> bool {
        let mut sources = rule.from.iter().filter_map(|from| from.source.as_ref());
        let by_from = rule.from.is_empty() || sources.any(|source| self.matches_source(source));
        let mut conditions = rule.when.iter().filter_map(source_of_condition);
        by_from && conditions.all(|source| self.matches_source(&source))
    }
}

/// Whether a text matches one of Istio's patterns (`value`, `prefix*`, `*suffix`, `*`).
fn matches_pattern(pattern: &str, text: &str) -> bool {
    match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(prefix), _) => text.starts_with(prefix),
        (_, Some(suffix)) => text.ends_with(suffix),
        _ => pattern == text,
    }
}

/// Converts a condition on `source.*` of a `when` clause to the equivalent `from.source`; `None` for other attributes.
fn source_of_condition(condition: &Condition) -> Option<Source> {
    let (values, not_values) = (condition.values.clone(), condition.not_values.clone());
    let mut source = Source::default();
    let (is, is_not) = match condition.key.strip_prefix("source.")? {
        "principal" => (&mut source.principals, &mut source.not_principals),
        "namespace" => (&mut source.namespaces, &mut source.not_namespaces),
        "serviceAccount" => (
            &mut source.service_accounts,
            &mut source.not_service_accounts,
        ),
        "trustDomain" => (&mut source.trust_domains, &mut source.not_trust_domains),
        _ => (&mut source.ip_blocks, &mut source.not_ip_blocks),
    };
    (*is, *is_not) = (values, not_values);
    Some(source)
}

/// Returns the sources of a rule: those of `from`, and those in `when` conditions.
fn rule_sources(rule: &Rule) -> Vec<Source> {
    let from = rule.from.iter().filter_map(|from| from.source.clone());
    from.chain(rule.when.iter().filter_map(source_of_condition))
        .collect()
}

/// Describes the callers that the rules name, by attribute, such as `principals a, b`.
fn describe_callers(rules: &[Rule]) -> Vec<String> {
    let mut callers = Vec::new();
    for source in rules.iter().flat_map(rule_sources) {
        let lists = [
            ("principals", &source.principals),
            ("principals other than", &source.not_principals),
            ("namespaces", &source.namespaces),
            ("namespaces other than", &source.not_namespaces),
            ("service accounts", &source.service_accounts),
            ("service accounts other than", &source.not_service_accounts),
            ("trust domains", &source.trust_domains),
            ("trust domains other than", &source.not_trust_domains),
            ("addresses", &source.ip_blocks),
            ("addresses other than", &source.not_ip_blocks),
        ];
        for (attribute, values) in lists.iter().filter(|(_, values)| !values.is_empty()) {
            let text = format!("{attribute} {}", values.join(", "));
            if !callers.contains(&text) {
                callers.push(text);
            }
        }
    }
    callers
}

/// AuthorizationPolicy of the mesh; `policy` is `None` if it cannot be parsed: then proxies deny every caller
/// already.
struct ExistingPolicy {
    namespace: String,
    name: String,
    policy: Option<AuthorizationPolicy>,
}

impl ExistingPolicy {
    fn of(object: &Value) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Named {
            metadata: ObjectMeta,
        }
        let Named { metadata } = Named::deserialize(object).unwrap_or_default();
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            policy: AuthorizationPolicy::deserialize(object).ok(),
        }
    }

    fn is_attached(&self) -> bool {
        let policy = self.policy.as_ref();
        policy.is_some_and(|policy| policy.spec.is_attached())
    }
}

/// AuthorizationPolicy that node proxies enforce.
struct EnforcedPolicy<'a> {
    namespace: &'a str,
    name: &'a str,
    spec: &'a AuthorizationPolicySpec,
}

impl<'a> EnforcedPolicy<'a> {
    /// Returns the policy if node proxies enforce it; `None` if it is attached, in dry run, or unreadable.
    fn parse(found: &'a ExistingPolicy) -> Option<Self> {
        let policy = found.policy.as_ref()?;
        let annotations = policy.metadata.annotations.as_ref();
        let dry_run = annotations.and_then(|all| all.get("istio.io/dry-run"));
        if found.is_attached() || dry_run.is_some_and(|dry_run| dry_run == "true") {
            return None;
        }
        Some(Self {
            namespace: &found.namespace,
            name: &found.name,
            spec: &policy.spec,
        })
    }

    /// Returns the labels of the policy's selector; `None` if it applies to all pods of its scope.
    fn labels(&self) -> Option<&'a BTreeMap<String, String>> {
        selected_labels(self.spec.selector.as_ref())
    }

    fn has_same_scope(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.labels() == other.labels()
    }

    fn allows_waypoint(&self, waypoint: &Waypoint<'_>) -> bool {
        let mut sources = self.spec.rules.iter().flat_map(rule_sources);
        sources.any(|source| waypoint.names_waypoint(&source))
    }

    fn effect(&self, waypoint: &Waypoint<'_>) -> Option<IneffectivePolicyEffect> {
        let mut rules = self.spec.rules.iter();
        let mut naming = self
            .spec
            .rules
            .iter()
            .filter(|rule| !rule_sources(rule).is_empty());
        match self.spec.action {
            PolicyAction::Allow => {
                naming.next()?;
                let is_admitted = rules.any(|rule| waypoint.matches_rule(rule));
                Some(match is_admitted {
                    true => IneffectivePolicyEffect::AllowsAllCallers,
                    false => IneffectivePolicyEffect::DeniesAllCallers,
                })
            }
            PolicyAction::Deny => {
                let mut naming = naming.peekable();
                naming.peek()?;
                Some(match naming.any(|rule| waypoint.matches_rule(rule)) {
                    true => IneffectivePolicyEffect::DeniesAllCallers,
                    false => IneffectivePolicyEffect::DeniesNoCaller,
                })
            }
            PolicyAction::Audit | PolicyAction::Custom => None,
        }
    }

    /// Returns the target references for the policy's copy: the services whose pods are exactly those of the policy, or
    /// the Gateway for a policy without selector.
    fn waypoint_targets(
        &self,
        services: &[Service],
        waypoint: &Waypoint<'_>,
    ) -> Result<Vec<PolicyTargetReference>, String> {
        let target = |group: &str, kind: Kind, name: &str| PolicyTargetReference {
            group: group.to_owned(),
            kind: kind.to_string(),
            name: name.to_owned(),
            namespace: None,
        };
        let Some(labels) = self.labels() else {
            return Ok(vec![target(GROUP, Kind::Gateway, waypoint.name)]);
        };
        let selects_no_others = |service: &&Service| {
            let selector = service
                .spec
                .as_ref()
                .and_then(|spec| spec.selector.as_ref());
            let mut labels = labels.iter();
            service.metadata.namespace.as_deref() == Some(self.namespace)
                && selector.is_some_and(|selector| {
                    labels.all(|(key, value)| selector.get(key) == Some(value))
                })
        };
        let services = services.iter().filter(selects_no_others);
        let targets: Vec<_> = services
            .map(|one| {
                target(
                    "",
                    Kind::Service,
                    one.metadata.name.as_deref().unwrap_or_default(),
                )
            })
            .collect();
        match targets.is_empty() {
            true => Err("no Service has exactly the pods that it selects".to_owned()),
            false => Ok(targets),
        }
    }

    fn migration(
        &self,
        effect: IneffectivePolicyEffect,
        services: &[Service],
        waypoint: &Waypoint<'_>,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<PolicyMigration, String> {
        if self.namespace != waypoint.namespace {
            return Err("it is the root namespace's, and holds for the whole mesh".to_owned());
        }
        let names_ports = |rule: &Rule| {
            let mut operations = rule.to.iter().filter_map(|to| to.operation.as_ref());
            operations.any(|one| !one.ports.is_empty() || !one.not_ports.is_empty())
                || rule
                    .when
                    .iter()
                    .any(|one| one.key.starts_with("destination."))
        };
        if self.spec.rules.iter().any(names_ports) {
            return Err(
                "it names ports or addresses of pods, and waypoints see those of Services"
                    .to_owned(),
            );
        }
        let targets = self.waypoint_targets(services, waypoint)?;
        let is_changed = self.spec.action == PolicyAction::Deny
            && effect == IneffectivePolicyEffect::DeniesAllCallers;
        let changed = is_changed.then(|| self.rules_excluding_waypoint(waypoint));
        let copy = AuthorizationPolicySpec {
            selector: None,
            target_refs: targets,
            // The same as the policy itself, so that the control plane recognizes the copy.
            rules: changed.clone().unwrap_or_else(|| self.spec.rules.clone()),
            ..self.spec.clone()
        };
        // The original authorizes connections that bypass the waypoint, which so need not bind before it is ready.
        let migrated = BTreeMap::from([(labels::MIGRATED_FROM.to_owned(), self.name.to_owned())]);
        let mut added = vec![self.new_policy(COPY_SUFFIX, Some(migrated), copy, &is_taken)?];
        if self.spec.action == PolicyAction::Allow {
            let source = Source {
                principals: vec![waypoint.principal()],
                ..Source::default()
            };
            let admission = AuthorizationPolicySpec {
                selector: self.spec.selector.clone(),
                rules: vec![Rule {
                    from: vec![RuleFrom {
                        source: Some(source),
                    }],
                    ..Rule::default()
                }],
                ..AuthorizationPolicySpec::default()
            };
            added.push(self.new_policy(ADMISSION_SUFFIX, None, admission, &is_taken)?);
        }
        Ok(PolicyMigration {
            added_policies: added,
            changed_rules: changed,
        })
    }

    fn new_policy(
        &self,
        suffix: &str,
        annotations: Option<BTreeMap<String, String>>,
        spec: AuthorizationPolicySpec,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<AuthorizationPolicy, String> {
        let name = format!("{}{suffix}", self.name);
        if is_taken(&name) {
            return Err(format!("there is an AuthorizationPolicy {name} already"));
        }
        Ok(AuthorizationPolicy {
            api_version: AuthorizationPolicy::API_VERSION.to_owned(),
            kind: AuthorizationPolicy::KIND.to_owned(),
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(self.namespace.to_owned()),
                annotations,
                ..ObjectMeta::default()
            },
            spec,
            status: Value::Null,
        })
    }

    /// Returns the rules of a DENY policy, changed so that those that name callers do not match the waypoint.
    fn rules_excluding_waypoint(&self, waypoint: &Waypoint<'_>) -> Vec<Rule> {
        let mut rules = self.spec.rules.clone();
        let naming = rules
            .iter_mut()
            .filter(|rule| !rule_sources(rule).is_empty());
        for rule in naming {
            if rule.from.is_empty() {
                let source = Some(Source::default());
                rule.from.push(RuleFrom { source });
            }
            let from = rule.from.iter_mut().filter_map(|from| from.source.as_mut());
            from.for_each(|source| source.not_principals.push(waypoint.principal()));
        }
        rules
    }
}

/// Finds policies for pods of the waypoint's namespace that the waypoint makes ineffective. Left out are policies that
/// name the waypoint, those with the same scope as an ALLOW policy that names it, and those with a copy that is
/// attached to it.
pub(super) fn find_ineffective_policies(
    policies: &[Value],
    services: &[Service],
    waypoint: &Waypoint<'_>,
) -> Vec<IneffectivePolicy> {
    let policies: Vec<_> = policies.iter().map(ExistingPolicy::of).collect();
    let concerns = |policy: &EnforcedPolicy<'_>| {
        policy.namespace == waypoint.namespace || policy.namespace == waypoint.root_namespace
    };
    let read: Vec<_> = policies
        .iter()
        .filter_map(EnforcedPolicy::parse)
        .filter(concerns)
        .collect();
    let named = |namespace: &str, name: &str| {
        let mut all = policies.iter();
        all.find(|one| (one.namespace.as_str(), one.name.as_str()) == (namespace, name))
    };
    let is_known = |policy: &EnforcedPolicy<'_>| match policy.spec.action {
        PolicyAction::Allow => read.iter().any(|other| {
            let is_allow = other.spec.action == PolicyAction::Allow;
            is_allow && policy.has_same_scope(other) && other.allows_waypoint(waypoint)
        }),
        _ => {
            let copy = named(policy.namespace, &format!("{}{COPY_SUFFIX}", policy.name));
            policy.allows_waypoint(waypoint) || copy.is_some_and(ExistingPolicy::is_attached)
        }
    };
    let moot = read.iter().filter(|policy| !is_known(policy));
    moot.filter_map(|policy| {
        let effect = policy.effect(waypoint)?;
        let is_taken = |name: &str| named(policy.namespace, name).is_some();
        Some(IneffectivePolicy {
            policy: format!("{}/{}", policy.namespace, policy.name),
            action: policy.spec.action,
            effect,
            callers: describe_callers(&policy.spec.rules),
            migration: policy.migration(effect, services, waypoint, is_taken),
        })
    })
    .collect()
}

impl IneffectivePolicy {
    /// Formats the policy, its effect behind the waypoint, and its callers on one line.
    pub(super) fn format_line(&self) -> String {
        let callers = self.callers.join("; ");
        let (action, consequence) = match (self.action, self.effect) {
            (PolicyAction::Allow, IneffectivePolicyEffect::DeniesAllCallers) => (
                "ALLOW",
                format!(
                    "pods refuse the waypoint, and with it every caller allowed now: {callers}"
                ),
            ),
            (PolicyAction::Allow, _) => (
                "ALLOW",
                format!("allows the waypoint, and with it every caller; allowed now: {callers}"),
            ),
            (_, IneffectivePolicyEffect::DeniesAllCallers) => (
                "DENY",
                format!(
                    "pods refuse the waypoint, and with it every caller; denied now: {callers}"
                ),
            ),
            (_, _) => (
                "DENY",
                format!("denies no caller behind the waypoint; denied now: {callers}"),
            ),
        };
        format!("  {} ({action}): {consequence}", self.policy)
    }
}

#[cfg(test)]
mod tests;
