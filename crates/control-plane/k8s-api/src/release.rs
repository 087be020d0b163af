//! Releases of the Gateway API: the release of a cluster's CRDs, and the releases that Ambit knows.

use std::collections::BTreeMap;

/// Annotation of the Gateway API's CRDs with their release.
pub const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";

/// First and last known release: the first one has Gateways and routes as `v1`, the last one is the
/// newest at the time of writing.
const KNOWN_RELEASES: [(u64, u64); 2] = [(1, 0), (1, 6)];

/// Reason why the release of the CRDs is missing or unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownRelease {
    /// The CRDs lack the annotation of their release.
    #[error(
        "the definitions of the Gateway API do not say of which release they are (annotation {BUNDLE_VERSION}): install a release's own, v1.0 to v1.6"
    )]
    MissingAnnotation,
    /// The release of the CRDs is outside the range that Ambit knows.
    #[error(
        "the definitions of the Gateway API are those of {0}; known are v1.0 to v1.6: what others add has no effect"
    )]
    UnknownVersion(String),
}

/// Checks the release in the annotations of a CRD.
///
/// # Errors
///
/// When the release is missing or unknown.
pub fn check_release(
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<&str, UnknownRelease> {
    let release = annotations
        .and_then(|annotations| annotations.get(BUNDLE_VERSION))
        .ok_or(UnknownRelease::MissingAnnotation)?;
    let [first, last] = KNOWN_RELEASES;
    let is_known = parse_release(release).is_some_and(|number| (first..=last).contains(&number));
    is_known
        .then_some(release.as_str())
        .ok_or_else(|| UnknownRelease::UnknownVersion(release.clone()))
}

/// Parses major and minor number of a release, such as `v1.6.0`.
fn parse_release(release: &str) -> Option<(u64, u64)> {
    let mut parts = release.strip_prefix('v')?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_out_of_the_known_range_are_unknown() {
        let of = |release: &str| {
            let annotations = BTreeMap::from([(BUNDLE_VERSION.to_owned(), release.to_owned())]);
            check_release(Some(&annotations)).map(str::to_owned)
        };
        for known in ["v1.0.0", "v1.4.1", "v1.6.3", "v1.6.0-rc.1"] {
            assert_eq!(of(known), Ok(known.to_owned()));
        }
        for other in ["v0.8.1", "v1.7.0", "v2.0.0", "1.6.3", "v1", "main", ""] {
            assert_eq!(
                of(other),
                Err(UnknownRelease::UnknownVersion(other.to_owned()))
            );
        }
        assert_eq!(check_release(None), Err(UnknownRelease::MissingAnnotation));
    }
}
