//! Finds the programs of others that capture by BPF programs would switch off.

use std::{fs::File, io, path::Path};

use ambit_bpf_query::{Hook, attached, effective_count};

use crate::{
    CaptureError,
    capture::{ACCEPTED, CONNECTING},
};

/// Hooks of cgroups that programs of capture are attached to, with the programs' names.
const HOOKS: [(Hook, &str); 3] = [
    (Hook::Connect4, CONNECTING[0]),
    (Hook::Connect6, CONNECTING[1]),
    (Hook::SockOps, ACCEPTED),
];

/// Checks that no program above the pod's cgroup stops to run for the pod when programs of capture are attached.
///
/// Programs that permit others beside them continue to run, and the kernel refuses to attach below one that permits
/// nothing.
///
/// # Errors
/// When there is such a program, or one may be above the highest cgroup that is visible; or when cgroups cannot be
/// queried.
pub fn check_overridden(cgroup: &Path) -> Result<(), CaptureError> {
    let mut highest = cgroup;
    while let Some(parent) = highest.parent().filter(|parent| is_cgroup(parent)) {
        highest = parent;
        for (hook, program) in HOOKS {
            if query(highest, |directory| attached(directory, hook))?.is_overridable {
                let path = highest.to_owned();
                return Err(CaptureError::Overrides { program, path });
            }
        }
    }
    for (hook, program) in HOOKS {
        let own = query(highest, |directory| attached(directory, hook))?;
        if query(highest, |directory| effective_count(directory, hook))? > own.count {
            let path = highest.to_owned();
            return Err(CaptureError::Unseen { program, path });
        }
    }
    Ok(())
}

fn is_cgroup(directory: &Path) -> bool {
    directory.join("cgroup.procs").exists()
}

fn query<T>(cgroup: &Path, query: impl Fn(&File) -> io::Result<T>) -> Result<T, CaptureError> {
    let result = File::open(cgroup).and_then(|directory| query(&directory));
    result.map_err(|source| CaptureError::Query {
        path: cgroup.to_owned(),
        source,
    })
}
