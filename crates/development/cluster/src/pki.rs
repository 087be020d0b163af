//! Keys, certificates and kubeconfigs of a cluster, generated at each start.

use std::{fs, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde_json::json;

use crate::network::Network;

type CertificateAuthority = CertifiedIssuer<'static, KeyPair>;

/// Identity in a client certificate for the API server, and the file of its kubeconfig.
struct ClientIdentity<'a> {
    file: &'a str,
    user: &'a str,
    group: Option<&'a str>,
}

/// Writes all keys, certificates and kubeconfigs of the cluster to `directory`.
pub(crate) fn write(directory: &Path, network: Network, nodes: u8) -> Result<()> {
    fs::create_dir_all(directory)?;
    let pki = Pki {
        directory,
        server: format!("https://{}:6443", network.api_server_address()),
        ca: create_authority("kubernetes-ca")?,
    };
    pki.save("ca", &pki.ca.pem(), pki.ca.key())?;
    let front = create_authority("front-proxy-ca")?;
    pki.save("front-ca", &front.pem(), front.key())?;
    let (pem, key) = certify(
        &front,
        ("front-proxy-client", None),
        ExtendedKeyUsagePurpose::ClientAuth,
        &[],
    )?;
    pki.save("front-proxy", &pem, &key)?;
    let accounts = KeyPair::generate()?;
    pki.write_file("sa.key", &accounts.serialize_pem())?;
    pki.write_file("sa.pub", &accounts.public_key_pem())?;

    let names = [
        network.api_server_address().to_string(),
        network.api_service_address().to_string(),
        "127.0.0.1".into(),
        "localhost".into(),
        "kubernetes".into(),
        "kubernetes.default".into(),
        "kubernetes.default.svc".into(),
        "kubernetes.default.svc.cluster.local".into(),
    ];
    pki.write_server_certificate("apiserver", "kube-apiserver", &names)?;
    let masters = Some("system:masters");
    for (file, user, group) in [
        (
            "apiserver-kubelet-client",
            "apiserver-kubelet-client",
            masters,
        ),
        ("admin", "admin", masters),
        ("kcm", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("proxy", "system:kube-proxy", None),
    ] {
        pki.write_client_certificate(&ClientIdentity { file, user, group })?;
    }
    for number in 1..=nodes {
        let name = format!("n{number}");
        pki.write_client_certificate(&ClientIdentity {
            file: &name,
            user: &format!("system:node:{name}"),
            group: Some("system:nodes"),
        })?;
        let addresses = [network.node_address(number).to_string(), name.clone()];
        pki.write_server_certificate(&format!("{name}-serving"), &name, &addresses)?;
    }
    Ok(())
}

struct Pki<'a> {
    directory: &'a Path,
    server: String,
    ca: CertificateAuthority,
}

impl Pki<'_> {
    fn write_server_certificate(&self, file: &str, name: &str, addresses: &[String]) -> Result<()> {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let (pem, key) = certify(&self.ca, (name, None), usage, addresses)?;
        self.save(file, &pem, &key)
    }

    /// Writes a client's certificate, and the kubeconfig that contains it.
    fn write_client_certificate(&self, client: &ClientIdentity<'_>) -> Result<()> {
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let (pem, key) = certify(&self.ca, (client.user, client.group), usage, &[])?;
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": {
                "server": self.server,
                "certificate-authority-data": BASE64_STANDARD.encode(self.ca.pem()),
            }}],
            "users": [{"name": "user", "user": {
                "client-certificate-data": BASE64_STANDARD.encode(&pem),
                "client-key-data": BASE64_STANDARD.encode(key.serialize_pem()),
            }}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "user"}}],
        });
        self.write_file(&format!("{}.conf", client.file), &config.to_string())?;
        self.save(client.file, &pem, &key)
    }

    fn save(&self, name: &str, certificate: &str, key: &KeyPair) -> Result<()> {
        self.write_file(&format!("{name}.crt"), certificate)?;
        self.write_file(&format!("{name}.key"), &key.serialize_pem())
    }

    fn write_file(&self, name: &str, text: &str) -> Result<()> {
        use std::io::Write;
        let path = self.directory.join(name);
        fs::File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

fn create_authority(name: &str) -> Result<CertificateAuthority> {
    let mut params = certificate_params((name, None), &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn certify(
    ca: &CertificateAuthority,
    subject: (&str, Option<&str>),
    usage: ExtendedKeyUsagePurpose,
    names: &[String],
) -> Result<(String, KeyPair)> {
    let mut params = certificate_params(subject, names)?;
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, ca)?.pem(), key))
}

fn certificate_params(
    (user, group): (&str, Option<&str>),
    names: &[String],
) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    let mut subject = DistinguishedName::new();
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    subject.push(DnType::CommonName, user);
    params.distinguished_name = subject;
    // Backdated, since tests change clocks.
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2049, 1, 1);
    Ok(params)
}
