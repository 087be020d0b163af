//! Pass-through upstreams, which clients name and no load balancing chooses: hosts below wildcards, and original
//! destinations (`resolution: NONE`).

use ambit_model::ArcStr;

use super::destination::Destination;
use crate::{
    session::Session,
    upstream::{Upstream, UpstreamError},
    upstream_lookup,
};

impl Destination {
    /// Returns the upstream that the client itself names, by host or by original destination; `None` if the waypoint
    /// chooses an endpoint.
    pub(crate) async fn pass_through(
        &self,
        session: &Session,
    ) -> Result<Option<Upstream>, UpstreamError> {
        let waypoint = &session.shard.waypoint;
        match self {
            Self::Host(host) => {
                let port = session.target.host_port();
                Ok(Some(
                    upstream_lookup::resolve_host(host, port, waypoint, &session.caller).await?,
                ))
            }
            Self::Target => match session.target.pass_through_route(waypoint) {
                Some(route) => Ok(Some(upstream_lookup::resolve(route, waypoint).await?)),
                None => Ok(None),
            },
            Self::Backend(..) | Self::Subset(..) => Ok(None),
        }
    }

    /// Returns the default SNI for TLS with the endpoint.
    pub(crate) fn default_sni(&self, session: &Session) -> ArcStr {
        match self {
            Self::Host(host) => host.clone(),
            Self::Backend(name, _) | Self::Subset(name, ..) => name.hostname.clone(),
            Self::Target => {
                let service = session.target.service_name();
                service.map_or_else(ArcStr::new, |name| name.hostname.clone())
            }
        }
    }
}
