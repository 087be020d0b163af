//! Percent-escapes in paths: rejects ambiguous ones, and rewrites others to their canonical form.

use std::borrow::Cow;

use super::error::PathError;

/// Rejects broken escapes, escaped control characters and overlong UTF-8.
pub(super) fn validate_escapes(path: &str) -> Result<(), PathError> {
    let mut rest = path.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        rest = rest.get(at..).unwrap_or_default();
        let byte = decode_escape(rest).ok_or(PathError::InvalidEscape)?;
        if byte < b' ' || byte == 0x7f {
            return Err(PathError::ControlCharacter);
        }
        if is_overlong(byte, rest) {
            return Err(PathError::OverlongEncoding);
        }
        rest = rest.get(3..).unwrap_or_default();
    }
    Ok(())
}

/// Whether an escaped byte begins an overlong UTF-8 sequence: a character in more bytes than necessary.
fn is_overlong(first: u8, escapes: &[u8]) -> bool {
    let second = || escapes.get(3..).and_then(decode_escape);
    match first {
        0xc0 | 0xc1 => matches!(second(), Some(0x80..=0xbf)),
        0xe0 => matches!(second(), Some(0x80..=0x9f)),
        0xf0 => matches!(second(), Some(0x80..=0x8f)),
        _ => false,
    }
}

/// Decodes the percent-escape at the beginning of `text`.
fn decode_escape(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *text else {
        return None;
    };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Rewrites a path that has passed [`validate_escapes`] to canonical characters: unescapes unreserved characters,
/// escapes those that a URL cannot have, writes escapes in upper case and backslashes as slashes, and unescapes slashes
/// and backslashes if `decode_slashes`.
pub(super) fn canonicalize_characters(path: &str, decode_slashes: bool) -> Cow<'_, str> {
    rewrite_bytes(path, |byte| match byte {
        Byte::Raw(b'\\') => Some(CanonicalByte::Raw(b'/')),
        Byte::Escaped(b'/' | b'\\') if decode_slashes => Some(CanonicalByte::Raw(b'/')),
        other => canonicalize_byte(other),
    })
}

/// Rewrites the text of a policy or a route to the canonical characters of normalized paths.
pub fn canonicalize_escapes(text: &str) -> Cow<'_, str> {
    rewrite_bytes(text, canonicalize_byte)
}

#[derive(Clone, Copy)]
enum Byte {
    Raw(u8),
    Escaped(u8),
}

enum CanonicalByte {
    Raw(u8),
    Escaped(u8),
}

impl CanonicalByte {
    /// Returns the text that replaces the byte, with escapes written to the caller's buffer.
    fn text(self, buffer: &mut [u8; 3]) -> &str {
        let digit = |value: u8| b"0123456789ABCDEF".get(usize::from(value)).copied();
        let length = match self {
            Self::Raw(byte) => {
                *buffer = [byte, 0, 0];
                1
            }
            Self::Escaped(byte) => {
                let digits = (digit(byte >> 4), digit(byte & 0xf));
                *buffer = [
                    b'%',
                    digits.0.unwrap_or_default(),
                    digits.1.unwrap_or_default(),
                ];
                3
            }
        };
        let text = buffer.get(..length).unwrap_or_default();
        str::from_utf8(text).unwrap_or_default()
    }
}

/// Returns the canonical form of a byte; `None` if the byte is canonical.
fn canonicalize_byte(byte: Byte) -> Option<CanonicalByte> {
    match byte {
        Byte::Raw(b @ (b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x80..)) => {
            Some(CanonicalByte::Escaped(b))
        }
        Byte::Raw(_) => None,
        Byte::Escaped(b) if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => {
            Some(CanonicalByte::Raw(b))
        }
        Byte::Escaped(b) => Some(CanonicalByte::Escaped(b)),
    }
}

/// Replaces bytes and escapes by the result of `replacement`; borrows the text if nothing changes. Non-ASCII bytes are
/// replaced by escapes, so that the result is valid UTF-8 whenever all bytes of a character are replaced.
fn rewrite_bytes(text: &str, replacement: impl Fn(Byte) -> Option<CanonicalByte>) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let (byte, length) = match (decode_escape(rest), rest.first()) {
            (Some(byte), _) => (Byte::Escaped(byte), 3),
            (None, Some(byte)) => (Byte::Raw(*byte), 1),
            (None, None) => break,
        };
        let mut buffer = [0; 3];
        let written = replacement(byte).map(|written| written.text(&mut buffer));
        if let Some(written) = written.filter(|text| rest.get(..length) != Some(text.as_bytes())) {
            out.push_str(text.get(copied..at).unwrap_or_default());
            out.push_str(written);
            copied = at + length;
        }
        at += length;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// Decodes all percent-escapes once, and replaces invalid UTF-8.
pub fn decode_escapes(path: &str) -> String {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some(first) = rest.first() {
        let (byte, length) = decode_escape(rest).map_or((*first, 1), |byte| (byte, 3));
        out.push(byte);
        rest = rest.get(length..).unwrap_or_default();
    }
    String::from_utf8_lossy(&out).into_owned()
}
