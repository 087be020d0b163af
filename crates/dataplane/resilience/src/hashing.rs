//! Consistent hashing: maps a hash to an endpoint, alike on every replica, so that few hashes move to another endpoint
//! when endpoints are added or removed.

use std::cmp::Ordering;

use ambit_model::HashTable;
use xxhash_rust::xxh64::xxh64;

/// Maximum number of points on a hash ring, regardless of the configured size.
const MAX_RING_POINTS: u64 = 1 << 18;

/// Hashes the request attribute that determines the endpoint (header, cookie, address). The hash has no secret key,
/// since all replicas must agree.
pub fn hash(bytes: &[u8]) -> u64 {
    xxh64(bytes, 0)
}

/// Consistent-hash table of one endpoint group, by the endpoints' positions in the group.
#[derive(Debug)]
pub(crate) enum ConsistentHashTable {
    /// Ring hash: points in ascending order, each with the index of its endpoint.
    Ring(Vec<(u64, u32)>),
    /// Maglev: index of the endpoint for each slot.
    Maglev(Vec<u32>),
}

impl ConsistentHashTable {
    /// Builds the table for endpoints with these names and weights.
    pub(crate) fn new(kind: HashTable, members: &[(&str, u32)]) -> Self {
        match kind {
            HashTable::Ring(least) => Self::Ring(build_ring(least, members)),
            HashTable::Maglev(size) => Self::Maglev(build_maglev(size, members)),
        }
    }

    /// Returns endpoint positions in the order in which they are tried for a hash; a position may repeat.
    pub(crate) fn positions_for_hash(&self, hash: u64) -> impl Iterator<Item = u32> {
        let (ring, table) = match self {
            Self::Ring(points) => (points.as_slice(), [].as_slice()),
            Self::Maglev(table) => ([].as_slice(), table.as_slice()),
        };
        let first = ring.partition_point(|(point, _)| *point < hash);
        let (before, after) = ring.split_at_checked(first).unwrap_or((ring, &[]));
        let on_ring = after.iter().chain(before).map(|(_, whose)| *whose);
        let size = u64::try_from(table.len()).unwrap_or(u64::MAX).max(1);
        let place = usize::try_from(hash % size).unwrap_or_default();
        let (before, after) = table.split_at_checked(place).unwrap_or((table, &[]));
        on_ring.chain(after.iter().chain(before).copied())
    }
}

/// Builds a hash ring in which the lightest endpoint has `least` points and the others have points in proportion to
/// their weights. An endpoint's points do not change when others are added or removed, unless the ring would exceed
/// [`MAX_RING_POINTS`].
fn build_ring(least: u32, members: &[(&str, u32)]) -> Vec<(u64, u32)> {
    let total: u64 = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let lightest = members.iter().map(|(_, weight)| u64::from(*weight)).min();
    let lightest = lightest.unwrap_or(1).max(1);
    let mut points = Vec::new();
    for ((name, weight), index) in members.iter().zip(0_u32..) {
        let wished = u64::from(least) * u64::from(*weight) / lightest;
        let most = MAX_RING_POINTS * u64::from(*weight) / total.max(1);
        for nth in 0..wished.min(most).max(1) {
            points.push((xxh64(name.as_bytes(), nth + 1), index));
        }
    }
    points.sort_unstable();
    points
}

/// Builds the lookup table of Maglev hashing, with Envoy's weighting.
fn build_maglev(size: u32, members: &[(&str, u32)]) -> Vec<u32> {
    struct MaglevEntry {
        next: u64,
        skip: u64,
        /// Weight relative to the heaviest endpoint.
        weight: f64,
        target: f64,
    }
    const FREE_SLOT: u32 = u32::MAX;
    let size = u64::from(size.max(2));
    let heaviest = members.iter().map(|(_, weight)| *weight).max();
    let heaviest = f64::from(heaviest.unwrap_or(1).max(1));
    let entry = |(name, weight): &(&str, u32)| MaglevEntry {
        next: xxh64(name.as_bytes(), 0) % size,
        skip: xxh64(name.as_bytes(), 1) % (size - 1) + 1,
        weight: f64::from(*weight) / heaviest,
        target: 0.0,
    };
    let mut entries: Vec<MaglevEntry> = members.iter().map(entry).collect();
    let places = usize::try_from(size).unwrap_or(usize::MAX);
    let mut table = vec![FREE_SLOT; places];
    let mut free = if entries.is_empty() { 0 } else { places };
    let mut turn = 1.0;
    loop {
        let before = free;
        for (entry, index) in entries.iter_mut().zip(0_u32..) {
            if free == 0 {
                break;
            }
            if (turn * entry.weight).partial_cmp(&entry.target) == Some(Ordering::Less) {
                continue;
            }
            entry.target += 1.0;
            // The size is a prime, so each slot is visited once.
            for _ in 0..places {
                let place = usize::try_from(entry.next).unwrap_or_default();
                entry.next = (entry.next + entry.skip) % size;
                if let Some(whose) = table.get_mut(place).filter(|whose| **whose == FREE_SLOT) {
                    *whose = index;
                    free -= 1;
                    break;
                }
            }
        }
        turn += 1.0;
        // The heaviest endpoint takes a slot in every round, unless the size is not a prime.
        if free == 0 || free == before {
            break;
        }
    }
    table.retain(|whose| *whose != FREE_SLOT);
    table
}
