//! L4 authorization policies as the control plane sends them (`istio.security`).
//!
//! A policy matches if one of its rules does; a rule if all of its clauses do; a clause if one of its matches does; a
//! match if all of its fields do; a field if one of its values does. A `not_` field matches if none of its values does.

use std::fmt;

use arcstr::ArcStr;
use ipnet::IpNet;

/// Key of a policy, `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyKey {
    /// Namespace of the policy.
    pub namespace: ArcStr,
    /// Name of the policy.
    pub name: ArcStr,
}

impl PolicyKey {
    /// Parses the resource name of a policy. A name without a slash has an empty namespace.
    pub fn from_resource_name(name: &str) -> Self {
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Scope of a policy: the workloads to which it applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All workloads of the mesh.
    #[default]
    Global,
    /// Workloads of the policy's namespace.
    Namespace,
    /// Workloads that list the policy in `authorization_policies`.
    WorkloadSelector,
}

/// Action of a policy on the connections that it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Action {
    /// Connections that match are allowed.
    #[default]
    Allow,
    /// Connections that match are denied.
    Deny,
}

/// Layer 4 AuthorizationPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorization {
    /// Name of the policy.
    pub name: ArcStr,
    /// Namespace of the policy.
    pub namespace: ArcStr,
    /// Workloads to which the policy applies.
    pub scope: Scope,
    /// Action on connections that match.
    pub action: Action,
    /// Rules, of which one must match; a policy without rules never matches.
    pub rules: Vec<Rule>,
    /// Whether the policy's decisions are only logged and not enforced.
    pub dry_run: bool,
    /// Reason why the original policy could not be decoded in full, set on its fail-closed substitute, which denies
    /// every connection in its scope.
    pub not_understood: Option<ArcStr>,
}

impl Authorization {
    /// Returns the fail-closed substitute of a policy that could not be decoded in full. It denies every connection in
    /// its scope, unless the original is a dry run.
    pub fn substitute(key: PolicyKey, scope: Scope, dry_run: bool, why: ArcStr) -> Self {
        Self {
            name: key.name,
            namespace: key.namespace,
            scope,
            action: Action::Deny,
            rules: vec![Rule::new()],
            dry_run,
            not_understood: Some(why),
        }
    }

    /// Whether any clause of the policy has no matches. The API never sends such a clause and does not define its
    /// meaning.
    pub fn has_empty_clause(&self) -> bool {
        self.rules.iter().flatten().any(Vec::is_empty)
    }

    /// Returns the key of the policy.
    pub fn key(&self) -> PolicyKey {
        PolicyKey {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// Clauses that must all match; a rule without clauses matches everything.
pub type Rule = Vec<Clause>;

/// Matches, of which one must apply. The API defines no clause without matches, see
/// [`Authorization::has_empty_clause`].
pub type Clause = Vec<Match>;

/// Match on attributes of a connection. All fields that are set must match; a match without fields is skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the contract's, explained by the module"
)]
pub struct Match {
    pub namespaces: Vec<StringMatch>,
    pub not_namespaces: Vec<StringMatch>,
    pub principals: Vec<StringMatch>,
    pub not_principals: Vec<StringMatch>,
    pub service_accounts: Vec<ServiceAccountMatch>,
    pub not_service_accounts: Vec<ServiceAccountMatch>,
    pub source_ips: Vec<IpNet>,
    pub not_source_ips: Vec<IpNet>,
    pub destination_ips: Vec<IpNet>,
    pub not_destination_ips: Vec<IpNet>,
    pub destination_ports: Vec<u16>,
    pub not_destination_ports: Vec<u16>,
}

impl Match {
    /// Whether no field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Match on a service account in any trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceAccountMatch {
    /// Namespace of the service account.
    pub namespace: ArcStr,
    /// Name of the service account.
    pub service_account: ArcStr,
}

/// String match of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StringMatch {
    /// Text that the attribute must equal.
    Exact(ArcStr),
    /// Text with which the attribute must begin.
    Prefix(ArcStr),
    /// Text with which the attribute must end.
    Suffix(ArcStr),
    /// Presence of the attribute: any text that is not empty.
    Presence,
}

impl StringMatch {
    /// Parses a pattern: `*`, `*suffix`, `prefix*` or an exact text.
    pub fn from_pattern(pattern: &str) -> Self {
        if pattern == "*" {
            Self::Presence
        } else if let Some(suffix) = pattern.strip_prefix('*') {
            Self::Suffix(suffix.into())
        } else if let Some(prefix) = pattern.strip_suffix('*') {
            Self::Prefix(prefix.into())
        } else {
            Self::Exact(pattern.into())
        }
    }

    /// Whether the pattern matches `text`.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => text == exact,
            Self::Prefix(prefix) => text.starts_with(prefix.as_str()),
            Self::Suffix(suffix) => text.ends_with(suffix.as_str()),
            Self::Presence => !text.is_empty(),
        }
    }

    /// Whether the pattern matches the concatenation of the pieces.
    pub fn matches_concatenated<const N: usize>(&self, pieces: [&str; N]) -> bool {
        self.matches_concatenated_by(&pieces, u8::eq)
    }

    /// Whether the pattern matches the concatenation of the pieces, ignoring ASCII case.
    pub fn matches_ignoring_case<const N: usize>(&self, pieces: [&str; N]) -> bool {
        self.matches_concatenated_by(&pieces, u8::eq_ignore_ascii_case)
    }

    fn matches_concatenated_by(&self, pieces: &[&str], same: impl Fn(&u8, &u8) -> bool) -> bool {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let text = || pieces.iter().flat_map(|piece| piece.as_bytes());
        let begins = |with: &str| {
            with.len() <= length && with.as_bytes().iter().zip(text()).all(|(a, b)| same(a, b))
        };
        match self {
            Self::Exact(exact) => exact.len() == length && begins(exact),
            Self::Prefix(prefix) => begins(prefix),
            Self::Suffix(suffix) => {
                let ends = suffix.as_bytes().iter().rev().zip(text().rev());
                suffix.len() <= length && ends.into_iter().all(|(a, b)| same(a, b))
            }
            Self::Presence => length > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let matches = |pattern, text| StringMatch::from_pattern(pattern).matches(text);
        assert!(matches("*", "a") && !matches("*", ""));
        assert!(matches("*b", "ab") && !matches("*b", "ba"));
        assert!(matches("a*", "ab") && !matches("a*", "ba"));
        assert!(matches("ab", "ab") && !matches("ab", "abc"));
    }

    #[test]
    fn pieces_are_compared_as_one_text() {
        for pattern in ["*", "abcd", "ab*", "abc*", "*d", "*bcd", "abcd*", "*abcd"] {
            let pattern = StringMatch::from_pattern(pattern);
            assert!(
                pattern.matches_concatenated(["ab", "", "cd"]),
                "{pattern:?}"
            );
            assert!(
                pattern.matches_ignoring_case(["AB", "c", "D"]),
                "{pattern:?}"
            );
        }
        for pattern in ["abcde", "abc", "abx*", "*xd", "abcde*", "*zabcd", "ABCD"] {
            let pattern = StringMatch::from_pattern(pattern);
            assert!(!pattern.matches_concatenated(["ab", "cd"]), "{pattern:?}");
        }
        assert!(!StringMatch::Presence.matches_concatenated(["", ""]));
    }
}
