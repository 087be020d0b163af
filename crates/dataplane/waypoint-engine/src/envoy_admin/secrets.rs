//! Secrets section of the dump (`envoy.extensions.transport_sockets.tls.v3.Secret`): certificate chains and the trust
//! store. A waypoint never dumps a private key: the field is absent, where Envoy has a redacted text.

use ambit_certificates::{CertificateDump, CertificateEntry};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::proto_json::{any_message, merge_fields, remove_empty_fields};

/// Name of the secret with the waypoint's own certificate, as in Istio.
pub(super) const OWN_CERTIFICATE: &str = "default";
/// Name of the secret with the mesh's root certificates, as in Istio.
pub(super) const ROOT_CERTIFICATES: &str = "ROOTCA";

/// Protobuf message type of Envoy's TLS secrets.
const SECRET: &str = "envoy.extensions.transport_sockets.tls.v3.Secret";

/// Secrets section of the dump: secrets that the waypoint has received (active), and those that it waits for (warming).
#[derive(Debug, Default)]
pub(super) struct Secrets {
    pub(super) active: Vec<Value>,
    pub(super) warming: Vec<Value>,
}

impl Secrets {
    /// Renders the secrets of a waypoint with this identity.
    pub(super) fn new(own: &str, certificates: &[CertificateDump]) -> Self {
        let mut secrets = Self::default();
        for of in certificates {
            let name = if of.identity == own {
                OWN_CERTIFICATE
            } else {
                &of.identity
            };
            let chain = data_source(&of.cert_chain);
            let certificate = chain
                .as_ref()
                .map(|chain| json!({"certificate_chain": chain}));
            let since = of.cert_chain.first().map(|leaf| leaf.valid_from.as_str());
            let entry = secret(name, json!({"tls_certificate": certificate}), since);
            match chain {
                Some(_) => secrets.active.push(entry),
                None => secrets.warming.push(entry),
            }
            let roots = data_source(&of.root_certs).filter(|_| of.identity == own);
            secrets.active.extend(roots.map(|roots| {
                let fields = json!({"validation_context": {"trusted_ca": roots}});
                secret(ROOT_CERTIFICATES, fields, since)
            }));
        }
        secrets
    }
}

fn secret(name: &str, mut fields: Value, since: Option<&str>) -> Value {
    merge_fields(&mut fields, json!({"name": name}));
    remove_empty_fields(json!({
        "name": name,
        "last_updated": since,
        "secret": any_message(SECRET, fields),
    }))
}

/// Renders certificates as a data source with concatenated PEM texts; `None` without certificates.
fn data_source(certificates: &[CertificateEntry]) -> Option<Value> {
    let texts = certificates.iter();
    let mut texts = texts.filter_map(|certificate| STANDARD.decode(&certificate.pem).ok());
    let mut all = texts.next()?;
    for text in texts {
        if all.last() != Some(&b'\n') {
            all.push(b'\n');
        }
        all.extend(text);
    }
    Some(json!({"inline_bytes": STANDARD.encode(all)}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(text: &str) -> CertificateEntry {
        CertificateEntry {
            pem: STANDARD.encode(text),
            serial_number: "1".into(),
            valid_from: "2026-11-21T04:06:07Z".into(),
            expiration_time: "2026-11-22T04:06:07Z".into(),
        }
    }

    #[test]
    fn chains_and_roots_are_dumped_without_keys() {
        let own = CertificateDump {
            identity: "spiffe://td/ns/a/sa/w".into(),
            state: "Available".into(),
            cert_chain: vec![certificate("leaf"), certificate("intermediate")],
            root_certs: vec![certificate("root")],
        };
        let other = CertificateDump {
            identity: "spiffe://td/ns/b/sa/w".into(),
            state: "Initializing".into(),
            cert_chain: Vec::new(),
            root_certs: Vec::new(),
        };
        let secrets = Secrets::new("spiffe://td/ns/a/sa/w", &[own, other]);
        let names = |all: &[Value]| -> Vec<_> {
            let names = all
                .iter()
                .map(|one| one["name"].as_str().unwrap().to_owned());
            names.collect()
        };
        assert_eq!(names(&secrets.active), ["default", "ROOTCA"]);
        assert_eq!(names(&secrets.warming), ["spiffe://td/ns/b/sa/w"]);
        let chain = &secrets.active[0]["secret"]["tls_certificate"];
        let text = chain["certificate_chain"]["inline_bytes"].as_str().unwrap();
        assert_eq!(STANDARD.decode(text).unwrap(), b"leaf\nintermediate");
        assert!(!format!("{secrets:?}").contains("private_key"));
    }
}
