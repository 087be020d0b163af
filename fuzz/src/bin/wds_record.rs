//! Fuzzes workloads, services and policies that the control plane sends to a node proxy.
#![no_main]

use ambit_wire::decode::{self, AddressRecord};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    drop(AddressRecord::decode(data));
    AddressRecord::unknown_field_count(data);
    // A policy that is not understood always has a substitute with the same name.
    if let Err(refused) = decode::decode_policy("ns/name", data) {
        let substitute = refused.substitute.expect("a substitute").record;
        assert!(substitute.not_understood.is_some());
        assert_eq!(substitute.key().to_string(), "ns/name");
    }
});
