//! Services whose attachments (policies, tokens, limits, plugins) a waypoint has already applied to a request. The
//! waypoint names these services in a header of its tunnel to the next waypoint, so that the next one does not apply
//! the attachments again.
//!
//! A waypoint forwards requests of every service, also of tenants who give their own service the address of another
//! tenant's pod. The next waypoint therefore trusts a sender only for services whose waypoint the sender is: it must be
//! a pod of a waypoint of the service, and must name that service.

use ambit_model::NamespacedHostname;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Request header of the CONNECT between two waypoints: the services whose attachments have been applied, as
/// `NAMESPACE/HOST` separated by commas. Applications never see it.
const HEADER: HeaderName = HeaderName::from_static("x-ambit-applied-services");
/// Maximum number of services in the header: the requested service, and the backend of a route.
const MAX_SERVICES: usize = 2;

/// Services whose attachments (policies, tokens, limits, plugins) a previous waypoint has applied, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AppliedServices(Vec<NamespacedHostname>);

impl AppliedServices {
    /// Builds the set of applied services from their names.
    pub(crate) fn from_services(services: impl IntoIterator<Item = NamespacedHostname>) -> Self {
        let mut services: Vec<_> = services.into_iter().collect();
        services.sort_unstable();
        services.dedup();
        Self(services)
    }

    /// Parses the `x-ambit-applied-services` header of a CONNECT. A malformed header yields an empty set, so that all
    /// attachments apply.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(HEADER).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Self::default();
        };
        let Ok(text) = value.to_str() else {
            return Self::default();
        };
        let names = text.split(',').take(MAX_SERVICES);
        let names = names.filter_map(|name| name.split_once('/'));
        let names = names.map(|(namespace, host)| NamespacedHostname::new(namespace, host));
        Self(names.collect())
    }

    /// Writes the set as `x-ambit-applied-services` header of a CONNECT.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        let names: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        if let Ok(value) = HeaderValue::from_str(&names.join(",")) {
            headers.insert(HEADER, value);
        }
    }

    /// Whether a previous waypoint has applied the policies, tokens, limits and plugins of a service.
    pub(crate) fn contains(&self, service: &NamespacedHostname) -> bool {
        self.0.contains(service)
    }
}

#[cfg(test)]
impl From<NamespacedHostname> for AppliedServices {
    fn from(service: NamespacedHostname) -> Self {
        Self(vec![service])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&'static str]) -> AppliedServices {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_static(value));
        }
        AppliedServices::from_headers(&headers)
    }

    #[test]
    fn services_round_trip_through_the_header() {
        let names = ["a.example", "*.b.example"].map(|host| NamespacedHostname::new("ns", host));
        let applied = AppliedServices(names.to_vec());
        let mut headers = HeaderMap::new();
        applied.write(&mut headers);
        assert_eq!(AppliedServices::from_headers(&headers), applied);
        assert!(names.iter().all(|name| applied.contains(name)));
        assert!(!applied.contains(&NamespacedHostname::new("other", "a.example")));
    }

    #[test]
    fn malformed_headers_name_no_service() {
        for values in [&[][..], &[""], &["host"], &["a/b", "a/b"], &["\u{1f}"]] {
            let mut headers = HeaderMap::new();
            for value in values {
                if let Ok(value) = HeaderValue::from_str(value) {
                    headers.append(HEADER, value);
                }
            }
            assert_eq!(
                AppliedServices::from_headers(&headers),
                AppliedServices::default()
            );
        }
        let many = read(&["a/a,a/b,a/c"]);
        assert!(!many.contains(&NamespacedHostname::new("a", "c")));
    }
}
