//! Fuzzes the standard input of the CNI plugin, which the container runtime writes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| drop(ambit_cni::dry_run(data)));
