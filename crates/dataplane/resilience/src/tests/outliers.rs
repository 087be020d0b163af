//! Tests of ejections and their duration.

use ambit_model::{DestinationLimits, OutlierPolicy, RetryBudget};
use proptest::prelude::*;

use super::*;
use crate::{CircuitBreakerLimit, EndpointOutcome, LimitCounters, OutlierCause};

fn policy_with_outliers(outliers: OutlierPolicy) -> DestinationPolicy {
    DestinationPolicy {
        balancing: Balancing::RoundRobin,
        outliers: Some(outliers),
        ..DestinationPolicy::default()
    }
}

impl TestDestination {
    /// Reports outcomes of requests to one endpoint, and returns the last ejection's duration in seconds.
    fn report_outcomes(&mut self, number: u32, outcomes: &[EndpointOutcome]) -> Option<u64> {
        let mut ejected = None;
        for outcome in outcomes {
            let chosen = (0..1000).find_map(|_| {
                let chosen = self.pick_any();
                (chosen.endpoint() == Some(&number)).then_some(chosen)
            });
            let now = self.now;
            let ejection = chosen.unwrap().report_outcome(*outcome, now);
            ejected = ejection.map(|one| one.duration.as_secs());
        }
        ejected
    }

    fn is_picked(&mut self, number: u32) -> bool {
        self.count_picks(200).contains_key(&number)
    }
}

const SERVER_ERROR: EndpointOutcome = EndpointOutcome::Response(503);
const SUCCESS: EndpointOutcome = EndpointOutcome::Response(200);

#[test]
fn consecutive_errors_eject_for_growing_durations() {
    let mut scene = TestDestination::new(
        policy_with_outliers(OutlierPolicy::default()),
        candidates(3),
    );
    assert_eq!(scene.report_outcomes(0, &[SERVER_ERROR; 4]), None);
    assert_eq!(scene.report_outcomes(0, &[SUCCESS]), None);
    assert_eq!(scene.report_outcomes(0, &[SERVER_ERROR; 4]), None);
    assert_eq!(scene.report_outcomes(0, &[SERVER_ERROR]), Some(30));
    assert!(!scene.is_picked(0));
    scene.advance(Duration::from_secs(29));
    assert!(!scene.is_picked(0));
    scene.advance(Duration::from_secs(2));
    assert!(scene.is_picked(0));
    assert_eq!(scene.report_outcomes(0, &[SERVER_ERROR; 5]), Some(60));
    scene.advance(Duration::from_secs(61));
    // A healthy period resets the number of ejections step by step.
    assert!(scene.is_picked(0));
    scene.advance(Duration::from_secs(10));
    assert_eq!(scene.report_outcomes(0, &[SERVER_ERROR; 5]), Some(60));
    // The duration has a maximum.
    for _ in 0..20 {
        scene.advance(Duration::from_secs(301));
        assert!(scene.is_picked(0));
        scene.now -= Duration::from_secs(1);
        scene.report_outcomes(0, &[SERVER_ERROR; 5]);
    }
    assert_eq!(scene.destination.ejected_count(), 1);
}

#[test]
fn each_fault_counts_by_its_kind() {
    let split = OutlierPolicy {
        server_errors: 0,
        gateway_errors: 2,
        local_failures: Some(3),
        ..OutlierPolicy::default()
    };
    let reported = |outliers: OutlierPolicy, outcomes: &[EndpointOutcome]| {
        let mut scene = TestDestination::new(policy_with_outliers(outliers), candidates(2));
        let mut last = None;
        for outcome in outcomes {
            let chosen = loop {
                let chosen = scene.pick_any();
                if chosen.endpoint() == Some(&0) {
                    break chosen;
                }
            };
            last = chosen
                .report_outcome(*outcome, scene.now)
                .map(|one| one.cause);
        }
        last
    };
    let failed = EndpointOutcome::Failed;
    assert_eq!(
        reported(split, &[SERVER_ERROR; 2]),
        Some(OutlierCause::GatewayErrors)
    );
    assert_eq!(reported(split, &[EndpointOutcome::Response(500); 9]), None);
    assert_eq!(
        reported(split, &[failed; 3]),
        Some(OutlierCause::LocalFailures)
    );
    assert_eq!(
        reported(split, &[failed, failed, SERVER_ERROR, failed]),
        None
    );
    assert_eq!(
        reported(split, &[failed, SERVER_ERROR, SERVER_ERROR]),
        Some(OutlierCause::GatewayErrors)
    );
    let together = OutlierPolicy {
        server_errors: 2,
        ..OutlierPolicy::default()
    };
    assert_eq!(
        reported(together, &[failed, SERVER_ERROR]),
        Some(OutlierCause::ServerErrors)
    );
    assert_eq!(
        reported(together, &[failed, EndpointOutcome::Connected, failed]),
        None
    );
    assert_eq!(
        reported(together, &[EndpointOutcome::Response(404); 9]),
        None
    );
}

#[test]
fn ejections_survive_policy_and_endpoint_changes() {
    let mut scene = TestDestination::new(
        policy_with_outliers(OutlierPolicy::default()),
        candidates(3),
    );
    assert_eq!(scene.report_outcomes(0, &[SERVER_ERROR; 5]), Some(30));
    let other = OutlierPolicy {
        server_errors: 7,
        ..OutlierPolicy::default()
    };
    scene.destination = scene.destination.with_policy(policy_with_outliers(other));
    assert!(!scene.is_picked(0));
    scene.update(candidates(4));
    assert!(!scene.is_picked(0));
    assert_eq!(scene.destination.ejected_count(), 1);
    // An endpoint that rejoins is new.
    scene.update(candidates(4)[1..].to_vec());
    assert_eq!(scene.destination.ejected_count(), 0);
    scene.update(candidates(4));
    assert!(scene.is_picked(0));
    // Without outlier detection no endpoint is ejected.
    assert_eq!(scene.report_outcomes(1, &[SERVER_ERROR; 7]), Some(30));
    scene.destination = scene.destination.with_policy(DestinationPolicy::default());
    assert!(scene.is_picked(1));
}

#[test]
fn ejections_are_ignored_when_too_few_endpoints_are_left() {
    let outliers = OutlierPolicy {
        server_errors: 1,
        max_ejection_percent: 100,
        min_health_percent: 50,
        ..OutlierPolicy::default()
    };
    let mut scene = TestDestination::new(policy_with_outliers(outliers), candidates(4));
    scene.report_outcomes(0, &[SERVER_ERROR]);
    scene.report_outcomes(1, &[SERVER_ERROR]);
    assert_eq!(
        scene.count_picks(100).into_keys().collect::<Vec<_>>(),
        [2, 3]
    );
    scene.report_outcomes(2, &[SERVER_ERROR]);
    assert_eq!(scene.count_picks(100).len(), 4);
    // Without a minimum of healthy endpoints all may be ejected.
    let unbound = OutlierPolicy {
        min_health_percent: 0,
        ..outliers
    };
    let mut scene = TestDestination::new(policy_with_outliers(unbound), candidates(2));
    scene.report_outcomes(0, &[SERVER_ERROR]);
    scene.report_outcomes(1, &[SERVER_ERROR]);
    assert_eq!(
        scene.pick(PickRequest::default()).unwrap_err(),
        NoEndpoint::AllEjected
    );
    scene.advance(Duration::from_secs(31));
    assert_eq!(scene.count_picks(100).len(), 2);
}

#[test]
fn limits_count_active_requests() {
    let limits = LimitCounters::default();
    let of = DestinationLimits {
        requests: 2,
        pending: Some(0),
        retries: 1,
        ..DestinationLimits::default()
    };
    let first = limits.acquire_request(&of).unwrap();
    let _second = limits.acquire_request(&of).unwrap();
    assert_eq!(
        limits.acquire_request(&of).unwrap_err(),
        CircuitBreakerLimit::Requests
    );
    drop(first);
    let _first = limits.acquire_request(&of).unwrap();
    assert_eq!(
        limits.acquire_pending(&of).unwrap_err(),
        CircuitBreakerLimit::Pending
    );
    let retry = limits.acquire_retry(&of).unwrap();
    assert_eq!(
        limits.acquire_retry(&of).unwrap_err(),
        CircuitBreakerLimit::Retries
    );
    drop(retry);
    let budget = |share, minimum| DestinationLimits {
        retry_budget: Some(RetryBudget { share, minimum }),
        ..of
    };
    // Half of two active requests.
    let _one = limits.acquire_retry(&budget(50_000, 0)).unwrap();
    assert_eq!(
        limits.acquire_retry(&budget(50_000, 0)).unwrap_err(),
        CircuitBreakerLimit::Retries
    );
    assert!(limits.acquire_retry(&budget(50_000, 2)).is_ok());
    assert!(
        limits
            .acquire_pending(&DestinationLimits::default())
            .is_ok()
    );
}

proptest! {
    #[test]
    fn ejections_never_exceed_the_maximum(
        count in 1_u32..20,
        percent in 0_u32..=100,
        steps in prop::collection::vec((0_u64..40, any::<bool>()), 1..200),
    ) {
        let outliers = OutlierPolicy {
            server_errors: 1,
            max_ejection_percent: percent,
            ..OutlierPolicy::default()
        };
        let mut scene = TestDestination::new(policy_with_outliers(outliers), candidates(count));
        for (seconds, is_broken) in steps {
            scene.advance(Duration::from_secs(seconds));
            let outcome = if is_broken { SERVER_ERROR } else { SUCCESS };
            if let Ok(chosen) = scene.pick(PickRequest::default()) {
                let now = scene.now;
                chosen.report_outcome(outcome, now);
            }
            let ejected = scene.destination.ejected_count();
            let allowed = (count * percent / 100) as usize;
            let one = usize::from(count > 1 && percent > 0);
            prop_assert!(ejected <= allowed.max(one), "{ejected} of {count}");
            // A picked endpoint is never ejected.
            if let Ok(chosen) = scene.pick(PickRequest::default()) {
                prop_assert!(!chosen.host.is_ejected());
            }
        }
    }
}
