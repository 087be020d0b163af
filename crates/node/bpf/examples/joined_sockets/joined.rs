//! The kernel's map of joined sockets.

use std::{error::Error, os::fd::AsRawFd as _};

use aya::{Ebpf, maps::SockHash, programs::SkMsg};

use crate::behaviours::Pair;

static OBJECT: &[u8] = aya::include_bytes_aligned!("joined.o");

/// Kernel's map of joined sockets, and the program that is attached to it.
pub(crate) struct JoinedSockets(Ebpf);

impl JoinedSockets {
    pub(crate) fn load() -> Result<Self, Box<dyn Error>> {
        let mut programs = Ebpf::load(OBJECT)?;
        let map: SockHash<_, u32> = programs.map("joined").ok_or("no map")?.try_into()?;
        let map = map.fd().try_clone()?;
        let program: &mut SkMsg = programs
            .program_mut("send_to_peer")
            .ok_or("no program")?
            .try_into()?;
        program.load()?;
        program.attach(&map)?;
        Ok(Self(programs))
    }

    pub(crate) fn join(&mut self, pair: &Pair) -> Result<(), Box<dyn Error>> {
        let map = self.0.map_mut("joined").ok_or("no map")?;
        let mut map: SockHash<_, u32> = map.try_into()?;
        for socket in [&pair.sender, &pair.receiver] {
            let port = socket.local_addr()?.port();
            map.insert(u32::from(port), socket.as_raw_fd(), 0)?;
        }
        Ok(())
    }
}
