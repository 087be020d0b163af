//! Escapes text of requests for log lines: truncates it and encodes it in printable ASCII, so that no peer can end a
//! field or a line.

use std::fmt::Write as _;

/// Maximum length of a logged text in bytes. A longer text is truncated and ends with dots.
const MAX_PRINTED_BYTES: usize = 1024;

/// Appends a text to a log line, with `"`, `\`, control characters and non-ASCII bytes escaped as `\xNN`. With
/// `is_bare`, for fields without quotation marks, spaces are escaped, too.
pub fn push_escaped_text(line: &mut String, value: &[u8], is_bare: bool) {
    let (prefix, is_cut) = truncate_to_printed_bytes(value);
    for &byte in prefix {
        match byte {
            b'"' | b'\\' => escape(line, byte),
            b' ' if is_bare => escape(line, byte),
            b' '..=b'~' => line.push(char::from(byte)),
            _ => escape(line, byte),
        }
    }
    if is_cut {
        line.push_str("...");
    }
}

fn escape(line: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(line, "\\x{byte:02x}");
}

/// Appends a text to a log line as a JSON string. Replaces invalid UTF-8.
pub fn push_json_string(line: &mut String, value: &[u8]) {
    let (prefix, is_cut) = truncate_to_printed_bytes(value);
    line.push('"');
    for c in String::from_utf8_lossy(prefix).chars() {
        match c {
            '"' | '\\' => {
                line.push('\\');
                line.push(c);
            }
            ' '..='~' => line.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(line, "\\u{unit:04x}");
                }
            }
        }
    }
    if is_cut {
        line.push_str("...");
    }
    line.push('"');
}

fn truncate_to_printed_bytes(value: &[u8]) -> (&[u8], bool) {
    match value.get(..MAX_PRINTED_BYTES) {
        Some(prefix) if prefix.len() < value.len() => (prefix, true),
        _ => (value, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &[u8], is_bare: bool) -> String {
        let mut line = String::new();
        push_escaped_text(&mut line, value, is_bare);
        line
    }

    fn json(value: &[u8]) -> String {
        let mut line = String::new();
        push_json_string(&mut line, value);
        line
    }

    #[test]
    fn texts_are_printable() {
        assert_eq!(text(b"/a?b=c d", false), "/a?b=c d");
        assert_eq!(text(b"a b", true), "a\\x20b");
        assert_eq!(
            text(b"a\"\\\r\n\x00\x7f\xff", false),
            "a\\x22\\x5c\\x0d\\x0a\\x00\\x7f\\xff"
        );
        assert_eq!(
            text("é\u{2028}".as_bytes(), false),
            "\\xc3\\xa9\\xe2\\x80\\xa8"
        );
    }

    #[test]
    fn json_strings_are_printable() {
        assert_eq!(json(b"a b"), "\"a b\"");
        assert_eq!(json(b"\"\\\n\x7f\xff"), "\"\\\"\\\\\\u000a\\u007f\\ufffd\"");
        assert_eq!(json("é😀".as_bytes()), "\"\\u00e9\\ud83d\\ude00\"");
    }

    #[test]
    fn long_texts_are_cut() {
        let long = vec![b'a'; MAX_PRINTED_BYTES + 1];
        assert_eq!(text(&long, false).len(), MAX_PRINTED_BYTES + 3);
        assert!(json(&long).ends_with("a...\""));
        assert!(!text(&long[1..], false).contains('.'));
    }
}
