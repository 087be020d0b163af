//! Conversion of AuthorizationPolicies to policies of layer 7, which waypoints enforce.
//!
//! Attributes that waypoints do not support fail closed: an ALLOW policy loses the rule that has one; other policies
//! lose the attribute, so that their rule matches more. A note reports it.
//!
//! Values that cannot be parsed make the whole policy invalid: skipping an entry could make the policy allow more.

use ambit_k8s_api::{
    AuthorizationPolicy,
    istio::{Condition, Operation, PolicyAction, Rule as PolicyRule, Source},
    labels,
};
use ambit_model::{
    ArcStr, HttpAction, HttpAttribute, HttpCondition, HttpOperation, HttpPolicy, HttpRule,
    HttpSource, HttpValue, PathPattern, PathTemplate, PolicyKey, StringMatch,
};

use crate::{
    objects::authorization_policy::{
        metadata::{is_dry_run, namespace_of},
        values::{
            parse_ip_net, parse_list, parse_pattern, parse_patterns, parse_port,
            parse_service_account,
        },
    },
    problem::{FieldError, Note},
};

/// Converts a policy, without its targets, and returns notes on parts that have no effect or a reduced one.
pub(crate) fn http_policy(
    policy: &AuthorizationPolicy,
) -> Result<(HttpPolicy, Vec<Note>), FieldError> {
    let mut notes = Vec::new();
    let action = match policy.spec.action {
        PolicyAction::Allow => HttpAction::Allow,
        PolicyAction::Deny => HttpAction::Deny,
        PolicyAction::Audit => HttpAction::Audit,
        PolicyAction::Custom => HttpAction::Custom,
    };
    let dry_run = is_dry_run(policy)?;
    if dry_run && action == HttpAction::Custom {
        notes.push(Note::new(
            format!("metadata.annotations[{}]", labels::DRY_RUN),
            "dry-run calls no provider, and its decision is not known: the policy has no effect",
        ));
    }
    let namespace = namespace_of(policy);
    let mut rules = Vec::new();
    for (index, rule) in policy.spec.rules.iter().enumerate() {
        let mut reader = HttpRuleReader {
            namespace: &namespace,
            notes: &mut notes,
            unsupported: Vec::new(),
        };
        let at = format!("spec.rules[{index}]");
        let read = reader.convert_rule(rule, &at)?;
        let unsupported = reader.unsupported.join(", ");
        if unsupported.is_empty() {
            rules.push(read);
            continue;
        }
        let effect = match action {
            HttpAction::Allow => "this rule allows nothing",
            HttpAction::Deny => "without it this rule denies more",
            HttpAction::Audit => "without it this rule reports more",
            HttpAction::Custom => "without it the provider checks more requests",
        };
        let message = format!("{unsupported} is not supported: {effect}");
        notes.push(Note::new(at, message));
        if action != HttpAction::Allow {
            rules.push(read);
        }
    }
    let read = HttpPolicy {
        action,
        dry_run,
        rules,
        ..empty_policy(policy)
    };
    Ok((read, notes))
}

/// Returns the name of the provider of a CUSTOM policy; `None` for other actions.
pub(crate) fn provider(policy: &AuthorizationPolicy) -> Result<Option<ArcStr>, FieldError> {
    let given = policy.spec.provider.as_ref();
    let name = given.and_then(|provider| provider.get("name")?.as_str());
    let name = name.filter(|name| !name.is_empty());
    match (policy.spec.action, name) {
        (PolicyAction::Custom, None) => Err(FieldError::new(
            "spec.provider.name",
            "is missing: a CUSTOM policy names its provider",
        )),
        (PolicyAction::Custom, Some(name)) => Ok(Some(name.into())),
        (_, _) if given.is_some() => Err(FieldError::new(
            "spec.provider",
            "is for policies with the action CUSTOM alone",
        )),
        _ => Ok(None),
    }
}

/// Builds the substitute for an invalid policy, which denies all requests; `why` is the reason.
pub(crate) fn substitute(policy: &AuthorizationPolicy, why: &str) -> HttpPolicy {
    HttpPolicy {
        action: HttpAction::Deny,
        rules: vec![HttpRule::default()],
        not_understood: Some(why.into()),
        ..empty_policy(policy)
    }
}

fn empty_policy(policy: &AuthorizationPolicy) -> HttpPolicy {
    HttpPolicy {
        key: PolicyKey {
            namespace: namespace_of(policy),
            name: policy.metadata.name.as_deref().unwrap_or_default().into(),
        },
        ..HttpPolicy::default()
    }
}

/// Converter of one AuthorizationPolicy rule to a rule of waypoints, which collects notes.
struct HttpRuleReader<'a> {
    namespace: &'a ArcStr,
    notes: &'a mut Vec<Note>,
    /// Attributes that the rule uses and waypoints do not support.
    unsupported: Vec<String>,
}

impl HttpRuleReader<'_> {
    fn convert_rule(&mut self, rule: &PolicyRule, at: &str) -> Result<HttpRule, FieldError> {
        let mut read = HttpRule::default();
        for (index, from) in rule.from.iter().enumerate() {
            let at = format!("{at}.from[{index}].source");
            let source = from.source.as_ref();
            let source = source.filter(|source| **source != Source::default());
            let source = source.ok_or_else(|| {
                FieldError::new(
                    &at,
                    "must name at least one of principals, namespaces, ipBlocks, …",
                )
            })?;
            read.sources.push(self.convert_source(source, &at)?);
        }
        for (index, to) in rule.to.iter().enumerate() {
            let at = format!("{at}.to[{index}].operation");
            let operation = to.operation.as_ref();
            let operation = operation.filter(|one| **one != Operation::default());
            let operation = operation.ok_or_else(|| {
                FieldError::new(
                    &at,
                    "must name at least one of ports, hosts, methods, paths",
                )
            })?;
            read.operations
                .push(self.convert_operation(operation, &at)?);
        }
        for (index, condition) in rule.when.iter().enumerate() {
            let read_one = self.convert_condition(condition, &format!("{at}.when[{index}]"))?;
            read.conditions.extend(read_one);
        }
        Ok(read)
    }

    fn convert_source(&mut self, s: &Source, at: &str) -> Result<HttpSource, FieldError> {
        let field = |name: &str| format!("{at}.{name}");
        let mut names = |name, values: &[String]| parse_patterns(values, &field(name), self.notes);
        let account = |text: &str| parse_service_account(text, self.namespace);
        let accounts = |name, values: &[String]| parse_list(values, &field(name), account);
        let nets = |name, values: &[String]| parse_list(values, &field(name), parse_ip_net);
        let patterns = |name, values: &[String]| parse_list(values, &field(name), parse_pattern);
        Ok(HttpSource {
            principals: names("principals", &s.principals)?,
            not_principals: names("notPrincipals", &s.not_principals)?,
            namespaces: names("namespaces", &s.namespaces)?,
            not_namespaces: names("notNamespaces", &s.not_namespaces)?,
            trust_domains: names("trustDomains", &s.trust_domains)?,
            not_trust_domains: names("notTrustDomains", &s.not_trust_domains)?,
            service_accounts: accounts("serviceAccounts", &s.service_accounts)?,
            not_service_accounts: accounts("notServiceAccounts", &s.not_service_accounts)?,
            ip_blocks: nets("ipBlocks", &s.ip_blocks)?,
            not_ip_blocks: nets("notIpBlocks", &s.not_ip_blocks)?,
            remote_ip_blocks: nets("remoteIpBlocks", &s.remote_ip_blocks)?,
            not_remote_ip_blocks: nets("notRemoteIpBlocks", &s.not_remote_ip_blocks)?,
            request_principals: patterns("requestPrincipals", &s.request_principals)?,
            not_request_principals: patterns("notRequestPrincipals", &s.not_request_principals)?,
        })
    }

    fn convert_operation(&mut self, o: &Operation, at: &str) -> Result<HttpOperation, FieldError> {
        let field = |name: &str| format!("{at}.{name}");
        let ports = |name, values: &[String]| parse_list(values, &field(name), parse_port);
        let notes = &mut *self.notes;
        let mut hosts = |name, values: &[String]| {
            note_literal_stars(values, &field(name), notes);
            parse_list(values, &field(name), parse_pattern)
        };
        let (of_hosts, of_not_hosts) =
            (hosts("hosts", &o.hosts)?, hosts("notHosts", &o.not_hosts)?);
        let mut methods = |name, values: &[String]| {
            note_lower_case(values, &field(name), notes);
            parse_list(values, &field(name), parse_pattern)
        };
        let (of_methods, of_not_methods) = (
            methods("methods", &o.methods)?,
            methods("notMethods", &o.not_methods)?,
        );
        let mut paths = |name, values: &[String]| {
            note_literal_stars(values, &field(name), notes);
            note_unmatchable_paths(values, &field(name), notes);
            parse_list(values, &field(name), parse_path)
        };
        Ok(HttpOperation {
            hosts: of_hosts,
            not_hosts: of_not_hosts,
            ports: ports("ports", &o.ports)?,
            not_ports: ports("notPorts", &o.not_ports)?,
            methods: of_methods,
            not_methods: of_not_methods,
            paths: paths("paths", &o.paths)?,
            not_paths: paths("notPaths", &o.not_paths)?,
        })
    }

    /// Converts a condition of `when`; `None` if its attribute is not supported.
    fn convert_condition(
        &mut self,
        condition: &Condition,
        at: &str,
    ) -> Result<Option<HttpCondition>, FieldError> {
        if condition.values.is_empty() && condition.not_values.is_empty() {
            return Err(FieldError::new(at, "must have values or notValues"));
        }
        let (some, none) = (format!("{at}.values"), format!("{at}.notValues"));
        let Some(attribute) = parse_attribute(&condition.key, &format!("{at}.key"))? else {
            for (values, field) in [(&condition.values, &some), (&condition.not_values, &none)] {
                parse_list(values, field, |_| Ok(()))?;
            }
            let name = format!("{at}.key {}", condition.key);
            self.unsupported.push(name);
            return Ok(None);
        };
        let values = self.convert_values(&attribute, &condition.values, &some)?;
        let not_values = self.convert_values(&attribute, &condition.not_values, &none)?;
        Ok(Some(HttpCondition {
            attribute,
            values,
            not_values,
        }))
    }

    fn convert_values(
        &mut self,
        attribute: &HttpAttribute,
        values: &[String],
        field: &str,
    ) -> Result<Vec<HttpValue>, FieldError> {
        use HttpAttribute as A;
        match attribute {
            A::SourceIp | A::RemoteIp | A::DestinationIp => {
                parse_list(values, field, |text| parse_ip_net(text).map(HttpValue::Net))
            }
            A::DestinationPort => {
                parse_list(values, field, |text| parse_port(text).map(HttpValue::Port))
            }
            A::SourceServiceAccount => parse_list(values, field, |text| {
                let account = parse_service_account(text, self.namespace)?;
                let name = arcstr::format!("{}/{}", account.namespace, account.service_account);
                Ok(HttpValue::Text(StringMatch::Exact(name)))
            }),
            A::SourceNamespace | A::SourcePrincipal | A::SourceTrustDomain => {
                let names = parse_patterns(values, field, self.notes)?;
                Ok(names.into_iter().map(HttpValue::Text).collect())
            }
            A::Header(_)
            | A::ConnectionSni
            | A::RequestPrincipal
            | A::RequestAudiences
            | A::RequestPresenter
            | A::RequestClaim(_) => parse_list(values, field, |text| {
                parse_pattern(text).map(HttpValue::Text)
            }),
        }
    }
}

/// Parses the `key` of a `when` condition; `None` if waypoints do not support the attribute.
fn parse_attribute(key: &str, at: &str) -> Result<Option<HttpAttribute>, FieldError> {
    use HttpAttribute as A;
    Ok(Some(match key {
        "source.ip" => A::SourceIp,
        "remote.ip" => A::RemoteIp,
        "source.namespace" => A::SourceNamespace,
        "source.serviceAccount" => A::SourceServiceAccount,
        "source.trustDomain" => A::SourceTrustDomain,
        "source.principal" => A::SourcePrincipal,
        "destination.ip" => A::DestinationIp,
        "destination.port" => A::DestinationPort,
        "connection.sni" => A::ConnectionSni,
        "request.auth.principal" => A::RequestPrincipal,
        "request.auth.audiences" => A::RequestAudiences,
        "request.auth.presenter" => A::RequestPresenter,
        _ if key.starts_with("experimental.") => return Ok(None),
        _ if key.starts_with("request.auth.claims[") => A::RequestClaim(parse_claim(key, at)?),
        _ => {
            let name = key.strip_prefix("request.headers[");
            match name.and_then(|name| name.strip_suffix(']')) {
                Some(name) => A::Header(parse_header_name(name, at)?),
                None => {
                    let message = format!("{key:?} is not a known attribute");
                    return Err(FieldError::new(at, message));
                }
            }
        }
    }))
}

/// Parses the path of a JWT claim: `request.auth.claims[a][b]`.
fn parse_claim(key: &str, at: &str) -> Result<Vec<ArcStr>, FieldError> {
    let names = key.strip_prefix("request.auth.claims[");
    let names = names.and_then(|names| names.strip_suffix(']'));
    let names: Vec<_> = names
        .into_iter()
        .flat_map(|names| names.split("]["))
        .collect();
    let is_name = |name: &&str| !name.is_empty() && !name.contains(['[', ']']);
    if names.is_empty() || !names.iter().all(is_name) {
        let message = format!("{key:?} names no claim, as request.auth.claims[a][b] does");
        return Err(FieldError::new(at, message));
    }
    Ok(names.into_iter().map(ArcStr::from).collect())
}

/// Validates the name of a header, and returns it in lower case.
fn parse_header_name(name: &str, at: &str) -> Result<ArcStr, FieldError> {
    let lower = name.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let error = |message| Err(FieldError::new(at, message));
    match lower.as_str() {
        ":authority" | ":method" => Ok(lower.into()),
        ":path" => error(
            "paths are compared by to.operation.paths: the header is not normalized".to_owned(),
        ),
        _ if !lower.is_empty() && lower.bytes().all(is_token) => Ok(lower.into()),
        _ => error(format!("{name:?} is not the name of a header")),
    }
}

fn parse_path(text: &str) -> Result<PathPattern, String> {
    if PathTemplate::is_template(text) {
        let template = text.parse::<PathTemplate>();
        return match template {
            Ok(_) => Ok(PathPattern::Template(text.into())),
            Err(error) => Err(error.to_string()),
        };
    }
    parse_pattern(text).map(PathPattern::Text)
}

/// Adds a note with the text `why` for each value that `is_odd` returns true for.
fn note_values(
    values: &[String],
    field: &str,
    notes: &mut Vec<Note>,
    is_odd: impl Fn(&str) -> bool,
    why: &str,
) {
    for (index, value) in values.iter().enumerate().filter(|(_, v)| is_odd(v)) {
        notes.push(Note::new(
            format!("{field}[{index}]"),
            format!("{value:?} {why}"),
        ));
    }
}

fn note_literal_stars(values: &[String], field: &str, notes: &mut Vec<Note>) {
    let has_star = |text: &str| match StringMatch::from_pattern(text) {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) => {
            text.contains('*') && !PathTemplate::is_template(&text)
        }
        StringMatch::Presence => false,
    };
    let why = "is compared as it is written: '*' stands for other text only at the beginning or at the end";
    note_values(values, field, notes, has_star, why);
}

fn note_lower_case(values: &[String], field: &str, notes: &mut Vec<Note>) {
    let is_lower = |text: &str| text.contains(|c: char| c.is_ascii_lowercase());
    let why = "is compared with case: the methods of HTTP are written in capital letters";
    note_values(values, field, notes, is_lower, why);
}

fn note_unmatchable_paths(values: &[String], field: &str, notes: &mut Vec<Note>) {
    let is_none = |text: &str| !text.starts_with(['/', '*']) || text.contains(['?', '#']);
    let why = "matches no path: paths begin with a slash and are compared without their query";
    note_values(values, field, notes, is_none, why);
}

#[cfg(test)]
mod tests;
