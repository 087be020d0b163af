//! Names of the mesh's own trust domain (MeshConfig's `trustDomainAliases`). A policy with a principal under one of the
//! names applies to the same principal under all of them.

use ambit_model::{
    ArcStr, DEFAULT_TRUST_DOMAIN, HttpAttribute, HttpCondition, HttpPolicy, HttpSource, HttpValue,
    StringMatch,
};

/// Names of the mesh's own trust domain, which principals of policies may use interchangeably.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrustDomainNames {
    pub(crate) names: Vec<ArcStr>,
    /// Whether `cluster.local` in a principal means the mesh's own trust domain, whatever its name, as in Istio. False
    /// if `cluster.local` is a trust domain with other roots.
    pub(crate) owns_default_domain: bool,
}

impl TrustDomainNames {
    /// Whether a name is one of the mesh's own trust domain.
    pub(crate) fn contains(&self, domain: &str) -> bool {
        self.names.iter().any(|name| name == domain)
    }

    /// Whether expanding principals changes nothing, so that they are compared literally.
    pub(crate) fn needs_no_expansion(&self) -> bool {
        let has_default = self.contains(DEFAULT_TRUST_DOMAIN);
        self.names.len() < 2 && (has_default || !self.owns_default_domain)
    }

    /// Adds to principals of the mesh's trust domain the same principals under its other names.
    pub(crate) fn expand(&self, principals: Vec<StringMatch>) -> Vec<StringMatch> {
        let mut expanded = Vec::with_capacity(principals.len());
        for principal in principals {
            let under_others = self.principal_variants(&principal);
            for one in [principal].into_iter().chain(under_others) {
                if !expanded.contains(&one) {
                    expanded.push(one);
                }
            }
        }
        expanded
    }

    /// Expands the principals of a waypoint's policy to all names of the trust domain.
    pub(crate) fn expand_in_policy(&self, policy: &mut HttpPolicy) {
        let replace = |principals: &mut Vec<StringMatch>| {
            *principals = self.expand(std::mem::take(principals));
        };
        for rule in &mut policy.rules {
            for source in &mut rule.sources {
                let HttpSource {
                    principals,
                    not_principals,
                    ..
                } = source;
                replace(principals);
                replace(not_principals);
            }
            for condition in &mut rule.conditions {
                let HttpCondition {
                    attribute,
                    values,
                    not_values,
                } = condition;
                if *attribute == HttpAttribute::SourcePrincipal {
                    self.expand_values(values);
                    self.expand_values(not_values);
                }
            }
        }
    }

    fn expand_values(&self, values: &mut Vec<HttpValue>) {
        let texts = values.drain(..).filter_map(|value| match value {
            HttpValue::Text(text) => Some(text),
            // Principals are texts.
            HttpValue::Net(_) | HttpValue::Port(_) => None,
        });
        let texts = texts.collect();
        values.extend(self.expand(texts).into_iter().map(HttpValue::Text));
    }

    fn principal_variants(&self, principal: &StringMatch) -> Vec<StringMatch> {
        let is_end = |text: &str| !text.is_empty() && !text.contains('/');
        let each = |form: &dyn Fn(&ArcStr) -> StringMatch| self.names.iter().map(form).collect();
        match principal {
            StringMatch::Presence => Vec::new(),
            StringMatch::Exact(text) => match text.split_once('/') {
                Some((domain, rest)) if self.is_own_domain(domain) => {
                    each(&|name| StringMatch::Exact(arcstr::format!("{name}/{rest}")))
                }
                _ => Vec::new(),
            },
            StringMatch::Prefix(text) => match text.split_once('/') {
                Some((domain, rest)) if self.is_own_domain(domain) => {
                    each(&|name| StringMatch::Prefix(arcstr::format!("{name}/{rest}")))
                }
                // The beginning of a name of the trust domain.
                None if self.any_name_matches(|name| name.starts_with(text.as_str())) => {
                    each(&|name| StringMatch::Prefix(arcstr::format!("{name}/")))
                }
                _ => Vec::new(),
            },
            StringMatch::Suffix(text) => match text.split_once("/ns/") {
                // The end of a name of the trust domain, and a whole workload.
                Some((end, rest)) if is_end(end) && rest.contains("/sa/") => {
                    match self.any_name_matches(|name| name.ends_with(end)) {
                        true => {
                            each(&|name| StringMatch::Exact(arcstr::format!("{name}/ns/{rest}")))
                        }
                        false => Vec::new(),
                    }
                }
                _ => Vec::new(),
            },
        }
    }

    fn is_own_domain(&self, domain: &str) -> bool {
        self.any_name_matches(|name| name == domain)
    }

    fn any_name_matches(&self, is_meant: impl Fn(&str) -> bool) -> bool {
        let default = self.owns_default_domain.then_some(DEFAULT_TRUST_DOMAIN);
        let mut names = self.names.iter().map(ArcStr::as_str).chain(default);
        !self.names.is_empty() && names.any(is_meant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand_pattern(all: &[&str], is_default_own: bool, pattern: &str) -> Vec<String> {
        let names = TrustDomainNames {
            names: all.iter().map(|name| ArcStr::from(*name)).collect(),
            owns_default_domain: is_default_own,
        };
        let text = |one: StringMatch| match one {
            StringMatch::Exact(text) => text.to_string(),
            StringMatch::Prefix(text) => format!("{text}*"),
            StringMatch::Suffix(text) => format!("*{text}"),
            StringMatch::Presence => "*".to_owned(),
        };
        let expanded = names.expand(vec![StringMatch::from_pattern(pattern)]);
        expanded.into_iter().map(text).collect()
    }

    #[test]
    fn principals_of_the_own_trust_domain_have_all_its_names() {
        let names = ["new-td", "old-td"];
        for (pattern, expected) in [
            ("new-td/ns/a/sa/b", "new-td/ns/a/sa/b old-td/ns/a/sa/b"),
            ("old-td/ns/a/sa/b", "old-td/ns/a/sa/b new-td/ns/a/sa/b"),
            (
                "cluster.local/ns/a/sa/b",
                "cluster.local/ns/a/sa/b new-td/ns/a/sa/b old-td/ns/a/sa/b",
            ),
            ("old-td/ns/a/*", "old-td/ns/a/* new-td/ns/a/*"),
            ("old-td/*", "old-td/* new-td/*"),
            ("old-t*", "old-t* new-td/* old-td/*"),
            (
                "*-td/ns/a/sa/b",
                "*-td/ns/a/sa/b new-td/ns/a/sa/b old-td/ns/a/sa/b",
            ),
            // Of any trust domain as it is, of another one, or of none.
            ("*", "*"),
            ("*/ns/a/sa/b", "*/ns/a/sa/b"),
            ("*/sa/b", "*/sa/b"),
            ("*a/sa/b", "*a/sa/b"),
            ("west/ns/a/sa/b", "west/ns/a/sa/b"),
            ("west/*", "west/*"),
            ("new-td", "new-td"),
            ("new-td2/ns/a/sa/b", "new-td2/ns/a/sa/b"),
        ] {
            assert_eq!(expand_pattern(&names, true, pattern).join(" "), expected);
        }
    }

    #[test]
    fn the_default_name_is_another_mesh_where_it_has_roots() {
        let pattern = "cluster.local/ns/a/sa/b";
        assert_eq!(expand_pattern(&["td"], false, pattern), [pattern]);
        assert_eq!(
            expand_pattern(&["td"], true, pattern),
            [pattern, "td/ns/a/sa/b"]
        );
    }

    #[test]
    fn without_other_names_principals_are_literal() {
        let of = |all: &[&str], is_default_own| {
            let all = all.iter().map(|name| ArcStr::from(*name)).collect();
            TrustDomainNames {
                names: all,
                owns_default_domain: is_default_own,
            }
            .needs_no_expansion()
        };
        assert!(of(&["cluster.local"], true) && of(&["td"], false));
        assert!(!of(&["td"], true) && !of(&["cluster.local", "td"], true));
    }
}
