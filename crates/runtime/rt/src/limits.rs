//! Resource limits of the process: open files and memory.

mod memory;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use memory::memory_limit;

/// Raises the limit of open files to the hard limit: every proxied connection costs two or more file descriptors, and
/// the usual soft limit is 1024. Returns the limit in force afterwards.
pub fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, soft = limit.current, "cannot raise the limit of open files");
            limit.current
        }
    }
}

/// Returns the current limit of open files.
pub fn open_file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_reaches_the_hard_one() {
        assert_eq!(raise_open_files(), getrlimit(Resource::Nofile).maximum);
        assert_eq!(open_file_limit(), getrlimit(Resource::Nofile).maximum);
    }
}
