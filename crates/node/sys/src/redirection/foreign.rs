//! Removes the rules of an Istio agent that captured the pod before, in the calling thread's namespace.
//!
//! Both sets of rules may be in place at once: they redirect to the same ports, and whichever comes first
//! decides. So Ambit's rules are added before those of Istio's agent are removed: the pod is captured at
//! every moment, and since Ambit's rules match on the state of connections, translated connections stay
//! translated.

use std::sync::Once;

use ambit_netplan::{Backend, Family, foreign, marks};

use super::{backend::legacy_in_use, error::RedirectionError, settings::family_enabled};
use crate::{
    conntrack,
    iptables::{Iptables, IptablesError, lock},
    nft::{ForeignChains, Nft, NftError},
};

/// Maximum attempts at a removal while other processes change the same tables.
const MAX_ATTEMPTS: usize = 5;

/// Rules of Istio's agent that exist in the namespace, in nftables and in iptables-legacy.
#[derive(Debug, Default)]
pub(super) struct ForeignRules {
    nftables: ForeignChains,
    /// Scripts for `iptables-legacy-restore` that remove the legacy rules of Istio's agent, by address family.
    legacy_removal_scripts: Vec<(Family, String)>,
    /// Whether iptables-legacy tables exist in the namespace, but `iptables-legacy-save` is not installed.
    has_unreadable_tables: bool,
}

impl ForeignRules {
    /// Whether the namespace certainly has no rules of Istio's agent.
    pub(super) fn is_absent(&self) -> bool {
        !self.is_present() && !self.has_unreadable_tables
    }

    /// Whether the namespace has iptables-legacy tables that cannot be read, because iptables is not installed.
    pub(super) fn is_unreadable(&self) -> bool {
        self.has_unreadable_tables
    }

    /// Whether rules of Istio's agent were found in the namespace.
    pub(super) fn is_present(&self) -> bool {
        !self.nftables.is_empty() || !self.legacy_removal_scripts.is_empty()
    }
}

/// Finds the rules of Istio's agent in the calling thread's namespace. Needs a single request to the kernel where
/// iptables-legacy was never used.
pub(super) fn find() -> Result<ForeignRules, RedirectionError> {
    let mut found = ForeignRules {
        nftables: find_in_nftables()?,
        ..ForeignRules::default()
    };
    if legacy_in_use() {
        for family in [Family::V4, Family::V6] {
            if !family_enabled(family) {
                continue;
            }
            let Some(program) = Iptables::new(Backend::IptablesLegacy, family) else {
                continue;
            };
            match program.save() {
                Ok(saved) => {
                    let script = foreign::removal_script(&saved);
                    found
                        .legacy_removal_scripts
                        .extend(script.map(|script| (family, script)));
                }
                Err(error) if error.is_not_installed() => {
                    found.has_unreadable_tables = true;
                    warn_unreadable(&error);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(found)
}

/// Registers the connections that Istio's proxy opened to the application in Ambit's conntrack zone, so that they
/// survive the change of rules. Called before and after Ambit's rules are applied.
pub(super) fn prepare(found: &ForeignRules) {
    if found.is_absent() {
        return;
    }
    if let Err(error) = conntrack::track_proxy_connections(marks::ZONE) {
        tracing::warn!(%error, "connections to the application may break as a pod is taken over");
    }
}

/// Removes the rules of Istio's agent. Returns whether there were any.
pub(super) fn remove(mut found: ForeignRules) -> Result<bool, RedirectionError> {
    let any = found.is_present();
    let mut attempt = 1;
    while !found.nftables.is_empty() {
        match Nft::open()?.remove_istio_rules(&found.nftables) {
            Ok(()) => break,
            Err(error) if attempt < MAX_ATTEMPTS && error.is_contention() => {
                attempt += 1;
                found.nftables = find_in_nftables()?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !found.legacy_removal_scripts.is_empty() {
        let _lock = lock()?;
        for (family, script) in found.legacy_removal_scripts {
            if let Some(program) = Iptables::new(Backend::IptablesLegacy, family) {
                program.restore(&script)?;
            }
        }
    }
    Ok(any)
}

fn find_in_nftables() -> Result<ForeignChains, NftError> {
    match Nft::open().and_then(|mut nft| nft.find_istio_chains()) {
        Err(error) if error.is_unsupported() => Ok(ForeignChains::default()),
        result => result,
    }
}

fn warn_unreadable(error: &IptablesError) {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        let error: &dyn std::error::Error = error;
        tracing::warn!(
            error,
            "pods have tables of iptables' legacy variant, which cannot be looked at: rules of \
             another mesh in them stay until the pod is started anew, or iptables is installed here"
        );
    });
}
