//! Endpoints with the same locality and priority, among which the policy picks one.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ambit_model::{Balancing, HashTable};
use rand::{Rng as _, RngCore};

use crate::hashing::ConsistentHashTable;

/// Maximum number of random draws before all endpoints are scanned instead.
const MAX_DRAWS: u32 = 16;

/// Endpoints with the same locality and priority.
#[derive(Debug)]
pub(crate) struct WeightedGroup {
    /// Weight of the group among the groups of its priority.
    pub(crate) group_weight: u32,
    /// Endpoints as pairs of index in the [pool](crate::pool::Pool) and weight.
    members: Vec<(u32, u32)>,
    max_weight: u32,
    next_member: AtomicU32,
    hash_table: Option<ConsistentHashTable>,
}

/// View of the current state of the pool's endpoints, by index.
pub(crate) trait EndpointStates {
    /// Whether the endpoint may be picked.
    fn is_usable(&self, index: u32) -> bool;
    /// Slow-start factor of an endpoint's weight, from 0 to 1.
    fn warmup_factor(&self, index: u32) -> f64;
    /// Number of active requests at an endpoint.
    fn active_requests(&self, index: u32) -> u32;
    /// Whether the endpoint may take one more request under bounded-load consistent hashing.
    fn is_within_load_bound(&self, index: u32, weight: u32) -> bool;
}

impl WeightedGroup {
    pub(crate) fn new(
        share: u32,
        members: Vec<(u32, u32)>,
        hashed: Option<HashTable>,
        name: impl Fn(u32) -> String,
    ) -> Self {
        let table = hashed.map(|kind| {
            let names: Vec<String> = members.iter().map(|(index, _)| name(*index)).collect();
            let named = names.iter().map(String::as_str);
            let weights = members.iter().map(|(_, weight)| *weight);
            ConsistentHashTable::new(kind, &named.zip(weights).collect::<Vec<_>>())
        });
        Self {
            group_weight: share,
            max_weight: members.iter().map(|(_, weight)| *weight).max().unwrap_or(1),
            members,
            next_member: AtomicU32::default(),
            hash_table: table,
        }
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|(index, _)| *index)
    }

    /// Picks an endpoint of the group by the load-balancing algorithm; `None` if none is usable.
    pub(crate) fn pick(
        &self,
        balancing: &Balancing,
        hash: Option<u64>,
        view: &impl EndpointStates,
        rng: &mut dyn RngCore,
    ) -> Option<u32> {
        match balancing {
            Balancing::Hash(_) => match (hash, &self.hash_table) {
                (Some(hash), Some(table)) => self.pick_by_hash(table, hash, view),
                _ => self.pick_random(view, rng),
            },
            Balancing::Random => self.pick_random(view, rng),
            Balancing::RoundRobin => self.pick_round_robin(view, rng),
            Balancing::LeastRequest => {
                let first = self.pick_random(view, rng)?;
                let second = self.pick_random(view, rng)?;
                Some(
                    if view.active_requests(second) < view.active_requests(first) {
                        second
                    } else {
                        first
                    },
                )
            }
        }
    }

    /// Whether a randomly drawn endpoint is accepted (rejection sampling), so that each is picked in proportion to its
    /// weight.
    fn accepts_draw(
        &self,
        index: u32,
        weight: u32,
        view: &impl EndpointStates,
        rng: &mut dyn RngCore,
    ) -> bool {
        if !view.is_usable(index) {
            return false;
        }
        let share = f64::from(weight) / f64::from(self.max_weight) * view.warmup_factor(index);
        share >= 1.0 || rng.random::<f64>() < share
    }

    fn pick_random(&self, view: &impl EndpointStates, rng: &mut dyn RngCore) -> Option<u32> {
        if self.members.is_empty() {
            return None;
        }
        for _ in 0..MAX_DRAWS {
            let drawn = rng.random_range(0..self.members.len());
            let (index, weight) = *self.members.get(drawn)?;
            if self.accepts_draw(index, weight, view, rng) {
                return Some(index);
            }
        }
        self.pick_by_scan(view, rng)
    }

    fn pick_round_robin(&self, view: &impl EndpointStates, rng: &mut dyn RngCore) -> Option<u32> {
        let count = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        if count == 0 {
            return None;
        }
        for _ in 0..MAX_DRAWS.max(count.min(4 * MAX_DRAWS)) {
            let turn = self.next_member.fetch_add(1, Relaxed) % count;
            let (index, weight) = *self.members.get(usize::try_from(turn).ok()?)?;
            if self.accepts_draw(index, weight, view, rng) {
                return Some(index);
            }
        }
        self.pick_by_scan(view, rng)
    }

    /// Picks a random endpoint in proportion to the weights, in one pass over all endpoints (reservoir sampling).
    fn pick_by_scan(&self, view: &impl EndpointStates, rng: &mut dyn RngCore) -> Option<u32> {
        let mut seen = 0.0;
        let mut chosen = None;
        for (index, weight) in &self.members {
            if !view.is_usable(*index) {
                continue;
            }
            let share = f64::from(*weight) * view.warmup_factor(*index).max(f64::MIN_POSITIVE);
            seen += share;
            if chosen.is_none() || rng.random::<f64>() * seen < share {
                chosen = Some(*index);
            }
        }
        chosen
    }

    /// Picks the endpoint for a hash: the first usable endpoint of the consistent-hash order within its load bound. If
    /// all exceed their bounds, picks the first usable one.
    fn pick_by_hash(
        &self,
        table: &ConsistentHashTable,
        hash: u64,
        view: &impl EndpointStates,
    ) -> Option<u32> {
        let mut first = None;
        for place in table.positions_for_hash(hash) {
            let Some((index, weight)) = self.members.get(place as usize).copied() else {
                continue;
            };
            if !view.is_usable(index) {
                continue;
            }
            if view.is_within_load_bound(index, weight) {
                return Some(index);
            }
            first = first.or(Some(index));
        }
        first
    }
}
