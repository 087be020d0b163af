//! Workload identities: SPIFFE IDs of the form `spiffe://<trust domain>/ns/<namespace>/sa/<account>`.

use std::{fmt, str::FromStr};

use arcstr::ArcStr;

/// Identity of a workload: a SPIFFE ID in the form that Istio issues.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Trust domain, for instance `cluster.local`.
    pub trust_domain: ArcStr,
    /// Namespace of the service account.
    pub namespace: ArcStr,
    /// Kubernetes service account.
    pub service_account: ArcStr,
}

/// Error of a text that is not a SPIFFE ID in the form that Istio issues.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not spiffe://<trust domain>/ns/<namespace>/sa/<service account>")]
pub struct ParseIdentityError(String);

/// Service account in the identity that waypoints use for their own calls on behalf of a namespace's objects. No
/// ServiceAccount can have this name, since Kubernetes names contain no underscore.
pub const WAYPOINT_CALLS_ACCOUNT: &str = "waypoint_calls";

impl Identity {
    /// Returns the identity that waypoints use for their own calls on behalf of objects in a namespace.
    pub fn for_waypoint_calls(
        trust_domain: impl Into<ArcStr>,
        namespace: impl Into<ArcStr>,
    ) -> Self {
        Self::new(trust_domain, namespace, WAYPOINT_CALLS_ACCOUNT)
    }

    /// Whether this is the identity that waypoints use for their own calls. No pod has the identity.
    pub fn is_for_waypoint_calls(&self) -> bool {
        self.service_account == WAYPOINT_CALLS_ACCOUNT
    }

    /// Creates an identity from trust domain, namespace and service account.
    pub fn new(
        trust_domain: impl Into<ArcStr>,
        namespace: impl Into<ArcStr>,
        service_account: impl Into<ArcStr>,
    ) -> Self {
        Self {
            trust_domain: trust_domain.into(),
            namespace: namespace.into(),
            service_account: service_account.into(),
        }
    }

    /// Returns the principal that policies match: the SPIFFE ID without its scheme.
    pub fn principal(&self) -> String {
        format!(
            "{}/ns/{}/sa/{}",
            self.trust_domain, self.namespace, self.service_account
        )
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trust_domain,
            namespace,
            service_account,
        } = self;
        write!(
            f,
            "spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}"
        )
    }
}

impl FromStr for Identity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdentityError(text.chars().take(256).collect());
        let rest = text.strip_prefix("spiffe://").ok_or_else(error)?;
        let mut parts = rest.split('/');
        let mut next = || {
            parts
                .next()
                .filter(|part| !part.is_empty())
                .ok_or_else(error)
        };
        let trust_domain = next()?;
        let ns = next()?;
        let namespace = next()?;
        let sa = next()?;
        let service_account = next()?;
        if ns != "ns" || sa != "sa" || parts.next().is_some() {
            return Err(error());
        }
        Ok(Self::new(trust_domain, namespace, service_account))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_parse_their_display_form() {
        let id = Identity::new("td", "default", "client");
        assert_eq!(id.to_string(), "spiffe://td/ns/default/sa/client");
        assert_eq!(id.to_string().parse(), Ok(id.clone()));
        assert_eq!(id.principal(), "td/ns/default/sa/client");
    }

    #[test]
    fn other_forms_are_rejected() {
        for text in [
            "",
            "td/ns/a/sa/b",
            "spiffe://td/ns/a/sa/",
            "spiffe://td/ns/a/sa/b/c",
            "spiffe:///ns/a/sa/b",
            "spiffe://td/namespace/a/sa/b",
            "https://td/ns/a/sa/b",
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text:?}");
        }
    }
}
