//! Access to a module's memory. Addresses and lengths from the module are checked before memory is read or written.

use wasmtime::{AsContext as _, AsContextMut as _, Caller, Extern, Memory};

use super::Host;
use crate::{abi::Status, limits::MAX_COPY_BYTES};

/// Reason why a host function cannot return normally.
pub(crate) enum HostError {
    /// Error status that the module receives.
    Status(Status),
    /// Trap, which ends the instance.
    Trap(wasmtime::Error),
}

impl From<Status> for HostError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// Converts a host function's result to the status that the module receives.
pub(crate) fn to_status_code(result: Result<(), HostError>) -> wasmtime::Result<u32> {
    match result {
        Ok(()) => Ok(Status::Ok as u32),
        Err(HostError::Status(status)) => Ok(status as u32),
        Err(HostError::Trap(error)) => Err(error),
    }
}

/// Linear memory of the instance that calls a host function, with the host state.
pub(crate) struct GuestMemory<'a> {
    caller: Caller<'a, Host>,
}

impl<'a> GuestMemory<'a> {
    pub(crate) fn new(caller: Caller<'a, Host>) -> Self {
        Self { caller }
    }

    pub(crate) fn host(&mut self) -> &mut Host {
        self.caller.data_mut()
    }

    fn memory(&mut self) -> Result<Memory, HostError> {
        let memory = self
            .caller
            .get_export("memory")
            .and_then(Extern::into_memory);
        memory.ok_or(HostError::Status(Status::InvalidMemoryAccess))
    }

    /// Borrows a range of the module's memory together with the host state.
    pub(crate) fn read_with_host(
        &mut self,
        at: u32,
        length: u32,
    ) -> Result<(&[u8], &mut Host), HostError> {
        let memory = self.memory()?;
        let (all, host) = memory.data_and_store_mut(&mut self.caller);
        Ok((slice_range(all, at, length)?, host))
    }

    /// Borrows two ranges of the module's memory together with the host state.
    pub(crate) fn read_two_with_host(
        &mut self,
        (at, length): (u32, u32),
        (other_at, other_length): (u32, u32),
    ) -> Result<(&[u8], &[u8], &mut Host), HostError> {
        let memory = self.memory()?;
        let (all, host) = memory.data_and_store_mut(&mut self.caller);
        let all: &[u8] = all;
        Ok((
            slice_range(all, at, length)?,
            slice_range(all, other_at, other_length)?,
            host,
        ))
    }

    /// Copies bytes from the module's memory.
    pub(crate) fn read_bytes(&mut self, at: u32, length: u32) -> Result<Vec<u8>, HostError> {
        let memory = self.memory()?;
        Ok(slice_range(memory.data(self.caller.as_context()), at, length)?.to_vec())
    }

    /// Copies a UTF-8 string from the module's memory.
    pub(crate) fn read_text(&mut self, at: u32, length: u32) -> Result<String, HostError> {
        let bytes = self.read_bytes(at, length)?;
        String::from_utf8(bytes).map_err(|_| HostError::Status(Status::BadArgument))
    }

    /// Writes bytes to an address of the module's memory.
    pub(crate) fn write(&mut self, at: u32, bytes: &[u8]) -> Result<(), HostError> {
        let memory = self.memory()?;
        let all = memory.data_mut(self.caller.as_context_mut());
        let end = (at as usize).checked_add(bytes.len());
        let target = end.and_then(|end| all.get_mut(at as usize..end));
        let target = target.ok_or(Status::InvalidMemoryAccess)?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn write_u32(&mut self, at: u32, number: u32) -> Result<(), HostError> {
        self.write(at, &number.to_le_bytes())
    }

    /// Copies bytes to memory that the module allocates, and writes address and length.
    pub(crate) fn write_allocated(
        &mut self,
        bytes: &[u8],
        at: u32,
        length_at: u32,
    ) -> Result<(), HostError> {
        // Checked before memory is allocated in the module.
        let length = u32::try_from(bytes.len()).map_err(|_| Status::InternalFailure)?;
        self.write_u32(length_at, 0)?;
        self.write_u32(at, 0)?;
        let mut address = 0;
        if length > 0 {
            address = self.allocate(length)?;
            self.write(address, bytes)?;
        }
        self.write_u32(at, address)?;
        self.write_u32(length_at, length)
    }

    fn allocate(&mut self, length: u32) -> Result<u32, HostError> {
        let found = ["proxy_on_memory_allocate", "malloc"].into_iter();
        let mut found = found.filter_map(|name| self.caller.get_export(name)?.into_func());
        let function = found.next().ok_or(Status::InternalFailure)?;
        let function = function.typed::<u32, u32>(self.caller.as_context());
        let function = function.map_err(HostError::Trap)?;
        let address = function.call(self.caller.as_context_mut(), length);
        let address = address.map_err(HostError::Trap)?;
        if address == 0 {
            return Err(Status::InvalidMemoryAccess.into());
        }
        Ok(address)
    }
}

fn slice_range(all: &[u8], at: u32, length: u32) -> Result<&[u8], HostError> {
    if length as usize > MAX_COPY_BYTES {
        return Err(Status::BadArgument.into());
    }
    if length == 0 {
        return Ok(&[]);
    }
    let end = (at as usize).checked_add(length as usize);
    let found = end.and_then(|end| all.get(at as usize..end));
    found.ok_or(HostError::Status(Status::InvalidMemoryAccess))
}
