//! Tests of issuing certificates, and of the files of plugged-in authorities.

use ambit_certificates::CertificateRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn identity() -> Identity {
    Identity::new("td", "ns", "sa")
}

fn root() -> Authority {
    Authority::new_root("td", 365 * DAY, SystemTime::now()).unwrap()
}

fn issue(authority: &Authority) -> (CertificateRequest, Vec<String>) {
    let request = CertificateRequest::new(&identity()).unwrap();
    let answer = authority
        .issue(&request.pem, &identity(), DAY, SystemTime::now())
        .unwrap();
    (request, answer)
}

#[test]
fn certificate_verifies_with_and_without_an_intermediate() {
    let root = root();
    let intermediate = root
        .new_intermediate("td", 30 * DAY, SystemTime::now())
        .unwrap();
    for (authority, entries) in [(&root, 2), (&intermediate, 3)] {
        let (request, answer) = issue(authority);
        assert_eq!(answer.len(), entries);
        let settings = TlsSettings::default();
        let cert =
            WorkloadCert::from_response(&settings, &identity(), request.key, &answer).unwrap();
        assert_eq!(cert.identity(), &identity());
        assert_eq!(cert.roots(), root.roots());
        let life = cert.not_after().duration_since(cert.not_before()).unwrap();
        assert!(life <= DAY + NOT_BEFORE_BACKDATE && life >= DAY, "{life:?}");
        let half = cert.not_before() + life / 2;
        assert_eq!(cert.renewal_time(), half);
    }
}

#[test]
fn new_certificate_is_valid_for_clocks_slightly_behind() {
    let root = root();
    let now = SystemTime::now();
    let intermediate = root.new_intermediate("td", 30 * DAY, now).unwrap();
    let request = CertificateRequest::new(&identity()).unwrap();
    for authority in [&root, &intermediate] {
        let answer = authority
            .issue(&request.pem, &identity(), DAY, now)
            .unwrap();
        let chain: Vec<_> = answer[..answer.len() - 1]
            .iter()
            .flat_map(|text| pem::parse_certificates(0, text).unwrap())
            .collect();
        let at = |clock: SystemTime| {
            let (key, roots) = (request.key.clone_key(), root.roots().to_vec());
            WorkloadCert::valid_at(&TlsSettings::default(), chain.clone(), key, roots, clock)
        };
        at(now - NOT_BEFORE_BACKDATE + Duration::from_secs(1)).unwrap();
        let error = at(now - NOT_BEFORE_BACKDATE - Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, ChainError::Unverified(_)), "{error:?}");
    }
}

#[test]
fn leaf_has_the_spiffe_profile() {
    let (_, answer) = issue(&root());
    let der = pem::parse_certificates(0, &answer[0])
        .unwrap()
        .swap_remove(0);
    let (_, leaf) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(leaf.subject().iter().count(), 0);
    assert!(leaf.tbs_certificate.serial.bits() >= 126);
    assert!(!leaf.is_ca());
    let san = leaf.subject_alternative_name().unwrap().unwrap();
    assert!(san.critical);
    assert_eq!(
        san.value.general_names,
        [GeneralName::URI("spiffe://td/ns/ns/sa/sa")]
    );
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && usage.server_auth);
    assert!(leaf.key_usage().unwrap().unwrap().value.digital_signature());
    assert!(leaf.extensions().iter().any(|extension| matches!(
        extension.parsed_extension(),
        ParsedExtension::AuthorityKeyIdentifier(_)
    )));
}

#[test]
fn names_in_the_request_are_ignored() {
    let request = CertificateRequest::new(&Identity::new("evil", "kube-system", "admin")).unwrap();
    let answer = root()
        .issue(&request.pem, &identity(), DAY, SystemTime::now())
        .unwrap();
    let settings = TlsSettings::default();
    let cert = WorkloadCert::from_response(&settings, &identity(), request.key, &answer).unwrap();
    assert_eq!(cert.identity(), &identity());
}

/// Returns the object identifiers of a certificate's extensions, and whether each is critical.
fn certificate_profile(certificate_chain: &[String]) -> Vec<(String, bool)> {
    let der = pem::parse_certificates(0, &certificate_chain[0])
        .unwrap()
        .swap_remove(0);
    let (_, leaf) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(leaf.subject().iter().count(), 0);
    assert!(!leaf.is_ca());
    let san = leaf.subject_alternative_name().unwrap().unwrap().value;
    assert_eq!(
        san.general_names,
        [GeneralName::URI("spiffe://td/ns/ns/sa/sa")]
    );
    let usage = leaf.key_usage().unwrap().unwrap().value;
    assert!(!usage.key_cert_sign() && !usage.crl_sign());
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(!usage.any && !usage.code_signing && !usage.ocsp_signing);
    let extensions = leaf.extensions().iter();
    extensions
        .map(|one| (one.oid.to_id_string(), one.critical))
        .collect()
}

#[test]
fn extensions_of_the_request_are_ignored() {
    use rcgen::CustomExtension;
    let root = root();
    let ordinary = certificate_profile(&issue(&root).1);
    let extension = |oid: &[u64], content: &[u8]| {
        let mut extension = CustomExtension::from_oid_content(oid, content.to_vec());
        extension.set_criticality(true);
        extension
    };
    type ParamsChange<'a> = Box<dyn Fn(&mut CertificateParams) + 'a>;
    let san = |names: Vec<SanType>| -> ParamsChange<'_> {
        Box::new(move |params| params.subject_alt_names.clone_from(&names))
    };
    let custom = |oid: &'static [u64], content: &'static [u8]| -> ParamsChange<'_> {
        Box::new(move |params| params.custom_extensions.push(extension(oid, content)))
    };
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let changes: [(&str, ParamsChange<'_>); 10] = [
        (
            "a waypoint's identity",
            san(vec![uri("spiffe://td/ns/ns/sa/waypoint")]),
        ),
        (
            "two identities",
            san(vec![
                uri("spiffe://td/ns/ns/sa/sa"),
                uri("spiffe://td/ns/ns/sa/waypoint"),
            ]),
        ),
        (
            "another trust domain",
            san(vec![uri("spiffe://other/ns/ns/sa/sa")]),
        ),
        (
            "a host",
            san(vec![SanType::DnsName(
                "istiod.istio-system.svc".try_into().unwrap(),
            )]),
        ),
        (
            "an address",
            san(vec![SanType::IpAddress([10, 0, 0, 1].into())]),
        ),
        (
            "a subject",
            Box::new(|params| params.distinguished_name.push(DnType::CommonName, "admin")),
        ),
        (
            "an authority",
            custom(&[2, 5, 29, 19], &[0x30, 3, 1, 1, 0xff]),
        ),
        (
            "to sign certificates",
            custom(&[2, 5, 29, 15], &[3, 2, 1, 6]),
        ),
        (
            "any use",
            custom(&[2, 5, 29, 37], &[0x30, 6, 6, 4, 0x55, 0x1d, 0x25, 0]),
        ),
        (
            "something unknown",
            custom(&[1, 3, 6, 1, 4, 1, 57_264, 1, 1], &[5, 0]),
        ),
    ];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    for (what, change) in changes {
        let mut params = CertificateParams::default();
        change(&mut params);
        let request = params.serialize_request(&key).unwrap().pem().unwrap();
        match root.issue(&request, &identity(), DAY, SystemTime::now()) {
            Ok(answer) => assert_eq!(certificate_profile(&answer), ordinary, "{what}"),
            Err(error) => assert!(
                matches!(error, IssueError::InvalidRequest(_)),
                "{what}: {error:?}"
            ),
        }
    }
}

#[test]
fn lifetime_never_exceeds_the_authority() {
    let root = Authority::new_root("td", DAY, SystemTime::now()).unwrap();
    let request = CertificateRequest::new(&identity()).unwrap();
    let answer = root
        .issue(&request.pem, &identity(), 9 * DAY, SystemTime::now())
        .unwrap();
    let settings = TlsSettings::default();
    let cert = WorkloadCert::from_response(&settings, &identity(), request.key, &answer).unwrap();
    assert!(cert.not_after() <= root.not_after());
    let later = SystemTime::now() + 2 * DAY;
    assert!(matches!(
        root.issue(&request.pem, &identity(), DAY, later),
        Err(IssueError::AuthorityExpired)
    ));
}

#[test]
fn invalid_requests_are_rejected() {
    let root = root();
    let issue = |pem: &str| {
        root.issue(pem, &identity(), DAY, SystemTime::now())
            .unwrap_err()
    };
    assert!(matches!(issue(""), IssueError::InvalidRequest(_)));
    assert!(matches!(issue("garbage"), IssueError::InvalidRequest(_)));
    assert!(matches!(
        issue(&"x".repeat(100_000)),
        IssueError::TooLarge(100_000)
    ));
    // One bit of the signature changed.
    let request = CertificateRequest::new(&identity()).unwrap();
    let mut der = decode_pem(&request.pem);
    *der.last_mut().unwrap() ^= 1;
    let error = issue(&pem::encode_pem("CERTIFICATE REQUEST", &der));
    assert!(matches!(error, IssueError::InvalidRequest(_)), "{error:?}");
}

fn decode_pem(pem: &str) -> Vec<u8> {
    x509_parser::pem::parse_x509_pem(pem.as_bytes())
        .unwrap()
        .1
        .contents
}

#[test]
fn plugged_in_authority_signs_with_its_files() {
    let root = root();
    let intermediate = root
        .new_intermediate("td", 30 * DAY, SystemTime::now())
        .unwrap();
    let own = pem::encode_pem("CERTIFICATE", &intermediate.intermediates()[0]);
    let key = intermediate.key_pem();
    let root_pem = root.root_pem();
    // With and without the usual repetition of the certificate and the root in the chain file.
    for chain in [String::new(), own.clone(), format!("{own}{root_pem}")] {
        let authority = Authority::from_pem(&own, &key, &chain, &root_pem).unwrap();
        let (request, answer) = issue(&authority);
        assert_eq!(answer.len(), 3);
        let settings = TlsSettings::default();
        WorkloadCert::from_response(&settings, &identity(), request.key, &answer).unwrap();
    }
    // The root itself as the signer.
    let authority = Authority::from_pem(&root_pem, &root.key_pem(), "", &root_pem).unwrap();
    assert_eq!(issue(&authority).1.len(), 2);
}

#[test]
fn mismatched_files_are_rejected() {
    let (one, two) = (root(), root());
    let error =
        |cert: &str, key: &str, root: &str| Authority::from_pem(cert, key, "", root).unwrap_err();
    let (cert, key) = (one.root_pem(), one.key_pem());
    assert!(matches!(
        error(&cert, &two.key_pem(), &cert),
        AuthorityError::VerificationFailed(_)
    ));
    assert!(matches!(
        error(&cert, &key, &two.root_pem()),
        AuthorityError::VerificationFailed(_)
    ));
    assert!(matches!(
        error(&cert, "no key", &cert),
        AuthorityError::InvalidKey(_)
    ));
    let missing = error("", &key, &cert);
    assert_eq!(missing.to_string(), "ca-cert.pem cannot be used");
    let leaf = issue(&one).1.swap_remove(0);
    assert!(matches!(
        error(&leaf, &key, &cert),
        AuthorityError::NotAuthority
    ));
}

#[test]
fn serving_certificate_has_the_requested_names() {
    let names = [
        "istiod.istio-system.svc".to_owned(),
        "10.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    let (chain, key) = root()
        .issue_serving(&names, DAY, SystemTime::now())
        .unwrap();
    let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
    let san = leaf.subject_alternative_name().unwrap().unwrap();
    assert_eq!(san.value.general_names.len(), 3);
    ambit_grpc_listener::server_config(&TlsSettings::default(), chain, key).unwrap();
    assert!(matches!(
        root().issue_serving(&["ü".to_owned()], DAY, SystemTime::now()),
        Err(IssueError::InvalidName { .. })
    ));
}
