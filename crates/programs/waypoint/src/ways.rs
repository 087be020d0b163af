//! Ways to what is known by name: of services to what their hosts resolve to, below wildcards to the host that a client
//! names. Whoever owns a name does not say by it what the waypoint calls.

use std::net::{IpAddr, SocketAddr};

use ambit_model::{ArcStr, NetworkAddress};
use ambit_proxy::{pick, state::LOCAL_WORKLOAD_DEADLINE};
use ambit_route::Route;
use tokio::time::Instant;

use crate::{
    upstream::{UpstreamError, Way},
    waypoint::Waypoint,
};

/// Finds the address of a route.
pub(crate) async fn way(route: Route, waypoint: &Waypoint) -> Result<Way, UpstreamError> {
    let route = match route {
        Route::NeedsDns(pending) => {
            let host = &pending.hostname;
            let found = waypoint.names.of(host).await?;
            let ipv6 = waypoint.config.ipv6;
            let ip = pick(host, &found, pending.prefer_ipv6, ipv6)?;
            pending.resolve(ip)
        }
        known => known,
    };
    let way = Way::known(route)?;
    match way {
        Way::Plain(address, _) if waypoint.names.is_own(address.ip()) => {
            Err(UpstreamError::Own(address.ip()))
        }
        way => Ok(way),
    }
}

/// To a host that a client has named, below a wildcard.
pub(crate) async fn way_to_host(
    host: &ArcStr,
    port: u16,
    waypoint: &Waypoint,
) -> Result<Way, UpstreamError> {
    // As it stands: without the domains that a resolver may be told to add.
    let all = waypoint.names.of(&format!("{host}.")).await?;
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
    if let Some(forbidden) = waypoint.names.forbidden(ip) {
        return Err(forbidden.into());
    }
    if waypoint.names.is_good(ip) {
        return Ok(());
    }
    let own = waypoint.local.known().await;
    let network = own.map(|own| own.workload.network.clone());
    let at = NetworkAddress::new(network.unwrap_or_default(), ip);
    let deadline = Instant::now() + LOCAL_WORKLOAD_DEADLINE;
    waypoint.state.learn(at.to_string(), deadline).await?;
    if waypoint.config.ip == Some(ip) || waypoint.state.table().knows_address(&at) {
        let host = host.clone();
        return Err(UpstreamError::OfMesh { host, ip });
    }
    waypoint.names.found_good(ip);
    Ok(())
}
