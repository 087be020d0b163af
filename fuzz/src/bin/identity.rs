//! Fuzzes the parser of SPIFFE IDs in certificates and policies: a parsed ID prints as the same text.
#![no_main]

use ambit_model::Identity;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string(), text);
    }
});
