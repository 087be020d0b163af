//! Drops capabilities that the process does not need.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Linux capability that the process may retain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// `CAP_SYS_ADMIN`: enters namespaces.
    SysAdmin,
    /// `CAP_NET_ADMIN`: marks sockets, spoofs source addresses, changes a namespace's rules.
    NetAdmin,
    /// `CAP_SYS_PTRACE`: reads the processes of other users, including their namespaces.
    SysPtrace,
    /// `CAP_DAC_OVERRIDE`: writes to directories of other users.
    DacOverride,
}

impl Capability {
    fn set(self) -> CapabilitySet {
        match self {
            Self::SysAdmin => CapabilitySet::SYS_ADMIN,
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::SysPtrace => CapabilitySet::SYS_PTRACE,
            Self::DacOverride => CapabilitySet::DAC_OVERRIDE,
        }
    }
}

/// Drops every capability but the requested ones, for the calling thread and threads that it starts from now on.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_only(requested: &[Capability]) -> io::Result<()> {
    let requested = requested
        .iter()
        .fold(CapabilitySet::empty(), |set, one| set | one.set());
    let now = capabilities(None)?;
    let retained = now.permitted & requested;
    Ok(set_capabilities(
        None,
        CapabilitySets {
            effective: retained,
            permitted: retained,
            inheritable: now.inheritable & requested,
        },
    )?)
}

/// Clears the effective capabilities of the calling thread, but keeps the permitted ones, so that programs that it
/// starts may have them.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_all_capabilities() -> io::Result<()> {
    let now = capabilities(None)?;
    Ok(set_capabilities(
        None,
        CapabilitySets {
            effective: CapabilitySet::empty(),
            ..now
        },
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_capabilities_are_dropped_from_this_thread_only() {
        let before = capabilities(None).unwrap();
        std::thread::spawn(|| {
            keep_only(&[Capability::NetAdmin]).unwrap();
            let now = capabilities(None).unwrap();
            assert!((now.permitted - CapabilitySet::NET_ADMIN).is_empty());
            drop_all_capabilities().unwrap();
            let laid_down = capabilities(None).unwrap();
            assert!(laid_down.effective.is_empty());
            assert_eq!(laid_down.permitted, now.permitted);
        })
        .join()
        .unwrap();
        assert_eq!(capabilities(None).unwrap().permitted, before.permitted);
    }
}
