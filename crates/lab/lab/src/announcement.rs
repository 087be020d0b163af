//! Announcement of a lab that is up, to the user's command at the other end of its standard output.

use std::{fs::File, io, os::fd::AsFd};

/// The supervisor's line once it accepts requests.
pub(crate) const READY: &str = "ready";

/// Closes the pipe to the user's command, which reads until its end if the lab fails.
pub(crate) fn hand_over_stdout() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null.as_fd())?)
}
