//! Fuzzes the parsers of ZDS records in the agent and the node proxy.
#![no_main]

use ambit_wire::zds_codec;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(request) = zds_codec::decode_request(data) {
        let record = zds_codec::encode_request(&request);
        assert_eq!(
            zds_codec::decode_request(&record).expect("what we write, we read"),
            request
        );
    }
    drop(zds_codec::decode_ack(data));
    drop(zds_codec::decode_hello(data));
});
