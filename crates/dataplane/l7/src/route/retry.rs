//! Retry conditions and backoff of a route rule (GEP-1731).

use std::time::Duration;

use ambit_model::HttpRetry;
use http::{HeaderMap, StatusCode};
use rand::{Rng as _, RngCore};

/// Default base backoff before the first retry, for rules that set none.
pub const DEFAULT_BACKOFF: Duration = Duration::from_millis(25);
/// Maximum backoff, as a multiple of the rule's base backoff.
pub const MAX_BACKOFF_MULTIPLE: u32 = 10;

/// gRPC statuses of requests that were not processed: CANCELLED (1) and UNAVAILABLE (14).
const RETRIABLE_GRPC_STATUSES: [&[u8]; 2] = [b"1", b"14"];

/// Whether the rule's retry policy retries a response with this status and these headers.
pub fn is_retriable(retry: &HttpRetry, status: StatusCode, headers: &HeaderMap) -> bool {
    let grpc = headers.get("grpc-status");
    retry.codes.contains(&status.as_u16())
        || grpc.is_some_and(|status| RETRIABLE_GRPC_STATUSES.contains(&status.as_bytes()))
}

/// Returns the backoff before the `nth` retry, counted from 0. It grows exponentially with jitter, and is never shorter
/// than the rule's backoff.
pub fn backoff_delay(retry: &HttpRetry, nth: u32, rng: &mut dyn RngCore) -> Duration {
    let least = retry.backoff.unwrap_or_default();
    let first = retry.backoff.unwrap_or(DEFAULT_BACKOFF);
    let times = 1_u32
        .checked_shl(nth.saturating_add(1))
        .unwrap_or(MAX_BACKOFF_MULTIPLE);
    let most = first.saturating_mul(times.min(MAX_BACKOFF_MULTIPLE));
    rng.random_range(least..=most)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn http_and_grpc_statuses_are_retriable() {
        let retry = HttpRetry {
            codes: vec![500, 503],
            ..HttpRetry::default()
        };
        let again = |status: u16, grpc: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(status) = grpc {
                headers.insert("grpc-status", HeaderValue::from_static(status));
            }
            is_retriable(&retry, StatusCode::from_u16(status).unwrap(), &headers)
        };
        for (status, grpc, expected) in [
            (500, None, true),
            (503, None, true),
            (502, None, false),
            (200, None, false),
            (200, Some("0"), false),
            (200, Some("14"), true),
            (200, Some("1"), true),
            (200, Some("13"), false),
        ] {
            assert_eq!(again(status, grpc), expected, "{status} {grpc:?}");
        }
    }

    proptest! {
        #[test]
        fn waits_are_one_to_ten_times_the_configured_backoff(backoff in proptest::option::of(1..100_000_u64), nth in any::<u32>()) {
            let backoff = backoff.map(Duration::from_millis);
            let retry = HttpRetry { backoff, ..HttpRetry::default() };
            let wait = backoff_delay(&retry, nth, &mut rand::rng());
            prop_assert!(wait >= backoff.unwrap_or_default());
            prop_assert!(wait <= backoff.unwrap_or(DEFAULT_BACKOFF) * MAX_BACKOFF_MULTIPLE);
            if nth == 0 {
                prop_assert!(wait <= backoff.unwrap_or(DEFAULT_BACKOFF) * 2);
            }
        }
    }
}
