//! Evaluation of random policies and requests, compared with a naive implementation.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ambit_l7::authz::naive::compare(data));
