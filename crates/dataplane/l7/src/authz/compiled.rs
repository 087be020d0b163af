//! Compiled policies: every field of a source or an operation, and every condition, becomes a test of one attribute.

use ambit_model::{
    ArcStr, HttpAction, HttpAttribute, HttpCondition, HttpOperation, HttpPolicy, HttpRule,
    HttpSource, HttpValue, PathPattern, PolicyKey, StringMatch,
};
use http::HeaderName;

use super::{facts::Facts, matcher::Matcher};
use crate::readings::{PathMatcher, Reading, is_same_name};

/// Compiled authorization policy.
#[derive(Debug)]
pub(super) struct CompiledPolicy {
    policy: HttpPolicy,
    rules: Vec<Rule>,
    /// Reason why the policy could not be decoded, so that it denies everything.
    not_understood: Option<ArcStr>,
}

#[derive(Debug)]
struct Rule {
    sources: Vec<Vec<Test>>,
    operations: Vec<Vec<Test>>,
    conditions: Vec<Test>,
    is_http: bool,
}

/// Test of one attribute: one value of `any` must match, unless it is empty, and no excluded value may match.
#[derive(Debug)]
struct Test {
    any: Vec<Matcher>,
    none: Vec<Matcher>,
}

impl CompiledPolicy {
    pub(super) fn new(policy: HttpPolicy) -> Self {
        let rules = policy.rules.iter().map(Rule::new).collect();
        let (rules, error) = match rules {
            Ok(rules) => (rules, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        Self {
            not_understood: policy.not_understood.clone().or(error),
            policy,
            rules,
        }
    }

    pub(super) fn policy(&self) -> &HttpPolicy {
        &self.policy
    }

    pub(super) fn key(&self) -> &PolicyKey {
        &self.policy.key
    }

    pub(super) fn dry_run(&self) -> bool {
        self.policy.dry_run
    }

    pub(super) fn action(&self) -> HttpAction {
        match self.not_understood {
            Some(_) => HttpAction::Deny,
            None => self.policy.action,
        }
    }

    pub(super) fn not_understood(&self) -> Option<&ArcStr> {
        self.not_understood.as_ref()
    }

    pub(super) fn needs_http(&self) -> bool {
        self.rules.iter().any(|rule| rule.is_http)
    }

    pub(super) fn reads_header(&self, name: &HeaderName) -> bool {
        let mut conditions = self.rules.iter().flat_map(|rule| &rule.conditions);
        conditions.any(|test| {
            let mut all = test.any.iter().chain(&test.none);
            all.any(|one| matches!(one, Matcher::Header(own, _) if is_same_name(own, name)))
        })
    }

    /// Returns the index of the first rule that matches.
    pub(super) fn matching_rule(&self, facts: &Facts<'_>) -> Option<usize> {
        if self.not_understood.is_some() {
            return Some(0);
        }
        let action = self.policy.action;
        self.rules
            .iter()
            .position(|rule| rule.matches(facts, action))
    }
}

impl Rule {
    fn new(rule: &HttpRule) -> Result<Self, ArcStr> {
        let operations: Result<Vec<_>, _> = rule.operations.iter().map(operation).collect();
        let conditions: Result<Vec<_>, _> = rule.conditions.iter().map(condition).collect();
        let (operations, conditions) = (operations?, conditions?);
        let is_http =
            operations.iter().flatten().any(Test::is_http) || conditions.iter().any(Test::is_http);
        let sources: Vec<_> = rule.sources.iter().map(source).collect();
        let is_http = is_http || sources.iter().flatten().any(Test::is_http);
        Ok(Self {
            sources,
            operations,
            conditions,
            is_http,
        })
    }

    fn matches(&self, facts: &Facts<'_>, action: HttpAction) -> bool {
        if self.is_http && facts.http.is_none() && action == HttpAction::Allow {
            return false;
        }
        let all = |tests: &Vec<Test>| tests.iter().all(|test| test.holds(facts, action));
        let one_of =
            |alternatives: &[Vec<Test>]| alternatives.is_empty() || alternatives.iter().any(all);
        one_of(&self.sources) && one_of(&self.operations) && all(&self.conditions)
    }
}

impl Test {
    /// Builds the test of a policy field from its values and its excluded values; `None` for an unset field.
    fn new<T>(any: &[T], none: &[T], matcher: impl Fn(&T) -> Matcher) -> Option<Self> {
        let test = Self {
            any: any.iter().map(&matcher).collect(),
            none: none.iter().map(&matcher).collect(),
        };
        (!test.any.is_empty() || !test.none.is_empty()).then_some(test)
    }

    fn is_http(&self) -> bool {
        self.any.iter().chain(&self.none).any(Matcher::is_http)
    }

    fn holds(&self, facts: &Facts<'_>, action: HttpAction) -> bool {
        if facts.http.is_none() && self.is_http() {
            // ALLOW rules with this field never reach this point; other rules match more without
            // it.
            return true;
        }
        let (any, none) = match action {
            HttpAction::Allow => (Reading::All, Reading::Any),
            HttpAction::Deny | HttpAction::Audit | HttpAction::Custom => {
                (Reading::Any, Reading::Exception)
            }
        };
        let among = |values: &[Matcher], reading| values.iter().any(|v| v.matches(facts, reading));
        (self.any.is_empty() || among(&self.any, any)) && !among(&self.none, none)
    }
}

fn source(source: &HttpSource) -> Vec<Test> {
    let s = source;
    let text = |any: &[StringMatch], none: &[StringMatch], matcher: fn(StringMatch) -> Matcher| {
        Test::new(any, none, |pattern| matcher(pattern.clone()))
    };
    [
        text(&s.principals, &s.not_principals, Matcher::Principal),
        text(&s.namespaces, &s.not_namespaces, Matcher::Namespace),
        text(&s.trust_domains, &s.not_trust_domains, Matcher::TrustDomain),
        Test::new(&s.service_accounts, &s.not_service_accounts, |account| {
            Matcher::Account(account.clone())
        }),
        Test::new(&s.ip_blocks, &s.not_ip_blocks, |n| Matcher::SourceIp(*n)),
        Test::new(&s.remote_ip_blocks, &s.not_remote_ip_blocks, |net| {
            Matcher::RemoteIp(*net)
        }),
        text(
            &s.request_principals,
            &s.not_request_principals,
            Matcher::RequestPrincipal,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn operation(operation: &HttpOperation) -> Result<Vec<Test>, ArcStr> {
    let o = operation;
    let paths = |patterns: &[PathPattern]| -> Result<Vec<_>, ArcStr> {
        patterns.iter().map(path_matcher).collect()
    };
    let paths = Test {
        any: paths(&o.paths)?,
        none: paths(&o.not_paths)?,
    };
    let tests = [
        Test::new(&o.hosts, &o.not_hosts, |h| Matcher::Host(h.clone())),
        Test::new(&o.ports, &o.not_ports, |p| Matcher::DestinationPort(*p)),
        Test::new(&o.methods, &o.not_methods, |m| Matcher::Method(m.clone())),
        (!paths.any.is_empty() || !paths.none.is_empty()).then_some(paths),
    ];
    Ok(tests.into_iter().flatten().collect())
}

fn path_matcher(pattern: &PathPattern) -> Result<Matcher, ArcStr> {
    Ok(Matcher::Path(Box::new(PathMatcher::of_policy(pattern)?)))
}

fn condition(condition: &HttpCondition) -> Result<Test, ArcStr> {
    let attribute = &condition.attribute;
    let values = |values: &[HttpValue]| -> Result<Vec<_>, ArcStr> {
        values.iter().map(|v| value(attribute, v)).collect()
    };
    Ok(Test {
        any: values(&condition.values)?,
        none: values(&condition.not_values)?,
    })
}

fn value(attribute: &HttpAttribute, value: &HttpValue) -> Result<Matcher, ArcStr> {
    use HttpAttribute as A;
    Ok(match (attribute, value) {
        (A::Header(name), HttpValue::Text(text)) => header(name, text)?,
        (A::SourceNamespace, HttpValue::Text(text)) => Matcher::Namespace(text.clone()),
        (A::SourceServiceAccount, HttpValue::Text(text)) => Matcher::AccountText(text.clone()),
        (A::SourceTrustDomain, HttpValue::Text(text)) => Matcher::TrustDomain(text.clone()),
        (A::SourcePrincipal, HttpValue::Text(text)) => Matcher::Principal(text.clone()),
        (A::ConnectionSni, HttpValue::Text(text)) => Matcher::Sni(text.clone()),
        (A::RequestPrincipal, HttpValue::Text(text)) => Matcher::RequestPrincipal(text.clone()),
        (A::RequestAudiences, HttpValue::Text(text)) => Matcher::RequestAudience(text.clone()),
        (A::RequestPresenter, HttpValue::Text(text)) => Matcher::RequestPresenter(text.clone()),
        (A::RequestClaim(path), HttpValue::Text(text)) => {
            Matcher::RequestClaim(path.clone(), text.clone())
        }
        (A::SourceIp, HttpValue::Net(net)) => Matcher::SourceIp(*net),
        (A::RemoteIp, HttpValue::Net(net)) => Matcher::RemoteIp(*net),
        (A::DestinationIp, HttpValue::Net(net)) => Matcher::DestinationIp(*net),
        (A::DestinationPort, HttpValue::Port(port)) => Matcher::DestinationPort(*port),
        (attribute, value) => {
            return Err(arcstr(&format!(
                "{attribute:?} cannot be compared with {value:?}"
            )));
        }
    })
}

/// Builds the matcher of a header. `Host` and the method are matched like headers, since they are pseudo-headers in
/// Envoy.
fn header(name: &str, pattern: &StringMatch) -> Result<Matcher, ArcStr> {
    match name {
        ":authority" | "host" => Ok(Matcher::Host(pattern.clone())),
        ":method" => Ok(Matcher::Method(pattern.clone())),
        _ => {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| arcstr(&format!("{name:?} is no header's name")))?;
            Ok(Matcher::Header(name, pattern.clone()))
        }
    }
}

fn arcstr(text: &str) -> ArcStr {
    text.into()
}
