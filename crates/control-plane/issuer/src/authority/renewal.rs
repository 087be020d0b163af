//! Renewal of a generated root before its certificate expires.

use std::time::{Duration, SystemTime};

use ambit_tls::{pem, validity};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls_pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate, der_parser::asn1_rs::Tag, prelude::FromDer, x509::X509Name,
};

use super::{Authority, AuthorityError, NOT_BEFORE_BACKDATE, random_serial};

impl Authority {
    /// Returns a new certificate of the signing root with a lifetime of `ttl`. Name and key stay, so that earlier
    /// certificates remain valid and peers with only the old root accept new ones. `None` unless the root itself signs
    /// and is in the last fifth of its lifetime.
    pub fn renew_root_if_due(
        &self,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<Option<Self>, AuthorityError> {
        let Some((index, old)) = self
            .signing_root()
            .filter(|_| self.intermediates.is_empty())
        else {
            return Ok(None);
        };
        if !is_due_for_renewal(old, now) {
            return Ok(None);
        }
        let key = KeyPair::try_from(self.issuer.key().serialize_der())
            .map_err(AuthorityError::Generate)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject_name(old).ok_or(AuthorityError::UnsupportedSubject)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(random_serial());
        params.not_before = (now - NOT_BEFORE_BACKDATE).into();
        params.not_after = (now + ttl).into();
        let root = params.self_signed(&key).map_err(AuthorityError::Generate)?;
        if subject_der(root.der()) != subject_der(old) {
            return Err(AuthorityError::UnsupportedSubject);
        }
        let mut roots = self.roots.clone();
        if let Some(slot) = roots.get_mut(index) {
            *slot = root.der().clone();
        }
        Ok(Some(Self {
            issuer: Issuer::new(params, key),
            intermediates: Vec::new(),
            roots,
            not_after: now + ttl,
        }))
    }

    /// Returns the position and the certificate of the root that signs; `None` if an intermediate signs.
    fn signing_root(&self) -> Option<(usize, &CertificateDer<'static>)> {
        let own = self.issuer.key().subject_public_key_info();
        let has_key = |(_, root): &(usize, &CertificateDer<'static>)| {
            X509Certificate::from_der(root).is_ok_and(|(_, root)| root.public_key().raw == own)
        };
        self.roots.iter().enumerate().find(has_key)
    }

    /// Returns the certificate of the root that signs, as PEM; `None` if an intermediate signs.
    pub fn signing_root_pem(&self) -> Option<String> {
        let (_, root) = self.signing_root()?;
        Some(pem::encode_pem("CERTIFICATE", root))
    }
}

/// Returns a certificate's subject as DER, which verifiers compare byte by byte.
fn subject_der(cert: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    Some(cert.subject().as_raw().to_vec())
}

fn subject_name(cert: &CertificateDer<'_>) -> Option<DistinguishedName> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    distinguished_name(cert.subject())
}

fn distinguished_name(name: &X509Name<'_>) -> Option<DistinguishedName> {
    let mut copy = DistinguishedName::new();
    for part in name.iter_attributes() {
        let oid: Vec<u64> = part.attr_type().iter()?.collect();
        let value = part.attr_value();
        let text = std::str::from_utf8(value.data).ok()?;
        let value = match value.tag() {
            Tag::PrintableString => DnValue::PrintableString(text.try_into().ok()?),
            Tag::Utf8String => DnValue::Utf8String(text.to_owned()),
            _ => return None,
        };
        copy.push(DnType::from_oid(&oid), value);
    }
    Some(copy)
}

fn is_due_for_renewal(root: &CertificateDer<'_>, now: SystemTime) -> bool {
    let Ok((_, root)) = X509Certificate::from_der(root) else {
        return false;
    };
    let validity = validity(&root);
    let life = validity
        .end
        .duration_since(validity.start)
        .unwrap_or_default();
    now + life / 5 >= validity.end
}

#[cfg(test)]
mod tests {
    use ambit_certificates::CertificateRequest;
    use ambit_model::Identity;
    use ambit_tls::{TlsSettings, WorkloadCert};

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn root_is_renewed_in_its_last_fifth_only() {
        let now = SystemTime::now();
        let root = Authority::new_root("td", 100 * DAY, now).unwrap();
        assert!(
            root.renew_root_if_due(DAY, now + 79 * DAY)
                .unwrap()
                .is_none()
        );
        assert!(
            root.renew_root_if_due(DAY, now + 81 * DAY)
                .unwrap()
                .is_some()
        );
        let lower = root.new_intermediate("td", 10 * DAY, now).unwrap();
        assert!(
            lower
                .renew_root_if_due(DAY, now + 99 * DAY)
                .unwrap()
                .is_none()
        );
        assert!(lower.signing_root_pem().is_none());
    }

    #[test]
    fn old_and_new_certificates_verify_under_either_root() {
        let now = SystemTime::now();
        let old = Authority::new_root("td", 10 * DAY, now - 9 * DAY).unwrap();
        let new = old.renew_root_if_due(100 * DAY, now).unwrap().unwrap();
        assert_ne!(old.root_pem(), new.root_pem());
        assert_eq!(new.signing_root_pem(), Some(new.root_pem()));
        let identity = Identity::new("td", "ns", "sa");
        for signer in [&old, &new] {
            for trusted in [&old, &new] {
                let request = CertificateRequest::new(&identity).unwrap();
                let mut answer = signer.issue(&request.pem, &identity, DAY / 2, now).unwrap();
                *answer.last_mut().unwrap() = trusted.root_pem();
                let settings = TlsSettings::default();
                WorkloadCert::from_response(&settings, &identity, request.key, &answer).unwrap();
            }
        }
        let again = Authority::from_pem(
            &new.signing_root_pem().unwrap(),
            &new.key_pem(),
            "",
            &new.root_pem(),
        );
        assert!(again.unwrap().intermediates().is_empty());
    }
}
