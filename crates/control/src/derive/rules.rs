//! One rule of an AuthorizationPolicy, as node proxies evaluate it.
//!
//! Node proxies see connections only. Of an ALLOW policy, a rule that has a part about requests is left
//! out whole, so that it never allows more than was written. Of a DENY policy such parts are dropped
//! and the rest of the same match kept, so that it denies more rather than less; where nothing is left
//! of a clause, the rule can have no effect here, which a note says.
//!
//! Whatever cannot be understood is an error of the whole policy: an entry that is skipped could widen
//! it.

use std::net::IpAddr;

use ambit_k8s_api::{
    is_dns_name,
    istio::{Condition, Operation, Rule as PolicyRule, Source},
};
use ambit_model::{Action, ArcStr, Clause, Match, Rule, ServiceAccountMatch, StringMatch};
use ipnet::IpNet;

use crate::problems::{FieldError, Note};

/// What a rule became: usually one rule, several where sources had to be taken apart, none where the
/// rule is about requests.
pub(super) fn convert(
    rule: &PolicyRule,
    action: Action,
    namespace: &ArcStr,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<Rule>, FieldError> {
    let mut converter = Converter {
        namespace,
        notes,
        l7: Vec::new(),
    };
    let to = converter.operations(rule.to.as_deref(), at)?;
    let from = converter.sources(rule.from.as_deref(), at)?;
    let when = converter.conditions(rule.when.as_deref(), at)?;
    let l7 = std::mem::take(&mut converter.l7);
    if action == Action::Allow && !l7.is_empty() {
        let message = format!(
            "{} can only be judged by a waypoint: this rule allows nothing here",
            l7.join(", ")
        );
        notes.push(Note::new(at, message));
        return Ok(Vec::new());
    }
    let dead = |clause: &Clause| clause.iter().all(Match::is_empty);
    let no_effect = to.iter().chain(&when).any(dead)
        || from
            .as_ref()
            .is_some_and(|from| from.iter().flatten().all(dead));
    if !l7.is_empty() {
        let fields = l7.join(", ");
        notes.push(Note::new(
            at,
            if no_effect {
                format!("{fields} can only be judged by a waypoint: this rule denies nothing here")
            } else {
                format!("{fields} can only be judged by a waypoint: without it this rule denies more here")
            },
        ));
    }
    let common = |from: Vec<Clause>| -> Rule {
        to.clone()
            .into_iter()
            .chain(from)
            .chain(when.clone())
            .collect()
    };
    Ok(match from {
        None => vec![common(Vec::new())],
        // Sources that are one match each are one clause.
        Some(sources) if sources.iter().all(|clauses| clauses.len() == 1) => {
            vec![common(vec![
                sources.into_iter().flatten().flatten().collect(),
            ])]
        }
        // A source that takes several clauses needs a rule of its own.
        Some(sources) => sources.into_iter().map(common).collect(),
    })
}

struct Converter<'a> {
    namespace: &'a ArcStr,
    #[expect(dead_code, reason = "keeps the borrow in one place")]
    notes: &'a mut Vec<Note>,
    /// Fields about requests that were met.
    l7: Vec<String>,
}

type Values<'a> = Option<&'a [String]>;

impl Converter<'_> {
    fn operations(
        &mut self,
        to: Option<&[ambit_k8s_api::istio::RuleTo]>,
        at: &str,
    ) -> Result<Option<Clause>, FieldError> {
        let Some(to) = to else { return Ok(None) };
        let at = format!("{at}.to");
        not_empty(to, &at)?;
        let mut clause = Clause::new();
        for (index, one) in to.iter().enumerate() {
            let at = format!("{at}[{index}].operation");
            let operation = one
                .operation
                .as_ref()
                .filter(|operation| **operation != Operation::default())
                .ok_or_else(|| {
                    FieldError::new(
                        &at,
                        "must name at least one of ports, hosts, methods, paths",
                    )
                })?;
            let Operation {
                hosts,
                not_hosts,
                ports,
                not_ports,
                methods,
                not_methods,
                paths,
                not_paths,
            } = operation;
            for (name, values) in [
                ("hosts", hosts),
                ("notHosts", not_hosts),
                ("methods", methods),
                ("notMethods", not_methods),
                ("paths", paths),
                ("notPaths", not_paths),
            ] {
                self.request_field(values.as_deref(), &format!("{at}.{name}"))?;
            }
            clause.push(Match {
                destination_ports: list(ports.as_deref(), &format!("{at}.ports"), port)?,
                not_destination_ports: list(not_ports.as_deref(), &format!("{at}.notPorts"), port)?,
                ..Match::default()
            });
        }
        Ok(Some(clause))
    }

    /// For each source the clauses that must all hold.
    fn sources(
        &mut self,
        from: Option<&[ambit_k8s_api::istio::RuleFrom]>,
        at: &str,
    ) -> Result<Option<Vec<Vec<Clause>>>, FieldError> {
        let Some(from) = from else { return Ok(None) };
        let at = format!("{at}.from");
        not_empty(from, &at)?;
        let mut sources = Vec::new();
        for (index, one) in from.iter().enumerate() {
            let at = format!("{at}[{index}].source");
            let source = one
                .source
                .as_ref()
                .filter(|source| **source != Source::default())
                .ok_or_else(|| {
                    FieldError::new(
                        &at,
                        "must name at least one of principals, namespaces, ipBlocks, …",
                    )
                })?;
            sources.push(self.source(source, &at)?);
        }
        Ok(Some(sources))
    }

    fn source(&mut self, source: &Source, at: &str) -> Result<Vec<Clause>, FieldError> {
        let field = |name: &str| format!("{at}.{name}");
        for (name, values) in [
            ("requestPrincipals", &source.request_principals),
            ("notRequestPrincipals", &source.not_request_principals),
            ("remoteIpBlocks", &source.remote_ip_blocks),
            ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
        ] {
            self.request_field(values.as_deref(), &field(name))?;
        }
        let account = |text: &str| service_account(text, self.namespace);
        let mut matched = Match {
            principals: list(
                source.principals.as_deref(),
                &field("principals"),
                principal,
            )?,
            not_principals: list(
                source.not_principals.as_deref(),
                &field("notPrincipals"),
                principal,
            )?,
            namespaces: list(source.namespaces.as_deref(), &field("namespaces"), pattern)?,
            not_namespaces: list(
                source.not_namespaces.as_deref(),
                &field("notNamespaces"),
                pattern,
            )?,
            service_accounts: list(
                source.service_accounts.as_deref(),
                &field("serviceAccounts"),
                account,
            )?,
            not_service_accounts: list(
                source.not_service_accounts.as_deref(),
                &field("notServiceAccounts"),
                account,
            )?,
            source_ips: list(source.ip_blocks.as_deref(), &field("ipBlocks"), net)?,
            not_source_ips: list(source.not_ip_blocks.as_deref(), &field("notIpBlocks"), net)?,
            ..Match::default()
        };
        let domains = list(
            source.trust_domains.as_deref(),
            &field("trustDomains"),
            trust_domain,
        )?;
        // None of these and none of those: one list.
        matched.not_principals.extend(list(
            source.not_trust_domains.as_deref(),
            &field("notTrustDomains"),
            trust_domain,
        )?);
        if domains.is_empty() || matched.principals.is_empty() {
            matched.principals.extend(domains);
            return Ok(vec![vec![matched]]);
        }
        // One of these and one of those: two lists.
        let of_domains = Match {
            principals: domains,
            ..Match::default()
        };
        Ok(vec![vec![matched], vec![of_domains]])
    }

    fn conditions(
        &mut self,
        when: Option<&[Condition]>,
        at: &str,
    ) -> Result<Vec<Clause>, FieldError> {
        let Some(when) = when else {
            return Ok(Vec::new());
        };
        let at = format!("{at}.when");
        not_empty(when, &at)?;
        let mut clauses = Vec::new();
        for (index, condition) in when.iter().enumerate() {
            clauses.push(vec![self.condition(condition, &format!("{at}[{index}]"))?]);
        }
        Ok(clauses)
    }

    fn condition(&mut self, condition: &Condition, at: &str) -> Result<Match, FieldError> {
        let (values, not_values) = (condition.values.as_deref(), condition.not_values.as_deref());
        if values.is_none() && not_values.is_none() {
            return Err(FieldError::new(at, "must have values or notValues"));
        }
        let (some, none) = (format!("{at}.values"), format!("{at}.notValues"));
        let account = |text: &str| service_account(text, self.namespace);
        let empty = Match::default;
        Ok(match condition.key.as_str() {
            "source.ip" => Match {
                source_ips: list(values, &some, net)?,
                not_source_ips: list(not_values, &none, net)?,
                ..empty()
            },
            "source.namespace" => Match {
                namespaces: list(values, &some, pattern)?,
                not_namespaces: list(not_values, &none, pattern)?,
                ..empty()
            },
            "source.principal" => Match {
                principals: list(values, &some, principal)?,
                not_principals: list(not_values, &none, principal)?,
                ..empty()
            },
            "source.trustDomain" => Match {
                principals: list(values, &some, trust_domain)?,
                not_principals: list(not_values, &none, trust_domain)?,
                ..empty()
            },
            "source.serviceAccount" => Match {
                service_accounts: list(values, &some, account)?,
                not_service_accounts: list(not_values, &none, account)?,
                ..empty()
            },
            "destination.ip" => Match {
                destination_ips: list(values, &some, net)?,
                not_destination_ips: list(not_values, &none, net)?,
                ..empty()
            },
            "destination.port" => Match {
                destination_ports: list(values, &some, port)?,
                not_destination_ports: list(not_values, &none, port)?,
                ..empty()
            },
            key if is_request_key(key) => {
                for (values, field) in [(values, &some), (not_values, &none)] {
                    list(values, field, |_| Ok(()))?;
                }
                self.l7.push(format!("{at}.key {key}"));
                empty()
            }
            key => {
                return Err(FieldError::new(
                    format!("{at}.key"),
                    format!("{key:?} is not a known attribute"),
                ));
            }
        })
    }

    fn request_field(&mut self, values: Values<'_>, field: &str) -> Result<(), FieldError> {
        if values.is_some() {
            list(values, field, |_| Ok(()))?;
            self.l7.push(field.to_owned());
        }
        Ok(())
    }
}

fn is_request_key(key: &str) -> bool {
    [
        "request.headers[",
        "request.auth.",
        "experimental.envoy.filters.",
    ]
    .iter()
    .any(|prefix| key.starts_with(prefix))
        || matches!(key, "remote.ip" | "connection.sni" | "request.headers")
}

fn not_empty<T>(list: &[T], field: &str) -> Result<(), FieldError> {
    if list.is_empty() {
        return Err(FieldError::new(
            field,
            "is empty; leave it out, or name at least one entry",
        ));
    }
    Ok(())
}

fn list<T>(
    values: Values<'_>,
    field: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, FieldError> {
    let Some(values) = values else {
        return Ok(Vec::new());
    };
    not_empty(values, field)?;
    values
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let error = |message| FieldError::new(format!("{field}[{index}]"), message);
            if value.is_empty() {
                return Err(error("is empty".to_owned()));
            }
            read(value).map_err(error)
        })
        .collect()
}

fn pattern(text: &str) -> Result<StringMatch, String> {
    let inner = text
        .strip_prefix('*')
        .or_else(|| text.strip_suffix('*'))
        .unwrap_or(text);
    if inner.contains('*') {
        return Err(format!(
            "{text:?} may have '*' only at its beginning or at its end"
        ));
    }
    Ok(StringMatch::from_pattern(text))
}

/// Principals are compared without their scheme; many write it nevertheless.
fn principal(text: &str) -> Result<StringMatch, String> {
    match text.strip_prefix("spiffe://") {
        Some("") => Err(format!("{text:?} is not a principal")),
        Some(rest) => pattern(rest),
        None => pattern(text),
    }
}

/// A trust domain is how a principal begins.
fn trust_domain(text: &str) -> Result<StringMatch, String> {
    match pattern(text)? {
        StringMatch::Exact(domain) => Ok(StringMatch::Prefix(arcstr::format!("{domain}/"))),
        StringMatch::Suffix(_) => Err(format!(
            "{text:?}: a trust domain cannot be matched by its end; write it out"
        )),
        other => Ok(other),
    }
}

fn service_account(text: &str, namespace: &ArcStr) -> Result<ServiceAccountMatch, String> {
    let (namespace, account) = match text.split_once('/') {
        Some((namespace, account)) => (ArcStr::from(namespace), account),
        None => (namespace.clone(), text),
    };
    if !is_dns_name(&namespace, 63) || !is_dns_name(account, 253) {
        return Err(format!(
            "{text:?} is not <namespace>/<service account> or <service account>"
        ));
    }
    Ok(ServiceAccountMatch {
        namespace,
        service_account: account.into(),
    })
}

fn net(text: &str) -> Result<IpNet, String> {
    text.parse::<IpAddr>()
        .map(|ip| IpNet::from(ip.to_canonical()))
        .or_else(|_| text.parse::<IpNet>())
        .map(|net| net.trunc())
        .map_err(|_| format!("{text:?} is neither an IP address nor a prefix"))
}

fn port(text: &str) -> Result<u16, String> {
    text.parse::<u16>()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{text:?} is not a port, 1 to 65535"))
}
