//! Mesh with a waypoint for calls out of it, and TLS servers outside.

use std::{collections::BTreeMap, io::Write as _, net::SocketAddr, path::Path, sync::Arc};

use ambit_system_tests::{
    CLIENT_AND_SERVER, LabNetns, LogSource, Mesh, Options, answer_ok, is_complete_response,
    options, read_head, wait_until,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};

/// Prefix of the addresses that ServiceEntries' hosts have in the mesh; the test chooses the last byte.
pub(crate) const ADDRESS_PREFIX: &str = "240.240.9";

/// CA of the test, which signs certificates of servers outside the mesh.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Certificate with its key, as PEM.
pub(crate) struct SignedCertificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
    der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        // A separate name, so that another authority does not look like one with wrong signatures.
        let name = format!("{:?}", std::time::SystemTime::now());
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub(crate) fn sign(&self, names: &[&str]) -> SignedCertificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        SignedCertificate {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
            key_der: key.serialize_der(),
        }
    }
}

/// Settings of a TLS server outside the mesh.
pub(crate) struct OutsideServer<'a> {
    pub(crate) port: u16,
    pub(crate) signed: &'a SignedCertificate,
    /// CA that must have signed the clients' certificates; `None` requests none.
    pub(crate) client_ca: Option<&'a Authority>,
}

impl OutsideServer<'_> {
    /// Serves HTTP/1.1 over TLS; responses contain the SNI, the ALPN protocol, and the request's host.
    pub(crate) fn serve(&self, mesh: &Mesh, place: LabNetns) {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match self.client_ca {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.der()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivatePkcs8KeyDer::from(self.signed.key_der.clone());
        let mut server = builder
            .with_single_cert(vec![self.signed.der.clone()], key.into())
            .unwrap();
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server = Arc::new(server);
        listen(mesh, place, self.port, move |stream| {
            let tls = rustls::ServerConnection::new(server.clone());
            let tls = tls.map_err(std::io::Error::other)?;
            let mut stream = rustls::StreamOwned::new(tls, stream);
            while let Some(head) = read_head(&mut stream)? {
                let name = stream.conn.server_name().unwrap_or_default().to_owned();
                let alpn = stream.conn.alpn_protocol().unwrap_or_default().to_vec();
                let alpn = String::from_utf8_lossy(&alpn).into_owned();
                let head = head.to_ascii_lowercase();
                let host = head.lines().find_map(|line| line.strip_prefix("host: "));
                let host = host.unwrap_or_default();
                let body = format!("tls {name} {alpn} host {host}\n");
                answer_ok(&mut stream, &body)?;
                stream.flush()?;
            }
            Ok(())
        });
    }
}

/// Handles connections to a port of a network namespace by a function.
pub(crate) fn listen(
    mesh: &Mesh,
    place: LabNetns,
    port: u16,
    serve: impl Fn(std::net::TcpStream) -> std::io::Result<()> + Clone + Send + 'static,
) {
    let any = SocketAddr::from(([0, 0, 0, 0], port));
    let listener = mesh.client().listen(place, any).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let serve = serve.clone();
            // The test checks the end of a connection on its other side.
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// Starts the mesh, with the directory `files` mounted by waypoints.
pub(crate) fn start_mesh(files: &Path, more: &str) -> Mesh {
    let mut options: Options = options();
    let path = files.to_str().expect("a path in UTF-8").to_owned();
    options.env.insert("AMBIT_TLS_FILES".to_owned(), path);
    let egress = "
apiVersion: v1
kind: Namespace
metadata: {name: egress}
---
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: bank, labels: {app: client}}
spec:
  nodeName: node-2
  serviceAccountName: client
  containers:
  - {name: main, image: none, command: [$LAB_TOOL, sleep]}
";
    Mesh::up_with(&format!("{CLIENT_AND_SERVER}\n---{egress}{more}"), options)
}

/// Starts the waypoint of the namespace `egress`, whose pod resolves these hosts to these addresses, and which
/// namespaces with the label `tenant` may use.
pub(crate) fn start_waypoint(mesh: &Mesh, hosts: &[(&str, &str)]) {
    let mut by_ip: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (host, ip) in hosts {
        by_ip.entry(ip).or_default().push(host);
    }
    let aliases = by_ip.iter();
    let aliases =
        aliases.map(|(ip, hosts)| format!("{{ip: {ip}, hostnames: [{}]}}", hosts.join(", ")));
    let aliases = aliases.collect::<Vec<_>>().join(", ");
    start_waypoint_with(mesh, &format!("hostAliases: [{aliases}]"));
}

/// Starts the waypoint of the namespace `egress`, whose pod has these additional fields in its spec.
pub(crate) fn start_waypoint_with(mesh: &Mesh, of_pod: &str) {
    mesh.apply(
        "waypoint",
        &format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: out, namespace: egress}}
spec:
  gatewayClassName: istio-waypoint
  infrastructure: {{parametersRef: {{group: '', kind: ConfigMap, name: own}}}}
  listeners:
  - name: mesh
    port: 15008
    protocol: HBONE
    allowedRoutes: {{namespaces: {{from: Selector, selector: {{matchExpressions: [{{key: kubernetes.io/metadata.name, operator: In, values: [shop, bank]}}]}}}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: own, namespace: egress}}
data:
  deployment: 'spec: {{template: {{spec: {{{of_pod}}}}}}}'
"
        ),
    );
    mesh.wait_for_status("the waypoint runs", |status| {
        let mut pods = status.pods.iter();
        pods.any(|pod| pod.namespace == "egress" && pod.ready)
    });
}

/// Returns a ServiceEntry that the waypoint serves; `address` is the last byte of its address.
pub(crate) fn service_entry(namespace: &str, name: &str, address: u8, spec: &str) -> String {
    format!(
        "
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: {name}
  namespace: {namespace}
  labels: {{istio.io/use-waypoint: out, istio.io/use-waypoint-namespace: egress}}
spec:
  addresses: [{ADDRESS_PREFIX}.{address}]
  location: MESH_EXTERNAL
  {spec}
"
    )
}

/// Sends a request for a host at an entry's address, from a pod; returns the response. The response is empty if the
/// connection is closed first.
pub(crate) fn send_request(mesh: &Mesh, pod: &str, address: u8, host: &str) -> String {
    let to = format!("{ADDRESS_PREFIX}.{address}:80").parse().unwrap();
    let request = format!("GET /of/it HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let Ok(mut connection) = mesh.dial(pod, to) else {
        return String::new();
    };
    connection
        .send_raw(request.as_bytes(), is_complete_response)
        .unwrap_or_default()
}

/// Repeats [`send_request`] until the response contains a text, and returns the response.
#[track_caller]
pub(crate) fn wait_for_response(
    mesh: &Mesh,
    pod: &str,
    address: u8,
    host: &str,
    text: &str,
) -> String {
    let mut answer = String::new();
    wait_until(&format!("{host} answers {pod} with {text:?}"), || {
        answer = send_request(mesh, pod, address, host);
        answer.contains(text)
    });
    answer
}

/// Returns the waypoint's access log.
pub(crate) fn waypoint_access_log(mesh: &Mesh) -> String {
    let pods = mesh.client().status().unwrap().pods.into_iter();
    let mut of_it = pods.filter(|pod| pod.namespace == "egress");
    let pod = of_it.next().expect("the waypoint runs").name;
    let source = LogSource::Pod {
        pod: format!("egress/{pod}"),
        container: None,
    };
    mesh.client().log_text(source).unwrap()
}
