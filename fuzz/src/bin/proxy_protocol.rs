//! Fuzzes the parser of PROXY protocol headers, version 2.
#![no_main]

use ambit_codec::ProxyHeader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((header, length)) = ProxyHeader::parse(data) {
        assert!(length <= data.len());
        let (again, _) = ProxyHeader::parse(&header.encode()).expect("what we write, we read");
        assert_eq!(again, header);
    }
});
