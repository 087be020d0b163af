//! Over-approximation of a waypoint's L7 rules by principals, namespaces and ports, which node proxies can evaluate.

use crate::{Identity, StringMatch};

/// Connections to a workload to which an L7 rule of its waypoint could apply.
///
/// Node proxies cannot evaluate L7 rules, so the value covers at least every connection that the rule could match. The
/// default covers every connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WaypointRule {
    /// Ports of the workload; all of them if empty.
    pub ports: Vec<u16>,
    /// Principals of covered clients, without `spiffe://`. If [`Self::namespaces`] is empty, too, every client is
    /// covered.
    pub principals: Vec<StringMatch>,
    /// Namespaces of covered clients, in addition to [`Self::principals`].
    pub namespaces: Vec<StringMatch>,
}

impl WaypointRule {
    /// Whether the rule could apply to a connection of `caller` to `port`. A caller without an identity could be any
    /// client.
    pub fn covers(&self, caller: Option<&Identity>, port: u16) -> bool {
        let covers_every_caller = self.principals.is_empty() && self.namespaces.is_empty();
        let covers_caller = |caller: &Identity| {
            let principal = caller.principal();
            let mut principals = self.principals.iter();
            let mut namespaces = self.namespaces.iter();
            principals.any(|one| one.matches(&principal))
                || namespaces.any(|one| one.matches(&caller.namespace))
        };
        let covers_port = self.ports.is_empty() || self.ports.contains(&port);
        covers_port && (covers_every_caller || caller.is_none_or(covers_caller))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_covers_the_callers_and_ports_that_it_names() {
        let [a, b] = ["a", "b"].map(|name| Identity::new("td", name, name));
        let names = |text: &str| vec![StringMatch::from_pattern(text)];
        let everybody = WaypointRule::default();
        let by_principal = WaypointRule {
            principals: names("td/ns/a/sa/a"),
            ..WaypointRule::default()
        };
        let by_namespace = WaypointRule {
            namespaces: names("a"),
            ..WaypointRule::default()
        };
        let either = WaypointRule {
            principals: names("td/ns/b/*"),
            ..by_namespace.clone()
        };
        for (rule, covers_b) in [
            (everybody, true),
            (by_principal, false),
            (by_namespace, false),
            (either, true),
        ] {
            for ports in [vec![], vec![80]] {
                let rule = WaypointRule {
                    ports,
                    ..rule.clone()
                };
                assert!(
                    rule.covers(Some(&a), 80) && rule.covers(None, 80),
                    "{rule:?}"
                );
                assert_eq!(rule.covers(Some(&b), 80), covers_b, "{rule:?}");
                assert_eq!(rule.covers(Some(&a), 90), rule.ports.is_empty(), "{rule:?}");
            }
        }
    }
}
