//! Proxies of the mesh, and connections to the ports where they serve flow events.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use ambit_caller_auth::{CallerAccess, caller_pod::CallerRoles as _};
use ambit_derive::PodDirectory;
use ambit_flow_reader::{OpenStream, ProxyConnector, request};
use ambit_model::{ArcStr, Identity};
use ambit_rt::ErrorChain;
use parking_lot::RwLock;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use super::OwnIdentity;

/// Timeout of connecting to a proxy, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Node proxies and waypoints of the mesh.
#[derive(Clone)]
pub struct MeshProxies {
    /// Pods of the cluster, with nodes and service accounts.
    pub pods: Arc<RwLock<PodDirectory>>,
    /// Rules for which service accounts belong to proxies.
    pub access: Arc<CallerAccess>,
    /// Identity of the control plane, which proxies authorize to read flow events.
    pub own_identity: Arc<OwnIdentity>,
    /// Trust domain of the mesh.
    pub trust_domain: ArcStr,
    /// Namespaces whose waypoint pods may be named to the user; `None` allows all.
    pub visible_namespaces: Option<Arc<[String]>>,
}

impl fmt::Debug for MeshProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshProxies").finish_non_exhaustive()
    }
}

/// Pod of a node proxy or waypoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeshProxy {
    namespace: ArcStr,
    name: ArcStr,
    service_account: ArcStr,
    address: SocketAddr,
    is_name_visible: bool,
}

impl fmt::Display for MeshProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_name_visible {
            true => write!(f, "pod {}/{}", self.namespace, self.name),
            false => f.write_str("a waypoint of another namespace"),
        }
    }
}

impl MeshProxies {
    /// Returns a copy for a user who may see the names of waypoint pods only in these namespaces.
    pub fn restricted_to(&self, namespaces: &[String]) -> Self {
        Self {
            visible_namespaces: Some(namespaces.into()),
            ..self.clone()
        }
    }

    /// Returns the TLS configuration of a connection to a proxy, whose certificate must have the proxy's identity.
    fn tls(&self, proxy: &MeshProxy) -> Result<Arc<ClientConfig>, String> {
        let own = self.own_identity.certificate();
        let own = own.map_err(|error| ErrorChain(&error).to_string())?;
        let expected = Identity::new(
            self.trust_domain.clone(),
            proxy.namespace.clone(),
            proxy.service_account.clone(),
        );
        let config = own.client_config(&[expected]);
        let mut config = ClientConfig::clone(&*config.map_err(|error| error.to_string())?);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ProxyConnector for MeshProxies {
    type Proxy = MeshProxy;

    async fn list(&self) -> Result<Vec<MeshProxy>, String> {
        let pods = self.pods.read();
        let proxies = pods.iter().filter_map(|pod| {
            let account = (pod.namespace.clone(), pod.facts.service_account.clone());
            let is_node_proxy = self.access.is_node_proxy_account(&account);
            let is_waypoint = pod.facts.gateway.as_ref() == Some(&account.1)
                && self.access.is_waypoint_account(&account.0, &account.1) == Some(true);
            if !pod.facts.is_live || !(is_node_proxy || is_waypoint) {
                return None;
            }
            let is_readable = |named: &Arc<[String]>| named.iter().any(|one| one == &*account.0);
            Some(MeshProxy {
                address: (pod.facts.address?, ambit_flow::PROXY_FLOWS_PORT).into(),
                is_name_visible: is_node_proxy
                    || self.visible_namespaces.as_ref().is_none_or(is_readable),
                namespace: account.0,
                service_account: account.1,
                name: pod.name.clone(),
            })
        });
        Ok(proxies.collect())
    }

    async fn open(&self, proxy: &MeshProxy, path: &str) -> Result<OpenStream, String> {
        let opened = timeout(CONNECT_TIMEOUT, async {
            let connector = TlsConnector::from(self.tls(proxy)?);
            let unreachable = |error: std::io::Error| {
                format!(
                    "port {} cannot be reached: {error}",
                    ambit_flow::PROXY_FLOWS_PORT
                )
            };
            let stream = TcpStream::connect(proxy.address)
                .await
                .map_err(unreachable)?;
            // TLS verifies the identity, not the server name.
            let name = ServerName::IpAddress(proxy.address.ip().into());
            let stream = connector.connect(name, stream).await;
            let stream = stream.map_err(|error| format!("the TLS handshake failed: {error}"))?;
            let opened = request(stream, path).await;
            opened.map_err(|error| error.to_string())
        });
        let opened = opened
            .await
            .map_err(|_elapsed| "no answer in time".to_owned())?;
        match proxy.is_name_visible {
            true => opened,
            // Addresses and errors would reveal the other namespace.
            false => opened.map_err(|error| {
                tracing::debug!(?proxy, error, "a proxy's flow events cannot be read");
                "it cannot be read".to_owned()
            }),
        }
    }
}
