//! Policies and requests: evaluation against the naive reading.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ambit_l7::authz::naive::compare(data));
