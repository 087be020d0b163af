//! Ways out that nothing is chosen for: what a client names is where it goes.

use ambit_model::ArcStr;

use super::destination::Destination;
use crate::{
    session::Session,
    upstream::{UpstreamError, Way},
    ways,
};

impl Destination {
    /// The way that the client gives: to the host that it names, or to the address that it dialled, where nothing is
    /// chosen.
    pub(crate) async fn given(&self, session: &Session) -> Result<Option<Way>, UpstreamError> {
        let waypoint = &session.shard.waypoint;
        match self {
            Self::Host(host) => {
                let port = session.target.host_port();
                Ok(Some(
                    ways::way_to_host(host, port, (waypoint, &session.caller)).await?,
                ))
            }
            Self::Target => match session.target.passed_through(waypoint) {
                Some(route) => Ok(Some(ways::way(route, waypoint).await?)),
                None => Ok(None),
            },
            Self::Backend(..) | Self::Subset(..) => Ok(None),
        }
    }

    /// The host of an endpoint, as TLS asks for it where nothing else is said.
    pub(crate) fn host(&self, session: &Session) -> ArcStr {
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
