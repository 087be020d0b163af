//! SPIFFE id of a certificate or policy: parses and prints.
#![no_main]

use ambit_model::Identity;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string(), text);
    }
});
