//! Limits of a pod's connections in setup: in the TLS handshake, or being connected to the application.
//!
//! An established connection costs the peer as much as the proxy; a connection in setup costs only the proxy, for up
//! to as many seconds as an unresponsive application takes. So each source address, and all together, have a limit.
//! It is high: a peer with fewer than some hundred concurrent setups, which take milliseconds, never reaches it.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use serde::Serialize;

/// Limits of one pod's connections in setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetupLimits {
    /// Maximum connections in setup from one source address.
    pub source: usize,
    /// Maximum connections in setup of the pod.
    pub pod: usize,
}

impl Default for SetupLimits {
    fn default() -> Self {
        Self {
            source: 1024,
            pod: 4096,
        }
    }
}

/// Limit of connections in setup that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupLimitReached {
    /// The limit per source address, [`SetupLimits::source`], is reached.
    #[error(
        "{0} connections from this address are being set up already: see AMBIT_MAX_SETUPS_PER_SOURCE"
    )]
    Source(usize),
    /// The limit per pod, [`SetupLimits::pod`], is reached.
    #[error("{0} connections to the pod are being set up already: see AMBIT_MAX_SETUPS_PER_POD")]
    Pod(usize),
}

impl SetupLimitReached {
    /// Returns the value of the metric label `limit`.
    pub fn limit(self) -> &'static str {
        match self {
            Self::Source(_) => "source",
            Self::Pod(_) => "pod",
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// Counters of one pod's connections in setup. Clones share them.
#[derive(Clone, Debug)]
pub struct SetupCounters {
    counts: Arc<Mutex<Counts>>,
    limits: SetupLimits,
}

/// Permit for one connection in setup, which counts against the limits until it is dropped.
#[derive(Debug)]
pub struct SetupPermit {
    counts: Arc<Mutex<Counts>>,
    source: IpAddr,
}

impl SetupCounters {
    /// Creates counters with the value zero.
    pub fn new(limits: SetupLimits) -> Self {
        Self {
            counts: Arc::default(),
            limits,
        }
    }

    /// Takes a permit for a connection in setup from the address `source`.
    ///
    /// # Errors
    ///
    /// Returns the limit that was reached.
    pub fn try_acquire(&self, source: IpAddr) -> Result<SetupPermit, SetupLimitReached> {
        let mut counts = self.counts.lock();
        if counts.total >= self.limits.pod {
            return Err(SetupLimitReached::Pod(counts.total));
        }
        let of_source = counts.by_source.entry(source).or_default();
        if *of_source >= self.limits.source {
            return Err(SetupLimitReached::Source(*of_source));
        }
        *of_source += 1;
        counts.total += 1;
        Ok(SetupPermit {
            counts: self.counts.clone(),
            source,
        })
    }
}

impl Drop for SetupPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.total -= 1;
        if let Some(of_source) = counts.by_source.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                counts.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_cannot_exhaust_the_slots() {
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let in_flight = SetupCounters::new(SetupLimits { source: 2, pod: 3 });
        let first = in_flight.try_acquire(ip(1)).unwrap();
        let second = in_flight.try_acquire(ip(1)).unwrap();
        assert_eq!(
            in_flight.try_acquire(ip(1)).unwrap_err(),
            SetupLimitReached::Source(2)
        );
        let third = in_flight.try_acquire(ip(2)).unwrap();
        assert_eq!(
            in_flight.try_acquire(ip(3)).unwrap_err(),
            SetupLimitReached::Pod(3)
        );
        drop(first);
        drop(in_flight.try_acquire(ip(1)).unwrap());
        drop((second, third));
        assert!(in_flight.counts.lock().by_source.is_empty());
    }
}
