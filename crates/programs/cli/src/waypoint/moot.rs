//! Layer 4 policies that name callers and lose their meaning behind a waypoint: the pods see the waypoint as the caller
//! of all that it delivers. Pure: objects in, findings and manifests out.

use ambit_k8s_api::istio::{Condition, PolicyAction, Rule, Source};
use ambit_k8s_api::labels;
use serde_json::{Value, json};

/// Suffix of a policy's copy that is attached to the waypoint.
const COPY: &str = "-waypoint";
/// Suffix of the policy that admits the waypoint to the pods of an ALLOW policy.
const ADMISSION: &str = "-from-waypoint";

/// The waypoint by whose identity pods are called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waypoint<'a> {
    pub(super) trust_domain: &'a str,
    /// Root namespace, whose policies apply to the whole mesh.
    pub(super) root_namespace: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Effect of a policy on requests through the waypoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The pods reject the waypoint, and thus every caller.
    RefusesAll,
    /// The waypoint is among the callers that it allows, and so is every caller behind it.
    AdmitsAll,
    /// Policy that denies no caller behind the waypoint.
    DeniesNobody,
}

/// Policy that becomes ineffective behind a waypoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moot {
    /// Name of the policy, `namespace/name`.
    pub(super) policy: String,
    pub(super) action: PolicyAction,
    pub(super) effect: Effect,
    /// Callers that the policy names, by attribute.
    pub(super) callers: Vec<String>,
    /// Migration that preserves the policy's meaning, or the reason why none is known.
    pub(super) migration: Result<Migration, String>,
}

/// Objects by which a policy keeps its meaning, in the order in which they are to be written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Migration {
    /// New policies: a copy for the waypoint, and one that admits the waypoint to the pods.
    pub(super) added: Vec<Value>,
    /// New `spec.rules` of the policy itself.
    pub(super) rules: Option<Value>,
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

    fn names(&self, source: &Source) -> bool {
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

    /// Whether connections of the waypoint match. Its address is not known, and blocks of addresses are of callers.
    fn matches(&self, source: &Source) -> bool {
        let principal = self.principal();
        let is_principal = |pattern: &String| matches(pattern, &principal);
        let is_namespace = |pattern: &String| matches(pattern, self.namespace);
        let is_domain = |pattern: &String| matches(pattern, self.trust_domain);
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
        let by_from = rule.from.is_empty() || sources.any(|source| self.matches(source));
        let mut conditions = rule.when.iter().filter_map(as_source);
        by_from && conditions.all(|source| self.matches(&source))
    }
}

/// Whether a pattern of Istio's (`value`, `prefix*`, `*suffix`, `*`) matches.
fn matches(pattern: &str, text: &str) -> bool {
    match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(prefix), _) => text.starts_with(prefix),
        (_, Some(suffix)) => text.ends_with(suffix),
        _ => pattern == text,
    }
}

/// A condition about the caller as a source.
fn as_source(condition: &Condition) -> Option<Source> {
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

/// Returns the source fields of a rule.
fn sources(rule: &Rule) -> Vec<Source> {
    let from = rule.from.iter().filter_map(|from| from.source.clone());
    from.chain(rule.when.iter().filter_map(as_source)).collect()
}

/// Describes callers by attribute, such as `principals a, b`.
fn callers(rules: &[Rule]) -> Vec<String> {
    let mut callers = Vec::new();
    for source in rules.iter().flat_map(sources) {
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

/// A policy of node proxies.
struct Policy<'a> {
    object: &'a Value,
    namespace: &'a str,
    name: &'a str,
    action: PolicyAction,
    rules: Vec<Rule>,
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn is_attached(object: &Value) -> bool {
    let of = |field: &str| object.pointer(field).filter(|value| !value.is_null());
    let several = of("/spec/targetRefs").and_then(Value::as_array);
    of("/spec/targetRef").is_some() || several.is_some_and(|all| !all.is_empty())
}

/// Removes empty lists, which objects have that were read and written again.
fn leave_out_empty_lists(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.as_array().is_some_and(Vec::is_empty));
            members.values_mut().for_each(leave_out_empty_lists);
        }
        Value::Array(all) => all.iter_mut().for_each(leave_out_empty_lists),
        _ => {}
    }
}

impl<'a> Policy<'a> {
    /// `None` for policies that node proxies do not enforce, and for unreadable ones: these deny every caller already.
    fn read(object: &'a Value) -> Option<Self> {
        let dry_run = object.pointer("/metadata/annotations/istio.io~1dry-run");
        if is_attached(object) || dry_run.and_then(Value::as_str) == Some("true") {
            return None;
        }
        let of = |field: &str| object.pointer(field).cloned();
        let action = of("/spec/action").unwrap_or_else(|| json!("ALLOW"));
        let rules = of("/spec/rules").unwrap_or_else(|| json!([]));
        Some(Self {
            object,
            namespace: text(object, "/metadata/namespace"),
            name: text(object, "/metadata/name"),
            action: serde_json::from_value(action).ok()?,
            rules: serde_json::from_value(rules).ok()?,
        })
    }

    /// Labels of the pods that it is for; none if it is for all.
    fn labels(&self) -> Vec<(&'a str, &'a str)> {
        let labels = self.object.pointer("/spec/selector/matchLabels");
        let labels = labels.and_then(Value::as_object).into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
        labels.collect()
    }

    fn has_same_scope(&self, other: &Self) -> bool {
        let (mine, others) = (self.labels(), other.labels());
        self.namespace == other.namespace
            && mine.len() == others.len()
            && mine.iter().all(|label| others.contains(label))
    }

    fn names(&self, waypoint: &Waypoint<'_>) -> bool {
        let mut sources = self.rules.iter().flat_map(sources);
        sources.any(|source| waypoint.names(&source))
    }

    fn effect(&self, waypoint: &Waypoint<'_>) -> Option<Effect> {
        let mut rules = self.rules.iter();
        let mut naming = self.rules.iter().filter(|rule| !sources(rule).is_empty());
        match self.action {
            PolicyAction::Allow => {
                naming.next()?;
                let is_admitted = rules.any(|rule| waypoint.matches_rule(rule));
                Some(match is_admitted {
                    true => Effect::AdmitsAll,
                    false => Effect::RefusesAll,
                })
            }
            PolicyAction::Deny => {
                let mut naming = naming.peekable();
                naming.peek()?;
                Some(match naming.any(|rule| waypoint.matches_rule(rule)) {
                    true => Effect::RefusesAll,
                    false => Effect::DeniesNobody,
                })
            }
            PolicyAction::Audit | PolicyAction::Custom => None,
        }
    }

    /// Targets of the policy's copy: those with exactly its pods behind them.
    fn targets(&self, services: &[Value], waypoint: &Waypoint<'_>) -> Result<Value, String> {
        let labels = self.labels();
        if labels.is_empty() {
            return Ok(json!([{
                "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": waypoint.name,
            }]));
        }
        let selects_no_others = |service: &&Value| {
            let selector = service.pointer("/spec/selector");
            let has = |(key, value): &(&str, &str)| {
                let label = selector.and_then(|selector| selector.get(*key));
                label.and_then(Value::as_str) == Some(*value)
            };
            text(service, "/metadata/namespace") == self.namespace && labels.iter().all(has)
        };
        let services = services.iter().filter(selects_no_others);
        let targets: Vec<_> = services
            .map(|one| json!({"group": "", "kind": "Service", "name": text(one, "/metadata/name")}))
            .collect();
        match targets.is_empty() {
            true => Err("no Service has exactly the pods that it selects".to_owned()),
            false => Ok(targets.into()),
        }
    }

    fn migration(
        &self,
        effect: Effect,
        services: &[Value],
        waypoint: &Waypoint<'_>,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<Migration, String> {
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
        if self.rules.iter().any(names_ports) {
            return Err(
                "it names ports or addresses of pods, and waypoints see those of Services"
                    .to_owned(),
            );
        }
        let mut spec = self.object.get("spec").cloned().unwrap_or_default();
        let targets = self.targets(services, waypoint)?;
        let is_changed = self.action == PolicyAction::Deny && effect == Effect::RefusesAll;
        let changed = is_changed.then(|| self.rules_without(waypoint));
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("selector");
            if let Some(changed) = &changed {
                // The same as the policy itself, so that the control plane recognizes the copy.
                spec.insert("rules".to_owned(), changed.clone());
            }
            if let Some(rules) = spec.get_mut("rules") {
                leave_out_empty_lists(rules);
            }
            spec.insert("targetRefs".to_owned(), targets);
        }
        // The original authorizes connections that bypass the waypoint, which so need not bind before it is ready.
        let migrated = json!({labels::MIGRATED_FROM: self.name});
        let mut added = vec![self.policy(COPY, migrated, &spec, &is_taken)?];
        if self.action == PolicyAction::Allow {
            let mut spec = json!({
                "action": "ALLOW",
                "rules": [{"from": [{"source": {"principals": [waypoint.principal()]}}]}],
            });
            let selector = self.object.pointer("/spec/selector");
            if let (Some(selector), Some(spec)) = (selector, spec.as_object_mut()) {
                spec.insert("selector".to_owned(), selector.clone());
            }
            added.push(self.policy(ADMISSION, json!({}), &spec, &is_taken)?);
        }
        Ok(Migration {
            added,
            rules: changed,
        })
    }

    fn policy(
        &self,
        suffix: &str,
        annotations: Value,
        spec: &Value,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<Value, String> {
        let name = format!("{}{suffix}", self.name);
        if is_taken(&name) {
            return Err(format!("there is an AuthorizationPolicy {name} already"));
        }
        Ok(json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "AuthorizationPolicy",
            "metadata": {"name": name, "namespace": self.namespace, "annotations": annotations},
            "spec": spec,
        }))
    }

    /// The rules of a DENY policy, those that name callers made to spare the waypoint.
    fn rules_without(&self, waypoint: &Waypoint<'_>) -> Value {
        let mut rules = self
            .object
            .pointer("/spec/rules")
            .cloned()
            .unwrap_or_default();
        let all = rules.as_array_mut().into_iter().flatten();
        let naming = all
            .zip(&self.rules)
            .filter(|(_, read)| !sources(read).is_empty());
        for (rule, _) in naming {
            let principal = Value::from(waypoint.principal());
            let from = rule.get_mut("from").and_then(Value::as_array_mut);
            let Some(from) = from.filter(|from| !from.is_empty()) else {
                if let Some(rule) = rule.as_object_mut() {
                    let source = json!([{"source": {"notPrincipals": [principal]}}]);
                    rule.insert("from".to_owned(), source);
                }
                continue;
            };
            for source in from.iter_mut().filter_map(|one| one.get_mut("source")) {
                let Some(source) = source.as_object_mut() else {
                    continue;
                };
                let others = source.entry("notPrincipals").or_insert_with(|| json!([]));
                if let Some(others) = others.as_array_mut() {
                    others.push(principal.clone());
                }
            }
        }
        rules
    }
}

/// The policies that pods of the waypoint's namespace are under and that the waypoint makes moot. Policies that name the
/// waypoint know of it, and so do those of the same pods beside one that admits it, or with a copy at the waypoint.
pub(super) fn find(policies: &[Value], services: &[Value], waypoint: &Waypoint<'_>) -> Vec<Moot> {
    let concerns = |policy: &Policy<'_>| {
        policy.namespace == waypoint.namespace || policy.namespace == waypoint.root_namespace
    };
    let read: Vec<_> = policies
        .iter()
        .filter_map(Policy::read)
        .filter(concerns)
        .collect();
    let named = |namespace: &str, name: &str| {
        policies.iter().find(|one| {
            text(one, "/metadata/namespace") == namespace && text(one, "/metadata/name") == name
        })
    };
    let is_known = |policy: &Policy<'_>| match policy.action {
        PolicyAction::Allow => read.iter().any(|other| {
            let is_allow = other.action == PolicyAction::Allow;
            is_allow && policy.has_same_scope(other) && other.names(waypoint)
        }),
        _ => {
            let copy = named(policy.namespace, &format!("{}{COPY}", policy.name));
            policy.names(waypoint) || copy.is_some_and(is_attached)
        }
    };
    let moot = read.iter().filter(|policy| !is_known(policy));
    moot.filter_map(|policy| {
        let effect = policy.effect(waypoint)?;
        let is_taken = |name: &str| named(policy.namespace, name).is_some();
        Some(Moot {
            policy: format!("{}/{}", policy.namespace, policy.name),
            action: policy.action,
            effect,
            callers: callers(&policy.rules),
            migration: policy.migration(effect, services, waypoint, is_taken),
        })
    })
    .collect()
}

impl Moot {
    /// The policy, its effect behind the waypoint, and the callers that it names, on one line.
    pub(super) fn line(&self) -> String {
        let callers = self.callers.join("; ");
        let (action, consequence) = match (self.action, self.effect) {
            (PolicyAction::Allow, Effect::RefusesAll) => (
                "ALLOW",
                format!(
                    "pods refuse the waypoint, and with it every caller allowed now: {callers}"
                ),
            ),
            (PolicyAction::Allow, _) => (
                "ALLOW",
                format!("allows the waypoint, and with it every caller; allowed now: {callers}"),
            ),
            (_, Effect::RefusesAll) => (
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
