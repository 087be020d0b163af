//! Reference implementation of authorization policies, without index or compilation. Property tests and a fuzz target
//! compare the optimized evaluation with it, on test cases generated from bytes.

mod cases;

use ambit_model::{
    HttpAction, HttpAttribute, HttpCondition, HttpOperation, HttpPolicy, HttpRule, HttpSource,
    HttpValue, Identity, PathPattern, PathTemplate, PolicyKey, ServiceAccountMatch, StringMatch,
};
use ipnet::IpNet;

use cases::{CallTarget, FuzzInput, GeneratedRequest};

use super::{Connection, DecisionReason, HttpDecision, Policies, Request, Scope, ServicePort};
use crate::path;

/// Generates policies and requests from bytes, and panics if the evaluation differs from that of the reference
/// implementation.
pub fn compare_with_reference(bytes: &[u8]) {
    let mut bytes = FuzzInput(bytes);
    let mut known: Vec<HttpPolicy> = Vec::new();
    let mut policies = Policies::default();
    for _ in 0..bytes.number_up_to(6) {
        let policy = bytes.policy();
        known.retain(|other| other.key != policy.key);
        if bytes.one_chance_in(8) {
            policies.remove(&policy.key);
            continue;
        }
        policies.insert(policy.clone());
        known.push(policy);
    }
    for _ in 0..4 {
        let call = bytes.request();
        check_decisions(&policies, &known, &call);
    }
}

fn evaluate(policies: &Policies, scope: Scope<'_>, call: &GeneratedRequest) -> HttpDecision {
    let connection = Connection {
        source: call.source.as_ref(),
        source_ip: call.source_ip.into(),
        remote_ip: call.remote_ip.into(),
        destination: (call.destination_ip, call.port).into(),
        sni: call.sni,
    };
    match call.is_http {
        true => policies.evaluate(
            scope,
            &Request {
                connection,
                method: call.method,
                host: call.host,
                path: call.path,
                headers: &call.headers,
                claims: None,
            },
        ),
        false => policies.evaluate_connection(scope, &connection),
    }
}

fn check_decisions(policies: &Policies, known: &[HttpPolicy], call: &GeneratedRequest) {
    let ports: Vec<_> = call.ports().collect();
    let scope = match &call.target {
        CallTarget::Service(service) => Scope::Service(service),
        CallTarget::Pod(_) => Scope::Pod(&ports),
    };
    let decision = evaluate(policies, scope, call);
    // Scopes of a policy: the pod's own address, and the addresses of services that forward to it.
    let at = |policy: &HttpPolicy, port: &ServicePort| -> Vec<GeneratedRequest> {
        let there = call.with_port(port.address.port());
        match (policy.for_gateway, policy.services.contains(&port.service)) {
            (true, _) => vec![call.clone(), there],
            (false, true) => vec![there],
            (false, false) => Vec::new(),
        }
    };
    let everywhere = |policy: &HttpPolicy| -> Vec<GeneratedRequest> {
        let own = (policy.for_gateway || call.is_target_of(policy)).then(|| call.clone());
        let of_ports = ports.iter().flat_map(|port| at(policy, port));
        own.into_iter().chain(of_ports).collect()
    };
    let matches_any =
        |policy: &HttpPolicy, calls: &[GeneratedRequest]| calls.iter().any(|c| matches(policy, c));
    let applying: Vec<_> = known.iter().filter(|p| !everywhere(p).is_empty()).collect();
    let of = |action, dry_run| {
        let all = applying.iter();
        all.filter(move |p| effective_action(p) == action && p.dry_run == dry_run)
    };
    let denies = of(HttpAction::Deny, false).any(|p| matches_any(p, &everywhere(p)));
    // Each service port has to allow the request; without service ports, the waypoint itself.
    let scopes: Vec<Option<&ServicePort>> = match ports.is_empty() {
        true => vec![None],
        false => ports.iter().map(Some).collect(),
    };
    let calls = |scope: Option<&ServicePort>, policy: &HttpPolicy| match scope {
        Some(port) => at(policy, port),
        None => everywhere(policy),
    };
    let has_allow = |scope| of(HttpAction::Allow, false).any(|p| !calls(scope, p).is_empty());
    let admits =
        |scope, dry_run| of(HttpAction::Allow, dry_run).any(|p| matches_any(p, &calls(scope, p)));
    let refuses = |scope| has_allow(scope) && !admits(scope, false);
    let allowed = !denies && !scopes.iter().any(|scope| refuses(*scope));
    assert_eq!(decision.is_allowed(), allowed, "{known:#?} {call:#?}");

    let named = |key: &PolicyKey| applying.iter().find(|policy| policy.key == *key);
    match &decision.reason {
        DecisionReason::NoAllowPolicies => assert!(!scopes.iter().any(|scope| has_allow(*scope))),
        DecisionReason::NoAllowPolicyMatched => assert!(scopes.iter().any(|scope| refuses(*scope))),
        DecisionReason::AllowedByRule(rule) | DecisionReason::DeniedByRule(rule) => {
            let policy = named(&rule.policy);
            assert!(policy.is_some_and(|policy| {
                let rule = policy.rules.get(rule.rule);
                let mut calls = everywhere(policy).into_iter();
                rule.is_some_and(|rule| calls.any(|c| rule_matches(rule, policy.action, &c)))
            }));
        }
        DecisionReason::InvalidPolicy { policy, .. } => {
            assert!(named(policy).is_some_and(|policy| policy.not_understood.is_some()));
        }
    }
    let audits = [true, false].map(|dry_run| {
        let all = of(HttpAction::Audit, dry_run);
        all.filter(|p| matches_any(p, &everywhere(p))).count()
    });
    let mut reported: Vec<_> = decision
        .matched_audit_rules
        .iter()
        .map(|rule| &rule.policy)
        .collect();
    reported.sort();
    reported.dedup();
    assert_eq!(reported.len(), audits.iter().sum::<usize>());
    if ports.is_empty() {
        let admits_dry = admits(None, false) || admits(None, true);
        let mut dry: Vec<_> = of(HttpAction::Deny, true)
            .filter(|p| matches_any(p, &everywhere(p)))
            .chain(of(HttpAction::Allow, true).filter(|_| !admits_dry))
            .map(|policy| policy.key.clone())
            .collect();
        let mut reported: Vec<_> = decision
            .dry_run_denials
            .into_iter()
            .map(|d| d.policy)
            .collect();
        dry.sort();
        reported.sort();
        assert_eq!(reported, dry);
    }
}

fn effective_action(policy: &HttpPolicy) -> HttpAction {
    match policy.not_understood {
        Some(_) => HttpAction::Deny,
        None => policy.action,
    }
}

fn matches(policy: &HttpPolicy, call: &GeneratedRequest) -> bool {
    let mut rules = policy.rules.iter();
    policy.not_understood.is_some() || rules.any(|rule| rule_matches(rule, policy.action, call))
}

fn rule_matches(rule: &HttpRule, action: HttpAction, call: &GeneratedRequest) -> bool {
    let is_http = |o: &HttpOperation| {
        let texts = [&o.hosts, &o.not_hosts, &o.methods, &o.not_methods];
        let paths = [&o.paths, &o.not_paths];
        texts.iter().any(|t| !t.is_empty()) || paths.iter().any(|p| !p.is_empty())
    };
    let is_header = |c: &HttpCondition| {
        let is_empty = c.values.is_empty() && c.not_values.is_empty();
        matches!(c.attribute, HttpAttribute::Header(_)) && !is_empty
    };
    let asks_http = rule.operations.iter().any(is_http) || rule.conditions.iter().any(is_header);
    if asks_http && !call.is_http && action == HttpAction::Allow {
        return false;
    }
    let sources = rule.sources.iter();
    let operations = rule.operations.iter();
    let mut conditions = rule.conditions.iter();
    (rule.sources.is_empty() || sources.into_iter().any(|s| source_matches(s, call)))
        && (rule.operations.is_empty()
            || operations
                .into_iter()
                .any(|o| operation_matches(o, action, call)))
        && conditions.all(|c| condition_matches(c, action, call))
}

fn source_matches(s: &HttpSource, call: &GeneratedRequest) -> bool {
    let id = call.source.as_ref();
    let text = |any: &[StringMatch], none: &[StringMatch], actual: Option<String>| {
        matches_any_excluding(any, none, |pattern| {
            actual.as_ref().is_some_and(|a| text_matches(pattern, a))
        })
    };
    let account = |pattern: &ServiceAccountMatch| {
        id.is_some_and(|id| {
            pattern.namespace == id.namespace && pattern.service_account == id.service_account
        })
    };
    let within = |ip: [u8; 4]| move |net: &IpNet| net.contains(&std::net::IpAddr::from(ip));
    text(
        &s.principals,
        &s.not_principals,
        id.map(Identity::principal),
    ) && text(
        &s.namespaces,
        &s.not_namespaces,
        id.map(|id| id.namespace.to_string()),
    ) && text(
        &s.trust_domains,
        &s.not_trust_domains,
        id.map(|id| id.trust_domain.to_string()),
    ) && matches_any_excluding(&s.service_accounts, &s.not_service_accounts, account)
        && matches_any_excluding(&s.ip_blocks, &s.not_ip_blocks, within(call.source_ip))
        && matches_any_excluding(
            &s.remote_ip_blocks,
            &s.not_remote_ip_blocks,
            within(call.remote_ip),
        )
}

fn operation_matches(o: &HttpOperation, action: HttpAction, call: &GeneratedRequest) -> bool {
    let ports = matches_any_excluding(&o.ports, &o.not_ports, |port| *port == call.port);
    if !call.is_http {
        return ports;
    }
    // Patterns and paths in these cases mean the same to every server in lower case.
    let as_path = |pattern: &PathPattern, path: &str, is_lower: bool| match pattern {
        PathPattern::Text(pattern) => text_matches(&lowercased(pattern, is_lower), path),
        PathPattern::Template(template) => {
            let template = template.parse::<PathTemplate>();
            template.is_ok_and(|template| template.matches(path))
        }
    };
    let plain = |pattern: &PathPattern| as_path(pattern, call.path, false);
    let read = |pattern: &PathPattern, path: &str| {
        let bare = path.strip_suffix('/').filter(|bare| !bare.is_empty());
        as_path(pattern, path, true) || bare.is_some_and(|path| as_path(pattern, path, true))
    };
    let readings = |path: &str| {
        let lenient = path::path_readings(path);
        let own = lenient.is_empty().then(|| path.to_owned());
        lenient.into_iter().chain(own)
    };
    let original = call.headers.get("x-original-url");
    let original = original.map(|path| path.to_str().unwrap_or_default());
    let any = |pattern: &PathPattern| {
        let mut paths = [Some(call.path), original].into_iter().flatten();
        paths.any(|path| {
            as_path(pattern, path, false) || readings(path).any(|path| read(pattern, &path))
        })
    };
    let all = |pattern: &PathPattern| {
        let is_exact = matches!(pattern, PathPattern::Text(StringMatch::Exact(_)));
        plain(pattern) && (is_exact || readings(call.path).all(|path| read(pattern, &path)))
    };
    let except = |pattern: &PathPattern| {
        let is_exact = matches!(pattern, PathPattern::Text(StringMatch::Exact(_)));
        [Some(call.path), original]
            .into_iter()
            .flatten()
            .all(|path| {
                as_path(pattern, path, false)
                    && (is_exact || readings(path).all(|path| read(pattern, &path)))
            })
    };
    let any_method = |pattern: &StringMatch| {
        let replaced = call.headers.get("x-http-method-override");
        let replaced = replaced.map(|method| method.to_str().unwrap_or_default());
        [Some(call.method), replaced]
            .into_iter()
            .flatten()
            .any(|method| text_matches(&lowercased(pattern, true), &method.to_lowercase()))
    };
    let plain_method = |pattern: &StringMatch| text_matches(pattern, call.method);
    let except_method = |pattern: &StringMatch| {
        let replaced = call.headers.get("x-http-method-override");
        let replaced = replaced.map(|method| method.to_str().unwrap_or_default());
        text_matches(pattern, call.method)
            && replaced.is_none_or(|method| text_matches(pattern, method))
    };
    let forwarded = call.headers.get("x-forwarded-host");
    let forwarded = forwarded.map(|host| host.to_str().unwrap_or_default());
    let hosts = [Some(call.host), forwarded];
    let any_host = |pattern: &StringMatch| {
        hosts.into_iter().flatten().any(|one| {
            let name = host_name(one);
            let dialled = format!("{name}:{}", call.port);
            host_matches(pattern, one)
                || !name.is_empty() && has_port(pattern) && text_matches(pattern, &dialled)
        })
    };
    let plain_host = |pattern: &StringMatch| host_matches(pattern, call.host);
    let except_host = |pattern: &StringMatch| {
        let mut all = hosts.into_iter().flatten();
        all.all(|one| host_matches(pattern, one))
    };
    let denies = action != HttpAction::Allow;
    ports
        && field_matches(denies, (&o.paths, &o.not_paths), any, (all, except))
        && field_matches(
            denies,
            (&o.hosts, &o.not_hosts),
            any_host,
            (plain_host, except_host),
        )
        && field_matches(
            denies,
            (&o.methods, &o.not_methods),
            any_method,
            (plain_method, except_method),
        )
}

/// Evaluates one field of a rule, with its values and excluded values. In a denial, a value matches by any reading, and
/// an exception only by all readings, including override headers. In a permission, a value matches only by all
/// readings, and an exception by any.
fn field_matches<T>(
    denies: bool,
    (values, exceptions): (&[T], &[T]),
    any: impl Fn(&T) -> bool,
    (all, except): (impl Fn(&T) -> bool, impl Fn(&T) -> bool),
) -> bool {
    if denies {
        (values.is_empty() || values.iter().any(any)) && !exceptions.iter().any(except)
    } else {
        (values.is_empty() || values.iter().any(all)) && !exceptions.iter().any(any)
    }
}

fn lowercased(pattern: &StringMatch, is_lower: bool) -> StringMatch {
    let lower = |text: &ambit_model::ArcStr| match is_lower {
        true => text.to_lowercase().into(),
        false => text.clone(),
    };
    match pattern {
        StringMatch::Exact(text) => StringMatch::Exact(lower(text)),
        StringMatch::Prefix(text) => StringMatch::Prefix(lower(text)),
        StringMatch::Suffix(text) => StringMatch::Suffix(lower(text)),
        StringMatch::Presence => StringMatch::Presence,
    }
}

fn condition_matches(c: &HttpCondition, action: HttpAction, call: &GeneratedRequest) -> bool {
    use HttpAttribute as A;
    if let A::Header(name) = &c.attribute {
        if !call.is_http {
            return true;
        }
        let of_name = |name: &str| {
            let lines = call.headers.get_all(name).into_iter();
            let lines = lines.map(|line| line.to_str().unwrap_or_default());
            lines.collect::<Vec<_>>()
        };
        let own = of_name(name);
        let others = of_name(&name.replace('-', "_"));
        let lines = [own.clone(), others.clone()].concat();
        let swapped = [others, own.clone()].concat();
        let elements: Vec<_> = lines
            .iter()
            .flat_map(|line| line.split(','))
            .map(str::trim)
            .collect();
        let joined = [&lines, &swapped].map(|lines| [lines.join(","), lines.join(", ")]);
        let joined = joined.concat();
        let pattern = |value: &HttpValue| match value {
            HttpValue::Text(pattern) => pattern.clone(),
            _ => StringMatch::Exact("never".into()),
        };
        let any = |value: &HttpValue| match pattern(value) {
            StringMatch::Presence => !lines.is_empty(),
            pattern => {
                let joined = joined
                    .iter()
                    .map(String::as_str)
                    .filter(|_| !lines.is_empty());
                let all = lines.iter().chain(&elements).copied();
                all.chain(joined)
                    .any(|reading| text_matches(&pattern, reading))
            }
        };
        let all = |value: &HttpValue| match pattern(value) {
            StringMatch::Presence => !own.is_empty(),
            pattern => {
                let is_exact = matches!(pattern, StringMatch::Exact(_));
                !own.is_empty()
                    && text_matches(&pattern, &own.join(","))
                    && lines.iter().all(|line| text_matches(&pattern, line))
                    && (is_exact
                        || elements
                            .iter()
                            .all(|element| text_matches(&pattern, element)))
            }
        };
        let denies = action != HttpAction::Allow;
        return field_matches(denies, (&c.values, &c.not_values), any, (&all, &all));
    }
    let id = call.source.as_ref();
    matches_any_excluding(&c.values, &c.not_values, |value| {
        match (&c.attribute, value) {
            (A::SourceIp, HttpValue::Net(net)) => {
                net.contains(&std::net::IpAddr::from(call.source_ip))
            }
            (A::DestinationPort, HttpValue::Port(port)) => *port == call.port,
            (A::SourceServiceAccount, HttpValue::Text(pattern)) => id.is_some_and(|id| {
                text_matches(pattern, &format!("{}/{}", id.namespace, id.service_account))
            }),
            (A::ConnectionSni, HttpValue::Text(pattern)) => call
                .sni
                .is_some_and(|sni| text_matches(pattern, &sni.to_lowercase())),
            _ => false,
        }
    })
}

fn matches_any_excluding<T>(any: &[T], none: &[T], matches: impl Fn(&T) -> bool) -> bool {
    (any.is_empty() || any.iter().any(&matches)) && !none.iter().any(&matches)
}

fn text_matches(pattern: &StringMatch, actual: &str) -> bool {
    match pattern {
        StringMatch::Exact(text) => actual == text.as_str(),
        StringMatch::Prefix(text) => actual.find(text.as_str()) == Some(0),
        StringMatch::Suffix(text) => {
            let at = actual.len().checked_sub(text.len());
            at.is_some_and(|at| actual.get(at..) == Some(text.as_str()))
        }
        StringMatch::Presence => !actual.is_empty(),
    }
}

fn host_name(host: &str) -> String {
    let name = host.split(':').next().unwrap_or_default();
    name.to_lowercase().trim_end_matches('.').to_owned()
}

fn has_port(pattern: &StringMatch) -> bool {
    match pattern {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) => {
            text.contains(':')
        }
        StringMatch::Presence => false,
    }
}

/// Whether a host matches a pattern. Only generated hosts and patterns are supported: patterns are in lower case.
fn host_matches(pattern: &StringMatch, host: &str) -> bool {
    let lower = host.to_lowercase();
    let name = host_name(host);
    let port = lower
        .split_once(':')
        .map_or(String::new(), |(_, port)| format!(":{port}"));
    match has_port(pattern) {
        true => text_matches(pattern, &lower) || text_matches(pattern, &format!("{name}{port}")),
        false => text_matches(pattern, &name),
    }
}
