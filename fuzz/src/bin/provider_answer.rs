//! Fuzzes responses that a waypoint gets from ext_authz providers, rate-limit services and OpenTelemetry collectors.
#![no_main]

use ambit_wire::{ext_authz, rate_limit_service};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    match first % 3 {
        0 => {
            if let Ok(ext_authz::CheckResponse::Denied(denied)) =
                ext_authz::CheckResponse::decode(bytes)
            {
                assert!(denied.body.len() <= bytes.len() && denied.status != Some(0));
            }
        }
        1 => {
            if let Ok(answer) = rate_limit_service::ShouldRateLimitResponse::decode(bytes) {
                assert!(answer.body.len() <= bytes.len());
            }
        }
        _ => {
            let whole = ambit_codec::grpc_frame::decode_grpc_frame(bytes);
            assert!(whole.is_none_or(|message| message.len() + 5 <= bytes.len()));
            let _spans = ambit_otlp::rejected_spans(whole.unwrap_or(bytes));
            let _lines = ambit_otlp::rejected_log_records(whole.unwrap_or(bytes));
            let _own = ambit_otlp_export::rejected(whole.unwrap_or(bytes));
        }
    }
});
