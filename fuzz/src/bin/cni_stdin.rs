//! What a container runtime gives the CNI plugin on standard input.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| drop(ambit_cni::dry_run(data)));
