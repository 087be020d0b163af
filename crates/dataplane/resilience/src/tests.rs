//! Fixtures for tests of load balancing and outlier detection through the public interface.

mod balancing;
mod outliers;

use std::time::{Duration, Instant};

use ambit_model::{Balancing, DestinationPolicy, HashPolicy, HashSource, HashTable, Locality};
use rand::{SeedableRng as _, rngs::SmallRng};

use crate::{Destination, EndpointCandidate, NoEndpoint, PickRequest, PickedEndpoint, Topology};

/// Destination under test, whose endpoints are numbers.
struct TestDestination {
    destination: Destination<u32>,
    now: Instant,
    rng: SmallRng,
    revision: u64,
    own_topology: Topology,
}

fn topology(locality: &str) -> Topology {
    let mut parts = locality.split('/').map(Into::into);
    let mut next = || parts.next().unwrap_or_default();
    Topology {
        locality: Locality {
            region: next(),
            zone: next(),
            subzone: next(),
        },
        ..Topology::default()
    }
}

fn candidate(number: u32, weight: u32, locality: &str) -> EndpointCandidate<u32> {
    EndpointCandidate {
        uid: format!("c//Pod/ns/pod-{number}").into(),
        weight,
        topology: topology(locality),
        locality_rank: 0,
        endpoint: number,
    }
}

fn candidates(count: u32) -> Vec<EndpointCandidate<u32>> {
    (0..count).map(|number| candidate(number, 1, "")).collect()
}

fn hash_policy(table: HashTable, balance_factor: u32) -> DestinationPolicy {
    DestinationPolicy {
        balancing: Balancing::Hash(HashPolicy {
            source: HashSource::SourceIp,
            table,
            balance_factor,
        }),
        ..DestinationPolicy::default()
    }
}

impl TestDestination {
    fn new(policy: DestinationPolicy, candidates: Vec<EndpointCandidate<u32>>) -> Self {
        let now = Instant::now();
        let mut scene = Self {
            destination: Destination::new(policy, now),
            now,
            rng: SmallRng::seed_from_u64(7),
            revision: 0,
            own_topology: topology("r1/z1/s1"),
        };
        scene.update(candidates);
        scene
    }

    fn update(&mut self, candidates: Vec<EndpointCandidate<u32>>) {
        self.revision += 1;
        let own = self.own_topology.clone();
        self.destination
            .update(self.revision, self.now, &own, || candidates);
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    fn pick(&mut self, wish: PickRequest<'_>) -> Result<PickedEndpoint<u32>, NoEndpoint> {
        self.destination
            .pick_endpoint(wish, self.now, &mut self.rng)
    }

    fn pick_any(&mut self) -> PickedEndpoint<u32> {
        self.pick(PickRequest::default()).unwrap()
    }

    /// Picks endpoints for a number of requests, and counts how often each is picked.
    fn count_picks(&mut self, requests: u32) -> std::collections::BTreeMap<u32, u32> {
        let mut shares = std::collections::BTreeMap::new();
        for _ in 0..requests {
            let number = *self.pick_any().endpoint().unwrap();
            *shares.entry(number).or_default() += 1;
        }
        shares
    }

    fn pick_by_hash(&mut self, hash: u64) -> u32 {
        let wish = PickRequest {
            hash: Some(hash),
            ..PickRequest::default()
        };
        *self.pick(wish).unwrap().endpoint().unwrap()
    }
}
