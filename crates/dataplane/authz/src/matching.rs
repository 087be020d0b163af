//! Matches one policy against one connection, without an index.
//!
//! A policy matches if one of its rules does; a rule if all of its clauses do; a clause if one of its matches does; a
//! match if all of its fields do; a field if one of its values does. A `not_` field matches if none of its values does.

use ambit_model::{Authorization, Clause, Match, Rule};

use crate::connection::{Connection, Peer};

/// Whether any rule of `policy` matches the connection. A policy without rules matches no connection.
pub fn matches_policy(policy: &Authorization, connection: &Connection) -> bool {
    matching_rule(policy, connection).is_some()
}

/// Returns the index of the first rule of `policy` that matches.
pub fn matching_rule(policy: &Authorization, connection: &Connection) -> Option<usize> {
    let peer = Peer::new(connection);
    policy
        .rules
        .iter()
        .position(|rule| rule_matches(rule, &peer))
}

pub(crate) fn rule_matches(rule: &Rule, peer: &Peer<'_>) -> bool {
    rule.iter().all(|clause| clause_matches(clause, peer))
}

/// Whether a clause matches the connection. A clause without matches always does; one whose matches are all empty never
/// does.
pub(crate) fn clause_matches(clause: &Clause, peer: &Peer<'_>) -> bool {
    clause.is_empty()
        || clause
            .iter()
            .any(|m| !m.is_empty() && all_fields_match(m, peer))
}

fn all_fields_match(m: &Match, peer: &Peer<'_>) -> bool {
    let of = &peer.attributes;
    field_matches(&m.namespaces, &m.not_namespaces, |v| of.has_namespace(v))
        && field_matches(&m.principals, &m.not_principals, |v| of.has_principal(v))
        && field_matches(&m.service_accounts, &m.not_service_accounts, |v| {
            of.has_account(v)
        })
        && field_matches(&m.source_ips, &m.not_source_ips, |v| {
            of.matches_source_range(v)
        })
        && field_matches(&m.destination_ips, &m.not_destination_ips, |v| {
            of.matches_destination_range(v)
        })
        && field_matches(&m.destination_ports, &m.not_destination_ports, |v| {
            of.matches_destination_port(*v)
        })
}

/// Whether one field of a match and its `not_` field both match; an empty field matches every connection.
fn field_matches<T>(values: &[T], not_values: &[T], matches: impl Fn(&T) -> bool) -> bool {
    (values.is_empty() || values.iter().any(&matches)) && !not_values.iter().any(&matches)
}
