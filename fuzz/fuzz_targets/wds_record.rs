//! A workload, service or policy as the control plane sends it.
#![no_main]

use ambit_wire::decode::{self, AddressRecord};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    drop(AddressRecord::decode(data));
    drop(decode::authorization(data));
});
