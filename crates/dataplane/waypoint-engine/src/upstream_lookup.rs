//! Resolves routes to upstream addresses: by DNS for endpoints with hostnames, and for hosts below a wildcard that a
//! client names. A DNS name cannot make the waypoint call an address of the mesh.

use std::net::{IpAddr, SocketAddr};

use ambit_egress::ForbiddenAddress;
use ambit_model::{ArcStr, NetworkAddress};
use ambit_proxy::{choose_address, state::LOCAL_WORKLOAD_TIMEOUT};
use ambit_route::{Route, WorkloadRef};
use tokio::time::Instant;

use crate::{
    caller::Caller,
    upstream::{Upstream, UpstreamError},
    waypoint::Waypoint,
};

/// Resolves the endpoint of a route to the address that is connected to.
pub(crate) async fn resolve(route: Route, waypoint: &Waypoint) -> Result<Upstream, UpstreamError> {
    let route = match route {
        Route::NeedsDns(pending) => {
            let host = &pending.hostname;
            let found = waypoint.names.resolve(host).await??;
            let ipv6 = waypoint.config.ipv6;
            let ip = choose_address(host, &found, pending.prefer_ipv6, ipv6)?;
            let host = host.clone();
            let route = pending.resolve(ip);
            // A tunnel to a DNS name ends at an address that the name's owner chooses. It must not be a pod, to which
            // the waypoint would connect under its own identity.
            if matches!(&route, Route::Hbone(hbone) if hbone.waypoint.is_none())
                && is_pod_address(waypoint, ip).await?
            {
                return Err(UpstreamError::TunnelToPod { host, ip });
            }
            route
        }
        known => known,
    };
    let is_of_cluster = is_endpoint_known_to_the_api_server(&route);
    let upstream = Upstream::from_route(route)?;
    match waypoint.names.check_egress(upstream.next_hop().ip()) {
        Err(ForbiddenAddress::Cluster(_)) if is_of_cluster => {}
        checked => checked?,
    }
    Ok(upstream)
}

/// Whether an address belongs to a pod; an error while the control plane does not respond.
async fn is_pod_address(waypoint: &Waypoint, ip: IpAddr) -> Result<bool, UpstreamError> {
    let at = request_address_record(waypoint, ip).await?;
    let table = waypoint.state.table();
    let workload = table.workload_by_ip(&at.network, ip);
    Ok(workload.is_some_and(WorkloadRef::is_pod))
}

/// Requests the control plane's record of an address of the waypoint's network.
pub(crate) async fn request_address_record(
    waypoint: &Waypoint,
    ip: IpAddr,
) -> Result<NetworkAddress, UpstreamError> {
    let own = waypoint.local.wait_until_published().await;
    let network = own.as_ref().map(|own| own.workload.network.clone());
    let at = NetworkAddress::new(network.unwrap_or_default(), ip);
    let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
    waypoint
        .state
        .subscribe_to_record(at.to_string(), deadline)
        .await?;
    Ok(at)
}

/// Whether the API server itself vouches for the endpoint's address: the endpoint is a pod, possibly in its node's
/// network, or the API server as endpoint of the Service `kubernetes`. Hand-written addresses do not qualify.
fn is_endpoint_known_to_the_api_server(route: &Route) -> bool {
    let workload = match route {
        Route::Plain(plain) => &plain.workload,
        Route::Hbone(hbone) => &hbone.workload,
        _ => return false,
    };
    let mut uid = workload.uid().split('/').skip(1);
    match (uid.next(), uid.next(), uid.next()) {
        (Some(""), Some("Pod"), Some(_)) => true,
        (Some("discovery.k8s.io"), Some("EndpointSlice"), Some("default")) => {
            uid.next() == Some("kubernetes")
        }
        _ => false,
    }
}

/// Resolves a host below a wildcard that a client has named, and checks its address.
pub(crate) async fn resolve_host(
    host: &ArcStr,
    port: u16,
    waypoint: &Waypoint,
    caller: &Caller,
) -> Result<Upstream, UpstreamError> {
    // Fully qualified: resolvers do not append search domains.
    let of = (caller.identity.clone(), caller.address.ip());
    let known = waypoint
        .names
        .resolve_for_client(&format!("{host}."), of)
        .await;
    let known = known.inspect_err(|_| waypoint.http_metrics.count_refused_request("name_lookups"));
    let all = known??;
    let mut good = Vec::new();
    let mut why = None;
    for ip in all.iter().copied() {
        match check_outside_mesh(waypoint, host, ip).await {
            Ok(()) => good.push(ip),
            Err(error) => why = Some(error),
        }
    }
    match why {
        Some(why) if good.is_empty() => Err(why),
        _ => {
            let ip = choose_address(host, &good, false, waypoint.config.ipv6)?;
            Ok(Upstream::Plain(SocketAddr::new(ip, port), None))
        }
    }
}

/// Checks that the address of a host that a client has named does not belong to the mesh: services and pods are called
/// by their own names, under their own policies. Fails while the control plane does not respond.
async fn check_outside_mesh(
    waypoint: &Waypoint,
    host: &ArcStr,
    ip: IpAddr,
) -> Result<(), UpstreamError> {
    waypoint.names.check_egress(ip)?;
    if waypoint.names.is_outside_mesh(ip) {
        return Ok(());
    }
    let at = request_address_record(waypoint, ip).await?;
    let own = waypoint.local.wait_until_published().await;
    let is_of_mesh = {
        let table = waypoint.state.table();
        let namespace = own
            .as_ref()
            .map_or("", |own| own.workload.namespace.as_str());
        // A prefix that only another namespace sees does not count.
        table.has_address(&at) || table.service_by_vip(&at.network, ip, namespace).is_some()
    };
    if waypoint.config.ip == Some(ip) || is_of_mesh {
        let host = host.clone();
        return Err(UpstreamError::MeshAddress { host, ip });
    }
    waypoint.names.record_outside_mesh(ip);
    Ok(())
}
