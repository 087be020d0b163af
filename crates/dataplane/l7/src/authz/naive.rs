//! The meaning of policies, sentence by sentence and without any index or preparation: what evaluation is
//! compared with, by properties and by a fuzz target. Cases are made from bytes, of few and short words, so that
//! they often match.

use ambit_model::{
    HttpAction, HttpAttribute, HttpCondition, HttpOperation, HttpPolicy, HttpRule, HttpSource,
    HttpValue, Identity, NamespacedHostname, PathPattern, PathTemplate, PolicyKey,
    ServiceAccountMatch, StringMatch,
};
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;

use super::{Connection, Policies, Request, Scope, Why};
use crate::path;

/// Makes policies and requests from bytes, and panics where evaluation and the naive reading differ.
pub fn compare(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let mut known: Vec<HttpPolicy> = Vec::new();
    let mut policies = Policies::default();
    for _ in 0..bytes.up_to(6) {
        let policy = bytes.policy();
        known.retain(|other| other.key != policy.key);
        if bytes.one_in(8) {
            policies.remove(&policy.key);
            continue;
        }
        policies.insert(policy.clone());
        known.push(policy);
    }
    for _ in 0..4 {
        let call = bytes.call();
        check(&policies, &known, &call);
    }
}

fn check(policies: &Policies, known: &[HttpPolicy], call: &Call) {
    let scope = call.service.as_ref().map_or(Scope::Pod, Scope::Service);
    let connection = Connection {
        source: call.source.as_ref(),
        source_ip: call.source_ip.into(),
        remote_ip: call.remote_ip.into(),
        destination: (call.destination_ip, call.port).into(),
        sni: call.sni,
    };
    let decision = match call.is_http {
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
    };
    let applying: Vec<_> = known.iter().filter(|p| applies(p, call)).collect();
    let of = |action, dry_run| {
        let all = applying.iter();
        all.filter(move |p| effect(p) == action && p.dry_run == dry_run)
    };
    let denies = of(HttpAction::Deny, false).any(|p| matches(p, call));
    let has_allow = of(HttpAction::Allow, false).next().is_some();
    let admits = of(HttpAction::Allow, false).any(|p| matches(p, call));
    let allowed = !denies && (admits || !has_allow);
    assert_eq!(decision.is_allowed(), allowed, "{known:#?} {call:#?}");

    let named = |key: &PolicyKey| applying.iter().find(|policy| policy.key == *key);
    match &decision.why {
        Why::NoAllowPolicies => assert!(!has_allow),
        Why::NoneAllows => assert!(has_allow && !admits),
        Why::Allowed(rule) | Why::Denied(rule) => {
            let policy = named(&rule.policy);
            assert!(policy.is_some_and(|policy| {
                let rule = policy.rules.get(rule.rule);
                rule.is_some_and(|rule| rule_matches(rule, policy.action, call))
            }));
        }
        Why::NotUnderstood { policy, .. } => {
            assert!(named(policy).is_some_and(|policy| policy.not_understood.is_some()));
        }
    }
    let admits_dry = admits || of(HttpAction::Allow, true).any(|p| matches(p, call));
    let mut dry: Vec<_> = of(HttpAction::Deny, true)
        .filter(|p| matches(p, call))
        .chain(of(HttpAction::Allow, true).filter(|_| !admits_dry))
        .map(|policy| policy.key.clone())
        .collect();
    let mut told: Vec<_> = decision.dry_run.into_iter().map(|d| d.policy).collect();
    dry.sort();
    told.sort();
    assert_eq!(told, dry);
    let audits = [true, false].map(|dry_run| {
        let all = of(HttpAction::Audit, dry_run);
        all.filter(|p| matches(p, call)).count()
    });
    assert_eq!(decision.audits.len(), audits.iter().sum::<usize>());
}

fn effect(policy: &HttpPolicy) -> HttpAction {
    match policy.not_understood {
        Some(_) => HttpAction::Deny,
        None => policy.action,
    }
}

fn applies(policy: &HttpPolicy, call: &Call) -> bool {
    let service = call.service.as_ref();
    policy.for_gateway || service.is_some_and(|service| policy.services.contains(service))
}

fn matches(policy: &HttpPolicy, call: &Call) -> bool {
    let mut rules = policy.rules.iter();
    policy.not_understood.is_some() || rules.any(|rule| rule_matches(rule, policy.action, call))
}

fn rule_matches(rule: &HttpRule, action: HttpAction, call: &Call) -> bool {
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
    (rule.sources.is_empty() || sources.into_iter().any(|s| source(s, call)))
        && (rule.operations.is_empty()
            || operations.into_iter().any(|o| operation(o, action, call)))
        && conditions.all(|c| condition(c, action, call))
}

fn source(s: &HttpSource, call: &Call) -> bool {
    let id = call.source.as_ref();
    let text = |any: &[StringMatch], none: &[StringMatch], actual: Option<String>| {
        one_of(any, none, |wanted| {
            actual.as_ref().is_some_and(|a| text(wanted, a))
        })
    };
    let account = |wanted: &ServiceAccountMatch| {
        id.is_some_and(|id| {
            wanted.namespace == id.namespace && wanted.service_account == id.service_account
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
    ) && one_of(&s.service_accounts, &s.not_service_accounts, account)
        && one_of(&s.ip_blocks, &s.not_ip_blocks, within(call.source_ip))
        && one_of(
            &s.remote_ip_blocks,
            &s.not_remote_ip_blocks,
            within(call.remote_ip),
        )
}

fn operation(o: &HttpOperation, action: HttpAction, call: &Call) -> bool {
    let ports = one_of(&o.ports, &o.not_ports, |port| *port == call.port);
    if !call.is_http {
        return ports;
    }
    let as_path = |pattern: &PathPattern, path: &str| match pattern {
        PathPattern::Text(wanted) => text(wanted, path),
        PathPattern::Template(template) => {
            let template = template.parse::<PathTemplate>();
            template.is_ok_and(|template| template.matches(path))
        }
    };
    let plain = |pattern: &PathPattern| as_path(pattern, call.path);
    let any = |pattern: &PathPattern| {
        plain(pattern) || path::decoded(call.path).is_some_and(|path| as_path(pattern, &path))
    };
    let paths = match action {
        HttpAction::Allow => {
            (o.paths.is_empty() || o.paths.iter().any(plain)) && !o.not_paths.iter().any(any)
        }
        _ => (o.paths.is_empty() || o.paths.iter().any(any)) && !o.not_paths.iter().any(plain),
    };
    ports
        && paths
        && one_of(&o.hosts, &o.not_hosts, |wanted| host(wanted, call.host))
        && one_of(&o.methods, &o.not_methods, |wanted| {
            text(wanted, call.method)
        })
}

fn condition(c: &HttpCondition, action: HttpAction, call: &Call) -> bool {
    use HttpAttribute as A;
    if let A::Header(name) = &c.attribute {
        if !call.is_http {
            return true;
        }
        let lines: Vec<_> = call.headers.get_all(name.as_str()).iter().collect();
        let lines: Vec<_> = lines
            .iter()
            .map(|l| l.to_str().unwrap_or_default())
            .collect();
        let mut readings = lines.clone();
        let joined = lines.join(",");
        readings.push(&joined);
        let of = |value: &HttpValue, reading: &str| match value {
            HttpValue::Text(StringMatch::Presence) => true,
            HttpValue::Text(wanted) => text(wanted, reading),
            _ => false,
        };
        let any = |v: &HttpValue| !lines.is_empty() && readings.iter().any(|r| of(v, r));
        let plain = |v: &HttpValue| !lines.is_empty() && readings.iter().all(|r| of(v, r));
        return match action {
            HttpAction::Allow => {
                (c.values.is_empty() || c.values.iter().any(plain)) && !c.not_values.iter().any(any)
            }
            _ => {
                (c.values.is_empty() || c.values.iter().any(any)) && !c.not_values.iter().any(plain)
            }
        };
    }
    let id = call.source.as_ref();
    one_of(&c.values, &c.not_values, |value| {
        match (&c.attribute, value) {
            (A::SourceIp, HttpValue::Net(net)) => {
                net.contains(&std::net::IpAddr::from(call.source_ip))
            }
            (A::DestinationPort, HttpValue::Port(port)) => *port == call.port,
            (A::SourceServiceAccount, HttpValue::Text(wanted)) => id.is_some_and(|id| {
                text(wanted, &format!("{}/{}", id.namespace, id.service_account))
            }),
            (A::ConnectionSni, HttpValue::Text(wanted)) => call
                .sni
                .is_some_and(|sni| text(wanted, &sni.to_lowercase())),
            _ => false,
        }
    })
}

fn one_of<T>(any: &[T], none: &[T], matches: impl Fn(&T) -> bool) -> bool {
    (any.is_empty() || any.iter().any(&matches)) && !none.iter().any(&matches)
}

fn text(wanted: &StringMatch, actual: &str) -> bool {
    match wanted {
        StringMatch::Exact(text) => actual == text.as_str(),
        StringMatch::Prefix(text) => actual.find(text.as_str()) == Some(0),
        StringMatch::Suffix(text) => {
            let at = actual.len().checked_sub(text.len());
            at.is_some_and(|at| actual.get(at..) == Some(text.as_str()))
        }
        StringMatch::Presence => !actual.is_empty(),
    }
}

/// Hosts and patterns are made below, in lower case but for the hosts.
fn host(wanted: &StringMatch, host: &str) -> bool {
    let lower = host.to_lowercase();
    let (name, port) = match lower.split_once(':') {
        Some((name, port)) => (name, format!(":{port}")),
        None => (lower.as_str(), String::new()),
    };
    let name = name.trim_end_matches('.');
    let has_port = match wanted {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) => {
            text.contains(':')
        }
        StringMatch::Presence => false,
    };
    match has_port {
        true => text(wanted, &lower) || text(wanted, &format!("{name}{port}")),
        false => text(wanted, name),
    }
}

/// What is judged.
#[derive(Debug)]
struct Call {
    is_http: bool,
    service: Option<NamespacedHostname>,
    source: Option<Identity>,
    source_ip: [u8; 4],
    remote_ip: [u8; 4],
    destination_ip: [u8; 4],
    port: u16,
    sni: Option<&'static str>,
    method: &'static str,
    host: &'static str,
    path: &'static str,
    headers: HeaderMap,
}

/// Choices, each made by a byte; the first one where there are no more.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn up_to(&mut self, limit: u8) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                first % limit
            }
            None => 0,
        }
    }

    fn one_in(&mut self, chances: u8) -> bool {
        self.up_to(chances) == chances - 1
    }

    fn among<T: Copy + Default>(&mut self, choices: &[T]) -> T {
        let count = u8::try_from(choices.len()).unwrap_or(u8::MAX);
        let choice = self.up_to(count.max(1));
        choices
            .get(usize::from(choice))
            .copied()
            .unwrap_or_default()
    }

    /// Mostly none, for most fields are not given.
    fn few<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        let count = match self.up_to(8) {
            7 => 2,
            5 | 6 => 1,
            _ => 0,
        };
        (0..count).map(|_| make(self)).collect()
    }

    fn patterns(&mut self, choices: &[&str]) -> Vec<StringMatch> {
        self.few(|bytes| StringMatch::from_pattern(bytes.among(choices)))
    }

    fn nets(&mut self) -> Vec<IpNet> {
        self.few(|bytes| {
            let (last, length) = (bytes.up_to(4), bytes.among(&[32, 0, 31]));
            IpNet::new_assert(std::net::IpAddr::from([10, 0, 0, last]), length)
        })
    }

    fn service(&mut self) -> NamespacedHostname {
        NamespacedHostname {
            namespace: "ns".into(),
            hostname: self.among(&["a", "b"]).into(),
        }
    }

    fn policy(&mut self) -> HttpPolicy {
        let action = self.up_to(5);
        HttpPolicy {
            key: PolicyKey::of_record(self.among(&["ns/a", "ns/b", "ns/c", "ns/d", "ns/e"])),
            for_gateway: self.up_to(2) == 0,
            services: self.few(Self::service),
            action: match action {
                0 | 1 => HttpAction::Allow,
                2 | 3 => HttpAction::Deny,
                _ => HttpAction::Audit,
            },
            dry_run: self.one_in(6),
            rules: (0..self.up_to(3)).map(|_| self.rule()).collect(),
            not_understood: self.one_in(12).then(|| "odd".into()),
            provider: None,
        }
    }

    fn rule(&mut self) -> HttpRule {
        HttpRule {
            sources: self.few(Self::source),
            operations: self.few(Self::operation),
            conditions: self.few(Self::condition),
        }
    }

    fn source(&mut self) -> HttpSource {
        const PRINCIPALS: &[&str] = &["td/ns/a/sa/b", "td/*", "*/sa/b", "*", "td/ns/a/sa/"];
        const WORDS: &[&str] = &["a", "b", "*", "a*", "*b"];
        let account = |bytes: &mut Self| ServiceAccountMatch {
            namespace: bytes.among(&["a", "b"]).into(),
            service_account: bytes.among(&["a", "b"]).into(),
        };
        HttpSource {
            principals: self.patterns(PRINCIPALS),
            not_principals: self.patterns(PRINCIPALS),
            namespaces: self.patterns(WORDS),
            not_namespaces: self.patterns(WORDS),
            service_accounts: self.few(account),
            not_service_accounts: self.few(account),
            trust_domains: self.patterns(&["td", "t*", "x"]),
            not_trust_domains: self.patterns(&["td", "x"]),
            ip_blocks: self.nets(),
            not_ip_blocks: self.nets(),
            remote_ip_blocks: self.nets(),
            not_remote_ip_blocks: self.nets(),
            request_principals: Vec::new(),
            not_request_principals: Vec::new(),
        }
    }

    fn operation(&mut self) -> HttpOperation {
        const HOSTS: &[&str] = &["a.com", "*.com", "a.*", "*", "a.com:80", "*:80", "a.com:*"];
        const METHODS: &[&str] = &["GET", "PUT", "*", "G*", "get"];
        let port = |bytes: &mut Self| bytes.among(&[80, 81]);
        HttpOperation {
            hosts: self.patterns(HOSTS),
            not_hosts: self.patterns(HOSTS),
            ports: self.few(port),
            not_ports: self.few(port),
            methods: self.patterns(METHODS),
            not_methods: self.patterns(METHODS),
            paths: self.few(Self::path),
            not_paths: self.few(Self::path),
        }
    }

    fn path(&mut self) -> PathPattern {
        let text = self.among(&[
            "/admin",
            "/admin/*",
            "*.css",
            "*",
            "/{*}",
            "/admin/{**}",
            "/",
            "/{*}/x",
            "/@me",
        ]);
        match PathTemplate::is_template(text) {
            true => PathPattern::Template(text.into()),
            false => PathPattern::Text(StringMatch::from_pattern(text)),
        }
    }

    fn condition(&mut self) -> HttpCondition {
        use HttpAttribute as A;
        let attribute = match self.up_to(5) {
            0 => A::Header("x-a".into()),
            1 => A::SourceIp,
            2 => A::DestinationPort,
            3 => A::SourceServiceAccount,
            _ => A::ConnectionSni,
        };
        let value = |bytes: &mut Self| match attribute {
            A::SourceIp => {
                let net = IpNet::new_assert([10, 0, 0, bytes.up_to(4)].into(), 32);
                HttpValue::Net(net)
            }
            A::DestinationPort => HttpValue::Port(bytes.among(&[80, 81])),
            _ => HttpValue::Text(StringMatch::from_pattern(bytes.among(&[
                "1", "1*", "*2", "*", "a/b", "a/*", "*/b", "a.com", "1,2", "*.com",
            ]))),
        };
        HttpCondition {
            values: self.few(value),
            not_values: self.few(value),
            attribute,
        }
    }

    fn call(&mut self) -> Call {
        let mut headers = HeaderMap::new();
        for _ in 0..self.up_to(4) {
            let value = self.among(&["1", "2", "12", "3"]);
            headers.append("x-a", HeaderValue::from_static(value));
        }
        let has_source = !self.one_in(4);
        Call {
            is_http: !self.one_in(4),
            service: (self.up_to(3) > 0).then(|| self.service()),
            source: has_source
                .then(|| Identity::new("td", self.among(&["a", "b"]), self.among(&["b", "a"]))),
            source_ip: [10, 0, 0, self.up_to(4)],
            remote_ip: [10, 0, 0, self.up_to(4)],
            destination_ip: [10, 0, 0, self.up_to(4)],
            port: self.among(&[80, 81]),
            sni: self.one_in(2).then(|| self.among(&["A.com", "b.com"])),
            method: self.among(&["GET", "PUT"]),
            host: self.among(&[
                "a.com",
                "A.com:80",
                "b.com",
                "a.com.",
                "a.com.:80",
                "",
                "a.com:",
            ]),
            path: self.among(&[
                "/admin",
                "//admin",
                "/admin;x",
                "/admin%2Fb",
                "/a/b.css",
                "/",
                "/%40me",
                "/admin/x",
            ]),
            headers,
        }
    }
}
