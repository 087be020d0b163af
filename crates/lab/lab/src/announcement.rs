//! Announcement that a lab accepts requests, from its supervisor to `ambit lab up` at the other end of its standard
//! output.

use std::{fs::File, io, os::fd::AsFd};

/// Line that the supervisor writes once it accepts requests.
pub(crate) const READY_LINE: &str = "ready";

/// Closes the pipe to `ambit lab up` by redirecting standard output to `/dev/null`: the command reads until the end if
/// the lab fails.
pub(crate) fn hand_over_stdout() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null.as_fd())?)
}
