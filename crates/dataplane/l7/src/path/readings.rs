//! Readings of a normalized path: the paths that lenient servers may take it for.

use std::borrow::Cow;

use super::{escapes::decode_escapes, segments};

/// Maximum rounds of percent-decoding: a proxy, a framework and an application behind the waypoint may each decode
/// once.
const MAX_DECODINGS: usize = 3;

/// Characters at which some servers truncate a decoded path.
const PATH_TERMINATORS: [char; 4] = [';', '?', '#', '\0'];

/// Returns the paths, in lower case, that lenient servers may take a normalized path for; empty if all servers agree.
/// Such servers decode escapes (more than once), strip parameters (`;x`) or everything after one, treat backslashes as
/// slashes, merge slashes, resolve dots, and ignore case, spaces around segments and dots behind them. `*` means the
/// whole server, and thus its root as well.
pub fn path_readings(path: &str) -> Vec<String> {
    if path == "*" {
        return vec!["/".to_owned()];
    }
    if is_plain(path) {
        return Vec::new();
    }
    let mut all: Vec<String> = Vec::new();
    for decoded in repeated_decodings(path) {
        let cut = PATH_TERMINATORS.map(|end| decoded.split_once(end).map(|(begin, _)| begin));
        let whole = [Some(decoded.as_str())].into_iter().chain(cut).flatten();
        let lenient: Vec<_> = whole.map(segments::resolve_leniently).collect();
        for reading in [decoded].into_iter().chain(lenient) {
            if !all.contains(&reading) {
                all.push(reading);
            }
        }
    }
    all
}

/// Returns a text that is equal for all spellings of a path, for rate-limit keys.
pub fn path_equivalence_key(path: &str) -> Cow<'_, str> {
    if is_plain(path) || path == "*" {
        let whole = path.strip_suffix('/').filter(|rest| !rest.is_empty());
        return Cow::Borrowed(whole.unwrap_or(path));
    }
    let decoded = repeated_decodings(path).pop().unwrap_or_default();
    let begin = decoded.split(PATH_TERMINATORS).next().unwrap_or_default();
    let mut shared = segments::resolve_leniently(begin);
    if shared.len() > 1 && shared.ends_with('/') {
        shared.pop();
    }
    Cow::Owned(shared)
}

/// Returns the path after each round of percent-decoding.
fn repeated_decodings(path: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for _ in 0..MAX_DECODINGS {
        let before = all.last().map_or(path, String::as_str);
        let decoded = decode_escapes(before).to_lowercase();
        if all.last() == Some(&decoded) {
            break;
        }
        all.push(decoded);
    }
    all
}

/// Whether all servers agree about the path.
fn is_plain(path: &str) -> bool {
    let is_odd = |byte: u8| {
        !byte.is_ascii_graphic() || byte.is_ascii_uppercase() || b"%;\\?#*".contains(&byte)
    };
    let is_odd_segment = |segment: &str| segment.starts_with('.') || segment.ends_with('.');
    !path.bytes().any(is_odd) && !path.contains("//") && !path.split('/').any(is_odd_segment)
}
