//! Tests of the state-of-the-world xDS requests of `istioctl proxy-status` and `istioctl version`.

use ambit_wire::discovery::{ClientConfig, ConfigStatus, DiscoveryRequest, DiscoveryResponse};

use super::*;

/// Sends one request as istioctl does, with a token that is not bound to a pod; returns the response.
async fn fetch_resources(
    plane: &ControlPlane,
    namespace: &str,
    type_url: &str,
) -> Result<DiscoveryResponse, Status> {
    let mut claims = claims_of(namespace, "default", "", "");
    claims
        .get_mut("kubernetes.io")
        .and_then(|claim| claim.as_object_mut())
        .unwrap()
        .remove("pod");
    let token = plane.sign(&claims);
    // The call stays open until the response.
    let (requests, outgoing) = mpsc::channel(1);
    let request = DiscoveryRequest {
        node: Some(node("sidecar~0.0.0.0~istioctl.x~", namespace)),
        type_url: type_url.to_owned(),
        // istioctl sends the time, which is no nonce of ours.
        response_nonce: "2026-11-26 01:23:02.971133581 +0000 UTC m=+0.222951741".to_owned(),
        ..DiscoveryRequest::default()
    };
    requests.send(request).await.unwrap();
    let mut call = Request::new(tokio_stream::wrappers::ReceiverStream::new(outgoing));
    call.metadata_mut()
        .insert("authorization", format!("Bearer {token}").parse().unwrap());
    let mut client = tonic::client::Grpc::new(plane.channel());
    client.ready().await.unwrap();
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    let codec = tonic_prost::ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let exchange = async {
        let response = client.streaming(call, path.parse().unwrap(), codec).await?;
        response.into_inner().message().await
    };
    let response = tokio::time::timeout(WAIT_TIMEOUT, exchange).await;
    let response = response.expect("no answer")?;
    Ok(response.expect("the stream ended without an answer"))
}

#[tokio::test]
async fn istioctl_lists_clients_and_version() {
    let plane = ControlPlane::start().await;
    let mut stream = plane.stream().await;
    stream.subscribe(ADDRESS_TYPE_URL).await;
    let synced = async {
        loop {
            let response = fetch_resources(&plane, "istio-system", "istio.io/debug/syncz")
                .await
                .unwrap();
            let config = ClientConfig::decode(response.resources[0].value.as_slice()).unwrap();
            let statuses: Vec<_> = config
                .generic_xds_configs
                .iter()
                .map(|one| (one.type_url.clone(), one.config_status()))
                .collect();
            if statuses == [(ADDRESS_TYPE_URL.to_owned(), ConfigStatus::Synced)] {
                return (response, config);
            }
        }
    };
    let (response, config) = tokio::time::timeout(WAIT_TIMEOUT, synced)
        .await
        .expect("the client is never synced");
    assert_eq!(response.type_url, "istio.io/debug/syncz");
    let url = "type.googleapis.com/envoy.service.status.v3.ClientConfig";
    assert_eq!(response.resources[0].type_url, url);
    assert_eq!(config.node.unwrap().id, "zt-1.istio-system");
    let identifier = response.control_plane.unwrap().identifier;
    let identifier: serde_json::Value = serde_json::from_str(&identifier).unwrap();
    assert_eq!(identifier["Info"]["version"], env!("CARGO_PKG_VERSION"));

    let response = fetch_resources(&plane, "istio-system", "istio.io/connections")
        .await
        .unwrap();
    let url = "type.googleapis.com/envoy.config.core.v3.Node";
    assert_eq!(response.resources[0].type_url, url);
    drop(stream);
}

#[tokio::test]
async fn accounts_of_other_namespaces_do_not_see_clients() {
    let plane = ControlPlane::start().await;
    let refused = fetch_resources(&plane, "shop", "istio.io/debug/syncz")
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
}

#[tokio::test]
async fn mesh_records_are_not_served_as_state_of_the_world() {
    let plane = ControlPlane::start().await;
    let refused = fetch_resources(&plane, "istio-system", ADDRESS_TYPE_URL)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
    assert!(
        refused.message().contains("DeltaAggregatedResources"),
        "{refused}"
    );
}

/// Returns the JSON document in the body of a page.
fn json_body(page: &str) -> serde_json::Value {
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn registry_page_has_istios_format() {
    let plane = ControlPlane::start().await;
    plane.write(
        "entry.yaml",
        r#"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop, creationTimestamp: "2026-01-02T03:04:05Z"}
spec:
  hosts: [api.example.com]
  resolution: DNS
  exportTo: [.]
  ports: [{number: 443, name: https, protocol: HTTPS}]
"#,
    );
    let page = plane.page_until("/debug/registryz", "example.com").await;
    let expected = serde_json::json!([
        {
            "Attributes": {
                "ServiceRegistry": "External",
                "Name": "api.example.com",
                "Namespace": "shop",
                "Labels": null,
                "ExportTo": {".": {}},
                "LabelSelectors": null,
            },
            "ports": [{"name": "https", "port": 443, "protocol": "HTTPS"}],
            "creationTime": "2026-01-02T03:04:05Z",
            "hostname": "api.example.com",
            "clusterVIPs": {"Addresses": null},
            "defaultAddress": "0.0.0.0",
            "Resolution": 1,
            "MeshExternal": true,
            "ResourceVersion": "",
        },
        {
            "Attributes": {
                "ServiceRegistry": "Kubernetes",
                "Name": "api",
                "Namespace": "shop",
                "Labels": null,
                "ExportTo": null,
                "LabelSelectors": {"app": "api"},
            },
            "ports": [{"name": "", "port": 80, "protocol": "UnsupportedProtocol"}],
            "creationTime": "",
            "hostname": "api.shop.svc.cluster.local",
            "clusterVIPs": {"Addresses": {"Kubernetes": ["10.96.0.1"]}},
            "defaultAddress": "10.96.0.1",
            "Resolution": 0,
            "MeshExternal": false,
            "ResourceVersion": "",
        },
    ]);
    assert_eq!(json_body(&page), expected);
    plane.running.stop().await;
}

#[tokio::test]
async fn clients_page_has_istios_type_names() {
    let plane = ControlPlane::start().await;
    let mut stream = plane.stream().await;
    stream.subscribe(ADDRESS_TYPE_URL).await;
    let page = plane.page_until("/debug/syncz", "SYNCED").await;
    let client = &json_body(&page)[0];
    assert_eq!(client["cluster_id"], "Kubernetes");
    assert_eq!(client["proxy"], "zt-1.istio-system");
    assert_ne!(client["endpoint_sent"], "");
    assert_eq!(client["endpoint_sent"], client["endpoint_acked"]);
    assert_eq!(client.get("route_sent"), None, "{client}");
    drop(stream);
    plane.running.stop().await;
}
