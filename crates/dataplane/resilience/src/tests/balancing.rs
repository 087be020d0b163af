//! Tests of load balancing.

use ambit_model::{LocalityDistribution, LocalityPattern, LocalityPolicy, Warmup};
use proptest::prelude::*;

use super::*;
use crate::hash;

fn policy_with_balancing(balancing: Balancing) -> DestinationPolicy {
    DestinationPolicy {
        balancing,
        ..DestinationPolicy::default()
    }
}

#[test]
fn backends_get_requests_by_weight() {
    for kind in [
        Balancing::LeastRequest,
        Balancing::RoundRobin,
        Balancing::Random,
    ] {
        let weights = [1, 2, 5];
        let candidates = (0..).zip(weights);
        let candidates = candidates.map(|(number, weight)| candidate(number, weight, ""));
        let mut scene =
            TestDestination::new(policy_with_balancing(kind.clone()), candidates.collect());
        let shares = scene.count_picks(8000);
        for (number, weight) in (0..).zip(weights) {
            let expected = i64::from(weight) * 1000;
            let off = (i64::from(shares[&number]) - expected).abs();
            assert!(off < 200, "{kind:?}: {number} got {}", shares[&number]);
        }
    }
}

#[test]
fn round_robin_visits_endpoints_in_turn() {
    let mut scene =
        TestDestination::new(policy_with_balancing(Balancing::RoundRobin), candidates(3));
    let turns: Vec<u32> = (0..6)
        .map(|_| *scene.pick_any().endpoint().unwrap())
        .collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn least_request_picks_the_less_loaded_of_two() {
    let mut scene = TestDestination::new(DestinationPolicy::default(), candidates(2));
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(scene.pick_any());
    }
    let of_first = held.iter().filter(|one| one.endpoint() == Some(&0)).count();
    // Random choice alone would differ by ten times this.
    assert!((98..=102).contains(&of_first), "{of_first}");
}

#[test]
fn failed_endpoints_are_not_picked_again() {
    let kinds = [
        policy_with_balancing(Balancing::Random),
        policy_with_balancing(Balancing::RoundRobin),
        policy_with_balancing(Balancing::LeastRequest),
        hash_policy(HashTable::default(), 0),
        hash_policy(HashTable::Maglev(13), 0),
    ];
    for policy in kinds {
        let mut scene = TestDestination::new(policy, candidates(3));
        let mut failed = Vec::new();
        for _ in 0..3 {
            let wish = PickRequest {
                hash: Some(1),
                tried_uids: &failed,
                preferred_uid: None,
            };
            let chosen = scene.pick(wish).unwrap();
            assert!(!failed.contains(chosen.uid()));
            failed.push(chosen.uid().clone());
        }
        let wish = PickRequest {
            hash: Some(1),
            tried_uids: &failed,
            preferred_uid: None,
        };
        assert_eq!(scene.pick(wish).unwrap_err(), NoEndpoint::NoCandidates);
    }
}

#[test]
fn preferred_endpoint_is_picked_while_usable() {
    for policy in [
        policy_with_balancing(Balancing::RoundRobin),
        hash_policy(HashTable::default(), 0),
    ] {
        let mut scene = TestDestination::new(policy, candidates(3));
        let wish = |failed, preferred| PickRequest {
            hash: Some(1),
            tried_uids: failed,
            preferred_uid: Some(preferred),
        };
        let all = [0, 1, 2].map(|_| scene.pick(PickRequest::default()).unwrap().uid().clone());
        let last = &all[2];
        for _ in 0..4 {
            assert_eq!(scene.pick(wish(&[], last)).unwrap().uid(), last);
        }
        let failed = [last.clone()];
        assert_ne!(scene.pick(wish(&failed, last)).unwrap().uid(), last);
        assert!(scene.pick(wish(&[], &"unknown".into())).is_ok());
    }
}

#[test]
fn new_endpoint_warms_up_gradually() {
    let policy = DestinationPolicy {
        warmup: Some(Warmup {
            duration: Duration::from_secs(100),
            minimum_percent: 10,
            aggression: 1000,
        }),
        ..policy_with_balancing(Balancing::RoundRobin)
    };
    let mut scene = TestDestination::new(policy, candidates(1));
    scene.update(candidates(2));
    for (age, least, most) in [(0, 50, 140), (50, 280, 390), (100, 500, 500)] {
        let shares = scene.count_picks(1000);
        let new = shares.get(&1).copied().unwrap_or_default();
        assert!((least..=most).contains(&new), "{new} after {age} s");
        scene.advance(Duration::from_secs(50));
    }
}

#[test]
fn nearest_endpoints_get_all_until_too_many_are_ejected() {
    let policy = DestinationPolicy {
        locality: LocalityPolicy::Failover(vec![("r1".into(), "r3".into())]),
        outliers: Some(ambit_model::OutlierPolicy {
            server_errors: 1,
            max_ejection_percent: 100,
            ..Default::default()
        }),
        ..policy_with_balancing(Balancing::Random)
    };
    let places = ["r1/z1/s1", "r1/z1/s1", "r2/z1/s1", "r3/z1/s1"];
    let candidates = (0..).zip(places).map(|(n, at)| candidate(n, 1, at));
    let mut scene = TestDestination::new(policy, candidates.collect());
    assert!(scene.count_picks(1000).keys().all(|number| *number < 2));
    let eject = |scene: &mut TestDestination, number: u32| {
        let chosen = loop {
            let chosen = scene.pick_any();
            if chosen.endpoint() == Some(&number) {
                break chosen;
            }
        };
        let now = scene.now;
        assert!(
            chosen
                .report_outcome(crate::EndpointOutcome::Response(500), now)
                .is_some()
        );
    };
    eject(&mut scene, 0);
    // 70 percent of the required capacity is left.
    let shares = scene.count_picks(1000);
    assert!((650..750).contains(&shares[&1]), "{shares:?}");
    assert!((250..350).contains(&shares[&3]), "{shares:?}");
    eject(&mut scene, 1);
    assert_eq!(scene.count_picks(100).into_keys().collect::<Vec<_>>(), [3]);
    eject(&mut scene, 3);
    assert_eq!(scene.count_picks(100).into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn localities_get_their_shares() {
    let to = |region: &str, share| {
        let pattern = LocalityPattern {
            region: Some(region.into()),
            ..LocalityPattern::default()
        };
        (pattern, share)
    };
    let shares = LocalityDistribution {
        from: to("r1", 0).0,
        to: vec![to("r1", 80), to("r2", 20)],
    };
    let policy = DestinationPolicy {
        locality: LocalityPolicy::Distribute(vec![shares]),
        ..policy_with_balancing(Balancing::Random)
    };
    let places = ["r1/z1/s1", "r2/z1/s1", "r2/z2/s1", "r3/z1/s1"];
    let all: Vec<_> = (0..)
        .zip(places)
        .map(|(n, at)| candidate(n, 1, at))
        .collect();
    let mut scene = TestDestination::new(policy, all.clone());
    let shares = scene.count_picks(10_000);
    assert!((7700..8300).contains(&shares[&0]), "{shares:?}");
    assert!((800..1200).contains(&shares[&1]), "{shares:?}");
    assert!(!shares.contains_key(&3));
    // Without the first locality the rest gets all requests.
    scene.update(all[1..].to_vec());
    assert!(
        scene
            .count_picks(100)
            .keys()
            .all(|number| [1, 2].contains(number))
    );
}

#[test]
fn requests_without_hash_go_to_any_endpoint() {
    let mut scene = TestDestination::new(hash_policy(HashTable::default(), 0), candidates(4));
    assert_eq!(scene.count_picks(1000).len(), 4);
}

#[test]
fn ten_thousand_endpoints_need_little_memory_each() {
    let mut scene =
        TestDestination::new(hash_policy(HashTable::Ring(1 << 30), 0), candidates(10_000));
    // Whatever the configured number of points.
    assert!(scene.pick_by_hash(hash(b"x")) < 10_000);
    let mut scene = TestDestination::new(
        hash_policy(HashTable::Maglev(65_537), 0),
        candidates(10_000),
    );
    assert!(scene.pick_by_hash(hash(b"x")) < 10_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn removal_moves_only_the_hashes_of_the_removed_endpoint(count in 2_u32..30, gone in any::<prop::sample::Index>(), is_ring in any::<bool>()) {
        let table = if is_ring { HashTable::Ring(1024) } else { HashTable::Maglev(2039) };
        let mut scene = TestDestination::new(hash_policy(table, 0), candidates(count));
        let before: Vec<u32> = (0..2000_u64).map(|key| scene.pick_by_hash(hash(&key.to_le_bytes()))).collect();
        let gone = u32::try_from(gone.index(count as usize)).unwrap();
        let mut left = candidates(count);
        left.remove(gone as usize);
        scene.update(left);
        let mut moved = 0;
        for (key, was) in (0..2000_u64).zip(&before) {
            let is = scene.pick_by_hash(hash(&key.to_le_bytes()));
            prop_assert_ne!(is, gone);
            moved += u32::from(is != *was && *was != gone);
        }
        // A ring moves no other keys, Maglev few.
        prop_assert!(if is_ring { moved == 0 } else { moved < 300 }, "{} moved", moved);
    }

    #[test]
    fn keys_are_spread(count in 2_u32..20, is_ring in any::<bool>()) {
        let table = if is_ring { HashTable::Ring(4096) } else { HashTable::Maglev(65_537) };
        let mut scene = TestDestination::new(hash_policy(table, 0), candidates(count));
        let mut shares = vec![0_u32; count as usize];
        for key in 0..4000_u64 {
            shares[scene.pick_by_hash(hash(&key.to_le_bytes())) as usize] += 1;
        }
        let most = shares.iter().max().unwrap();
        prop_assert!(*most * count < 4000 * 2, "{:?}", shares);
    }

    #[test]
    fn bounded_load_is_never_exceeded(count in 1_u32..12, factor in 100_u32..300, keys in prop::collection::vec((0_u64..4, any::<bool>()), 1..200)) {
        let mut scene = TestDestination::new(hash_policy(HashTable::default(), factor), candidates(count));
        let mut held: Vec<PickedEndpoint<u32>> = Vec::new();
        for (key, ends) in keys {
            if ends && !held.is_empty() {
                held.swap_remove(0);
            }
            let wish = PickRequest { hash: Some(hash(&key.to_le_bytes())), ..PickRequest::default() };
            let chosen = scene.pick(wish).unwrap();
            let own = *chosen.endpoint().unwrap();
            held.push(chosen);
            let load = held.iter().filter(|one| one.endpoint() == Some(&own)).count();
            let all = u64::try_from(held.len()).unwrap();
            let bound = (all * u64::from(factor)).div_ceil(u64::from(count) * 100);
            prop_assert!(load as u64 <= bound, "{} of {} at one of {}", load, all, count);
        }
    }
}
