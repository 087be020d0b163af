//! Rate limits by client, for operations that cost the server more than the client.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Maximum number of peers with their own limit. Further concurrent peers are not limited individually.
const MAX_PEERS: usize = 16_384;

/// Rate limits for each peer: events per second, and a burst after an idle period.
#[derive(Debug)]
pub struct RateLimits<Peer> {
    interval: Duration,
    burst: u32,
    /// Theoretical arrival time of each peer (generic cell rate algorithm).
    bucket_full_at: Mutex<HashMap<Peer, Instant>>,
}

impl<Peer: Eq + Hash> RateLimits<Peer> {
    /// Creates the rate limits, with these events per second and this burst for each peer.
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.max(1),
            burst,
            bucket_full_at: Mutex::default(),
        }
    }

    /// Counts an event of `peer`, and returns whether it is allowed.
    pub fn try_acquire(&self, peer: Peer, now: Instant) -> bool {
        let mut bucket_full_at = self.bucket_full_at.lock();
        if bucket_full_at.len() >= MAX_PEERS {
            bucket_full_at.retain(|_, at| *at > now);
        }
        let at = bucket_full_at
            .get(&peer)
            .copied()
            .map_or(now, |at| at.max(now));
        if at - now > self.interval * self.burst {
            return false;
        }
        if bucket_full_at.len() < MAX_PEERS || bucket_full_at.contains_key(&peer) {
            bucket_full_at.insert(peer, at + self.interval);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn each_peer_has_a_rate_of_its_own() {
        let (rates, now) = (RateLimits::new(10, 4), Instant::now());
        let [one, other]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let taken = |source, now| (0..100).filter(|_| rates.try_acquire(source, now)).count();
        assert_eq!(taken(one, now), 5);
        assert_eq!(taken(other, now), 5);
        assert_eq!(taken(one, now + Duration::from_millis(200)), 2);
        assert_eq!(taken(one, now + Duration::from_secs(60)), 5);
    }

    #[test]
    fn number_of_remembered_peers_is_bounded() {
        let (rates, now) = (RateLimits::new(1, 1), Instant::now());
        for number in 0..u32::try_from(2 * MAX_PEERS).unwrap() {
            rates.try_acquire(IpAddr::from(number.to_be_bytes()), now);
        }
        assert_eq!(rates.bucket_full_at.lock().len(), MAX_PEERS);
        assert!(rates.try_acquire([10, 0, 0, 1].into(), now + Duration::from_secs(60)));
        assert_eq!(rates.bucket_full_at.lock().len(), 1);
    }
}
