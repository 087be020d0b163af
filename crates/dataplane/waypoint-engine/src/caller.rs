//! Identity of a caller: the peer of the tunnel, or the original peer that the node proxy of a pod sends.
//!
//! A connection that bypasses a covered pod's waypoint is redirected to the waypoint by the pod's own node proxy, which
//! sends the original peer ([`OriginalPeer`]). No other sender may name an original peer: the peer must have the
//! identity and the address of the requested pod, and that pod must be one whose keys only a node proxy holds.

use std::net::SocketAddr;

use ambit_codec::{Forwarded, ORIGINAL_PEER_HEADER, OriginalPeer};
use ambit_model::{Identity, Protocol};
use http::HeaderMap;

use crate::{applied_services::AppliedServices, target::Target};

/// Client that opened a tunnel, with its verified identity and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Verified identity; `None` for plaintext from outside of the mesh.
    pub(crate) identity: Option<Identity>,
    /// Source address of the caller's connection, as its node proxy reports it; the IP address is the tunnel's.
    pub(crate) address: SocketAddr,
    /// Services whose attachments the sender claims to have applied; only accepted from waypoints of these services.
    pub(crate) applied_services: AppliedServices,
}

/// Reason why the original-peer header of a CONNECT is rejected: it is malformed, or its sender may not send it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallerError {
    #[error("{ORIGINAL_PEER_HEADER} is duplicated or malformed")]
    InvalidForwardedHeader,
    #[error(
        "{ORIGINAL_PEER_HEADER} is believed only from the requested pod, and this one has another sender"
    )]
    NotFromPod,
    #[error("the node proxy of the pod does not send the original peer's address")]
    NoOriginalAddress,
}

impl Caller {
    /// Returns the verified namespace of the caller.
    pub(crate) fn namespace(&self) -> Option<&str> {
        let identity = self.identity.as_ref();
        identity.map(|identity| identity.namespace.as_str())
    }

    /// Whether the caller is a waypoint that calls on behalf of an object of this namespace, under the identity
    /// reserved for such calls.
    pub(crate) fn calls_on_behalf_of(&self, namespace: &str) -> bool {
        self.identity.as_ref().is_some_and(|identity| {
            identity.is_for_waypoint_calls() && identity.namespace == namespace
        })
    }

    /// Returns the caller of a tunnel to `target`, whose peer has proven `identity` and is at `address`.
    pub(crate) fn resolve(
        headers: &HeaderMap,
        identity: Option<Identity>,
        address: SocketAddr,
        target: &Target,
    ) -> Result<Self, CallerError> {
        let mut values = headers.get_all(ORIGINAL_PEER_HEADER).iter();
        let forwarded = headers
            .get(http::header::FORWARDED)
            .and_then(|value| Forwarded::parse(value.as_bytes()).ok())
            .map(|forwarded| ambit_model::canonical_socket_address(forwarded.client));
        let Some(original) = values.next() else {
            // The peer's own port is that of the HBONE connection, which carries many connections.
            let own = forwarded.filter(|client| client.ip() == address.ip());
            return Ok(Self {
                identity,
                address: own.unwrap_or(address),
                applied_services: AppliedServices::from_headers(headers),
            });
        };
        if values.next().is_some() {
            return Err(CallerError::InvalidForwardedHeader);
        }
        let original = OriginalPeer::parse(original.as_bytes());
        let OriginalPeer(original) = original.map_err(|_| CallerError::InvalidForwardedHeader)?;
        if !is_from_pod(identity.as_ref(), address, target) {
            return Err(CallerError::NotFromPod);
        }
        Ok(Self {
            identity: original,
            address: forwarded.ok_or(CallerError::NoOriginalAddress)?,
            // Node proxies apply no attachments.
            applied_services: AppliedServices::default(),
        })
    }
}

/// Whether the peer is the node proxy of the requested pod.
fn is_from_pod(identity: Option<&Identity>, address: SocketAddr, target: &Target) -> bool {
    let Target::Pod {
        workload,
        address: requested,
    } = target
    else {
        return false;
    };
    identity.is_some_and(|identity| workload.has_identity(identity))
        && address.ip() == requested.ip()
        && workload.ips().contains(&address.ip())
        && workload.protocol() == Protocol::Hbone
        && !workload.native_tunnel()
}

#[cfg(test)]
mod tests {
    use ambit_model::Workload;
    use ambit_route::{MeshTable, TableConfig};
    use http::HeaderValue;

    use super::*;

    fn pod(change: impl FnOnce(&mut Workload)) -> Target {
        let mut workload = Workload {
            uid: "c//Pod/ns/web".into(),
            name: "web".into(),
            namespace: "ns".into(),
            service_account: "web".into(),
            workload_ips: vec!["10.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap()],
            protocol: Protocol::Hbone,
            ..Workload::default()
        };
        change(&mut workload);
        let mut table = MeshTable::new(TableConfig::default());
        table.insert_workload(&workload);
        Target::Pod {
            workload: table.workload("c//Pod/ns/web").unwrap().clone(),
            address: "10.0.0.1:8080".parse().unwrap(),
        }
    }

    fn identity(account: &str) -> Option<Identity> {
        Some(Identity::new("cluster.local", "ns", account))
    }

    fn original_peer(original: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ORIGINAL_PEER_HEADER, HeaderValue::from_static(original));
        let forwarded = HeaderValue::from_static("for=\"10.9.9.9:4711\"");
        headers.insert(http::header::FORWARDED, forwarded);
        headers
    }

    fn source_address(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), 40000)
    }

    #[test]
    fn without_the_header_the_peer_is_the_caller() {
        let target = pod(|_| {});
        let caller = Caller::resolve(
            &HeaderMap::new(),
            identity("a"),
            source_address("10.0.0.5"),
            &target,
        );
        let expected = Caller {
            identity: identity("a"),
            address: source_address("10.0.0.5"),
            applied_services: AppliedServices::default(),
        };
        assert_eq!(caller, Ok(expected));
    }

    #[test]
    fn tunnel_names_the_clients_port_but_not_its_address() {
        let target = pod(|_| {});
        for (forwarded, expected) in [
            ("for=\"10.0.0.5:4711\"", "10.0.0.5:4711"),
            ("for=\"[::ffff:10.0.0.5]:4711\"", "10.0.0.5:4711"),
            ("for=\"10.0.0.6:4711\"", "10.0.0.5:40000"),
            ("for=nobody", "10.0.0.5:40000"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::FORWARDED, HeaderValue::from_static(forwarded));
            let caller =
                Caller::resolve(&headers, identity("a"), source_address("10.0.0.5"), &target);
            let address = caller.map(|caller| caller.address);
            assert_eq!(address, Ok(expected.parse().unwrap()), "{forwarded}");
        }
    }

    #[test]
    fn original_peer_of_the_pods_node_proxy_is_accepted() {
        let target = pod(|_| {});
        for (original, expected) in [
            ("none", None),
            (
                "spiffe://cluster.local/ns/x/sa/y",
                Some(Identity::new("cluster.local", "x", "y")),
            ),
        ] {
            let caller = Caller::resolve(
                &original_peer(original),
                identity("web"),
                source_address("10.0.0.1"),
                &target,
            );
            let caller = caller.unwrap();
            assert_eq!(caller.identity, expected);
            assert_eq!(caller.address, "10.9.9.9:4711".parse().unwrap());
        }
    }

    #[test]
    fn original_peers_of_other_senders_are_rejected() {
        let captured = pod(|_| {});
        let uncaptured = pod(|workload| workload.protocol = Protocol::Tcp);
        let native = pod(|workload| workload.native_tunnel = true);
        let cases = [
            ("another identity", identity("evil"), "10.0.0.1", &captured),
            ("no identity", None, "10.0.0.1", &captured),
            (
                "another pod of the account",
                identity("web"),
                "10.0.0.2",
                &captured,
            ),
            (
                "another address of the pod",
                identity("web"),
                "10.0.0.9",
                &captured,
            ),
            (
                "a pod with keys of its own",
                identity("web"),
                "10.0.0.1",
                &native,
            ),
            (
                "a pod that is not captured",
                identity("web"),
                "10.0.0.1",
                &uncaptured,
            ),
        ];
        for (what, identity, ip, target) in cases {
            let caller =
                Caller::resolve(&original_peer("none"), identity, source_address(ip), target);
            assert_eq!(caller, Err(CallerError::NotFromPod), "{what}");
        }
    }

    #[test]
    fn repeated_or_malformed_headers_are_rejected() {
        let target = pod(|_| {});
        let of = |headers: &HeaderMap| {
            Caller::resolve(
                headers,
                identity("web"),
                source_address("10.0.0.1"),
                &target,
            )
        };
        assert_eq!(
            of(&original_peer("somebody")),
            Err(CallerError::InvalidForwardedHeader)
        );
        let mut twice = original_peer("none");
        twice.append(ORIGINAL_PEER_HEADER, HeaderValue::from_static("none"));
        assert_eq!(of(&twice), Err(CallerError::InvalidForwardedHeader));
        let mut nowhere = original_peer("none");
        nowhere.remove(http::header::FORWARDED);
        assert_eq!(of(&nowhere), Err(CallerError::NoOriginalAddress));
    }
}
