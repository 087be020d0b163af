//! Tests that a panic in a task of one pod ends only that task.

use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use ambit_certificates::{CaClient, Certificates, CertificatesOptions, FetchError};
use ambit_model::Identity;
use ambit_testkit::{FakeCa, Pki, build};
use ambit_tls::WorkloadCert;

use crate::fixture::{Mesh, Node, read_line};

/// CA that panics for one identity.
struct FaultyCa(FakeCa, Identity);

impl CaClient for FaultyCa {
    fn fetch<'a>(
        &'a self,
        identity: &'a Identity,
    ) -> Pin<Box<dyn Future<Output = Result<WorkloadCert, FetchError>> + Send + 'a>> {
        Box::pin(async move {
            assert_ne!(*identity, self.1, "a fault");
            self.0.fetch(identity).await
        })
    }
}

#[tokio::test]
async fn panic_for_one_pod_does_not_affect_others() {
    let pki = Arc::new(Pki::new());
    let mut mesh = Mesh::with_pki(pki.clone(), &[]).await;
    let ca = FakeCa::new(pki.clone(), Duration::from_secs(3600));
    let ca = FaultyCa(ca, build::identity("ns", "victim"));
    let certificates = Certificates::start(Arc::new(ca), CertificatesOptions::default());
    mesh.nodes[0] = Node::with_certificates(certificates, &[]);
    let victim = mesh.captured_pod(0, "victim", "10.9.0.1").await;
    let client = mesh.captured_pod(0, "client", "10.9.0.2").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.3").await;
    server.serve_echo(8080);
    let to = SocketAddr::new(server.ip, 8080);
    let mut open = client.connect(to).await.unwrap();
    assert_eq!(read_line(&mut open).await.unwrap(), "10.9.0.2");
    for _ in 0..20 {
        // More panics than requests for certificates may be in flight.
        if let Ok(mut refused) = victim.connect(to).await {
            read_line(&mut refused).await.unwrap_err();
        }
    }
    let mut new = client.connect(to).await.unwrap();
    assert_eq!(read_line(&mut new).await.unwrap(), "10.9.0.2");
    drop(open);
}
