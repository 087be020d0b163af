//! Waits for readable descriptors and for signals, whose handlers write bytes into a pipe.

use std::{
    io::{self, Read as _},
    os::unix::net::UnixStream,
};

use rustix::event::{PollFd, Timespec, poll};

/// Waits until a descriptor is readable, a signal arrives, or the timeout expires.
pub(crate) fn poll_with_timeout(
    fds: &mut [PollFd<'_>],
    timeout: Option<&Timespec>,
) -> io::Result<()> {
    match poll(fds, timeout) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads all bytes from a signal pipe and returns their number.
pub(crate) fn drain_pipe(mut pipe: &UnixStream) -> usize {
    let mut buffer = [0; 64];
    pipe.read(&mut buffer).unwrap_or(0)
}
