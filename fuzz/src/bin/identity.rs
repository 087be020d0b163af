//! A SPIFFE id, as certificates and policies carry it.
#![no_main]

use ambit_model::Identity;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string(), text);
    }
});
