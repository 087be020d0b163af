//! Snapshot of a destination's endpoints, grouped by priority and locality.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Instant,
};

use ambit_model::{Balancing, DestinationPolicy};
use rand::{Rng as _, RngCore};

use crate::{
    group::{EndpointStates, WeightedGroup},
    host::{EndpointCandidate, Host},
    locality::{PriorityGroup, Topology, configured_distribution, priority_group},
};

/// Overprovisioning factor in percent, as in Envoy: a priority receives all requests while about 71 % or more of its
/// endpoints are healthy.
const OVERPROVISIONING_PERCENT: u32 = 140;

/// Snapshot of a destination's endpoints, grouped by priority and locality.
#[derive(Debug)]
pub(crate) struct Pool<E> {
    pub(crate) hosts: Vec<(Arc<Host>, EndpointCandidate<E>)>,
    tiers: Vec<PriorityTier>,
    total_weight: u64,
    /// Health revision at which the healthy endpoints were counted.
    counted_revision: AtomicU64,
    healthy_count: AtomicU32,
}

#[derive(Debug)]
struct PriorityTier {
    groups: Vec<WeightedGroup>,
    endpoint_count: u32,
    healthy_count: AtomicU32,
}

/// Parameters of picking an endpoint from a pool snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolQuery<'a> {
    pub(crate) policy: &'a DestinationPolicy,
    pub(crate) hash: Option<u64>,
    /// Uids of endpoints to exclude.
    pub(crate) excluded_uids: &'a [ambit_model::ArcStr],
    pub(crate) now: Instant,
    /// Revision of the endpoints' health, incremented when an ejection begins or ends.
    pub(crate) health_revision: u64,
    /// Number of active requests at all endpoints together.
    pub(crate) active_requests: u32,
}

struct PickState<'a, E> {
    pool: &'a Pool<E>,
    query: PoolQuery<'a>,
    /// Whether ejections are ignored, since too few endpoints are healthy (Envoy's panic mode).
    is_panic_mode: bool,
}

impl<E> Pool<E> {
    pub(crate) fn new(
        policy: &DestinationPolicy,
        own: &Topology,
        hosts: Vec<(Arc<Host>, EndpointCandidate<E>)>,
    ) -> Self {
        let mut by_tier: BTreeMap<u32, BTreeMap<usize, Vec<(u32, u32)>>> = BTreeMap::new();
        for ((_, candidate), index) in hosts.iter().zip(0_u32..) {
            let topology = &candidate.topology;
            let Some(PriorityGroup {
                priority: tier,
                distribution_index: part,
            }) = priority_group(&policy.locality, own, topology, candidate.locality_rank)
            else {
                continue;
            };
            let parts = by_tier.entry(tier).or_default();
            let members = parts.entry(part).or_default();
            members.push((index, candidate.weight));
        }
        let hashed = match &policy.balancing {
            Balancing::Hash(policy) => Some(policy.table),
            _ => None,
        };
        let shares = configured_distribution(&policy.locality, own);
        let share = |part: usize| {
            let of_part = shares.and_then(|shares| shares.to.get(part));
            of_part.map_or(100, |(_, share)| *share)
        };
        let name = |index: u32| {
            let of = hosts.get(index as usize);
            of.map(|(host, _)| host.uid.to_string()).unwrap_or_default()
        };
        let tiers = by_tier.into_values().map(|parts| PriorityTier {
            endpoint_count: parts.values().map(|part| saturating_u32(part.len())).sum(),
            healthy_count: AtomicU32::default(),
            groups: parts
                .into_iter()
                .map(|(part, members)| WeightedGroup::new(share(part), members, hashed, name))
                .collect(),
        });
        Self {
            tiers: tiers.collect(),
            total_weight: hosts.iter().map(|(_, one)| u64::from(one.weight)).sum(),
            hosts,
            counted_revision: AtomicU64::new(u64::MAX),
            healthy_count: AtomicU32::default(),
        }
    }

    fn is_ejected(&self, index: u32) -> bool {
        let host = self.hosts.get(index as usize);
        host.is_none_or(|(host, _)| host.is_ejected())
    }

    /// Counts the healthy endpoints again if the health revision has changed.
    fn recount_healthy(&self, health: u64) {
        if self.counted_revision.load(Acquire) == health {
            return;
        }
        let mut all = 0;
        for tier in &self.tiers {
            let members = tier.groups.iter().flat_map(WeightedGroup::members);
            let healthy = saturating_u32(members.filter(|index| !self.is_ejected(*index)).count());
            tier.healthy_count.store(healthy, Relaxed);
            all += healthy;
        }
        self.healthy_count.store(all, Relaxed);
        self.counted_revision.store(health, Release);
    }

    pub(crate) fn pick_host(
        &self,
        question: PoolQuery<'_>,
        rng: &mut dyn RngCore,
    ) -> Option<usize> {
        self.recount_healthy(question.health_revision);
        let size: u32 = self.tiers.iter().map(|tier| tier.endpoint_count).sum();
        let healthy = self.healthy_count.load(Relaxed);
        let outliers = question.policy.outliers.as_ref();
        let least = outliers.map_or(0, |policy| policy.min_health_percent);
        let now = PickState {
            pool: self,
            query: question,
            is_panic_mode: u64::from(healthy) * 100 < u64::from(least) * u64::from(size),
        };
        let first = self.pick_tier(&now, rng);
        let rest = (0..self.tiers.len()).filter(|index| *index != first);
        for index in std::iter::once(first).chain(rest) {
            let Some(tier) = self.tiers.get(index) else {
                continue;
            };
            if let Some(index) = now.pick_in_tier(tier, rng) {
                return Some(index as usize);
            }
        }
        None
    }

    /// Picks the priority whose endpoints are tried first, at random in proportion to the healthy endpoints of each.
    fn pick_tier(&self, now: &PickState<'_, E>, rng: &mut dyn RngCore) -> usize {
        if now.is_panic_mode || self.tiers.len() < 2 {
            return 0;
        }
        let suffices = |tier: &PriorityTier| {
            let healthy = u64::from(tier.healthy_count.load(Relaxed));
            (healthy * u64::from(OVERPROVISIONING_PERCENT) / u64::from(tier.endpoint_count.max(1)))
                .min(100)
        };
        // Usually the first tier gets all requests.
        let Some(of_first) = self.tiers.first().map(suffices) else {
            return 0;
        };
        if of_first == 100 {
            return 0;
        }
        let all: u64 = self.tiers.iter().map(suffices).sum::<u64>().min(100);
        if all == 0 {
            return 0;
        }
        let mut drawn = match now.query.hash {
            Some(hash) => hash % all,
            None => rng.random_range(0..all),
        };
        for (index, tier) in self.tiers.iter().enumerate() {
            let share = suffices(tier);
            if drawn < share {
                return index;
            }
            drawn -= share;
        }
        0
    }
}

impl<E> PickState<'_, E> {
    fn pick_in_tier(&self, tier: &PriorityTier, rng: &mut dyn RngCore) -> Option<u32> {
        let PoolQuery { policy, hash, .. } = self.query;
        let choose = |group: &WeightedGroup, rng: &mut dyn RngCore| {
            group.pick(&policy.balancing, hash, self, rng)
        };
        let groups = tier.groups.as_slice();
        if let [only] = groups {
            return choose(only, rng);
        }
        // A part keeps its share as long as any of its endpoints is left.
        let is_alive = |group: &&WeightedGroup| group.members().any(|index| self.is_usable(index));
        let alive: Vec<&WeightedGroup> = groups.iter().filter(is_alive).collect();
        let all: u64 = alive
            .iter()
            .map(|group| u64::from(group.group_weight))
            .sum();
        let mut drawn = match hash {
            _ if all == 0 => 0,
            Some(hash) => hash % all,
            None => rng.random_range(0..all),
        };
        for group in &alive {
            let share = u64::from(group.group_weight);
            if drawn < share {
                return choose(group, rng);
            }
            drawn -= share;
        }
        alive.first().and_then(|group| choose(group, rng))
    }
}

impl<E> EndpointStates for PickState<'_, E> {
    fn is_usable(&self, index: u32) -> bool {
        let Some((host, _)) = self.pool.hosts.get(index as usize) else {
            return false;
        };
        (self.is_panic_mode || !host.is_ejected()) && !self.query.excluded_uids.contains(&host.uid)
    }

    fn warmup_factor(&self, index: u32) -> f64 {
        let Some(warmup) = &self.query.policy.warmup else {
            return 1.0;
        };
        let host = self.pool.hosts.get(index as usize);
        host.map_or(1.0, |(host, _)| host.warmup_factor(warmup, self.query.now))
    }

    fn active_requests(&self, index: u32) -> u32 {
        let host = self.pool.hosts.get(index as usize);
        host.map_or(u32::MAX, |(host, _)| host.active_requests.load(Relaxed))
    }

    fn is_within_load_bound(&self, index: u32, weight: u32) -> bool {
        let Balancing::Hash(policy) = &self.query.policy.balancing else {
            return true;
        };
        if policy.balance_factor == 0 {
            return true;
        }
        // Share of all active requests, with this one.
        let all = u64::from(self.query.active_requests) + 1;
        let share = all * u64::from(weight) * u64::from(policy.balance_factor.max(100));
        let bound = share.div_ceil(self.pool.total_weight.max(1) * 100);
        u64::from(self.active_requests(index)) < bound
    }
}

fn saturating_u32(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}
