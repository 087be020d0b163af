//! Capture of pods by BPF programs, and by rules where they are not possible or not requested.

use std::{collections::BTreeSet, path::PathBuf, sync::atomic::Ordering};

use ambit_bpf::{CaptureError, NetnsCookie, Pins};
use ambit_netplan::RedirectionSpec;
use ambit_rt::ErrorChain;
use ambit_sys::{
    netns::Netns,
    redirection::{self, Applied, RedirectionError, bpf::BpfPod},
};
use ambit_zds::PodUid;

use super::{ActionError, KernelActions, cgroup, node_programs::NodePrograms};
use crate::capture::{BpfReadiness, CaptureMethod, CaptureTarget};

impl KernelActions {
    /// Prepares the pod for BPF programs.
    pub(super) fn prepare_programs(
        &self,
        pod: &CaptureTarget,
        spec: &RedirectionSpec,
    ) -> Result<(), ActionError> {
        for known in [&self.programs.refused, &self.programs.without_listeners] {
            if let Some(reason) = known.lock().get(&pod.uid) {
                return Err(ActionError::NotByBpf(reason.clone()));
            }
        }
        self.with_place(pod, |place, netns| {
            let proxies = self.programs.connected_proxies.load(Ordering::Relaxed);
            self.programs.preparing.lock().insert(netns, proxies);
            self.programs.pins.create()?;
            redirection::bpf::prepare(place, spec)
        })
    }

    /// Applies redirection by BPF programs if the pod is ready for them, and otherwise, or if they fail, by rules.
    pub(super) fn apply_redirection(
        &self,
        pod: &CaptureTarget,
        spec: &RedirectionSpec,
        readiness: &BpfReadiness,
    ) -> Result<(Applied, CaptureMethod), ActionError> {
        let applied = self.apply_programs_or_rules(pod, spec, readiness);
        // Without BPF programs there is no cookie to forget, and on old kernels none at all.
        if *readiness != BpfReadiness::NotRequested
            && let Ok(netns) = redirection::bpf::cookie_of(&pod.netns)
        {
            self.programs.preparing.lock().remove(&netns);
        }
        applied
    }

    fn apply_programs_or_rules(
        &self,
        pod: &CaptureTarget,
        spec: &RedirectionSpec,
        readiness: &BpfReadiness,
    ) -> Result<(Applied, CaptureMethod), ActionError> {
        let method = match readiness {
            BpfReadiness::NotRequested => CaptureMethod::Rules,
            BpfReadiness::Impossible(reason) => CaptureMethod::RulesInsteadOfBpf(reason.clone()),
            BpfReadiness::Prepared { acknowledged } => {
                match self.apply_programs(pod, spec, *acknowledged) {
                    Ok(applied) => return Ok((applied, CaptureMethod::Bpf)),
                    Err(error) => CaptureMethod::RulesInsteadOfBpf(ErrorChain(&error).to_string()),
                }
            }
        };
        let applied = match self.pins_of(&pod.netns) {
            Some(pins) => redirection::bpf::apply_rules(&pod.netns, &pins, spec),
            None => redirection::apply(&pod.netns, spec),
        };
        let applied = applied.map_err(|source| ActionError::Redirection {
            what: "put in place",
            source,
        })?;
        Ok((applied, method))
    }

    fn apply_programs(
        &self,
        pod: &CaptureTarget,
        spec: &RedirectionSpec,
        acknowledged: bool,
    ) -> Result<Applied, ActionError> {
        self.with_place(pod, |place, netns| {
            // Without an answer a pod that programs capture already stays so: its connections are refused while it
            // has no proxy.
            if acknowledged && !redirection::bpf::has_proxy(place.pins)? {
                let path = place.pins.to_owned();
                let error = RedirectionError::NoProxy { path };
                let reason = ErrorChain(&error).to_string();
                self.record_missing_listeners(&pod.uid, netns, reason);
                return Err(error);
            }
            let applied = redirection::bpf::apply(place, spec);
            match &applied {
                // Programs of others come and go.
                Err(RedirectionError::Bpf(
                    CaptureError::Overrides { .. }
                    | CaptureError::Unseen { .. }
                    | CaptureError::Query { .. },
                )) => {}
                Err(error @ RedirectionError::Bpf(_)) => {
                    // The kernel will not change its mind, and each attempt costs.
                    let reason = ErrorChain(error).to_string();
                    self.programs.refused.lock().insert(pod.uid.clone(), reason);
                }
                Ok(_) | Err(_) => {}
            }
            applied
        })
    }

    /// Records that the pod's proxy has not entered its listeners, unless another proxy has connected since the pod was
    /// prepared.
    fn record_missing_listeners(&self, pod: &PodUid, netns: NetnsCookie, reason: String) {
        let mut known = self.programs.without_listeners.lock();
        let proxies = self.programs.connected_proxies.load(Ordering::Relaxed);
        if self.programs.preparing.lock().get(&netns) == Some(&proxies) {
            known.insert(pod.clone(), reason);
        }
    }

    /// Lets pods be prepared again whose proxy had not entered its listeners, since another one has connected.
    pub(super) fn clear_missing_listeners(&self) {
        let mut known = self.programs.without_listeners.lock();
        self.programs
            .connected_proxies
            .fetch_add(1, Ordering::Relaxed);
        known.clear();
    }

    /// Removes redirection by rules or programs.
    pub(super) fn release_redirection(&self, netns: &Netns) -> Result<(), RedirectionError> {
        match self.pins_of(netns) {
            Some(pins) => redirection::bpf::release(netns, &pins),
            None => redirection::release(netns),
        }
    }

    /// Removes the pins of pods that are gone, and those of pods whose capture had been stopped at the last sweep already,
    /// so that openings from before have reached the proxy. Forgets what is known of pods other than `pods`.
    pub(super) fn sweep_programs(&self, pods: &BTreeSet<PodUid>) {
        for known in [&self.programs.refused, &self.programs.without_listeners] {
            known.lock().retain(|pod, _| pods.contains(pod));
        }
        let before = self.programs.stopped.lock().clone();
        self.remove_unused_programs(|netns| before.contains(netns));
    }

    /// Removes the pins of all pods except `captured`, which could not be released, and their directory if none are left.
    /// Among the others are pods that have ended, whose namespaces exist as long as a node proxy drains.
    pub(super) fn remove_programs(&self, captured: &[Netns]) {
        let pins = &self.programs.pins;
        let kept: BTreeSet<_> = captured
            .iter()
            .filter_map(|netns| redirection::bpf::cookie_of(netns).ok())
            .collect();
        let others = pins
            .pods()
            .map(|all| all.difference(&kept).copied().collect());
        let removed = others.and_then(|others| pins.remove_all(&others));
        if let Err(error) = removed.and_then(|()| pins.remove_if_empty()) {
            let error = ErrorChain(&error);
            tracing::warn!(%error, "BPF programs are left on the node");
        }
    }

    /// Removes the pins of pods that are gone, and of those pods for which `is_removed` is true if their capture was
    /// stopped.
    fn remove_unused_programs(&self, is_removed: impl Fn(&NetnsCookie) -> bool) {
        let NodePrograms {
            pins,
            preparing,
            stopped,
            ..
        } = &self.programs;
        // There are none where the agent never prepared a pod, or cannot see the node's file system.
        if !pins.root().exists() {
            return;
        }
        let report = |result: Result<(), CaptureError>| {
            if let Err(error) = result {
                let error = ErrorChain(&error);
                tracing::warn!(%error, "BPF programs of pods that do not need them may be left");
            }
        };
        let preparing = preparing.lock();
        let in_use = preparing.keys().copied().collect();
        report(pins.sweep(&in_use).map(drop));
        match pins.stopped() {
            Ok(found) => {
                let idle = found.difference(&in_use).copied();
                let (removed, kept) = idle.partition(is_removed);
                report(pins.remove_all(&removed));
                *stopped.lock() = kept;
            }
            Err(error) => report(Err(error)),
        }
    }

    /// Returns the directory of the pod's programs, if it has any.
    fn pins_of(&self, netns: &Netns) -> Option<PathBuf> {
        if !self.programs.pins.root().exists() {
            return None;
        }
        let cookie = redirection::bpf::cookie_of(netns).ok()?;
        Some(self.programs.pins.path_of(cookie)).filter(|pins| pins.exists())
    }

    fn with_place<T>(
        &self,
        pod: &CaptureTarget,
        work: impl FnOnce(&BpfPod<'_>, NetnsCookie) -> Result<T, RedirectionError>,
    ) -> Result<T, ActionError> {
        let failed = |source| ActionError::Redirection {
            what: "let BPF programs make",
            source,
        };
        let names = [Some(&*pod.uid), pod.cgroup_alias.as_deref()];
        let cgroup = cgroup::find_pod_cgroup(&self.procfs, names.into_iter().flatten());
        let cgroup = cgroup.ok_or_else(|| {
            ActionError::NotByBpf("the pod has no cgroup of version 2 on this node".to_owned())
        })?;
        let cookie = redirection::bpf::cookie_of(&pod.netns);
        let cookie = cookie.map_err(|error| failed(RedirectionError::Addresses(error)))?;
        let place = BpfPod {
            netns: &pod.netns,
            cgroup: &cgroup,
            pins: &self.programs.pins.path_of(cookie),
        };
        work(&place, cookie).map_err(failed)
    }
}

/// Returns the default directory of BPF programs for an agent that sees the node's processes at `proc`.
pub(crate) fn default_pins(proc: &std::path::Path) -> Pins {
    if proc.starts_with("/host") {
        let root = proc.join("1/root").join(Pins::ROOT.trim_start_matches('/'));
        return Pins::at(root);
    }
    Pins::at(Pins::ROOT)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn programs_are_on_the_nodes_own_bpffs() {
        let root = |proc| default_pins(Path::new(proc)).root().display().to_string();
        assert_eq!(root("/proc"), "/sys/fs/bpf/ambit");
        assert_eq!(root("/host/proc"), "/host/proc/1/root/sys/fs/bpf/ambit");
    }
}
