//! Constants and encodings of the proxy-wasm ABI: statuses, kinds of maps and buffers, and serialized lists of pairs.

/// Wasm import module that contains the ABI's host functions.
pub(crate) const ENV_MODULE: &str = "env";

/// Status that a host function returns to the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    NotFound = 1,
    BadArgument = 2,
    ParseFailure = 4,
    InvalidMemoryAccess = 6,
    Empty = 7,
    CasMismatch = 8,
    InternalFailure = 10,
    Unimplemented = 12,
}

/// Header maps that modules can read and change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapKind {
    RequestHeaders,
    RequestTrailers,
    ResponseHeaders,
    ResponseTrailers,
    GrpcInitialMetadata,
    GrpcTrailingMetadata,
    CallHeaders,
    CallTrailers,
}

impl MapKind {
    pub(crate) fn from_number(number: u32) -> Result<Self, Status> {
        Ok(match number {
            0 => Self::RequestHeaders,
            1 => Self::RequestTrailers,
            2 => Self::ResponseHeaders,
            3 => Self::ResponseTrailers,
            4 => Self::GrpcInitialMetadata,
            5 => Self::GrpcTrailingMetadata,
            6 => Self::CallHeaders,
            7 => Self::CallTrailers,
            _ => return Err(Status::BadArgument),
        })
    }
}

/// Buffers that modules can read and change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferKind {
    RequestBody,
    ResponseBody,
    CallBody,
    GrpcMessage,
    VmConfiguration,
    PluginConfiguration,
}

impl BufferKind {
    pub(crate) fn from_number(number: u32) -> Result<Self, Status> {
        Ok(match number {
            0 => Self::RequestBody,
            1 => Self::ResponseBody,
            4 => Self::CallBody,
            5 => Self::GrpcMessage,
            6 => Self::VmConfiguration,
            7 => Self::PluginConfiguration,
            2 | 3 | 8 => return Err(Status::NotFound),
            _ => return Err(Status::BadArgument),
        })
    }
}

/// Maximum pairs in one serialized list.
const MAX_HEADER_PAIRS: usize = 1024;

/// Serializes a list of pairs: their number, the lengths of all names and values, then names and values, each with a
/// terminating zero.
pub fn write_pairs<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone) -> Vec<u8> {
    let count = pairs.clone().count();
    let sizes: usize = pairs
        .clone()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    let mut bytes = Vec::with_capacity(4 + count * 10 + sizes);
    let length = |of: usize| u32::try_from(of).unwrap_or(u32::MAX).to_le_bytes();
    bytes.extend_from_slice(&length(count));
    for (name, value) in pairs.clone() {
        bytes.extend_from_slice(&length(name.len()));
        bytes.extend_from_slice(&length(value.len()));
    }
    for (name, value) in pairs {
        bytes.extend_from_slice(name);
        bytes.push(0);
        bytes.extend_from_slice(value);
        bytes.push(0);
    }
    bytes
}

/// Parses a serialized list of pairs; `None` if it is invalid. Empty bytes are an empty list.
pub fn read_pairs(bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let (count, rest) = read_u32(bytes)?;
    if count > MAX_HEADER_PAIRS || count > rest.len() / 8 {
        return None;
    }
    let (mut lengths, mut texts) = rest.split_at_checked(count * 8)?;
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        let (name, after) = read_u32(lengths)?;
        let (value, after) = read_u32(after)?;
        lengths = after;
        let (name, after) = read_terminated(texts, name)?;
        let (value, after) = read_terminated(after, value)?;
        texts = after;
        pairs.push((name, value));
    }
    Some(pairs)
}

fn read_u32(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number) as usize, rest))
}

fn read_terminated(bytes: &[u8], length: usize) -> Option<(&[u8], &[u8])> {
    let (text, rest) = bytes.split_at_checked(length)?;
    let (zero, rest) = rest.split_first()?;
    (*zero == 0).then_some((text, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pairs_round_trip(
            pairs: Vec<(Vec<u8>, Vec<u8>)>
        ) {
            let views = pairs.iter().map(|(name, value)| (&name[..], &value[..]));
            let bytes = write_pairs(views.clone());
            prop_assert_eq!(read_pairs(&bytes), Some(views.collect::<Vec<_>>()));
        }

        #[test]
        fn pairs_of_any_bytes_are_parsed_without_panic(bytes: Vec<u8>) {
            let _pairs = read_pairs(&bytes);
        }
    }

    #[test]
    fn truncated_list_is_rejected() {
        assert_eq!(read_pairs(&[]), Some(Vec::new()));
        for claimed in [
            &[255, 255, 255, 255][..],
            &[1, 0, 0, 0],
            &[1, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0],
        ] {
            assert_eq!(read_pairs(claimed), None);
        }
        let whole = write_pairs([(&b"a"[..], &b"b"[..])].into_iter());
        for end in 1..whole.len() {
            assert_eq!(read_pairs(&whole[..end]), None, "{end} bytes");
        }
    }
}
