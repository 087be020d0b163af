//! Whether one policy matches one connection: the contract's meaning, without optimization.
//!
//! Rules OR; clauses of a rule AND; matches of a clause OR; fields of a match AND; values of a field
//! OR; a `not_` field matches when none of its values does.

use std::net::IpAddr;

use ambit_model::{Authorization, Clause, Match, Rule, ServiceAccountMatch, StringMatch};
use ipnet::IpNet;

use crate::connection::{Connection, Peer};

/// Whether any rule of `policy` matches. A policy without rules never does.
pub fn matches_policy(policy: &Authorization, connection: &Connection) -> bool {
    matching_rule(policy, connection).is_some()
}

/// The first rule of `policy` that matches.
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

/// A clause without matches is true; one whose matches are all empty is not.
pub(crate) fn clause_matches(clause: &Clause, peer: &Peer<'_>) -> bool {
    clause.is_empty()
        || clause
            .iter()
            .any(|m| !m.is_empty() && match_matches(m, peer))
}

fn match_matches(m: &Match, peer: &Peer<'_>) -> bool {
    let Connection {
        source_ip,
        destination,
        ..
    } = peer.connection;
    let text = |matchers: &[StringMatch], text: Option<&str>| {
        text.is_some_and(|text| matchers.iter().any(|matcher| matcher.matches(text)))
    };
    let account = |matchers: &[ServiceAccountMatch]| {
        peer.connection.source.as_ref().is_some_and(|id| {
            matchers.iter().any(|matcher| {
                matcher.namespace == id.namespace && matcher.service_account == id.service_account
            })
        })
    };
    let within = |nets: &[IpNet], ip: IpAddr| nets.iter().any(|net| net.contains(&ip));

    holds(&m.namespaces, |v| text(v, peer.namespace()))
        && holds_not(&m.not_namespaces, |v| text(v, peer.namespace()))
        && holds(&m.principals, |v| text(v, peer.principal()))
        && holds_not(&m.not_principals, |v| text(v, peer.principal()))
        && holds(&m.service_accounts, account)
        && holds_not(&m.not_service_accounts, account)
        && holds(&m.source_ips, |v| within(v, *source_ip))
        && holds_not(&m.not_source_ips, |v| within(v, *source_ip))
        && holds(&m.destination_ips, |v| within(v, destination.ip()))
        && holds_not(&m.not_destination_ips, |v| within(v, destination.ip()))
        && holds(&m.destination_ports, |v| v.contains(&destination.port()))
        && holds_not(&m.not_destination_ports, |v| {
            v.contains(&destination.port())
        })
}

/// Evaluates one field of a match; an unset field is true.
fn holds<T>(values: &[T], any: impl FnOnce(&[T]) -> bool) -> bool {
    values.is_empty() || any(values)
}

fn holds_not<T>(values: &[T], any: impl FnOnce(&[T]) -> bool) -> bool {
    values.is_empty() || !any(values)
}
