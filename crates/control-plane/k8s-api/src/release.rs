//! Releases of the Gateway API: of which one a cluster's definitions are, and which are known.

use std::collections::BTreeMap;

/// Annotation of the definitions: their release.
pub const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";

/// The first release whose Gateways and routes are `v1`, and the last one that was read when this was written.
const KNOWN: [(u64, u64); 2] = [(1, 0), (1, 6)];

/// Reason why the release of the definitions is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownRelease {
    /// Definitions that do not name their release.
    #[error(
        "the definitions of the Gateway API do not say of which release they are (annotation {BUNDLE_VERSION}): install a release's own, v1.0 to v1.6"
    )]
    Unsaid,
    /// Release that is unknown here.
    #[error(
        "the definitions of the Gateway API are those of {0}; known are v1.0 to v1.6: what others add has no effect"
    )]
    Other(String),
}

/// The release that the annotations of a definition name, if it is a known one.
///
/// # Errors
/// When it is none.
pub fn known_release(
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<&str, UnknownRelease> {
    let release = annotations
        .and_then(|annotations| annotations.get(BUNDLE_VERSION))
        .ok_or(UnknownRelease::Unsaid)?;
    let [first, last] = KNOWN;
    let is_known = number(release).is_some_and(|number| (first..=last).contains(&number));
    is_known
        .then_some(release.as_str())
        .ok_or_else(|| UnknownRelease::Other(release.clone()))
}

/// Major and minor number.
fn number(release: &str) -> Option<(u64, u64)> {
    let mut parts = release.strip_prefix('v')?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_before_v1_and_after_the_last_one_are_not_known() {
        let of = |release: &str| {
            let annotations = BTreeMap::from([(BUNDLE_VERSION.to_owned(), release.to_owned())]);
            known_release(Some(&annotations)).map(str::to_owned)
        };
        for known in ["v1.0.0", "v1.4.1", "v1.6.3", "v1.6.0-rc.1"] {
            assert_eq!(of(known), Ok(known.to_owned()));
        }
        for other in ["v0.8.1", "v1.7.0", "v2.0.0", "1.6.3", "v1", "main", ""] {
            assert_eq!(of(other), Err(UnknownRelease::Other(other.to_owned())));
        }
        assert_eq!(known_release(None), Err(UnknownRelease::Unsaid));
    }
}
