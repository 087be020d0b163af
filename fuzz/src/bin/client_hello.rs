//! Fuzzes the ClientHello reader, with the first bytes of a TLS passthrough connection.
#![no_main]

use ambit_tls::{FirstMessage, HelloReader};
use libfuzzer_sys::fuzz_target;

/// Reads the data in pieces of `length` bytes. All errors are equal.
fn read(data: &[u8], length: usize) -> Result<Option<FirstMessage>, ()> {
    let mut reader = HelloReader::default();
    for piece in data.chunks(length) {
        if let Some(message) = reader.push(piece).map_err(drop)? {
            return Ok(Some(message));
        }
    }
    Ok(None)
}

fuzz_target!(|data: &[u8]| {
    let slowly = read(data, 1);
    if let Ok(Some(FirstMessage::ClientHello(Some(name)))) = &slowly {
        assert_eq!(*name, name.to_ascii_lowercase());
        assert!(!name.is_empty() && name.len() <= 255);
    }
    // The size of pieces does not change the server name. It may change at which byte bad input is rejected.
    if let (Ok(Some(slow)), Ok(Some(fast))) = (&slowly, &read(data, 512)) {
        assert_eq!(slow, fast);
    }
});
