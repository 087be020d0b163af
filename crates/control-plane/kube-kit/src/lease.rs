//! Leader election among replicas with a Lease.
//!
//! [`Election`] does no IO. Clocks of different machines are never compared: a lease is free when its contents have not
//! changed for its duration by the observer's own clock. A leader that cannot renew steps down before another replica
//! can take over.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, api::PostParams};
use tokio::{sync::watch, time::Instant};

/// Time after which another candidate may take over a lease that is not renewed.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time without a successful renewal after which a leader steps down.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of renewing or reading the lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);
/// Timeout of one request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Next action of a candidate in the election.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ElectionStep {
    /// Another candidate holds the lease.
    Wait,
    /// Write this candidate into the lease as the holder, either for a new term or as a renewal of the current one.
    /// `transitions` counts changes of the holder.
    Acquire { transitions: i32, is_new_term: bool },
}

/// State of one candidate in the election.
#[derive(Debug)]
struct Election {
    identity: String,
    /// Lease as last read, and the time since which its contents are unchanged.
    last_observed: Option<(LeaseSpec, Instant)>,
    /// Time of the last successful renewal.
    last_renewal: Option<Instant>,
}

impl Election {
    fn new(identity: &str) -> Self {
        Self {
            identity: identity.to_owned(),
            last_observed: None,
            last_renewal: None,
        }
    }

    fn is_leader(&self, now: Instant) -> bool {
        self.last_renewal
            .is_some_and(|at| now < at + RENEW_DEADLINE)
    }

    /// Decides the next action from the lease that was read; `None` if the lease does not exist.
    fn observe(&mut self, lease: Option<&LeaseSpec>, now: Instant) -> ElectionStep {
        let Some(lease) = lease else {
            self.last_renewal = None;
            return ElectionStep::Acquire {
                transitions: 0,
                is_new_term: true,
            };
        };
        if self
            .last_observed
            .as_ref()
            .is_none_or(|(seen, _)| seen != lease)
        {
            self.last_observed = Some((lease.clone(), now));
        }
        let transitions = lease.lease_transitions.unwrap_or_default();
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        if holder == self.identity {
            return ElectionStep::Acquire {
                transitions,
                is_new_term: false,
            };
        }
        self.last_renewal = None;
        let since = self.last_observed.as_ref().map_or(now, |(_, since)| *since);
        if holder.is_empty() || now >= since + lease_duration(lease) {
            return ElectionStep::Acquire {
                transitions: transitions.saturating_add(1),
                is_new_term: true,
            };
        }
        ElectionStep::Wait
    }

    /// Records that this candidate was written into the lease, by a request that began at `started`.
    fn record_acquired(&mut self, lease: &LeaseSpec, started: Instant) {
        self.last_observed = Some((lease.clone(), started));
        self.last_renewal = Some(started);
    }
}

fn lease_duration(lease: &LeaseSpec) -> Duration {
    let seconds = lease.lease_duration_seconds.unwrap_or_default();
    u64::try_from(seconds).map_or(LEASE_DURATION, Duration::from_secs)
}

/// Participates in the election `name` as candidate `identity` until `stop` completes, then releases the lease.
/// `is_leader` receives whether this candidate is the leader.
pub async fn run_election(
    api: Api<Lease>,
    name: &str,
    identity: &str,
    is_leader: watch::Sender<bool>,
    stop: impl Future<Output = ()>,
) {
    let mut election = Election::new(identity);
    let run = async {
        loop {
            let attempt = tokio::time::timeout(
                REQUEST_TIMEOUT,
                try_acquire_or_renew(&api, name, &mut election),
            )
            .await;
            match attempt {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(lease = name, %error, "cannot take part in the election")
                }
                Err(_) => tracing::warn!(
                    lease = name,
                    "the Kubernetes API does not answer the election"
                ),
            }
            publish_leadership(&is_leader, election.is_leader(Instant::now()), name);
            tokio::time::sleep(RENEW_INTERVAL).await;
        }
    };
    tokio::select! {
        () = run => {}
        () = stop => {}
    }
    if is_leader.send_replace(false) {
        let freed =
            tokio::time::timeout(REQUEST_TIMEOUT, release_lease(&api, name, identity)).await;
        if !matches!(freed, Ok(Ok(()))) {
            tracing::info!(
                lease = name,
                "the lease is not released; it expires by itself"
            );
        }
    }
}

fn publish_leadership(is_leader: &watch::Sender<bool>, now: bool, name: &str) {
    let changed = is_leader.send_if_modified(|is_leader| std::mem::replace(is_leader, now) != now);
    if changed {
        tracing::info!(lease = name, leads = now, "leadership changed");
    }
}

async fn try_acquire_or_renew(
    api: &Api<Lease>,
    name: &str,
    election: &mut Election,
) -> Result<(), kube::Error> {
    let found = api.get_opt(name).await?;
    let started = Instant::now();
    let spec = found
        .as_ref()
        .map(|lease| lease.spec.clone().unwrap_or_default());
    let ElectionStep::Acquire {
        transitions,
        is_new_term: anew,
    } = election.observe(spec.as_ref(), started)
    else {
        return Ok(());
    };
    let now = MicroTime(Timestamp::now());
    let acquired = spec.as_ref().and_then(|spec| spec.acquire_time.clone());
    let spec = LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        acquire_time: acquired.filter(|_| !anew).or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let written = match found {
        // The resource version prevents overwriting a concurrent change.
        Some(mut lease) => {
            lease.spec = Some(spec.clone());
            api.replace(name, &PostParams::default(), &lease).await
        }
        None => {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(spec.clone()),
            };
            api.create(&PostParams::default(), &lease).await
        }
    };
    match written {
        Ok(_) => {
            election.record_acquired(&spec, started);
            Ok(())
        }
        // Another candidate was faster; the next read shows which.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Releases the lease, so that another candidate need not wait until it expires.
async fn release_lease(api: &Api<Lease>, name: &str, identity: &str) -> Result<(), kube::Error> {
    let mut lease = api.get(name).await?;
    if let Some(spec) = &mut lease.spec
        && spec.holder_identity.as_deref() == Some(identity)
    {
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        api.replace(name, &PostParams::default(), &lease).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(3),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    fn acquire(transitions: i32) -> ElectionStep {
        ElectionStep::Acquire {
            transitions,
            is_new_term: true,
        }
    }

    #[test]
    fn free_lease_is_acquired() {
        let now = Instant::now();
        let mut election = Election::new("a");
        assert_eq!(election.observe(None, now), acquire(0));
        assert!(!election.is_leader(now), "not before it is written");
        election.record_acquired(&lease("a", 1), now);
        assert!(election.is_leader(now + 9 * SECOND));
        assert!(
            !election.is_leader(now + RENEW_DEADLINE),
            "steps down before the lease runs out for others"
        );
        assert_eq!(election.observe(Some(&lease("", 1)), now), acquire(4));
    }

    #[test]
    fn renewed_foreign_lease_is_respected_despite_clock_skew() {
        let start = Instant::now();
        let mut election = Election::new("a");
        for round in 0..20_u32 {
            let now = start + round * 10 * SECOND;
            // The holder's clock runs backwards: only changes count.
            let theirs = lease("b", 1_000 - i64::from(round));
            assert_eq!(election.observe(Some(&theirs), now), ElectionStep::Wait);
        }
        let last = lease("b", 1_000 - 19);
        let since = start + 190 * SECOND;
        assert_eq!(
            election.observe(Some(&last), since + 14 * SECOND),
            ElectionStep::Wait
        );
        assert_eq!(
            election.observe(Some(&last), since + 15 * SECOND),
            acquire(4)
        );
    }

    #[test]
    fn replica_without_the_lease_stops_leading() {
        let now = Instant::now();
        let mut election = Election::new("a");
        election.observe(None, now);
        election.record_acquired(&lease("a", 1), now);
        let renew = ElectionStep::Acquire {
            transitions: 3,
            is_new_term: false,
        };
        assert_eq!(election.observe(Some(&lease("a", 1)), now + SECOND), renew);
        assert!(election.is_leader(now + SECOND));
        assert_eq!(
            election.observe(Some(&lease("b", 2)), now + 2 * SECOND),
            ElectionStep::Wait
        );
        assert!(!election.is_leader(now + 2 * SECOND));
    }
}
