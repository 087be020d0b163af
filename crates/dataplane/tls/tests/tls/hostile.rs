//! Tests that damaged bytes from peers cause no panic, and are never accepted.

use std::time::{Duration, SystemTime};

use ambit_certificates::CertificateRequest;
use ambit_issuer::Authority;
use ambit_model::Identity;
use ambit_testkit::Pki;
use ambit_tls::{PeerRole, TlsSettings, TrustWithdrawalReason, WorkloadCert, peer_identity};
use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use rustls_pki_types::CertificateDer;

const DAY: Duration = Duration::from_secs(86_400);

fn id() -> Identity {
    Identity::new("td", "ns", "sa")
}

/// Damages a message: changes bytes and truncates it.
fn damage(bytes: &[u8], changes: &[(usize, u8)], keep: Option<usize>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (place, value) in changes {
        let length = bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(place % length) {
            *byte = *value;
        }
    }
    if let Some(keep) = keep {
        bytes.truncate(keep % (bytes.len() + 1));
    }
    bytes
}

fn pem(label: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        STANDARD.encode(der)
    )
}

fn der(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    STANDARD.decode(body).unwrap()
}

fn changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    proptest::collection::vec((0..2000_usize, any::<u8>()), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damaged_requests_are_refused_or_keep_the_key(
        changes in changes(),
        keep in proptest::option::of(any::<usize>()),
    ) {
        let authority = Authority::new_root("td", DAY, SystemTime::now()).unwrap();
        let request = CertificateRequest::new(&id()).unwrap();
        let whole = der(&request.pem);
        let damaged = damage(&whole, &changes, keep);
        let text = pem("CERTIFICATE REQUEST", &damaged);
        match authority.issue(&text, &id(), DAY, SystemTime::now()) {
            // Insignificant bits may differ; the key may not.
            Ok(answer) => {
                let settings = TlsSettings::default();
                let cert = WorkloadCert::from_response(&settings, &id(), request.key, &answer);
                prop_assert!(cert.is_ok());
            }
            Err(_) => prop_assert!(damaged != whole),
        }
    }

    #[test]
    fn any_text_as_a_request_is_refused(text in "\\PC*") {
        let authority = Authority::new_root("td", DAY, SystemTime::now()).unwrap();
        prop_assert!(authority.issue(&text, &id(), DAY, SystemTime::now()).is_err());
    }

    #[test]
    fn a_damaged_answer_of_the_ca_is_refused(
        entry in 0..3_usize,
        changes in changes(),
        keep in proptest::option::of(any::<usize>()),
    ) {
        let pki = Pki::new();
        let request = CertificateRequest::new(&id()).unwrap();
        let mut answer = pki.csr_response(&request.pem, &id(), DAY);
        let whole = der(&answer[entry]);
        let damaged = damage(&whole, &changes, keep);
        let same = damaged == whole;
        answer[entry] = pem("CERTIFICATE", &damaged);
        let cert =
            WorkloadCert::from_response(&TlsSettings::default(), &id(), request.key, &answer);
        // Only the name and key of a root count: damage elsewhere in it may be undetected.
        if entry < 2 {
            prop_assert_eq!(cert.is_ok(), same);
        }
    }

    #[test]
    fn any_texts_as_an_answer_are_refused(answer in proptest::collection::vec("\\PC*", 0..5)) {
        let request = CertificateRequest::new(&id()).unwrap();
        let settings = TlsSettings::default();
        prop_assert!(
            WorkloadCert::from_response(&settings, &id(), request.key, &answer).is_err()
        );
    }

    #[test]
    fn arbitrary_bytes_are_no_peer_identity(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert_eq!(peer_identity(&[CertificateDer::from(bytes)]), None);
    }
}

#[test]
fn any_changed_byte_of_a_peer_certificate_causes_no_panic() {
    let (pki, _crls) = Pki::with_crls();
    let ours = pki.cert(&id());
    let leaf = pki.cert(&id()).chain()[0].to_vec();
    for place in 0..leaf.len() {
        let damaged = CertificateDer::from(damage(&leaf, &[(place, leaf[place] ^ 0x5a)], None));
        // Nothing here is verified: neither may panic.
        peer_identity(std::slice::from_ref(&damaged));
        let withdrawal = ours.withdrawal_reason(PeerRole::Client, &[damaged], SystemTime::now());
        assert_ne!(withdrawal, Some(TrustWithdrawalReason::Revoked));
    }
}
