//! Parses delta xDS responses at little cost: a thousand simulated proxies share the machine with the control plane
//! they measure. Records are skipped as they arrive; only their names are read, and only in messages small enough to be
//! a change rather than an initial state.

use anyhow::{Context, Result, bail};

/// Maximum size of a message in bytes whose record names are read.
const MAX_CHANGE_BYTES: usize = 256 * 1024;
/// Length of the prefix of gRPC messages: compression flag and message length.
const GRPC_PREFIX_BYTES: usize = 5;

// Field numbers of envoy.service.discovery.v3.
const RESOURCES: u64 = 2;
const TYPE_URL: u64 = 4;
const NONCE: u64 = 5;
const REMOVED: u64 = 6;
const RESOURCE_NAME: u64 = 3;
/// Length-delimited wire type of protobuf.
const LENGTH_DELIMITED: u64 = 2;

/// Fields of a delta xDS response that a proxy needs for its acknowledgement, and those that the benchmark records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceivedPush {
    pub(super) type_url: String,
    pub(super) nonce: String,
    pub(super) resources: u32,
    pub(super) removed: u32,
    /// Size of the message in bytes.
    pub(super) size: usize,
}

/// Incremental parser of delta xDS responses.
#[derive(Debug, Default)]
pub(super) struct PushReader {
    /// Received bytes of a field that is still incomplete.
    pending: Vec<u8>,
    message: Option<Message>,
}

#[derive(Debug, Default)]
struct Message {
    remaining_bytes: usize,
    /// Number of bytes of the current field that are still to be skipped.
    bytes_to_skip: usize,
    is_change: bool,
    push: ReceivedPush,
}

impl PushReader {
    /// Parses bytes and returns the pushes that they complete. Calls `named` with the name of every record of a small
    /// message: `true` for an existing record, `false` for a removed one.
    pub(super) fn read(
        &mut self,
        mut bytes: &[u8],
        mut named: impl FnMut(bool, &[u8]),
    ) -> Result<Vec<ReceivedPush>> {
        let mut pushes = Vec::new();
        // Skipped bytes need no copy.
        if self.pending.is_empty() {
            self.skip(&mut bytes);
        }
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        loop {
            self.skip(&mut rest);
            let Some(message) = &mut self.message else {
                let Some((head, after)) = rest.split_first_chunk::<GRPC_PREFIX_BYTES>() else {
                    break;
                };
                let [compressed, length @ ..] = *head;
                if compressed != 0 {
                    bail!("a compressed message, though none was asked for");
                }
                let left = usize::try_from(u32::from_be_bytes(length))?;
                self.message = Some(Message {
                    remaining_bytes: left,
                    is_change: left <= MAX_CHANGE_BYTES,
                    push: ReceivedPush {
                        size: left,
                        ..ReceivedPush::default()
                    },
                    ..Message::default()
                });
                rest = after;
                continue;
            };
            if message.remaining_bytes == 0 {
                pushes.extend(self.message.take().map(|message| message.push));
                continue;
            }
            if message.bytes_to_skip > 0 || !message.field(&mut rest, &mut named)? {
                break;
            }
        }
        self.pending = rest.to_vec();
        Ok(pushes)
    }

    fn skip(&mut self, bytes: &mut &[u8]) {
        let Some(message) = &mut self.message else {
            return;
        };
        let skipped = message.bytes_to_skip.min(bytes.len());
        *bytes = bytes.get(skipped..).unwrap_or_default();
        message.bytes_to_skip -= skipped;
        message.remaining_bytes -= skipped;
    }
}

impl Message {
    /// Parses one field of a message; returns false if the field is incomplete.
    fn field(&mut self, rest: &mut &[u8], named: &mut impl FnMut(bool, &[u8])) -> Result<bool> {
        let mut after = *rest;
        let (Some(key), Some(length)) = (varint(&mut after)?, varint(&mut after)?) else {
            return Ok(false);
        };
        if key & 7 != LENGTH_DELIMITED {
            bail!("a delta response with a field that is neither text nor message");
        }
        let length = usize::try_from(length)?;
        let field = key >> 3;
        let header = rest.len() - after.len();
        if field == RESOURCES && !self.is_change {
            self.push.resources += 1;
            self.bytes_to_skip = length;
            self.remaining_bytes -= header;
            *rest = after;
            return Ok(true);
        }
        let Some(value) = after.get(..length) else {
            return Ok(false);
        };
        match field {
            RESOURCES => {
                self.push.resources += 1;
                named(true, resource_name(value)?);
            }
            REMOVED => {
                self.push.removed += 1;
                named(false, value);
            }
            TYPE_URL => self.push.type_url = String::from_utf8(value.to_vec())?,
            NONCE => self.push.nonce = String::from_utf8(value.to_vec())?,
            _ => {}
        }
        self.remaining_bytes = self
            .remaining_bytes
            .checked_sub(header + length)
            .context("a field longer than its message")?;
        *rest = after.get(length..).unwrap_or_default();
        Ok(true)
    }
}

fn resource_name(mut resource: &[u8]) -> Result<&[u8]> {
    while !resource.is_empty() {
        let key = varint(&mut resource)?.context("a cut resource")?;
        let length = usize::try_from(varint(&mut resource)?.context("a cut resource")?)?;
        let value = resource.get(..length).context("a cut resource")?;
        if key >> 3 == RESOURCE_NAME {
            return Ok(value);
        }
        resource = resource.get(length..).unwrap_or_default();
    }
    Ok(&[])
}

/// Parses a protobuf varint; `None` if it is incomplete.
fn varint(bytes: &mut &[u8]) -> Result<Option<u64>> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *bytes = bytes.get(index + 1..).unwrap_or_default();
            return Ok(Some(value));
        }
    }
    if bytes.len() >= 10 {
        bail!("an endless number");
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use ambit_wire::discovery::{DeltaDiscoveryResponse, Resource};
    use prost::Message as _;

    use super::*;

    fn response(resources: &[&str], removed: &[&str], nonce: &str) -> Vec<u8> {
        let response = DeltaDiscoveryResponse {
            system_version_info: "7".into(),
            type_url: "type".into(),
            nonce: nonce.into(),
            resources: resources
                .iter()
                .map(|name| Resource {
                    name: (*name).to_owned(),
                    version: "v".repeat(300),
                    ..Resource::default()
                })
                .collect(),
            removed_resources: removed.iter().map(ToString::to_string).collect(),
        };
        let body = response.encode_to_vec();
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn pushes_are_read_at_any_split() {
        let mut bytes = response(&["a", "b"], &["c"], "one");
        bytes.extend(response(&[], &["d"], "two"));
        for size in [1, 2, 3, 7, 100, bytes.len()] {
            let mut reader = PushReader::default();
            let mut names = Vec::new();
            let mut pushes = Vec::new();
            for chunk in bytes.chunks(size) {
                let named = |is_there, name: &[u8]| {
                    names.push((is_there, String::from_utf8(name.to_vec()).unwrap()));
                };
                pushes.extend(reader.read(chunk, named).unwrap());
            }
            let nonces: Vec<_> = pushes.iter().map(|push| push.nonce.as_str()).collect();
            assert_eq!(nonces, ["one", "two"], "in pieces of {size}");
            assert_eq!((pushes[0].resources, pushes[0].removed), (2, 1));
            let names: Vec<_> = names
                .iter()
                .map(|(is, name)| (*is, name.as_str()))
                .collect();
            assert_eq!(
                names,
                [(true, "a"), (true, "b"), (false, "c"), (false, "d")]
            );
        }
    }

    #[test]
    fn initial_state_is_counted_without_being_stored() {
        let names: Vec<_> = (0..2000).map(|n| n.to_string()).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let bytes = response(&names, &[], "big");
        assert!(bytes.len() > MAX_CHANGE_BYTES);
        let mut reader = PushReader::default();
        let mut pushes = Vec::new();
        for chunk in bytes.chunks(1000) {
            pushes.extend(reader.read(chunk, |_, _| panic!("no names")).unwrap());
            assert!(reader.pending.len() < 16, "{}", reader.pending.len());
        }
        assert_eq!(pushes.len(), 1);
        assert_eq!(
            (pushes[0].resources, pushes[0].nonce.as_str()),
            (2000, "big")
        );
    }
}
