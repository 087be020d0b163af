//! Applies redirection to a pod's network namespace, compares it with the desired state, and removes it.
//!
//! Owns the order of steps: policy routing before rules, nftables before iptables; never touches the
//! rules of others. All functions block for a few milliseconds; callers with a runtime use a blocking
//! thread. They may be called at the same time for the same namespace.

mod backend;
pub mod bpf;
mod drift;
mod error;
mod foreign;
pub mod host;
mod settings;

use ambit_netplan::{
    Backend, Family, InboundGuard, PolicyRouting, RedirectionSpec, Ruleset, plan, plan_capturing,
    plan_released, policy_routing,
};
use ambit_rt::ErrorChain;

use self::{
    backend::{RedirectionBackend, bpf_guards_in_place},
    settings::{family_enabled, mark_accepted_sockets, move_openings, track_for_the_guards},
};
pub use self::{
    drift::{Applied, Drift},
    error::RedirectionError,
};
use crate::{conntrack::pre_capture, netns::Netns, route::Routing};
pub use crate::{iptables::IptablesError, nft::NftError};

/// Sets the namespace's redirection to `spec`. Idempotent.
///
/// Rules change in one step: no packet meets half of them. Rules of others are never touched, except
/// those of an Istio agent that captured the pod before: they are removed once ours are in place.
///
/// # Errors
/// The rules are then as they were before; or, if pre-capture connections cannot be made known to
/// connection tracking, new connections are redirected, and packets with a valid SYN cookie pass.
pub fn apply(netns: &Netns, spec: &RedirectionSpec) -> Result<Applied, RedirectionError> {
    let ruleset = plan(spec)?;
    inside(netns, || {
        // The return route of the proxy's connections to the application comes first: without it, a
        // rule would capture connections that then cannot be delivered.
        let mut drift = ensure_routing(&routings_of(&ruleset))?;
        if spec.mark_accepted_sockets {
            mark_accepted_sockets(true);
        }
        move_openings(true);
        foreign::find().map(|found| foreign::prepare(&found))?;
        let capturing = plan_capturing(spec)?;
        let (_, rules) = first_working(spec.backend, |backend| {
            let begun = begin(backend, spec, &capturing, &ruleset)?;
            let rules = backend.apply(&ruleset)?;
            Ok(begun.filter(|begun| !begun.is_empty()).unwrap_or(rules))
        })?;
        // Connection tracking, with its settings, is certainly loaded only now.
        track_for_the_guards(true);
        drift.add(rules);
        // Only after our rules are in place: the pod is captured at every moment.
        take_over(&mut drift);
        Ok(drift.into_applied())
    })
}

/// Starts redirection in a pod whose inbound guard, if any, accepts unknown connections: redirects new connections, and
/// registers open ones with connection tracking before the guards follow. Does nothing if the guard accepts known
/// connections only, since a connection that it let through must not be registered as a pre-capture one.
///
/// The guards of capture by BPF programs, if there are any, stay until others follow.
fn begin(
    backend: RedirectionBackend,
    spec: &RedirectionSpec,
    capturing: &Ruleset,
    captured: &Ruleset,
) -> Result<Option<Drift>, RedirectionError> {
    if capturing == captured {
        return Ok(None);
    }
    let drift = match (backend.inbound_guard()?, bpf_guards_in_place(spec)?) {
        (InboundGuard::KnownOnly, _) => return Ok(None),
        (InboundGuard::AdmitsUnknown, _) => backend.apply(capturing)?,
        (InboundGuard::Missing, Some(guards)) if backend.kind() == Backend::Nftables => {
            let mut redirects = captured.without_guards();
            redirects.chains.extend(guards.chains);
            backend.replace(&redirects)?
        }
        (InboundGuard::Missing, Some(_)) => backend.replace(&captured.without_guards())?,
        // Only adds guards afterwards. To replace a rule, such as a temporary guard, takes the
        // kernel some 15 ms (RCU grace periods), which would delay the pod's start.
        (InboundGuard::Missing, None) => backend.apply(&captured.without_guards())?,
    };
    // Tracking must not pick up a connection in a state that contradicts the registered one.
    track_for_the_guards(true);
    if let Err(error) = pre_capture::track_open_connections() {
        backend.apply(capturing)?;
        return Err(RedirectionError::Connections(error));
    }
    Ok(Some(drift))
}

/// Removes the rules of Istio's agent, if there are any. A failure is logged only: the pod is captured by Ambit's rules
/// in any case.
fn take_over(drift: &mut Drift) {
    let removed = foreign::find().and_then(|found| {
        drift.nothing_found &= found.is_absent();
        drift.was_captured |= found.is_present();
        // For connections that the proxy has opened since.
        foreign::prepare(&found);
        foreign::remove(found)
    });
    match removed {
        Ok(false) => {}
        Ok(true) => drift.items.push(FOREIGN_RULES_MESSAGE.to_owned()),
        Err(error) => {
            drift.nothing_found = false;
            let error = ErrorChain(&error);
            tracing::warn!(%error, "rules of Istio's agent may be left in a pod");
        }
    }
}

const FOREIGN_RULES_MESSAGE: &str = "rules of Istio's agent were still there";

/// Reports the changes that `apply` would make, without making them.
///
/// # Errors
/// When the namespace cannot be read.
pub fn observe(netns: &Netns, spec: &RedirectionSpec) -> Result<Drift, RedirectionError> {
    let ruleset = plan(spec)?;
    inside(netns, || {
        let mut drift = Drift::of_nothing();
        let mut routing = open_routing()?;
        for one in routings_of(&ruleset) {
            routing_drift_of(&mut routing, &one, &mut drift)?;
        }
        // On a node where only iptables works, our rules are in iptables.
        let candidates = RedirectionBackend::candidates(spec.backend);
        let present = RedirectionBackend::backends_in_use()?;
        let backend = candidates
            .iter()
            .find(|c| present.contains(c))
            .or_else(|| candidates.first());
        let rules = match backend.map(|backend| backend.observe(&ruleset)) {
            Some(Err(error)) if !error.is_unsupported() => return Err(error),
            Some(Ok(rules)) => rules,
            _ => Drift {
                items: vec!["the rules are missing".into()],
                ..Drift::of_nothing()
            },
        };
        drift.add(rules);
        let found = foreign::find()?;
        drift.nothing_found &= found.is_absent();
        if found.is_present() {
            drift.items.push(FOREIGN_RULES_MESSAGE.to_owned());
        }
        Ok(drift)
    })
}

/// Removes redirection from a running pod: new connections bypass the proxy, those in the proxy continue.
///
/// The rules that those need stay (see `ambit_netplan::plan_released`) until the namespace ends or
/// [`purge`] is called. Rules of Istio's agent are removed too. In a namespace without redirection
/// nothing happens.
///
/// # Errors
/// When something of ours could not be removed.
pub fn release(netns: &Netns) -> Result<(), RedirectionError> {
    let ruleset = plan_released();
    inside(netns, || {
        let present = RedirectionBackend::backends_in_use()?;
        let found = foreign::find()?;
        foreign::prepare(&found);
        for backend in &present {
            backend.replace(&ruleset)?;
            track_for_the_guards(false);
        }
        if found.is_present() && present.is_empty() {
            // Captured only by Istio's agent: its connections continue like ours.
            first_working(Backend::Auto, |backend| backend.replace(&ruleset))?;
        }
        foreign::remove(found).map(drop)
    })
}

/// Removes all of Ambit's rules, including those that [`release`] leaves. Connections in the proxy break.
///
/// # Errors
/// When a rule of ours could not be removed.
pub fn purge(netns: &Netns) -> Result<(), RedirectionError> {
    inside(netns, || {
        for backend in RedirectionBackend::backends_in_use()? {
            backend.remove()?;
        }
        foreign::remove(foreign::find()?)?;
        let mut routing = open_routing()?;
        for family in [Family::V4, Family::V6]
            .into_iter()
            .filter(|f| family_enabled(*f))
        {
            routing
                .remove(&policy_routing(family))
                .map_err(|source| RedirectionError::Routing { family, source })?;
        }
        mark_accepted_sockets(false);
        move_openings(false);
        track_for_the_guards(false);
        Ok(())
    })
}

/// Whether the namespace has iptables-legacy tables that cannot be read, because the program is not installed here:
/// rules of Istio's agent in them cannot be removed.
///
/// # Errors
/// When the namespace cannot be read.
pub fn has_unreadable_rules(netns: &Netns) -> Result<bool, RedirectionError> {
    inside(netns, || Ok(foreign::find()?.is_unreadable()))
}

fn inside<T>(
    netns: &Netns,
    work: impl FnOnce() -> Result<T, RedirectionError>,
) -> Result<T, RedirectionError> {
    netns.run(work).map_err(RedirectionError::Enter)?
}

/// Calls `run` for one backend after the other, until one does not fail for a missing feature of the kernel or node.
fn first_working<T>(
    requested: Backend,
    mut attempt: impl FnMut(RedirectionBackend) -> Result<T, RedirectionError>,
) -> Result<(RedirectionBackend, T), RedirectionError> {
    let mut failures = Vec::new();
    for backend in RedirectionBackend::candidates(requested) {
        match attempt(backend) {
            Ok(done) => return Ok((backend, done)),
            Err(error) if requested.is_automatic() && error.is_unsupported() => {
                tracing::debug!(backend = %backend.kind(), error = %ErrorChain(&error), "not usable");
                failures.push((backend.kind(), error));
            }
            Err(error) => return Err(error),
        }
    }
    Err(RedirectionError::NoBackend(failures))
}

fn open_routing() -> Result<Routing, RedirectionError> {
    Routing::open().map_err(|source| RedirectionError::Routing {
        family: Family::V4,
        source,
    })
}

fn routings_of(ruleset: &Ruleset) -> Vec<PolicyRouting> {
    let is_enabled = |family: &Family| ruleset.policy_routing && family_enabled(*family);
    let families = ruleset.families.iter().copied().filter(is_enabled);
    families.map(policy_routing).collect()
}

/// Adds what is missing of policy rules and routes, and returns it. Each is tried, even if another one fails.
fn ensure_routing(routings: &[PolicyRouting]) -> Result<Drift, RedirectionError> {
    let mut drift = Drift::of_nothing();
    let mut routing = open_routing()?;
    let mut result = Ok(());
    for one in routings {
        let missing = drift.items.len();
        let ensured = routing_drift_of(&mut routing, one, &mut drift).and_then(|()| {
            if drift.items.len() == missing {
                return Ok(());
            }
            let family = one.family;
            routing
                .ensure(one)
                .map_err(|source| RedirectionError::Routing { family, source })
        });
        result = result.and(ensured);
    }
    result.map(|()| drift)
}

fn routing_drift_of(
    routing: &mut Routing,
    wanted: &PolicyRouting,
    drift: &mut Drift,
) -> Result<(), RedirectionError> {
    let family = wanted.family;
    let present = routing
        .observe(wanted)
        .map_err(|source| RedirectionError::Routing { family, source })?;
    drift.nothing_found &= !present.rule && !present.route;
    let kind = if wanted.is_own_only { " outbound" } else { "" };
    if !present.rule {
        drift
            .items
            .push(format!("the {family}{kind} policy rule is missing"));
    }
    if !present.route {
        drift
            .items
            .push(format!("the {family}{kind} local route is missing"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refused(code: i32) -> RedirectionError {
        RedirectionError::Nft(NftError::Open(io::Error::from_raw_os_error(code)))
    }

    #[test]
    fn missing_kernel_support_selects_the_next_backend() {
        let mut tried = Vec::new();
        let done = first_working(Backend::Auto, |backend| {
            tried.push(backend.kind());
            match backend.kind() {
                Backend::Nftables => Err(refused(95)),
                other => Ok(other),
            }
        });
        assert_eq!(done.unwrap().1, Backend::IptablesNft);
        assert_eq!(tried, [Backend::Nftables, Backend::IptablesNft]);
    }

    #[test]
    fn permission_errors_do_not_select_the_next_backend() {
        let done = first_working(Backend::Auto, |_| Err::<(), _>(refused(1)));
        assert!(matches!(done, Err(RedirectionError::Nft(_))));
    }

    #[test]
    fn a_forced_backend_is_the_only_one_tried() {
        let done = first_working(Backend::Nftables, |_| Err::<(), _>(refused(95)));
        assert!(matches!(done, Err(RedirectionError::Nft(_))));
    }

    #[test]
    fn error_lists_all_failed_backends() {
        let done = first_working(Backend::Auto, |_| Err::<(), _>(refused(93)));
        let text = done.unwrap_err().to_string();
        for name in [
            "nftables: ",
            "iptables-nft: ",
            "iptables-legacy: ",
            "Protocol not supported",
        ] {
            assert!(text.contains(name), "{text}");
        }
    }
}
