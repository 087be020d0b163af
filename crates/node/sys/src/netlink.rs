//! Encodes and decodes netlink messages, and exchanges them with the kernel. Blocks, with a timeout.
//!
//! The module handles framing and attributes only; the modules `nft` and `route` interpret them.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send,
    socket_with,
    sockopt::{Timeout, set_socket_timeout},
};

/// Flag of every request to the kernel.
pub(crate) const NLM_F_REQUEST: u16 = 0x1;
/// Flag that requests an acknowledgement of success.
pub(crate) const NLM_F_ACK: u16 = 0x4;
/// Flag of a request that lists all objects.
pub(crate) const NLM_F_DUMP: u16 = 0x300;
/// Flag that replaces an existing object.
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
/// Flag that fails if the object exists.
pub(crate) const NLM_F_EXCL: u16 = 0x200;
/// Flag that creates a missing object.
pub(crate) const NLM_F_CREATE: u16 = 0x400;
/// Flag that appends after existing objects.
pub(crate) const NLM_F_APPEND: u16 = 0x800;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_MULTI: u16 = 0x2;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
const NLMSG_HEADER_BYTES: usize = 16;
/// Timeout for the kernel's response to a netlink request; normally it arrives at once.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the receive buffer in bytes, larger than any datagram of the kernel.
const BUFFER_BYTES: usize = 256 * 1024;
/// Maximum attempts to dump objects that change during the dump.
const MAX_DUMP_ATTEMPTS: usize = 10;

/// Encoded netlink attributes, to which more can be appended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attrs(Vec<u8>);

impl Attrs {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        // Attributes are short by construction; a longer one gets a length that the kernel refuses.
        let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        pad(&mut self.0);
        self
    }

    pub(crate) fn nest(self, kind: u16, inner: &Self) -> Self {
        self.bytes(kind | NLA_F_NESTED, &inner.0)
    }

    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub(crate) fn u32_be(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Wraps already encoded attributes, as read from the kernel.
    pub(crate) fn raw(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

fn pad(buffer: &mut Vec<u8>) {
    buffer.resize(buffer.len().next_multiple_of(4), 0);
}

/// Iterates over the attributes in `bytes`, up to the first malformed one.
pub(crate) fn attrs(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (u16_at(bytes, 0)?, u16_at(bytes, 2)?);
        let value = bytes.get(4..usize::from(len))?;
        bytes = bytes
            .get(usize::from(len).next_multiple_of(4)..)
            .unwrap_or_default();
        Some((kind & NLA_TYPE_MASK, value))
    })
}

/// Returns the value of the first attribute of type `kind`.
pub(crate) fn attr(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attrs(bytes)
        .find(|(k, _)| *k == kind)
        .map(|(_, value)| value)
}

/// Decodes a string attribute, without its terminator.
pub(crate) fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}

/// Decodes a 32-bit number in network byte order.
pub(crate) fn u32_be(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?))
}

/// Decodes a 64-bit number in network byte order.
pub(crate) fn u64_be(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.get(..8)?.try_into().ok()?))
}

/// Decodes a 32-bit number in host byte order.
pub(crate) fn u32_ne(value: &[u8]) -> Option<u32> {
    u32_at(value, 0)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(
        bytes.get(at..at.checked_add(2)?)?.try_into().ok()?,
    ))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

/// Appends one message to `out`; `body` consists of the family's fixed header and the attributes.
pub(crate) fn message(out: &mut Vec<u8>, kind: u16, flags: u16, seq: u32, body: &[&[u8]]) {
    let len = NLMSG_HEADER_BYTES + body.iter().map(|part| part.len()).sum::<usize>();
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&seq.to_ne_bytes());
    out.extend_from_slice(&0u32.to_ne_bytes());
    for part in body {
        out.extend_from_slice(part);
    }
    pad(out);
}

struct NetlinkMessage<'a> {
    kind: u16,
    flags: u16,
    seq: u32,
    payload: &'a [u8],
}

fn parse_messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let payload = bytes.get(NLMSG_HEADER_BYTES..len)?;
        let (kind, flags, seq) = (u16_at(bytes, 4)?, u16_at(bytes, 6)?, u32_at(bytes, 8)?);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage {
            kind,
            flags,
            seq,
            payload,
        })
    })
}

/// Returns the result that an error message carries, of which code zero is success; `None` for other messages.
fn result_of_error_message(message: &NetlinkMessage<'_>) -> Option<io::Result<()>> {
    if message.kind != NLMSG_ERROR {
        return None;
    }
    let code = message
        .payload
        .first_chunk::<4>()
        .map_or(-22, |b| i32::from_ne_bytes(*b));
    Some(if code == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(code.wrapping_neg()))
    })
}

/// Netlink socket, which belongs to the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket for one netlink protocol; `None` is `NETLINK_ROUTE`.
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        Self::with_buffer(protocol, BUFFER_BYTES)
    }

    /// Opens a socket like [`Self::open`] with a smaller buffer, for short responses.
    pub(crate) fn with_buffer(protocol: Option<Protocol>, buffer: usize) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(REPLY_TIMEOUT))?;
        Ok(Self {
            fd,
            buffer: vec![0; buffer],
        })
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = send(&self.fd, bytes, SendFlags::empty())?;
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        loop {
            match recv(&self.fd, self.buffer.as_mut_slice(), RecvFlags::TRUNC) {
                Ok((_, len)) => {
                    return self.buffer.get(..len).ok_or_else(|| {
                        io::Error::new(io::ErrorKind::InvalidData, "oversized netlink answer")
                    });
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads responses until the message with sequence number `last` is acknowledged, and returns the first error of
    /// any message.
    pub(crate) fn wait_for_ack(&mut self, last: u32) -> Result<(), (u32, io::Error)> {
        let mut first_error = None;
        loop {
            let bytes = match self.receive() {
                Ok(bytes) => bytes,
                Err(error) => return Err(first_error.unwrap_or((last, error))),
            };
            for message in parse_messages(bytes) {
                let Some(result) = result_of_error_message(&message) else {
                    continue;
                };
                if let Err(error) = result {
                    first_error.get_or_insert((message.seq, error));
                }
                // Number 0 is the batch itself: it is refused as a whole, and no other reply
                // follows.
                if message.seq == last || message.seq == 0 {
                    return first_error.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Sends one request and waits for its acknowledgement or error.
    pub(crate) fn request(&mut self, kind: u16, flags: u16, body: &[&[u8]]) -> io::Result<()> {
        let mut out = Vec::new();
        message(&mut out, kind, NLM_F_REQUEST | NLM_F_ACK | flags, 1, body);
        self.send(&out)?;
        self.wait_for_ack(1).map_err(|(_, error)| error)
    }

    /// Requests one object; `None` if it does not exist.
    pub(crate) fn get(&mut self, kind: u16, body: &[&[u8]]) -> io::Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        message(&mut out, kind, NLM_F_REQUEST, 1, body);
        self.send(&out)?;
        let none = || io::Error::new(io::ErrorKind::InvalidData, "an empty netlink answer");
        let answer = parse_messages(self.receive()?).next().ok_or_else(none)?;
        match result_of_error_message(&answer) {
            None => Ok(Some(answer.payload.to_vec())),
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Some(result) => result.map(|()| None),
        }
    }

    /// Requests all objects by a dump of message type `kind`, and passes each message's payload to `each`.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        body: &[&[u8]],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        for seq in 1..=MAX_DUMP_ATTEMPTS {
            let seq = u32::try_from(seq).unwrap_or(1);
            let mut found: Vec<Vec<u8>> = Vec::new();
            let mut out = Vec::new();
            message(&mut out, kind, NLM_F_REQUEST | NLM_F_DUMP, seq, body);
            self.send(&out)?;
            if self.collect_dump(seq, &mut found)? {
                found.iter().for_each(|payload| each(payload));
                return Ok(());
            }
        }
        Err(io::Error::other(
            "the kernel's state changed at every attempt to read it",
        ))
    }

    /// Collects the payloads of a dump's messages; false if the objects changed meanwhile, so that the dump must be
    /// repeated.
    fn collect_dump(&mut self, seq: u32, found: &mut Vec<Vec<u8>>) -> io::Result<bool> {
        let mut consistent = true;
        loop {
            let bytes = self.receive()?;
            for message in parse_messages(bytes) {
                if message.seq != seq {
                    continue;
                }
                consistent &= message.flags & NLM_F_DUMP_INTR == 0;
                if let Some(result) = result_of_error_message(&message) {
                    result?;
                    return Ok(consistent);
                }
                if message.kind == NLMSG_DONE {
                    return Ok(consistent);
                }
                found.push(message.payload.to_vec());
                if message.flags & NLM_F_MULTI == 0 {
                    return Ok(consistent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_decode_as_they_were_encoded() {
        let bytes = Attrs::new()
            .text(1, "ambit")
            .nest(2, &Attrs::new().u32_be(3, 7).u32(4, 9))
            .bytes(5, &[1, 2, 3])
            .into_bytes();
        assert_eq!(attr(&bytes, 1).and_then(text), Some("ambit"));
        let inner = attr(&bytes, 2).unwrap();
        assert_eq!(attr(inner, 3).and_then(u32_be), Some(7));
        assert_eq!(attr(inner, 4).and_then(u32_ne), Some(9));
        assert_eq!(attr(&bytes, 5), Some(&[1, 2, 3][..]));
        assert_eq!(attrs(&bytes).count(), 3);
    }

    #[test]
    fn truncated_attributes_end_the_list() {
        let bytes = Attrs::new().text(1, "ambit").u32(2, 1).into_bytes();
        for cut in 0..bytes.len() {
            assert!(attrs(&bytes[..cut]).count() < 2);
        }
        assert_eq!(attrs(&[0, 0, 0, 0]).count(), 0);
    }
}
