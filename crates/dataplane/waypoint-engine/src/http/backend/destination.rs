//! Destinations of requests and connections: a tunnel's target, or a route's backend.

use std::sync::Arc;

use ambit_model::{AppProtocol, ArcStr, NamespacedHostname, Service};
use ambit_proxy::LocalPod;
use ambit_route::{ActiveRequestsAt, BackendEndpoint, BackendRequest, Route, RouteError};
use http::{HeaderMap, Uri};

use super::endpoint::DestinationDecision;
use crate::{
    destination::{DestinationPort, EndpointLease, NoUpstream},
    message::Version,
    retry_budget::RetryBudgetKey,
    session::Session,
    target::Target,
    upstream::{Upstream, UpstreamError},
    upstream_lookup,
};

/// Destination of a request or connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Target of the tunnel: the requested service or pod.
    Target,
    /// Service and port that a route names as backend.
    Backend(NamespacedHostname, u16),
    /// Service, port and `DestinationRule` subset that a route names as backend.
    Subset(NamespacedHostname, u16, ArcStr),
    /// Host that the client names below the wildcard hostname of the tunnel's target.
    Host(ArcStr),
}

impl Destination {
    /// Returns the record of the destination's service; `None` for a pod, or while the service is unknown.
    pub(crate) fn service(&self, session: &Session) -> Option<Arc<Service>> {
        match self {
            Self::Target | Self::Host(_) => session.target.service_record().cloned(),
            Self::Backend(name, _) | Self::Subset(name, ..) => {
                let table = session.shard.waypoint.state.table();
                table.service(name).cloned()
            }
        }
    }

    /// Returns the service and port of the destination; `None` for a pod.
    pub(crate) fn port<'a>(
        &'a self,
        session: &'a Session,
    ) -> Option<(&'a NamespacedHostname, u16)> {
        match (self, &session.target) {
            (Self::Backend(name, port) | Self::Subset(name, port, _), _) => Some((name, *port)),
            (
                Self::Target | Self::Host(_),
                Target::Service {
                    served, address, ..
                },
            ) => Some((&served.name, address.port())),
            (Self::Target | Self::Host(_), Target::Pod { .. }) => None,
        }
    }

    /// Builds the query for an endpoint of the destination, without the workloads in `failed`.
    pub(crate) fn backend_request<'a>(
        &self,
        session: &'a Session,
        own: &'a LocalPod,
        failed: &'a [ArcStr],
    ) -> BackendRequest<'a> {
        BackendRequest {
            waypoint: &own.workload,
            own_address: Some(&session.shard.waypoint.address),
            is_called_service: self.is_target(session),
            failed_workloads: failed,
            dialed_ip: session.target.requested_ip(),
        }
    }

    /// Whether the destination has the requested service port: the tunnel's target, or a subset of it.
    pub(crate) fn is_requested_port(&self, session: &Session) -> bool {
        match self {
            Self::Target | Self::Host(_) => true,
            Self::Subset(name, port, _) => session.target.is_service_port(name, *port),
            Self::Backend(..) => false,
        }
    }

    /// Returns the declared protocol of the destination's port.
    pub(crate) fn app_protocol(&self, session: &Session) -> AppProtocol {
        match self {
            Self::Target | Self::Host(_) => session.target.app_protocol(),
            Self::Backend(name, port) | Self::Subset(name, port, _) => {
                let table = session.shard.waypoint.state.table();
                let service = table.service(name);
                service.map_or(AppProtocol::Unknown, |service| service.app_protocol(*port))
            }
        }
    }

    /// Returns the destination's key in the table of retry budgets.
    pub(in crate::http) fn retry_budget_key(&self, session: &Session) -> RetryBudgetKey {
        match self {
            Self::Target | Self::Host(_) => RetryBudgetKey::Address(session.target.address()),
            Self::Backend(name, port) | Self::Subset(name, port, _) => {
                RetryBudgetKey::Service(name.clone(), *port)
            }
        }
    }

    /// Whether the destination is the service of the tunnel's target, so that this waypoint chooses the endpoint.
    fn is_target(&self, session: &Session) -> bool {
        match (self, &session.target) {
            (Self::Target | Self::Host(_), _) => true,
            (Self::Subset(name, ..), Target::Service { served, .. }) => *name == served.name,
            _ => false,
        }
    }

    /// Chooses an endpoint of the destination, other than workloads in `failed`, and returns the route to it.
    pub(crate) async fn route(
        &self,
        session: &Session,
        own: &LocalPod,
        failed: &[ArcStr],
    ) -> Result<Route, RouteError> {
        let http = &session.shard.upstreams.http;
        let load = |endpoint| http.active_requests(endpoint);
        let look = || self.route_to_service(session, own, failed, &load);
        session.shard.waypoint.find_complete_route(look).await
    }

    fn route_to_service(
        &self,
        session: &Session,
        own: &LocalPod,
        failed: &[ArcStr],
        load: ActiveRequestsAt<'_>,
    ) -> Result<Route, RouteError> {
        let waypoint = &session.shard.waypoint;
        match self {
            Self::Target | Self::Host(_) => {
                let target = &session.target;
                target.route(waypoint, &own.workload, failed, Some(load))
            }
            Self::Backend(name, port) | Self::Subset(name, port, _) => {
                let request = self.backend_request(session, own, failed);
                let table = waypoint.state.table();
                table.route_to_backend(&request, name, *port, Some(load), &mut rand::rng())
            }
        }
    }

    /// Returns the `DestinationRule` state of the destination's port, if a rule applies.
    pub(crate) fn destination_rule_port(&self, session: &Session) -> Option<Arc<DestinationPort>> {
        let (name, number) = match (self, &session.target) {
            (Self::Subset(name, number, subset), _) => {
                let published = &session.shard.waypoint.published;
                return published.destination(name)?.subset(subset, *number);
            }
            (Self::Backend(name, number), _) => (name, *number),
            (
                Self::Target | Self::Host(_),
                Target::Service {
                    served, address, ..
                },
            ) => (&served.name, address.port()),
            (Self::Target | Self::Host(_), Target::Pod { .. }) => return None,
        };
        let published = &session.shard.waypoint.published;
        Some(published.destination(name)?.port(number))
    }

    /// Applies the destination's rule to a request (limits and load-balancer hash), if there is one.
    pub(in crate::http) async fn apply_rule(
        &self,
        session: &Session,
        version: Version,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> Result<Option<Arc<DestinationDecision>>, NoUpstream> {
        match self.destination_rule_port(session) {
            Some(port) => Ok(Some(
                DestinationDecision::new(session, port, version, headers, uri).await?,
            )),
            None => match self {
                // Other endpoints of the service must not be used.
                Self::Subset(..) => Err(self.unknown_subset_error()),
                _ => Ok(None),
            },
        }
    }

    fn unknown_subset_error(&self) -> NoUpstream {
        let (service, subset) = match self {
            Self::Subset(service, _, subset) => (service.to_string(), subset.clone()),
            _ => Default::default(),
        };
        NoUpstream::UnusableSubset(service, subset)
    }

    /// Chooses an endpoint, by the destination's rule or as the less loaded of two random ones. Returns the upstream of
    /// the endpoint, with the leases to hold.
    pub(in crate::http) async fn upstream(
        &self,
        session: &Session,
        own: &LocalPod,
        decision: Option<&Arc<DestinationDecision>>,
        failed: &[ArcStr],
        sticky: Option<&BackendEndpoint>,
    ) -> Result<(Upstream, Option<EndpointLease>), NoEndpointError> {
        let waypoint = &session.shard.waypoint;
        if let Some(upstream) = self.pass_through(session).await? {
            return Ok((upstream, None));
        }
        if let Some(decision) = decision {
            let wish = decision.pick_request(failed, sticky.map(|sticky| sticky.workload.uid()));
            let request = self.backend_request(session, own, &[]);
            match decision.port.route(waypoint.rule_context(), request, wish) {
                Ok(Some((route, held))) => {
                    return Ok((upstream_lookup::resolve(route, waypoint).await?, Some(held)));
                }
                Ok(None) => {}
                // Missing records are requested below.
                Err(NoUpstream::Route(error)) if error.missing_record().is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(sticky) = sticky.filter(|sticky| !failed.contains(sticky.workload.uid()))
            && decision.is_none()
            && let Some(route) = self.route_to(session, own, sticky)
        {
            return Ok((upstream_lookup::resolve(route, waypoint).await?, None));
        }
        let route = self.route(session, own, failed).await;
        let begins_tls = decision.filter(|decision| decision.port.tls().is_some());
        if let Some(decision) = begins_tls.or_else(|| decision.filter(|_| self.is_subset())) {
            // Missing records have been requested now. The route may still lead outside of the subset, or bypass a
            // waypoint.
            let route = route.map_err(UpstreamError::from)?;
            let rule_context = waypoint.rule_context();
            let wish = decision.pick_request(failed, None);
            let request = self.backend_request(session, own, &[]);
            let chosen = decision.port.route(rule_context, request, wish)?;
            return match chosen {
                Some((route, held)) => {
                    Ok((upstream_lookup::resolve(route, waypoint).await?, Some(held)))
                }
                None if self.is_subset() => Err(self.unknown_subset_error().into()),
                // The service's own waypoint chooses the endpoint and connects to it.
                None => Ok((upstream_lookup::resolve(route, waypoint).await?, None)),
            };
        }
        let upstream =
            upstream_lookup::resolve(route.map_err(UpstreamError::from)?, waypoint).await?;
        Ok((upstream, None))
    }

    fn is_subset(&self) -> bool {
        matches!(self, Self::Subset(..))
    }
}

/// Reason why a destination has no available endpoint.
#[derive(Debug, thiserror::Error)]
pub(in crate::http) enum NoEndpointError {
    #[error(transparent)]
    DestinationRule(#[from] NoUpstream),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}
