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
pub enum Full {
    /// Limit of [`SetupLimits::source`] reached.
    #[error(
        "{0} connections from this address are being set up already: see AMBIT_MAX_SETUPS_PER_SOURCE"
    )]
    Source(usize),
    /// Limit of [`SetupLimits::pod`] reached.
    #[error("{0} connections to the pod are being set up already: see AMBIT_MAX_SETUPS_PER_POD")]
    Pod(usize),
}

impl Full {
    /// Returns the limit's name in metrics.
    pub fn limit(self) -> &'static str {
        match self {
            Self::Source(_) => "source",
            Self::Pod(_) => "pod",
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// Counters of one pod's connections in setup. Clones share them.
#[derive(Clone, Debug)]
pub struct InFlight {
    counts: Arc<Mutex<Counts>>,
    limits: SetupLimits,
}

/// Permit for one connection in setup, released on drop.
#[derive(Debug)]
pub struct Slot {
    counts: Arc<Mutex<Counts>>,
    source: IpAddr,
}

impl InFlight {
    /// Creates the counters with no connection in setup.
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
    pub fn begin(&self, source: IpAddr) -> Result<Slot, Full> {
        let mut counts = self.counts.lock();
        if counts.all >= self.limits.pod {
            return Err(Full::Pod(counts.all));
        }
        let of_source = counts.by_source.entry(source).or_default();
        if *of_source >= self.limits.source {
            return Err(Full::Source(*of_source));
        }
        *of_source += 1;
        counts.all += 1;
        Ok(Slot {
            counts: self.counts.clone(),
            source,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.all -= 1;
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
        let in_flight = InFlight::new(SetupLimits { source: 2, pod: 3 });
        let first = in_flight.begin(ip(1)).unwrap();
        let second = in_flight.begin(ip(1)).unwrap();
        assert_eq!(in_flight.begin(ip(1)).unwrap_err(), Full::Source(2));
        let third = in_flight.begin(ip(2)).unwrap();
        assert_eq!(in_flight.begin(ip(3)).unwrap_err(), Full::Pod(3));
        drop(first);
        drop(in_flight.begin(ip(1)).unwrap());
        drop((second, third));
        assert!(in_flight.counts.lock().by_source.is_empty());
    }
}
