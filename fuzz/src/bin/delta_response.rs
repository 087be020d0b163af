//! Fuzzes the parser of a resource in a delta xDS response, which does not copy the resource.
#![no_main]

use ambit_wire::decode::LazyResource;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(resource) = LazyResource::decode_envelope(data.to_vec().into()) {
        assert!(resource.value().len() <= data.len());
        assert!(resource.name.len() <= data.len());
    }
});
