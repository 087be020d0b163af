//! Chooses an endpoint of a service, and an address of a workload.
//!
//! The choice is random, weighted by capacity, without state. With session affinity it is a hash of the client's
//! address, so that a client gets the same endpoint from every node and after restarts, and only added or removed
//! endpoints move clients. Services that balance over all endpoints are sampled in constant time: draw, keep with a
//! probability proportional to the capacity, else draw again; only when that fails repeatedly (few usable endpoints
//! among many) are all of them evaluated. Locality modes evaluate all endpoints, in one pass and without allocating.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
};

use ambit_model::{
    ArcStr, HealthPolicy, Identity, IpFamilies, LbMode, LbScope, LoadBalancing, Locality,
    NamespacedHostname, Service, Workload,
};
use rand::{Rng, RngCore};

use crate::{
    MeshTable, WorkloadRef,
    services::Endpoints,
    workloads::{Slot, Workloads},
};

/// Maximum random draws before all endpoints are evaluated instead.
const MAX_RANDOM_DRAWS: usize = 16;

/// Purpose of the chosen endpoint, which determines the eligible ones.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndpointPurpose<'a> {
    /// Connection of a client: the service must have the dialed port.
    ClientConnection,
    /// Tunnel to a waypoint: an endpoint that terminates HBONE itself needs no port in the service. If the record
    /// names the identities of the waypoint's pods, no other pod is eligible, whatever its labels.
    WaypointTunnel(Option<&'a [Identity]>),
}

/// Location of the client for which an endpoint is chosen, and the workloads that it must avoid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLocation<'a> {
    pub(crate) address: Option<IpAddr>,
    pub(crate) network: &'a ArcStr,
    pub(crate) node: &'a ArcStr,
    pub(crate) cluster_id: &'a ArcStr,
    pub(crate) locality: &'a Locality,
    /// Uids of workloads to exclude, since connections to them have failed.
    pub(crate) failed_workloads: &'a [ArcStr],
}

impl<'a> From<&'a Workload> for ClientLocation<'a> {
    fn from(source: &'a Workload) -> Self {
        Self {
            address: source.workload_ips.first().copied(),
            network: &source.network,
            node: &source.node,
            cluster_id: &source.cluster_id,
            locality: &source.locality,
            failed_workloads: &[],
        }
    }
}

impl MeshTable {
    /// Chooses an endpoint of `service`, and returns it with its target port; `None` if no endpoint is usable.
    pub(crate) fn choose_endpoint(
        &self,
        client_location: ClientLocation<'_>,
        service: &Service,
        endpoints: &Endpoints,
        port: u16,
        mode: EndpointPurpose<'_>,
        rng: &mut dyn RngCore,
    ) -> Option<(&WorkloadRef, u16)> {
        let default = LoadBalancing::default();
        let choice = self.endpoint_choice(client_location, service, &default, port, mode);
        if let (true, Some(client)) = (service.session_affinity, client_location.address) {
            return choice.pick_by_client_hash(endpoints, client);
        }
        let chosen = match choice.balancing.mode {
            LbMode::Standard | LbMode::Passthrough => choice
                .pick_at_random(endpoints, rng)
                .or_else(|| choice.pick_by_scan(endpoints, rng)),
            LbMode::Strict | LbMode::Failover => choice.pick_by_scan(endpoints, rng),
        };
        chosen.or_else(|| match mode {
            // Terminating pods of a waypoint serve as long as no other does. One that cannot refuses at once.
            EndpointPurpose::WaypointTunnel(_) => {
                choice.including_unready().pick_by_scan(endpoints, rng)
            }
            EndpointPurpose::ClientConnection => None,
        })
    }

    /// Returns the parameters by which an endpoint of a service is chosen.
    fn endpoint_choice<'t, 'a>(
        &'t self,
        client_location: ClientLocation<'a>,
        service: &'a Service,
        default: &'a LoadBalancing,
        port: u16,
        mode: EndpointPurpose<'a>,
    ) -> EndpointChoice<'t, 'a> {
        EndpointChoice {
            workloads: &self.workloads,
            name: service.namespaced_hostname(),
            service_target_port: service.ports.get(&port).copied(),
            health_policy: service
                .load_balancing
                .as_ref()
                .unwrap_or(default)
                .health_policy,
            balancing: service.load_balancing.as_ref().unwrap_or(default),
            client_location,
            port,
            purpose: mode,
        }
    }

    /// Iterates over the eligible endpoints of `service` with their target ports and locality ranks.
    pub(crate) fn eligible_endpoints(
        &self,
        client_location: ClientLocation<'_>,
        service: &Service,
        endpoints: &Endpoints,
        port: u16,
    ) -> Vec<(&WorkloadRef, u16, usize)> {
        let default = LoadBalancing::default();
        let choice = self.endpoint_choice(
            client_location,
            service,
            &default,
            port,
            EndpointPurpose::ClientConnection,
        );
        let slots = endpoints.usable(choice.health_policy);
        let usable = slots.filter_map(|slot| {
            let (workload, port) = choice.eligible_endpoint(slot)?;
            Some((workload, port, choice.rank(workload)?))
        });
        usable.collect()
    }
}

/// Whether a workload is eligible, regardless of its addresses.
pub(crate) fn is_candidate(
    workload: &WorkloadRef,
    client_location: ClientLocation<'_>,
    mode: EndpointPurpose<'_>,
) -> bool {
    let has_accepted_identity = match mode {
        EndpointPurpose::WaypointTunnel(Some(identities)) => identities
            .iter()
            .any(|identity| workload.has_identity(identity)),
        EndpointPurpose::WaypointTunnel(None) | EndpointPurpose::ClientConnection => true,
    };
    has_accepted_identity && !client_location.failed_workloads.contains(workload.uid())
}

struct EndpointChoice<'t, 'a> {
    workloads: &'t Workloads,
    name: NamespacedHostname,
    service_target_port: Option<u16>,
    health_policy: HealthPolicy,
    balancing: &'a LoadBalancing,
    client_location: ClientLocation<'a>,
    port: u16,
    purpose: EndpointPurpose<'a>,
}

impl<'t> EndpointChoice<'t, '_> {
    /// Returns the choice with endpoints included that are not ready.
    fn including_unready(self) -> Self {
        Self {
            health_policy: HealthPolicy::AllowAll,
            ..self
        }
    }

    /// Chooses an endpoint by random draws in constant time; `None` if all draws fail.
    fn pick_at_random(
        &self,
        endpoints: &Endpoints,
        rng: &mut dyn RngCore,
    ) -> Option<(&'t WorkloadRef, u16)> {
        let unready = match self.health_policy {
            HealthPolicy::OnlyHealthy => 0,
            HealthPolicy::AllowAll => endpoints.unready.len(),
        };
        let count = endpoints.ready.len() + unready;
        if count == 0 || endpoints.max_capacity == 0 {
            return None;
        }
        for _ in 0..MAX_RANDOM_DRAWS {
            let drawn = rng.random_range(0..count);
            let slot = endpoints
                .ready
                .get(drawn)
                .or_else(|| endpoints.unready.get(drawn - endpoints.ready.len()))?;
            let Some((workload, port)) = self.eligible_endpoint(*slot) else {
                continue;
            };
            let capacity = workload.template().capacity;
            if capacity >= endpoints.max_capacity
                || rng.random_range(0..endpoints.max_capacity) < capacity
            {
                return Some((workload, port));
            }
        }
        None
    }

    /// Chooses an endpoint by evaluating all: among endpoints of the best rank each replaces the current choice with
    /// the probability of its share of the capacity so far, so that the result is proportional to capacity.
    fn pick_by_scan(
        &self,
        endpoints: &Endpoints,
        rng: &mut dyn RngCore,
    ) -> Option<(&'t WorkloadRef, u16)> {
        let mut best_rank = 0;
        let mut seen: u64 = 0;
        let mut chosen = None;
        for slot in endpoints.usable(self.health_policy) {
            let Some((workload, port)) = self.eligible_endpoint(slot) else {
                continue;
            };
            let Some(rank) = self.rank(workload) else {
                continue;
            };
            if rank < best_rank {
                continue;
            }
            if rank > best_rank {
                best_rank = rank;
                seen = 0;
                chosen = None;
            }
            let capacity = u64::from(workload.template().capacity);
            seen += capacity;
            if capacity > 0 && (seen == capacity || rng.random_range(0..seen) < capacity) {
                chosen = Some((workload, port));
            }
        }
        chosen
    }

    /// Chooses the endpoint by the client's address (weighted rendezvous hashing): among endpoints of the best rank,
    /// the one with the highest hash of its name and the client's address, weighted by capacity.
    fn pick_by_client_hash(
        &self,
        endpoints: &Endpoints,
        client: IpAddr,
    ) -> Option<(&'t WorkloadRef, u16)> {
        let usable = endpoints.usable(self.health_policy).filter_map(|slot| {
            let (workload, port) = self.eligible_endpoint(slot)?;
            let score = rendezvous_score(client, workload.uid(), workload.template().capacity);
            Some(((self.rank(workload)?, score), (workload, port)))
        });
        let best = usable.max_by(|((a_rank, a), _), ((b_rank, b), _)| {
            a_rank.cmp(b_rank).then_with(|| a.total_cmp(b))
        });
        best.map(|(_, chosen)| chosen)
    }

    /// Returns the endpoint in a slot with its target port, unless it is not eligible.
    fn eligible_endpoint(&self, slot: Slot) -> Option<(&'t WorkloadRef, u16)> {
        let workload = self.workloads.get(slot)?;
        let template = workload.template();
        if template.capacity == 0 || !is_candidate(workload, self.client_location, self.purpose) {
            return None;
        }
        let elsewhere = template.network != *self.client_location.network;
        let reachable = !workload.ips().is_empty()
            || !template.hostname.is_empty()
            || (elsewhere && template.network_gateway.is_some());
        if !reachable {
            return None;
        }
        let own = workload
            .membership(&self.name)?
            .target_port(self.port)
            .filter(|port| *port != 0);
        let by_service = self.service_target_port.filter(|port| *port != 0);
        let tunnel = template
            .application_tunnel
            .as_ref()
            .and_then(|tunnel| tunnel.port);
        let port = match (self.purpose, self.service_target_port) {
            // The service must list the port.
            (EndpointPurpose::ClientConnection, None) => return None,
            (EndpointPurpose::ClientConnection, Some(_)) => own.or(by_service)?,
            (EndpointPurpose::WaypointTunnel(_), _) => {
                own.or(by_service).or_else(|| tunnel.map(|_| self.port))?
            }
        };
        Some((workload, port))
    }

    /// Returns the locality rank of an endpoint; `None` if the service's preference excludes it.
    fn rank(&self, workload: &WorkloadRef) -> Option<usize> {
        let scopes = self.balancing.routing_preferences.as_slice();
        match self.balancing.mode {
            LbMode::Standard | LbMode::Passthrough => Some(0),
            LbMode::Strict => scopes
                .iter()
                .all(|scope| self.is_in_same_scope(*scope, workload))
                .then_some(0),
            LbMode::Failover => Some(self.failover_rank(scopes, workload)),
        }
    }

    fn failover_rank(&self, scopes: &[LbScope], workload: &WorkloadRef) -> usize {
        // A leading network scope outranks all others together and does not end the comparison: an
        // endpoint in the other network may still be the closest of that network.
        let (bonus, rest) = match scopes.split_first() {
            Some((LbScope::Network, rest)) if self.is_in_same_scope(LbScope::Network, workload) => {
                (scopes.len(), rest)
            }
            Some((LbScope::Network, rest)) => (0, rest),
            _ => (0, scopes),
        };
        bonus
            + rest
                .iter()
                .take_while(|scope| self.is_in_same_scope(**scope, workload))
                .count()
    }

    fn is_in_same_scope(&self, scope: LbScope, workload: &WorkloadRef) -> bool {
        let ClientLocation {
            network,
            node,
            cluster_id,
            locality,
            ..
        } = self.client_location;
        let location = workload.location();
        match scope {
            LbScope::Region => location.locality.region == locality.region,
            LbScope::Zone => location.locality.zone == locality.zone,
            LbScope::Subzone => location.locality.subzone == locality.subzone,
            LbScope::Node => location.node == *node,
            LbScope::Cluster => workload.cluster_id() == cluster_id,
            LbScope::Network => workload.network() == network,
        }
    }
}

/// Computes the rendezvous-hashing score of an endpoint for a client. The scores are scaled so that each endpoint has
/// the highest one in proportion to its capacity.
fn rendezvous_score(client: IpAddr, endpoint: &str, capacity: u32) -> f64 {
    let mut hasher = DefaultHasher::new();
    (client, endpoint).hash(&mut hasher);
    // 53 bits are what a float has room for; never 0 nor 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    let drawn = ((hasher.finish() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    f64::from(capacity) / -drawn.ln()
}

/// Chooses the address of a workload to connect to: the dialed one if it is the workload's own, else one of the
/// service's families, preferably of the dialed family.
pub(crate) fn select_ip(
    workload: &WorkloadRef,
    dialled: IpAddr,
    families: Option<IpFamilies>,
) -> Option<IpAddr> {
    let ips = workload.ips();
    if ips.contains(&dialled) {
        return Some(dialled);
    }
    let offered = || {
        ips.iter()
            .filter(|ip| families.is_none_or(|families| families.accepts(**ip)))
    };
    offered()
        .find(|ip| ip.is_ipv6() == dialled.is_ipv6())
        .or_else(|| offered().next())
        .copied()
}
