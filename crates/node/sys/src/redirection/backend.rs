//! Backends that write redirection rules in the calling thread's namespace: nftables, or a variant of iptables. The
//! rules have the same effect with each.

use ambit_netplan::{
    Backend, ChainKind, Family, InboundGuard, RedirectionSpec, Ruleset, bpf_guards,
    iptables::{self, CHAIN_PREFIX, State},
    nft::{self, Change, POD_TABLE, Table, chain_name},
};

use super::{drift::Drift, error::RedirectionError, settings::family_enabled};
use crate::{
    addresses,
    iptables::{Iptables, lock},
    nft::{Nft, NftError},
};

/// Maximum attempts at a change while other processes change the same table.
const MAX_ATTEMPTS: usize = 5;

/// Backend that writes redirection rules, as described for the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RedirectionBackend(Backend);

impl RedirectionBackend {
    /// Returns the backends to try, in order.
    pub(super) fn candidates(requested: Backend) -> Vec<Self> {
        match requested {
            Backend::Auto | Backend::Bpf => {
                vec![
                    Self(Backend::Nftables),
                    Self(Backend::IptablesNft),
                    Self(Backend::IptablesLegacy),
                ]
            }
            one => vec![Self(one)],
        }
    }

    /// Returns the backends with Ambit's rules in this namespace.
    pub(super) fn backends_in_use() -> Result<Vec<Self>, RedirectionError> {
        let mut out = Vec::new();
        match nftables_in_use() {
            Ok(found) => out.extend(found),
            Err(error) if error.is_unsupported() => {}
            Err(error) => return Err(error.into()),
        }
        let legacy = Self(Backend::IptablesLegacy);
        if legacy_in_use() {
            match legacy.read_both() {
                Ok(both) if both.iter().all(|(_, state)| state.is_empty()) => {}
                Ok(_) => out.push(legacy),
                // A missing program means that there are no rules of ours.
                Err(RedirectionError::Iptables(error)) if error.is_not_installed() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(out)
    }

    pub(super) fn kind(self) -> Backend {
        self.0
    }

    /// Returns the differences from `ruleset`; rules of Ambit's in another backend count too.
    pub(super) fn observe(self, ruleset: &Ruleset) -> Result<Drift, RedirectionError> {
        let mut drift = if self.0 == Backend::Nftables {
            let current = Nft::open()?.read(POD_TABLE)?;
            describe(
                current.as_ref(),
                &nft::diff(current.as_ref(), Some(&nft::lower(ruleset))),
            )
        } else {
            self.compare(ruleset, |_, _, _| Ok(()))?
        };
        for other in Self::backends_in_use()?
            .into_iter()
            .filter(|other| *other != self)
        {
            drift
                .items
                .push(format!("our rules in {} are still there", other.0));
        }
        Ok(drift)
    }

    /// Returns which packets the current inbound guard accepts; of the guards of two iptables variants, the more
    /// permissive one counts.
    pub(super) fn inbound_guard(self) -> Result<InboundGuard, RedirectionError> {
        if self.0 == Backend::Nftables {
            return Ok(nft::inbound_guard(Nft::open()?.read(POD_TABLE)?.as_ref()));
        }
        let both = self.read_both()?;
        let guards: Vec<_> = both
            .iter()
            .map(|(_, state)| iptables::inbound_guard(state))
            .collect();
        let all = |one| guards.iter().all(|guard| *guard == one);
        Ok(if all(InboundGuard::KnownOnly) {
            InboundGuard::KnownOnly
        } else if all(InboundGuard::Missing) {
            InboundGuard::Missing
        } else {
            InboundGuard::AdmitsUnknown
        })
    }

    /// Writes the rules, removes those that another backend wrote, and returns the differences that there were.
    pub(super) fn apply(self, ruleset: &Ruleset) -> Result<Drift, RedirectionError> {
        let mut drift = self.replace(ruleset)?;
        // Only after the new rules are in place: the pod is captured at every moment.
        for other in Self::backends_in_use()?
            .into_iter()
            .filter(|other| *other != self)
        {
            other.remove()?;
            drift.nothing_found = false;
            drift.was_captured = true;
            drift
                .items
                .push(format!("our rules in {} were still there", other.0));
        }
        Ok(drift)
    }

    /// Writes the rules of this backend, and returns the differences that there were.
    pub(super) fn replace(self, ruleset: &Ruleset) -> Result<Drift, RedirectionError> {
        if self.0 == Backend::Nftables {
            let desired = nft::lower(ruleset);
            return change_table(POD_TABLE, |_| Some(desired.clone()));
        }
        let _lock = lock()?;
        self.compare(ruleset, |family, current, desired| {
            self.restore(family, current, desired)
        })
    }

    /// Compares the current iptables state with the desired one, and calls `each` for every address family.
    fn compare(
        self,
        ruleset: &Ruleset,
        each: impl Fn(Family, &State, &State) -> Result<(), RedirectionError>,
    ) -> Result<Drift, RedirectionError> {
        let families = self.read_both()?;
        let mut drift = Drift {
            was_captured: families.iter().all(|(_, current)| current.has_guards()),
            ..Drift::of_nothing()
        };
        for (family, current) in families {
            let desired = iptables::desired(ruleset, family);
            drift.nothing_found &= current.is_empty();
            let differences = iptables::differences(&current, &desired);
            drift
                .items
                .extend(differences.iter().map(|text| format!("{family}: {text}")));
            each(family, &current, &desired)?;
        }
        Ok(drift)
    }

    /// Removes all of Ambit's rules that this backend wrote.
    pub(super) fn remove(self) -> Result<(), RedirectionError> {
        if self.0 == Backend::Nftables {
            return change_table(POD_TABLE, |_| None).map(|_| ());
        }
        let _lock = lock()?;
        for (family, current) in self.read_both()? {
            self.restore(family, &current, &State::default())?;
        }
        Ok(())
    }

    fn program(self, family: Family) -> Option<Iptables> {
        Iptables::new(self.0, family)
    }

    fn read_both(self) -> Result<Vec<(Family, State)>, RedirectionError> {
        let families = [Family::V4, Family::V6]
            .into_iter()
            .filter(|f| family_enabled(*f));
        let programs = families.filter_map(|family| Some((family, self.program(family)?)));
        programs
            .map(|(family, program)| Ok((family, program.read()?)))
            .collect()
    }

    fn restore(
        self,
        family: Family,
        current: &State,
        desired: &State,
    ) -> Result<(), RedirectionError> {
        let script = iptables::restore_script(current, desired);
        match self.program(family) {
            Some(program) => Ok(program.restore(&script)?),
            None => Ok(()),
        }
    }
}

pub(super) fn describe(current: Option<&Table>, changes: &[Change]) -> Drift {
    // Without the table itself, the list of its contents adds nothing. Rules are named by their
    // chain.
    let whole = changes
        .iter()
        .find(|c| matches!(c, Change::AddTable | Change::DeleteTable));
    let items = match whole {
        Some(change) => vec![change.to_string()],
        None => changes
            .iter()
            .filter(|change| !matches!(change, Change::AddRule(..)))
            .map(ToString::to_string)
            .collect(),
    };
    Drift {
        items,
        nothing_found: current.is_none(),
        was_captured: current.is_some_and(|table| table.chains.keys().any(|chain| is_guard(chain))),
    }
}

/// Whether this chain of a pod's table refuses packets that bypass the proxy.
pub(super) fn is_guard(chain: &str) -> bool {
    let guards = [
        ChainKind::GuardInput,
        ChainKind::GuardForward,
        ChainKind::GuardOutput,
    ];
    guards.map(chain_name).contains(&chain)
}

/// Reads the pod's or node's table, computes the desired one, and commits the changes, with the redirects in one
/// transaction.
pub(super) fn change_table(
    name: &str,
    mut desired: impl FnMut(Option<&Table>) -> Option<Table>,
) -> Result<Drift, RedirectionError> {
    change_table_of(&mut Nft::open()?, name, &mut desired)
}

/// Changes a table like [`change_table`], through a connection of any table family.
pub(super) fn change_table_of(
    nft: &mut Nft,
    name: &str,
    mut desired: impl FnMut(Option<&Table>) -> Option<Table>,
) -> Result<Drift, RedirectionError> {
    let mut attempt = 1;
    loop {
        let current = nft.read(name)?;
        let target = desired(current.as_ref());
        let steps = nft::steps(current.as_ref(), target.as_ref());
        match steps.iter().try_for_each(|step| nft.commit(name, step)) {
            Ok(()) => {
                let changes = nft::diff(current.as_ref(), target.as_ref());
                return Ok(describe(current.as_ref(), &changes));
            }
            Err(error) if attempt < MAX_ATTEMPTS && error.is_contention() => attempt += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the nftables backends with Ambit's rules in this namespace: native nftables, and iptables-nft.
fn nftables_in_use() -> Result<Vec<RedirectionBackend>, NftError> {
    let mut nft = Nft::open()?;
    let mut out = Vec::new();
    let chains = nft.all_chains()?;
    if nft.read(POD_TABLE)?.is_some() {
        out.push(RedirectionBackend(Backend::Nftables));
    }
    if chains.iter().any(|name| name.starts_with(CHAIN_PREFIX)) {
        out.push(RedirectionBackend(Backend::IptablesNft));
    }
    Ok(out)
}

/// Returns the guards of capture by BPF programs, if they are in place in the calling thread's namespace.
pub(super) fn bpf_guards_in_place(
    spec: &RedirectionSpec,
) -> Result<Option<Ruleset>, RedirectionError> {
    let table = match Nft::open().and_then(|mut nft| nft.read(POD_TABLE)) {
        Err(error) if error.is_unsupported() => None,
        table => table?,
    };
    if !table.is_some_and(|table| nft::has_bpf_guards(&table)) {
        return Ok(None);
    }
    let own = addresses::dump_addresses().map_err(RedirectionError::Addresses)?;
    let own = own.into_iter().map(|address| address.ip);
    let own: Vec<_> = own.filter(|ip| !ip.is_loopback()).collect();
    Ok(Some(bpf_guards(spec, &own)))
}

/// Whether iptables-legacy was ever used in this namespace; otherwise its programs need not be run.
pub(super) fn legacy_in_use() -> bool {
    ["ip_tables_names", "ip6_tables_names"]
        .into_iter()
        .any(|file| {
            std::fs::read(format!("/proc/thread-self/net/{file}"))
                .is_ok_and(|text| !text.is_empty())
        })
}
