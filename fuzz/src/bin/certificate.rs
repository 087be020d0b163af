//! Fuzzes the parser of the identity in a peer's certificate.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustls_pki_types::CertificateDer;

fuzz_target!(|data: &[u8]| {
    if let Some(identity) = ambit_tls::peer_identity(&[CertificateDer::from(data)]) {
        assert_eq!(identity.to_string().parse(), Ok(identity));
    }
});
