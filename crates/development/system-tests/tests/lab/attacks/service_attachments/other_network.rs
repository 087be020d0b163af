//! Callers in another network: HBONE clients with their own identities, through an east-west gateway.

use std::net::{SocketAddr, TcpStream};

use ambit_system_tests::{HbonePeer, Mesh, through_gateway};

use super::{
    APP_PORT, AttachmentFixture, CUSTOM_POLICY_PORT,
    matrix::{Dial, check_cell},
};

/// Pods outside of the lab's mesh with certificates of its CA: two clients, and the gateway of
/// their network.
pub(super) const CLIENT_PODS: &str = "
---
apiVersion: v1
kind: Pod
metadata: {name: remote, namespace: shop, labels: {istio.io/dataplane-mode: none}}
spec:
  nodeName: node-1
  serviceAccountName: client
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
  volumes: [{name: token, projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: token}}]}}]
---
apiVersion: v1
kind: Pod
metadata: {name: remote, namespace: tenant, labels: {istio.io/dataplane-mode: none}}
spec:
  nodeName: node-1
  serviceAccountName: remote
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
  volumes: [{name: token, projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: token}}]}}]
---
apiVersion: v1
kind: Pod
metadata: {name: east-west, namespace: legacy}
spec:
  nodeName: node-1
  serviceAccountName: east-west
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
  volumes: [{name: token, projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: token}}]}}]
";

/// Client in the other network. To call a server, it connects to a local address that forwards into a tunnel.
#[derive(Debug)]
struct RemoteClient<'a>(HbonePeer<'a>);

impl Dial for RemoteClient<'_> {
    fn dial(&self, _: &AttachmentFixture, to: SocketAddr) -> std::io::Result<TcpStream> {
        TcpStream::connect(to)
    }
}

/// Clients and gateway of the other network.
pub(super) struct OtherNetwork<'a> {
    client: RemoteClient<'a>,
    tenant: RemoteClient<'a>,
    gateway: HbonePeer<'a>,
}

impl<'a> OtherNetwork<'a> {
    pub(super) fn new(mesh: &'a Mesh) -> Self {
        Self {
            client: RemoteClient(HbonePeer::of_pod(mesh, "shop/remote")),
            tenant: RemoteClient(HbonePeer::of_pod(mesh, "tenant/remote")),
            gateway: HbonePeer::of_pod(mesh, "legacy/east-west"),
        }
    }

    /// Opens client tunnels to the target `authority` at a waypoint of `shop`.
    fn tunnels(
        &self,
        scene: &AttachmentFixture,
        client: &RemoteClient<'_>,
        waypoint: &str,
        authority: &str,
    ) -> SocketAddr {
        let identity = format!("spiffe://cluster.local/ns/shop/sa/{waypoint}");
        let address = scene.mesh.ip(&format!("shop/{waypoint}"));
        let server = (identity.as_str(), SocketAddr::new(address, 15008));
        through_gateway((&client.0, &self.gateway), server, authority).unwrap()
    }

    /// Tests all cells of the matrix in which only the Service's owner has written objects.
    pub(super) fn check_owner_cells(&self, scene: &AttachmentFixture) {
        let pod = |port| scene.pod(port).to_string();
        for client in [&self.client, &self.tenant] {
            let ways = [
                (
                    "VIP",
                    "app.shop.svc.cluster.local:80".to_owned(),
                    "app.shop.svc.cluster.local:81".to_owned(),
                ),
                ("pod address", pod(APP_PORT), pod(CUSTOM_POLICY_PORT)),
            ];
            for (name, authority, asked) in ways {
                let at = |authority: &str| self.tunnels(scene, client, "waypoint", authority);
                check_cell(scene, name, client, at(&authority), Some(at(&asked)));
            }
        }
        let at = |port: u16| {
            let authority = format!("alias.example.com:{port}");
            self.tunnels(scene, &self.client, "waypoint", &authority)
        };
        check_cell(scene, "alias", &self.client, at(80), Some(at(81)));
    }

    /// Tests calls to which a route of the client's own namespace applies.
    pub(super) fn check_own_route(&self, scene: &AttachmentFixture) {
        let authority = "app.shop.svc.cluster.local:80";
        let app = self.tunnels(scene, &self.tenant, "waypoint", authority);
        let open = scene.ask(&self.tenant, app, "/open", "");
        assert!(open.contains("x-route: tenant"), "{open}");
        check_cell(scene, "its own route", &self.tenant, app, None);
        let changed = scene.ask(&self.tenant, app, "/open/changed", "");
        assert!(changed.contains(" 403 "), "{changed}");
    }

    /// Tests calls to a Service that has another waypoint.
    pub(super) fn check_other_waypoint(&self, scene: &AttachmentFixture) {
        let authority = "far.shop.svc.cluster.local:80";
        let far = self.tunnels(scene, &self.client, "xtra", authority);
        check_cell(scene, "another waypoint", &self.client, far, None);
        // Clients that the other Service's own policy denies.
        let far = self.tunnels(scene, &self.tenant, "xtra", authority);
        let answer = scene.ask(&self.tenant, far, "/open", "");
        assert!(answer.contains(" 403 "), "{answer}");
    }
}
