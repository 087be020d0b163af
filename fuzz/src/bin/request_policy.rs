//! Fuzzes authorization: evaluates random policies for random requests, and compares the results with a naive
//! implementation's.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ambit_l7::authz::naive::compare_with_reference(data));
