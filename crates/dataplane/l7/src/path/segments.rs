//! Segments of paths: resolves dot segments, and merges repeated slashes.

use std::borrow::Cow;

use super::error::PathError;

/// Rejects dot segments that only some implementations recognise: next to an escaped slash or backslash, or with a
/// parameter. The path's escapes must be canonical.
pub(super) fn validate_segments(path: &str) -> Result<(), PathError> {
    let hides = |segment: &str| {
        segment
            .split("%2F")
            .flat_map(|part| part.split("%5C"))
            .filter_map(|part| part.split(';').next()?.split("%3B").next())
            .any(|name| is_dot_segment(name) && name != segment)
    };
    match path.split('/').any(hides) {
        true => Err(PathError::EscapedDotSegment),
        false => Ok(()),
    }
}

fn is_dot_segment(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

/// Resolves dot segments, and merges slashes if configured.
pub(super) fn resolve_dot_segments(path: &str, merge: bool) -> Result<Cow<'_, str>, PathError> {
    let has_double = merge && path.contains("//");
    if !has_double && !path.split('/').any(is_dot_segment) {
        return Ok(Cow::Borrowed(path));
    }
    let mut segments = Vec::new();
    let mut rest = path.split('/').skip(1).peekable();
    while let Some(segment) = rest.next() {
        let is_last = rest.peek().is_none();
        match segment {
            ".." if segments.pop().is_none() => return Err(PathError::AboveRoot),
            "." | ".." if is_last => segments.push(""),
            "." | ".." => {}
            _ => segments.push(segment),
        }
    }
    Ok(Cow::Owned(join_segments(&segments, merge)))
}

/// Rewrites a decoded path as the most lenient application reads it: without parameters, spaces around segments and
/// dots behind them, with slashes merged, and never above the root.
pub(super) fn resolve_leniently(decoded: &str) -> String {
    let mut segments = Vec::new();
    let mut rest = decoded.split(['/', '\\']).peekable();
    while let Some(segment) = rest.next() {
        let name = segment.split(';').next().unwrap_or_default().trim();
        let bare = name.trim_end_matches([' ', '.']);
        match name {
            ".." => {
                segments.pop();
            }
            "." | "" => {}
            _ if bare.is_empty() => segments.push(name),
            _ => segments.push(bare),
        }
        if rest.peek().is_none() && matches!(name, "" | "." | "..") {
            segments.push("");
        }
    }
    join_segments(&segments, true)
}

fn join_segments(segments: &[&str], merge: bool) -> String {
    let mut path = String::new();
    for (at, segment) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        if !merge || is_last || !segment.is_empty() {
            path.push('/');
            path.push_str(segment);
        }
    }
    if path.is_empty() {
        path.push('/');
    }
    path
}
