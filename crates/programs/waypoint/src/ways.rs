//! Ways to what is known by name: of services to what their hosts resolve to, below wildcards to the host that a client
//! names. Whoever owns a name does not say by it what the waypoint calls.

use std::net::{IpAddr, SocketAddr};

use ambit_egress::Forbidden;
use ambit_model::{ArcStr, NetworkAddress};
use ambit_proxy::{pick, state::LOCAL_WORKLOAD_DEADLINE};
use ambit_route::{Route, WorkloadRef};
use tokio::time::Instant;

use crate::{
    caller::Caller,
    upstream::{UpstreamError, Way},
    waypoint::Waypoint,
};

/// Finds the address of a route.
pub(crate) async fn way(route: Route, waypoint: &Waypoint) -> Result<Way, UpstreamError> {
    let route = match route {
        Route::NeedsDns(pending) => {
            let host = &pending.hostname;
            let found = waypoint.names.of(host).await??;
            let ipv6 = waypoint.config.ipv6;
            let ip = pick(host, &found, pending.prefer_ipv6, ipv6)?;
            let host = host.clone();
            let route = pending.resolve(ip);
            // A tunnel to a name ends at what the name's owner says: never at a pod, for which the waypoint would be
            // speaking as itself.
            if matches!(&route, Route::Hbone(hbone) if hbone.waypoint.is_none())
                && is_of_pod(waypoint, ip).await?
            {
                return Err(UpstreamError::TunnelToPod { host, ip });
            }
            route
        }
        known => known,
    };
    let is_of_cluster = is_of_cluster(&route);
    let way = Way::known(route)?;
    match waypoint.names.check(way.next_hop().ip()) {
        Err(Forbidden::Cluster(_)) if is_of_cluster => {}
        checked => checked?,
    }
    Ok(way)
}

/// Whether an address is a pod's. Where the control plane does not say, there is no answer.
async fn is_of_pod(waypoint: &Waypoint, ip: IpAddr) -> Result<bool, UpstreamError> {
    let at = ask(waypoint, ip).await?;
    let table = waypoint.state.table();
    let workload = table.workload_by_ip(&at.network, ip);
    Ok(workload.is_some_and(WorkloadRef::is_pod))
}

/// Asks the control plane what is at an address of the waypoint's network.
pub(crate) async fn ask(waypoint: &Waypoint, ip: IpAddr) -> Result<NetworkAddress, UpstreamError> {
    let own = waypoint.local.known().await;
    let network = own.as_ref().map(|own| own.workload.network.clone());
    let at = NetworkAddress::new(network.unwrap_or_default(), ip);
    let deadline = Instant::now() + LOCAL_WORKLOAD_DEADLINE;
    waypoint.state.learn(at.to_string(), deadline).await?;
    Ok(at)
}

/// Whether an endpoint is known from the API server itself, and not only named by an object: a pod, which may be in its
/// node's network, or the API server as an endpoint of its own Service.
fn is_of_cluster(route: &Route) -> bool {
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

/// To a host that a client has named, below a wildcard.
pub(crate) async fn way_to_host(
    host: &ArcStr,
    port: u16,
    (waypoint, caller): (&Waypoint, &Caller),
) -> Result<Way, UpstreamError> {
    // As it stands: without the domains that a resolver may be told to add.
    let of = (caller.identity.clone(), caller.address.ip());
    let known = waypoint.names.of_client(&format!("{host}."), of).await;
    let known = known.inspect_err(|_| waypoint.http_metrics.refused("name_lookups"));
    let all = known??;
    let mut good = Vec::new();
    let mut why = None;
    for ip in all.iter().copied() {
        match may_call(waypoint, host, ip).await {
            Ok(()) => good.push(ip),
            Err(error) => why = Some(error),
        }
    }
    match why {
        Some(why) if good.is_empty() => Err(why),
        _ => {
            let ip = pick(host, &good, false, waypoint.config.ipv6)?;
            Ok(Way::Plain(SocketAddr::new(ip, port), None))
        }
    }
}

/// Whether a host that a client has named may have an address: not one of the mesh, whose services and pods are
/// reached under names of their own, and by the policies for these. Where the control plane does not say, it may
/// not.
async fn may_call(waypoint: &Waypoint, host: &ArcStr, ip: IpAddr) -> Result<(), UpstreamError> {
    waypoint.names.check(ip)?;
    if waypoint.names.is_good(ip) {
        return Ok(());
    }
    let at = ask(waypoint, ip).await?;
    let own = waypoint.local.known().await;
    let is_of_mesh = {
        let table = waypoint.state.table();
        let namespace = own
            .as_ref()
            .map_or("", |own| own.workload.namespace.as_str());
        // A prefix that another namespace has for itself is nobody else's.
        table.knows_address(&at) || table.service_by_vip(&at.network, ip, namespace).is_some()
    };
    if waypoint.config.ip == Some(ip) || is_of_mesh {
        let host = host.clone();
        return Err(UpstreamError::OfMesh { host, ip });
    }
    waypoint.names.found_good(ip);
    Ok(())
}
