//! A workload, service or policy as the control plane sends it.
#![no_main]

use ambit_wire::decode::{self, AddressRecord};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    drop(AddressRecord::decode(data));
    AddressRecord::unknown_fields(data);
    // What is not understood always has something to stand in for it.
    if let Err(refused) = decode::policy("ns/name", data) {
        assert!(refused.substitute.not_understood.is_some());
        assert_eq!(refused.substitute.key().to_string(), "ns/name");
    }
});
