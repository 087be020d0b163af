//! Compiled policies: every field of a source or an operation, and every condition, becomes a test of one attribute.

use ambit_model::{
    ArcStr, HttpAction, HttpAttribute, HttpCondition, HttpOperation, HttpPolicy, HttpRule,
    HttpSource, HttpValue, PathPattern, PolicyKey, StringMatch,
};
use http::HeaderName;

use super::{attributes::PolicyAttributes, matcher::Matcher};
use crate::readings::{PathMatcher, ReadingMode, is_same_name};

/// Compiled authorization policy.
#[derive(Debug)]
pub(super) struct CompiledPolicy {
    policy: HttpPolicy,
    rules: Vec<Rule>,
    /// Reason why the policy could not be decoded, so that it denies everything.
    decode_error: Option<ArcStr>,
}

#[derive(Debug)]
struct Rule {
    sources: Vec<Vec<AttributeTest>>,
    operations: Vec<Vec<AttributeTest>>,
    conditions: Vec<AttributeTest>,
    needs_http: bool,
}

/// Test of one attribute. One of `values` must match, unless the list is empty, and none of `excluded_values` may
/// match.
#[derive(Debug)]
struct AttributeTest {
    values: Vec<Matcher>,
    excluded_values: Vec<Matcher>,
}

impl CompiledPolicy {
    pub(super) fn new(policy: HttpPolicy) -> Self {
        let rules = policy.rules.iter().map(Rule::new).collect();
        let (rules, error) = match rules {
            Ok(rules) => (rules, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        Self {
            decode_error: policy.not_understood.clone().or(error),
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

    pub(super) fn is_dry_run(&self) -> bool {
        self.policy.dry_run
    }

    pub(super) fn action(&self) -> HttpAction {
        match self.decode_error {
            Some(_) => HttpAction::Deny,
            None => self.policy.action,
        }
    }

    pub(super) fn decode_error(&self) -> Option<&ArcStr> {
        self.decode_error.as_ref()
    }

    pub(super) fn needs_http(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs_http)
    }

    pub(super) fn reads_header(&self, name: &HeaderName) -> bool {
        let mut conditions = self.rules.iter().flat_map(|rule| &rule.conditions);
        conditions.any(|test| {
            let mut all = test.values.iter().chain(&test.excluded_values);
            all.any(|one| matches!(one, Matcher::Header(own, _) if is_same_name(own, name)))
        })
    }

    /// Returns the index of the first rule that matches.
    pub(super) fn matching_rule(&self, facts: &PolicyAttributes<'_>) -> Option<usize> {
        if self.decode_error.is_some() {
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
        let operations: Result<Vec<_>, _> = rule.operations.iter().map(compile_operation).collect();
        let conditions: Result<Vec<_>, _> = rule.conditions.iter().map(compile_condition).collect();
        let (operations, conditions) = (operations?, conditions?);
        let is_http = operations.iter().flatten().any(AttributeTest::is_http)
            || conditions.iter().any(AttributeTest::is_http);
        let sources: Vec<_> = rule.sources.iter().map(compile_source).collect();
        let is_http = is_http || sources.iter().flatten().any(AttributeTest::is_http);
        Ok(Self {
            sources,
            operations,
            conditions,
            needs_http: is_http,
        })
    }

    fn matches(&self, facts: &PolicyAttributes<'_>, action: HttpAction) -> bool {
        if self.needs_http && facts.http.is_none() && action == HttpAction::Allow {
            return false;
        }
        let all = |tests: &Vec<AttributeTest>| tests.iter().all(|test| test.matches(facts, action));
        let one_of = |alternatives: &[Vec<AttributeTest>]| {
            alternatives.is_empty() || alternatives.iter().any(all)
        };
        one_of(&self.sources) && one_of(&self.operations) && all(&self.conditions)
    }
}

impl AttributeTest {
    /// Builds the test of a policy field from its values and its excluded values; `None` for an unset field.
    fn new<T>(any: &[T], none: &[T], matcher: impl Fn(&T) -> Matcher) -> Option<Self> {
        let test = Self {
            values: any.iter().map(&matcher).collect(),
            excluded_values: none.iter().map(&matcher).collect(),
        };
        (!test.values.is_empty() || !test.excluded_values.is_empty()).then_some(test)
    }

    fn is_http(&self) -> bool {
        self.values
            .iter()
            .chain(&self.excluded_values)
            .any(Matcher::is_http)
    }

    fn matches(&self, facts: &PolicyAttributes<'_>, action: HttpAction) -> bool {
        if facts.http.is_none() && self.is_http() {
            // ALLOW rules with this field never reach this point; other rules match more without
            // it.
            return true;
        }
        let (any, none) = match action {
            HttpAction::Allow => (ReadingMode::AllReadings, ReadingMode::AnyReading),
            HttpAction::Deny | HttpAction::Audit | HttpAction::Custom => {
                (ReadingMode::AnyReading, ReadingMode::DenialException)
            }
        };
        let among = |values: &[Matcher], reading| values.iter().any(|v| v.matches(facts, reading));
        (self.values.is_empty() || among(&self.values, any)) && !among(&self.excluded_values, none)
    }
}

fn compile_source(source: &HttpSource) -> Vec<AttributeTest> {
    let s = source;
    let text = |any: &[StringMatch], none: &[StringMatch], matcher: fn(StringMatch) -> Matcher| {
        AttributeTest::new(any, none, |pattern| matcher(pattern.clone()))
    };
    [
        text(&s.principals, &s.not_principals, Matcher::Principal),
        text(&s.namespaces, &s.not_namespaces, Matcher::Namespace),
        text(&s.trust_domains, &s.not_trust_domains, Matcher::TrustDomain),
        AttributeTest::new(&s.service_accounts, &s.not_service_accounts, |account| {
            Matcher::ServiceAccount(account.clone())
        }),
        AttributeTest::new(&s.ip_blocks, &s.not_ip_blocks, |n| Matcher::SourceIp(*n)),
        AttributeTest::new(&s.remote_ip_blocks, &s.not_remote_ip_blocks, |net| {
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

fn compile_operation(operation: &HttpOperation) -> Result<Vec<AttributeTest>, ArcStr> {
    let o = operation;
    let paths = |patterns: &[PathPattern]| -> Result<Vec<_>, ArcStr> {
        patterns.iter().map(compile_path).collect()
    };
    let paths = AttributeTest {
        values: paths(&o.paths)?,
        excluded_values: paths(&o.not_paths)?,
    };
    let tests = [
        AttributeTest::new(&o.hosts, &o.not_hosts, |h| Matcher::Host(h.clone())),
        AttributeTest::new(&o.ports, &o.not_ports, |p| Matcher::DestinationPort(*p)),
        AttributeTest::new(&o.methods, &o.not_methods, |m| Matcher::Method(m.clone())),
        (!paths.values.is_empty() || !paths.excluded_values.is_empty()).then_some(paths),
    ];
    Ok(tests.into_iter().flatten().collect())
}

fn compile_path(pattern: &PathPattern) -> Result<Matcher, ArcStr> {
    Ok(Matcher::Path(Box::new(PathMatcher::from_policy(pattern)?)))
}

fn compile_condition(condition: &HttpCondition) -> Result<AttributeTest, ArcStr> {
    let attribute = &condition.attribute;
    let values = |values: &[HttpValue]| -> Result<Vec<_>, ArcStr> {
        values.iter().map(|v| compile_value(attribute, v)).collect()
    };
    Ok(AttributeTest {
        values: values(&condition.values)?,
        excluded_values: values(&condition.not_values)?,
    })
}

fn compile_value(attribute: &HttpAttribute, value: &HttpValue) -> Result<Matcher, ArcStr> {
    use HttpAttribute as A;
    Ok(match (attribute, value) {
        (A::Header(name), HttpValue::Text(text)) => compile_header(name, text)?,
        (A::SourceNamespace, HttpValue::Text(text)) => Matcher::Namespace(text.clone()),
        (A::SourceServiceAccount, HttpValue::Text(text)) => {
            Matcher::ServiceAccountPattern(text.clone())
        }
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
fn compile_header(name: &str, pattern: &StringMatch) -> Result<Matcher, ArcStr> {
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
