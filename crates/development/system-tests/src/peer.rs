//! HBONE clients in a pod that speak the protocol themselves, as sidecars do, and as attackers could.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use ambit_certificates::{CaClient as _, CertificateRequest, CsrClient, CsrClientOptions};
use ambit_control_channel::{CallMetadata, ChannelConfig, RootCa, TokenSource, create_channel};
use ambit_hbone::{Settings, TunnelError, client, tls};
use ambit_lab::LabNetns;
use ambit_model::Identity;
use ambit_testkit::{Pki, csr_response_from_files, revoke_with_ca_files};
use ambit_tls::{TlsSettings, WorkloadCert};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    runtime::Runtime,
};

use crate::{Mesh, TIMEOUT, find_pod};

/// Address and port of the control plane in a lab.
const CONTROL_PLANE_ADDRESS: ([u8; 4], u16) = ([172, 18, 0, 2], 15012);
/// Time without data after which the client considers a server's response complete.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Outcome of opening an HBONE tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelOutcome {
    /// The connection failed, or ended before the tunnel was established. The text is the error.
    Failed(String),
    /// The CONNECT request was rejected with this status.
    Refused(u16),
    /// The tunnel was established, and these bytes were received through it.
    Established(String),
}

impl TunnelOutcome {
    /// Returns whether the received bytes contain a text by which the application identifies itself.
    pub fn is_from(&self, text: &str) -> bool {
        matches!(self, Self::Established(received) if received.contains(text))
    }
}

/// HBONE client that runs in a pod with a certificate of its own.
pub struct HbonePeer<'a> {
    mesh: &'a Mesh,
    netns: LabNetns,
    cert: Arc<WorkloadCert>,
    runtime: Runtime,
}

impl std::fmt::Debug for HbonePeer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {:?}", self.cert.identity(), self.netns)
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

impl<'a> HbonePeer<'a> {
    /// Creates a client in a pod with a certificate for the pod's own service account, requested from the mesh's CA by
    /// the pod's token. Waits for the pod, which the control plane may not know yet.
    pub fn of_pod(mesh: &'a Mesh, pod: &str) -> Self {
        mesh.wait_for_status(&format!("{pod} is there"), |status| {
            find_pod(status, pod).is_some_and(|pod| pod.ready)
        });
        let account = mesh.pod(pod).service_account;
        let (namespace, _) = pod.split_once('/').expect("namespace/name");
        let identity = Identity::new("cluster.local", namespace, account);
        let token = read_pod_file(mesh, pod, "pods/$AMBIT_POD_UID/token");
        let runtime = runtime();
        let fetched = runtime.block_on(fetch_certificate(mesh, &identity, token.trim()));
        Self {
            netns: LabNetns::Pod(pod.to_owned()),
            cert: Arc::new(fetched),
            runtime,
            mesh,
        }
    }

    /// Returns a client with the same certificate in another pod.
    pub fn in_pod(&self, pod: &str) -> Self {
        Self {
            netns: LabNetns::Pod(pod.to_owned()),
            cert: Arc::clone(&self.cert),
            runtime: runtime(),
            mesh: self.mesh,
        }
    }

    /// Creates a client whose certificate for any identity is signed by another CA. It trusts the mesh's roots.
    pub fn with_foreign_ca(mesh: &'a Mesh, pod: &str, identity: &str) -> Self {
        Self::signed_by(mesh, pod, identity, Some(&Pki::new()))
    }

    /// Creates a client whose certificate for any identity is signed by a CA, by default the mesh's. It trusts the
    /// mesh's roots.
    pub fn signed_by(mesh: &'a Mesh, pod: &str, identity: &str, authority: Option<&Pki>) -> Self {
        let identity: Identity = identity.parse().expect("a SPIFFE id");
        let request = CertificateRequest::new(&identity).expect("a request");
        let day = Duration::from_secs(86_400);
        let of_mesh = |file: &str| read_pod_file(mesh, "shop/client", &format!("ca/{file}"));
        let mut answer = match authority {
            Some(pki) => pki.csr_response(&request.pem, &identity, day),
            None => csr_response_from_files(of_mesh, &request.pem, &identity),
        };
        if let Some(roots) = answer.last_mut() {
            roots.push_str(&read_pod_file(mesh, "shop/client", "root-cert.pem"));
        }
        let settings = TlsSettings::default();
        let cert = WorkloadCert::from_response(&settings, &identity, request.key, &answer);
        Self {
            netns: LabNetns::Pod(pod.to_owned()),
            cert: Arc::new(cert.expect("a certificate")),
            runtime: runtime(),
            mesh,
        }
    }

    pub(crate) fn mesh(&self) -> &'a Mesh {
        self.mesh
    }

    pub(crate) fn netns(&self) -> &LabNetns {
        &self.netns
    }

    pub(crate) fn cert(&self) -> &Arc<WorkloadCert> {
        &self.cert
    }

    /// Returns a CRL that revokes the client's certificate, signed by the lab's CA.
    pub fn revocation_list(&self) -> String {
        let read = |file: &str| read_pod_file(self.mesh, "shop/client", &format!("ca/{file}"));
        revoke_with_ca_files(read, &self.cert)
    }

    /// Opens a tunnel through the server with this identity and address, and closes it once it is established.
    pub fn open_tunnel(&self, server: (&str, SocketAddr), authority: &str) -> TunnelOutcome {
        self.call(server, authority, &[], None)
    }

    /// Opens a tunnel through the server with this identity and address, sends bytes, and reads until the other side
    /// closes.
    pub fn request_through_tunnel(
        &self,
        server: (&str, SocketAddr),
        authority: &str,
        headers: &[(&'static str, &str)],
        request: &str,
    ) -> TunnelOutcome {
        self.call(server, authority, headers, Some(request))
    }

    fn call(
        &self,
        server: (&str, SocketAddr),
        authority: &str,
        headers: &[(&'static str, &str)],
        request: Option<&str>,
    ) -> TunnelOutcome {
        let (identity, address) = server;
        let expected: Identity = identity.parse().expect("a SPIFFE id");
        let authority: Uri = authority.parse().expect("an authority");
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).expect("a header");
            all.append(HeaderName::from_static(name), value);
        }
        let work = async {
            let stream = self.mesh.client().dial(self.netns.clone(), address);
            let stream = stream.map_err(|error| TunnelOutcome::Failed(error.to_string()))?;
            stream.set_nonblocking(true).expect("a socket");
            let stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
            self.tunnel(stream, &expected, authority, all, request)
                .await
        };
        let outcome = self
            .runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, work).await });
        let outcome = outcome.expect("a tunnel stands or is refused");
        outcome.unwrap_or_else(|ended| ended)
    }

    async fn tunnel(
        &self,
        stream: tokio::net::TcpStream,
        expected: &Identity,
        authority: Uri,
        headers: HeaderMap,
        request: Option<&str>,
    ) -> Result<TunnelOutcome, TunnelOutcome> {
        let cut = |error: &dyn std::fmt::Display| TunnelOutcome::Failed(error.to_string());
        let config = self.cert.client_config(std::slice::from_ref(expected));
        let config = config.expect("a TLS configuration");
        let stream = tls::connect(stream, config, TIMEOUT).await;
        let stream = stream.map_err(|error| cut(&error))?;
        let (client, driver) = client::handshake(stream, &Settings::default())
            .await
            .map_err(|error| cut(&error))?;
        let driver = tokio::spawn(driver.run(|| ()));
        let opened = client.open_tunnel(authority, headers).await;
        let (tunnel, _) = opened.map_err(|error| match error {
            TunnelError::Status(status) => TunnelOutcome::Refused(status.as_u16()),
            other => cut(&other),
        })?;
        let Some(request) = request else {
            driver.abort();
            return Ok(TunnelOutcome::Established(String::new()));
        };
        let mut io = tunnel.into_io();
        io.write_all(request.as_bytes())
            .await
            .map_err(|error| cut(&error))?;
        let mut received = Vec::new();
        let reading = tokio::time::timeout(READ_TIMEOUT, io.read_to_end(&mut received));
        // The bytes before the end count, whether it is an end of data or a reset.
        let _ended = reading.await;
        driver.abort();
        Ok(TunnelOutcome::Established(
            String::from_utf8_lossy(&received).into_owned(),
        ))
    }
}

/// Returns a file of the lab's private directory, which a process of the pod reads.
fn read_pod_file(mesh: &Mesh, pod: &str, file: &str) -> String {
    let run = mesh.directory().join("*/run").display().to_string();
    mesh.run(pod, &["sh", "-c", &format!("cat {run}/{file}")])
}

async fn fetch_certificate(mesh: &Mesh, identity: &Identity, token: &str) -> WorkloadCert {
    // The product's client opens connections itself, while the lab is in separate namespaces.
    let near = start_forwarder(mesh, CONTROL_PLANE_ADDRESS.into()).expect("a local listener");
    let settings = TlsSettings::default();
    let config = ChannelConfig {
        address: format!("https://localhost:{}", near.port()),
        roots: RootCa::Pem(read_pod_file(mesh, "shop/client", "root-cert.pem")),
        alternative_name: Some(SocketAddr::from(CONTROL_PLANE_ADDRESS).ip().to_string()),
        tls: settings.clone(),
    };
    let token = Some(TokenSource::Literal(token.to_owned()));
    let headers = CallMetadata::new(token, Some("Kubernetes"), []).expect("headers");
    let options = CsrClientOptions {
        own_identity: Some(identity.clone()),
        ..CsrClientOptions::default()
    };
    let channel = create_channel(&config).expect("a channel");
    let client = CsrClient::new(channel, headers, settings, options);
    let fetched = client.fetch(identity).await;
    fetched.unwrap_or_else(|error| panic!("no certificate for {identity}: {error}"))
}

/// Returns a local address that forwards connections to an address in the lab.
fn start_forwarder(mesh: &Mesh, to: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = listener.local_addr()?;
    let client = mesh.client().clone();
    std::thread::spawn(move || -> io::Result<()> {
        let (inside, _) = listener.accept()?;
        let outside = client
            .dial(LabNetns::Fabric, to)
            .map_err(io::Error::other)?;
        let back = (outside.try_clone()?, inside.try_clone()?);
        std::thread::spawn(move || copy_bytes(&back.0, &back.1));
        copy_bytes(&inside, &outside)
    });
    Ok(near)
}

fn copy_bytes(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    io::copy(&mut from, &mut to)?;
    to.shutdown(std::net::Shutdown::Write)
}
