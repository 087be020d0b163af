use std::time::{Duration, SystemTime};

use ambit_certificates::CertificateRequest;
use ambit_model::Identity;
use ambit_testkit::Pki;
use ambit_tls::{ChainError, TlsSettings, WorkloadCert};

fn id() -> Identity {
    Identity::new("td", "ns", "sa")
}

#[test]
fn renewal_is_due_at_half_life() {
    let now = SystemTime::now();
    let cert = Pki::new().cert_at(&id(), now, Duration::from_secs(1_000));
    let life = cert.not_after().duration_since(cert.not_before()).unwrap();
    assert_eq!(cert.renewal_time(), cert.not_before() + life / 2);
    assert!(!cert.is_expired(now));
    assert!(cert.is_expired(now + Duration::from_secs(1_001)));
}

#[test]
fn a_certificate_that_is_not_valid_yet_is_refused() {
    let pki = Pki::new();
    let later = SystemTime::now() + Duration::from_secs(3_600);
    let cert = pki.cert_at(&id(), later, Duration::from_secs(60));
    let request = CertificateRequest::new(&id()).unwrap();
    let error = WorkloadCert::new(
        &TlsSettings::default(),
        cert.chain().to_vec(),
        request.key,
        cert.roots().to_vec(),
    )
    .unwrap_err();
    assert!(matches!(error, ChainError::Unverified(_)), "{error:?}");
}

#[test]
fn server_only_certificate_is_refused_for_workloads() {
    let pki = Pki::new();
    let (chain, key) = pki.serving_certificate(&["localhost"]);
    let roots = pki.cert(&id()).roots().to_vec();
    let error = WorkloadCert::new(&TlsSettings::default(), chain, key, roots).unwrap_err();
    assert!(matches!(error, ChainError::NoIdentity), "{error:?}");
}

#[test]
fn debug_output_holds_no_key() {
    let cert = Pki::new().cert(&id());
    let text = format!("{cert:?}");
    assert!(text.contains("identity") && text.len() < 400, "{text}");
}
