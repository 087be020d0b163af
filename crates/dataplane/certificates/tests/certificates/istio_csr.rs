//! Tests with cert-manager's istio-csr: certificates for a waypoint's own service account, and for accounts that a
//! node proxy impersonates.

use std::time::Duration;

use ambit_certificates::{CaClient, CsrClient, CsrClientOptions, FetchError};
use ambit_control_channel::{CallMetadata, ChannelConfig, RootCa, TokenSource, create_channel};
use ambit_model::Identity;
use ambit_testkit::{ISTIO_CSR_NAME, IstioCsr, is_accepted};
use ambit_tls::TlsSettings;
use tokio::net::TcpListener;

fn test_identity(namespace: &str, account: &str) -> Identity {
    Identity::new("cluster.local", namespace, account)
}

async fn start_istio_csr() -> IstioCsr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (waypoint, node) = (
        test_identity("shop", "waypoint"),
        test_identity("istio-system", "ztunnel"),
    );
    let accounts = [("of-waypoint", &waypoint), ("of-node", &node)];
    IstioCsr::start_on(listener, &accounts, std::slice::from_ref(&node))
}

fn client(server: &IstioCsr, token: &str, own: Option<Identity>) -> CsrClient {
    let config = ChannelConfig {
        address: format!("https://{}", server.address),
        roots: RootCa::Pem(server.root_pem().to_owned()),
        alternative_name: Some(ISTIO_CSR_NAME.to_owned()),
        tls: TlsSettings::default(),
    };
    let token = TokenSource::Literal(token.to_owned());
    let headers = CallMetadata::new(Some(token), Some("Kubernetes"), []).unwrap();
    let options = CsrClientOptions {
        own_identity: own,
        timeout: Duration::from_secs(5),
        ..Default::default()
    };
    let channel = create_channel(&config).unwrap();
    CsrClient::new(channel, headers, TlsSettings::default(), options)
}

#[tokio::test]
async fn waypoints_and_node_proxies_get_certificates_of_one_mesh() {
    let server = start_istio_csr().await;
    let own = test_identity("shop", "waypoint");
    let of_waypoint = client(&server, "of-waypoint", Some(own.clone()));
    let waypoint = of_waypoint.fetch(&own).await.unwrap();
    let life = waypoint.not_after().duration_since(waypoint.not_before());
    assert!(life.unwrap() <= Duration::from_secs(3600));
    let of_node = client(&server, "of-node", None);
    let pod = of_node.fetch(&test_identity("shop", "cart")).await.unwrap();
    assert!(is_accepted(&pod, &waypoint).await && is_accepted(&waypoint, &pod).await);
    assert_eq!(server.issued(), [own, test_identity("shop", "cart")]);
}

#[tokio::test]
async fn requests_for_identities_of_others_are_refused() {
    let server = start_istio_csr().await;
    let own = test_identity("shop", "waypoint");
    for (token, requested) in [
        ("unknown", own.clone()),
        ("of-waypoint", test_identity("shop", "cart")),
        // Waypoints' requests for other identities: no account has this name.
        (
            "of-waypoint",
            Identity::for_waypoint_calls("cluster.local", "shop"),
        ),
        // A node proxy without impersonation requests its own identity.
        ("of-node", own.clone()),
    ] {
        let client = client(&server, token, Some(own.clone()));
        let refused = client.fetch(&requested).await.unwrap_err();
        assert!(matches!(refused, FetchError::Status(_)), "{refused}");
        assert!(refused.is_refusal());
    }
    assert!(server.issued().is_empty());
}
