//! A record of a waypoint as the control plane sends it: what is not understood always has something to stand in for it,
//! under the name that it was sent under.
#![no_main]

use ambit_model::PolicyKey;
use ambit_wire::decode;
use libfuzzer_sys::fuzz_target;

const RECORD: &str = "shop/way/ns/name";

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let named = PolicyKey::of_record("ns/name");
    match first % 8 {
        0 => drop(decode::waypoint_gateway(bytes)),
        1 => drop(decode::waypoint_service(bytes)),
        2 => drop(decode::waypoint_destination(bytes)),
        3 => drop(decode::waypoint_telemetry(bytes)),
        4 => match decode::waypoint_policy(RECORD, bytes) {
            Ok(read) => assert_eq!(read.key, named),
            Err(refused) => {
                assert!(refused.substitute.not_understood.is_some());
                assert_eq!(refused.substitute.key, named);
            }
        },
        5 => match decode::waypoint_authentication(RECORD, bytes) {
            Ok(read) => assert_eq!(read.key, named),
            Err(refused) => {
                assert!(refused.substitute.not_understood.is_some());
                assert_eq!(refused.substitute.key, named);
            }
        },
        6 => match decode::waypoint_rate_limit(RECORD, bytes) {
            Ok(read) => assert_eq!(read.key, named),
            Err(refused) => {
                assert!(refused.substitute.not_understood.is_some());
                assert_eq!(refused.substitute.key, named);
            }
        },
        _ => match decode::waypoint_extension(RECORD, bytes) {
            Ok(read) => assert_eq!(read.key(), "ns/name"),
            Err(refused) => {
                assert!(refused.substitute.unsupported.is_some());
                assert_eq!(refused.substitute.key(), "ns/name");
            }
        },
    }
});
