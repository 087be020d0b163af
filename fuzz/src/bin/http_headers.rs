//! Fuzzes values in a peer's CONNECT request: the authority, and the headers baggage, forwarded, traceparent and
//! original peer.
#![no_main]

use ambit_codec::{Authority, Baggage, Forwarded, OriginalPeer, TraceParent};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(authority) = Authority::parse(data) {
        let printed = authority.to_string();
        assert_eq!(
            Authority::parse(printed.as_bytes()).as_ref(),
            Ok(&authority),
            "{printed}"
        );
    }
    if let Ok(baggage) = Baggage::parse(data) {
        let printed = baggage.encode();
        assert!(Baggage::parse(printed.as_bytes()).is_ok(), "{printed}");
    }
    drop(Forwarded::parse(data));
    if let Ok(peer) = OriginalPeer::parse(data) {
        assert_eq!(peer.to_string().as_bytes(), data);
    }
    let _ = TraceParent::parse(data);
});
