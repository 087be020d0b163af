//! Messages of global rate limits, `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`: the request of a
//! waypoint, and the response of a rate-limit service.
//!
//! The messages are a subset of Envoy's API (`proto/rate_limit.proto`). Unknown fields of a response are ignored, as
//! usual in protobuf.

use std::time::Duration;

use prost::Message;

use crate::generated::envoy::{
    config::core::v3::HeaderValue,
    service::ratelimit::v3::{
        RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
        rate_limit_descriptor::Entry,
        rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
    },
};

/// Path of the gRPC method `ShouldRateLimit`.
pub const SHOULD_RATE_LIMIT_PATH: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Request to a rate-limit service, `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShouldRateLimitRequest {
    /// Rate-limit domain, by which the service selects its configuration.
    pub domain: String,
    /// Rate-limit descriptors of the checked request, each a list of keys and values.
    pub descriptors: Vec<Vec<(String, String)>>,
    /// Number of hits that the checked request counts as.
    pub hits: u32,
}

/// Response of a rate-limit service, `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShouldRateLimitResponse {
    /// Whether the checked request exceeds a limit.
    pub is_over_limit: bool,
    /// Status of the limit with the least remaining quota among those that the service evaluated.
    pub nearest_limit: Option<LimitStatus>,
    /// Headers to add to the response.
    pub response_headers: Vec<(String, Vec<u8>)>,
    /// Headers to add to the request.
    pub request_headers: Vec<(String, Vec<u8>)>,
    /// Body of the response to a request that exceeds a limit.
    pub body: Vec<u8>,
}

/// Status of one rate limit in the response: rate and remaining quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// Requests allowed in an interval.
    pub requests: u32,
    /// Length of the interval.
    pub per: Duration,
    /// Remaining requests in the interval.
    pub remaining: u32,
    /// Time until the interval ends.
    pub reset_after: Duration,
}

/// Error of decoding a rate-limit service's response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShouldRateLimitError {
    /// The response is not a protobuf message of this type.
    #[error("the answer is no RateLimitResponse: {0}")]
    Malformed(#[source] prost::DecodeError),
    /// The response's overall code is UNKNOWN, or a number that the API does not define.
    #[error("the answer has the code {0}: neither OK nor OVER_LIMIT")]
    UndecidedCode(i32),
}

impl ShouldRateLimitRequest {
    /// Encodes the request as a protobuf message.
    pub fn encode(self) -> Vec<u8> {
        let entry = |(key, value)| Entry { key, value };
        let descriptors = self.descriptors.into_iter();
        let descriptors = descriptors.map(|entries| RateLimitDescriptor {
            entries: entries.into_iter().map(entry).collect(),
        });
        RateLimitRequest {
            domain: self.domain,
            descriptors: descriptors.collect(),
            hits_addend: self.hits,
        }
        .encode_to_vec()
    }
}

impl ShouldRateLimitResponse {
    /// Decodes a response of a rate-limit service.
    ///
    /// # Errors
    ///
    /// When the bytes are no RateLimitResponse, or its overall code decides nothing.
    pub fn decode(bytes: &[u8]) -> Result<Self, ShouldRateLimitError> {
        let read = RateLimitResponse::decode(bytes).map_err(ShouldRateLimitError::Malformed)?;
        let is_over = match Code::try_from(read.overall_code) {
            Ok(Code::Ok) => false,
            Ok(Code::OverLimit) => true,
            Ok(Code::Unknown) | Err(_) => {
                return Err(ShouldRateLimitError::UndecidedCode(read.overall_code));
            }
        };
        let headers = |from: Vec<HeaderValue>| from.into_iter().map(HeaderValue::into_parts);
        let met = read.statuses.into_iter().filter_map(decode_limit_status);
        Ok(Self {
            is_over_limit: is_over,
            nearest_limit: met
                .min_by_key(|met| (met.remaining, std::cmp::Reverse(met.reset_after))),
            response_headers: headers(read.response_headers_to_add).collect(),
            request_headers: headers(read.request_headers_to_add).collect(),
            body: read.raw_body.into(),
        })
    }
}

fn decode_limit_status(from: DescriptorStatus) -> Option<LimitStatus> {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let limit = from.current_limit?;
    let per = match limit.unit() {
        Unit::Unknown => return None,
        Unit::Second => 1,
        Unit::Minute => MINUTE,
        Unit::Hour => HOUR,
        Unit::Day => DAY,
        Unit::Week => 7 * DAY,
        Unit::Month => 30 * DAY,
        Unit::Year => 365 * DAY,
    };
    let reset = from.duration_until_reset.unwrap_or_default();
    let nanos = u32::try_from(reset.nanos).unwrap_or_default();
    let reset = u64::try_from(reset.seconds).unwrap_or_default();
    Some(LimitStatus {
        requests: limit.requests_per_unit,
        per: Duration::from_secs(per),
        remaining: from.limit_remaining,
        reset_after: Duration::from_secs(reset)
            + Duration::from_nanos(nanos.min(999_999_999).into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_the_published_numbers() {
        let question = ShouldRateLimitRequest {
            domain: "d".to_owned(),
            descriptors: vec![vec![("k".to_owned(), "v".to_owned())]],
            hits: 3,
        };
        // domain = 1, descriptors = 2 {entries = 1 {key = 1, value = 2}}, hits_addend = 3.
        let expected = b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v\x18\x03";
        assert_eq!(question.encode(), expected);
    }

    #[test]
    fn an_answer_is_read_by_the_published_numbers() {
        // overall_code = 1; statuses = 2 {code = 1, current_limit = 2 {requests_per_unit = 1, unit = 2},
        // limit_remaining = 3, duration_until_reset = 4 {seconds = 1}}; response_headers_to_add = 3 {key = 1, value =
        // 2}; request_headers_to_add = 4 {key = 1, raw_value = 3}; raw_body = 5; a field that is not known.
        let bytes = b"\x08\x02\x12\x0e\x08\x02\x12\x04\x08\x07\x10\x02\x18\x01\x22\x02\x08\x09\
            \x1a\x06\x0a\x01a\x12\x01b\x22\x06\x0a\x01c\x1a\x01d\x2a\x02no\xf2\x01\x01x";
        let expected = ShouldRateLimitResponse {
            is_over_limit: true,
            nearest_limit: Some(LimitStatus {
                requests: 7,
                per: Duration::from_secs(60),
                remaining: 1,
                reset_after: Duration::from_secs(9),
            }),
            response_headers: vec![("a".to_owned(), b"b".to_vec())],
            request_headers: vec![("c".to_owned(), b"d".to_vec())],
            body: b"no".to_vec(),
        };
        assert_eq!(ShouldRateLimitResponse::decode(bytes), Ok(expected));
    }

    #[test]
    fn what_decides_nothing_is_no_answer() {
        assert_eq!(
            ShouldRateLimitResponse::decode(b""),
            Err(ShouldRateLimitError::UndecidedCode(0))
        );
        assert_eq!(
            ShouldRateLimitResponse::decode(b"\x08\x07"),
            Err(ShouldRateLimitError::UndecidedCode(7))
        );
        let malformed = ShouldRateLimitResponse::decode(b"\x08");
        assert!(matches!(malformed, Err(ShouldRateLimitError::Malformed(_))));
        assert!(
            ShouldRateLimitResponse::decode(b"\x08\x01").is_ok_and(|answer| !answer.is_over_limit)
        );
    }

    #[test]
    fn times_that_cannot_be_are_none() {
        // duration_until_reset with negative seconds and nanos.
        let bytes = b"\x08\x01\x12\x1e\x12\x04\x08\x07\x10\x01\x22\x16\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\
            \x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        let answer = ShouldRateLimitResponse::decode(bytes);
        let met = answer.ok().and_then(|answer| answer.nearest_limit);
        assert_eq!(met.map(|met| met.reset_after), Some(Duration::ZERO));
    }
}
