//! Rollout of a Deployment after a change of its template: all new pods start at once beside those of the earlier
//! template, and one of these stops whenever a new one is ready.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::ObjectKey;

use super::{expand::DesiredPod, pod::PodRecord};

/// Rollout progress of a Deployment: numbers of desired and of ready pods of the current template.
struct RolloutProgress<'a> {
    replica_set: &'a str,
    desired: usize,
    ready: usize,
}

/// Returns the pods of earlier templates that must keep running until their replacements are ready.
pub(super) fn pods_to_keep(
    pods: &BTreeMap<ObjectKey, PodRecord>,
    desired: &BTreeMap<ObjectKey, DesiredPod>,
) -> BTreeSet<ObjectKey> {
    let mut rollouts: BTreeMap<&ObjectKey, RolloutProgress<'_>> = BTreeMap::new();
    for (key, want) in desired {
        let Some(asking) = want
            .deployment
            .as_ref()
            .filter(|asking| asking.is_rolling_update)
        else {
            continue;
        };
        let progress = rollouts.entry(&asking.key).or_insert(RolloutProgress {
            replica_set: &asking.replica_set,
            desired: 0,
            ready: 0,
        });
        progress.desired += 1;
        let is_ready = |record: &PodRecord| !record.terminating && record.observed.is_ready();
        progress.ready += usize::from(pods.get(key).is_some_and(is_ready));
    }
    let mut old: Vec<_> = pods
        .iter()
        .filter(|(key, record)| !record.terminating && !desired.contains_key(key))
        .collect();
    // Those that serve go last.
    old.sort_by_key(|(_, record)| !record.observed.is_ready());
    let mut staying = BTreeSet::new();
    for (key, record) in old {
        let rollout = record.plan.deployment.as_ref();
        let Some(progress) = rollout.and_then(|of| rollouts.get_mut(of)) else {
            continue;
        };
        // Of the same template there are only too many.
        let earlier = record.plan.owner() != Some(progress.replica_set);
        if earlier && progress.ready < progress.desired {
            progress.ready += 1;
            staying.insert(key.clone());
        }
    }
    staying
}
