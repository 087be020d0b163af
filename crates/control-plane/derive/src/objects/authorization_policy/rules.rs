//! Conversion of AuthorizationPolicy rules to rules that node proxies enforce.
//!
//! Node proxies see connections only. An ALLOW policy loses every rule with a field about requests, so that it never
//! allows more than was written. A DENY policy loses such fields and keeps the rest of the same match, so that it
//! denies more rather than less; a rule with a clause that lost all its fields denies nothing here, which a note
//! reports.
//!
//! Values that cannot be parsed make the whole policy invalid: skipping an entry could make the policy allow more.

use ambit_k8s_api::istio::{Condition, Operation, Rule as PolicyRule, RuleFrom, RuleTo, Source};
use ambit_model::{Action, ArcStr, Clause, Match, Rule, StringMatch};

use crate::{
    objects::{
        authorization_policy::values::{
            matches_no_principal, parse_ip_net, parse_list, parse_patterns, parse_port,
            parse_service_account,
        },
        trust_domain_names::TrustDomainNames,
    },
    problem::{FieldError, Note},
};

/// Converts a rule: usually to one rule, to several if a source needs more than one clause, to none if an ALLOW rule
/// has fields about requests. Principals of the mesh's trust domain are expanded to all `names` of it.
pub(crate) fn convert_rule(
    rule: &PolicyRule,
    action: Action,
    namespace: &ArcStr,
    names: &TrustDomainNames,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<Rule>, FieldError> {
    let mut converter = RuleConverter {
        namespace,
        names,
        notes,
        request_fields: Vec::new(),
    };
    let to = converter.convert_operations(&rule.to, at)?;
    let from = converter.convert_sources(&rule.from, at)?;
    let when = converter.convert_conditions(&rule.when, at)?;
    let l7 = converter.request_fields;
    if action == Action::Allow && !l7.is_empty() {
        let message = format!(
            "{} can only be evaluated by a waypoint: this rule allows nothing here",
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
                format!("{fields} can only be evaluated by a waypoint: this rule denies nothing here")
            } else {
                format!("{fields} can only be evaluated by a waypoint: without it this rule denies more here")
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

struct RuleConverter<'a> {
    namespace: &'a ArcStr,
    names: &'a TrustDomainNames,
    notes: &'a mut Vec<Note>,
    /// Fields about requests (layer 7) that the rule uses.
    request_fields: Vec<String>,
}

impl RuleConverter<'_> {
    fn convert_operations(
        &mut self,
        to: &[RuleTo],
        at: &str,
    ) -> Result<Option<Clause>, FieldError> {
        if to.is_empty() {
            return Ok(None);
        }
        let at = format!("{at}.to");
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
                self.record_request_field(values, &format!("{at}.{name}"))?;
            }
            clause.push(Match {
                destination_ports: parse_list(ports, &format!("{at}.ports"), parse_port)?,
                not_destination_ports: parse_list(
                    not_ports,
                    &format!("{at}.notPorts"),
                    parse_port,
                )?,
                ..Match::default()
            });
        }
        Ok(Some(clause))
    }

    /// Converts the `from` of a rule: for each source, the clauses that must all match; `None` without `from`.
    fn convert_sources(
        &mut self,
        from: &[RuleFrom],
        at: &str,
    ) -> Result<Option<Vec<Vec<Clause>>>, FieldError> {
        if from.is_empty() {
            return Ok(None);
        }
        let at = format!("{at}.from");
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
            sources.push(self.convert_source(source, &at)?);
        }
        Ok(Some(sources))
    }

    fn convert_source(&mut self, source: &Source, at: &str) -> Result<Vec<Clause>, FieldError> {
        let field = |name: &str| format!("{at}.{name}");
        for (name, values) in [
            ("requestPrincipals", &source.request_principals),
            ("notRequestPrincipals", &source.not_request_principals),
            ("remoteIpBlocks", &source.remote_ip_blocks),
            ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
        ] {
            self.record_request_field(values, &field(name))?;
        }
        let account = |text: &str| parse_service_account(text, self.namespace);
        let mut matched = Match {
            principals: self.convert_principals(&source.principals, &field("principals"))?,
            not_principals: self
                .convert_principals(&source.not_principals, &field("notPrincipals"))?,
            namespaces: self.convert_patterns(&source.namespaces, &field("namespaces"))?,
            not_namespaces: self
                .convert_patterns(&source.not_namespaces, &field("notNamespaces"))?,
            service_accounts: parse_list(
                &source.service_accounts,
                &field("serviceAccounts"),
                account,
            )?,
            not_service_accounts: parse_list(
                &source.not_service_accounts,
                &field("notServiceAccounts"),
                account,
            )?,
            source_ips: parse_list(&source.ip_blocks, &field("ipBlocks"), parse_ip_net)?,
            not_source_ips: parse_list(&source.not_ip_blocks, &field("notIpBlocks"), parse_ip_net)?,
            ..Match::default()
        };
        let domains = parse_list(
            &source.trust_domains,
            &field("trustDomains"),
            parse_trust_domain,
        )?;
        // None of these and none of those: one list.
        matched.not_principals.extend(parse_list(
            &source.not_trust_domains,
            &field("notTrustDomains"),
            parse_trust_domain,
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

    fn convert_conditions(
        &mut self,
        when: &[Condition],
        at: &str,
    ) -> Result<Vec<Clause>, FieldError> {
        let at = format!("{at}.when");
        let mut clauses = Vec::new();
        for (index, condition) in when.iter().enumerate() {
            clauses.push(vec![
                self.convert_condition(condition, &format!("{at}[{index}]"))?,
            ]);
        }
        Ok(clauses)
    }

    fn convert_condition(&mut self, condition: &Condition, at: &str) -> Result<Match, FieldError> {
        let (values, not_values) = (&condition.values, &condition.not_values);
        if values.is_empty() && not_values.is_empty() {
            return Err(FieldError::new(at, "must have values or notValues"));
        }
        let (some, none) = (format!("{at}.values"), format!("{at}.notValues"));
        let account = |text: &str| parse_service_account(text, self.namespace);
        let empty = Match::default;
        Ok(match condition.key.as_str() {
            "source.ip" => Match {
                source_ips: parse_list(values, &some, parse_ip_net)?,
                not_source_ips: parse_list(not_values, &none, parse_ip_net)?,
                ..empty()
            },
            "source.namespace" => Match {
                namespaces: self.convert_patterns(values, &some)?,
                not_namespaces: self.convert_patterns(not_values, &none)?,
                ..empty()
            },
            "source.principal" => Match {
                principals: self.convert_principals(values, &some)?,
                not_principals: self.convert_principals(not_values, &none)?,
                ..empty()
            },
            "source.trustDomain" => Match {
                principals: parse_list(values, &some, parse_trust_domain)?,
                not_principals: parse_list(not_values, &none, parse_trust_domain)?,
                ..empty()
            },
            "source.serviceAccount" => Match {
                service_accounts: parse_list(values, &some, account)?,
                not_service_accounts: parse_list(not_values, &none, account)?,
                ..empty()
            },
            "destination.ip" => Match {
                destination_ips: parse_list(values, &some, parse_ip_net)?,
                not_destination_ips: parse_list(not_values, &none, parse_ip_net)?,
                ..empty()
            },
            "destination.port" => Match {
                destination_ports: parse_list(values, &some, parse_port)?,
                not_destination_ports: parse_list(not_values, &none, parse_port)?,
                ..empty()
            },
            key if is_request_key(key) => {
                for (values, field) in [(values, &some), (not_values, &none)] {
                    parse_list(values, field, |_| Ok(()))?;
                }
                self.request_fields.push(format!("{at}.key {key}"));
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

    fn convert_principals(
        &mut self,
        values: &[String],
        field: &str,
    ) -> Result<Vec<StringMatch>, FieldError> {
        Ok(self.names.expand(self.convert_patterns(values, field)?))
    }

    fn convert_patterns(
        &mut self,
        values: &[String],
        field: &str,
    ) -> Result<Vec<StringMatch>, FieldError> {
        parse_patterns(values, field, self.notes)
    }

    fn record_request_field(&mut self, values: &[String], field: &str) -> Result<(), FieldError> {
        if !values.is_empty() {
            parse_list(values, field, |_| Ok(()))?;
            self.request_fields.push(field.to_owned());
        }
        Ok(())
    }
}

/// Whether a rule compares principals of clients.
pub(crate) fn names_principals(rule: &PolicyRule) -> bool {
    let sources = rule.from.iter().filter_map(|from| from.source.as_ref());
    let mut names = sources.map(|source| (&source.principals, &source.not_principals));
    names.any(|(some, none)| !some.is_empty() || !none.is_empty())
        || rule.when.iter().any(|when| when.key == "source.principal")
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

/// Converts a trust domain to a match of the prefix of principals.
fn parse_trust_domain(text: &str) -> Result<StringMatch, String> {
    match StringMatch::from_pattern(text) {
        _ if matches_no_principal(text) => Err(format!("{text:?} is not a trust domain")),
        StringMatch::Exact(domain) => Ok(StringMatch::Prefix(arcstr::format!("{domain}/"))),
        StringMatch::Suffix(_) => Err(format!(
            "{text:?}: a trust domain cannot be matched by its end; write it out"
        )),
        other => Ok(other),
    }
}

/// Returns the path of the first field that compares properties of the client.
pub(crate) fn first_client_field(rules: &[PolicyRule]) -> Option<String> {
    let mut rules = rules.iter().enumerate();
    rules.find_map(|(number, rule)| {
        let at = format!("spec.rules[{number}]");
        let mut from = rule.from.iter();
        let from = from.position(|from| from.source.is_some());
        let when = || {
            let mut when = rule.when.iter();
            when.position(|when| when.key.starts_with("source."))
        };
        let from = from.map(|number| format!("{at}.from[{number}]"));
        from.or_else(|| Some(format!("{at}.when[{}]", when()?)))
    })
}
