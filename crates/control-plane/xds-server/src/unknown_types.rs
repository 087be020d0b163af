//! Answers subscriptions to resource types of later versions. A client of a later version would otherwise wait for them
//! forever: it gets an empty response, which is correct, since objects that only the later version knows have no
//! records here.

use std::collections::BTreeSet;

use ambit_wire::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

use crate::resource::ResourceType;

/// Prefix of the type URLs of Ambit's own resources.
const OWN_TYPE_PREFIX: &str = "type.googleapis.com/ambit.";
/// Maximum length of an accepted type URL, in bytes.
const MAX_TYPE_URL_BYTES: usize = 128;
/// Maximum number of unknown types to which one client may subscribe.
const MAX_UNKNOWN_TYPES: usize = 32;

/// Resource types of later versions to which one client subscribes.
#[derive(Debug, Default)]
pub(crate) struct UnknownTypes(BTreeSet<String>);

impl UnknownTypes {
    /// Returns an empty response to the first subscription to an unknown resource type of Ambit; `None` for later
    /// requests and for all other types.
    pub(crate) fn respond_without_records(
        &mut self,
        request: &DeltaDiscoveryRequest,
    ) -> Option<DeltaDiscoveryResponse> {
        let url = &request.type_url;
        let is_later =
            url.starts_with(OWN_TYPE_PREFIX) && ResourceType::from_type_url(url).is_none();
        if !is_later || url.len() > MAX_TYPE_URL_BYTES || self.0.len() >= MAX_UNKNOWN_TYPES {
            return None;
        }
        self.0.insert(url.clone()).then(|| DeltaDiscoveryResponse {
            type_url: url.clone(),
            nonce: format!("none-{}", self.0.len()),
            ..DeltaDiscoveryResponse::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(type_url: &str) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            ..DeltaDiscoveryRequest::default()
        }
    }

    #[test]
    fn later_types_are_answered_once() {
        let mut unknown_types = UnknownTypes::default();
        let url = "type.googleapis.com/ambit.v1.WaypointOfTomorrow";
        let answer = unknown_types
            .respond_without_records(&request(url))
            .unwrap();
        assert_eq!((answer.type_url.as_str(), answer.resources.len()), (url, 0));
        assert!(!answer.nonce.is_empty());
        assert_eq!(unknown_types.respond_without_records(&request(url)), None);
    }

    #[test]
    fn known_foreign_and_excess_types_are_ignored() {
        let mut unknown_types = UnknownTypes::default();
        for known in ResourceType::all() {
            assert_eq!(
                unknown_types.respond_without_records(&request(known.type_url())),
                None
            );
        }
        let long = format!("{OWN_TYPE_PREFIX}{}", "x".repeat(MAX_TYPE_URL_BYTES));
        for url in [
            "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "",
            &long,
        ] {
            assert_eq!(unknown_types.respond_without_records(&request(url)), None);
        }
        let answered = (0..100).filter(|number| {
            let request = request(&format!("{OWN_TYPE_PREFIX}v1.T{number}"));
            unknown_types.respond_without_records(&request).is_some()
        });
        assert_eq!(answered.count(), MAX_UNKNOWN_TYPES);
    }
}
