//! Fuzzes records that the control plane sends to a waypoint. The substitute for an invalid record keeps the name under
//! which the record was sent.
#![no_main]

use ambit_model::{PolicyKey, WaypointRecordType};
use ambit_wire::records;
use libfuzzer_sys::fuzz_target;

const RESOURCE: &str = "shop/way/ns/name";

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let all = WaypointRecordType::ALL;
    let of = all[usize::from(*first) % all.len()];
    let named = PolicyKey::from_resource_name("ns/name").to_string();
    match records::decode(of, RESOURCE, bytes) {
        // Encoding and decoding returns the same record.
        Ok(read) => {
            let written = records::encode(&read);
            let name = format!("shop/way/{}", read.name());
            assert_eq!(records::decode(of, &name, &written), Ok(read));
        }
        Err(refused) => {
            if let Some(substitute) = refused.substitute {
                assert_eq!(substitute.record.record_type(), of);
                assert_eq!(substitute.record.name(), *named);
            }
        }
    }
});
