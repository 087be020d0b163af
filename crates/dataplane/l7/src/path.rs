//! Normalized path of a request, which policies, routes and applications all receive in the same form.
//!
//! Proxies and applications read odd paths differently, and one may serve a path that another has
//! not authorized. So equivalent paths are rewritten to one form, and paths that servers interpret
//! differently are refused:
//!
//! | in the path | with `Base` |
//! |---|---|
//! | `.` and `..`, also as `%2e` | resolved (RFC 3986); `..` above the root is refused |
//! | escapes of unreserved characters | decoded; other escapes get upper-case digits |
//! | `\` | becomes `/` |
//! | characters that a URL cannot have (`"<>^`, a backtick, `{\|}`, and all beyond ASCII) | escaped |
//! | `%` without two hexadecimal digits, also IIS's `%u002e` | refused |
//! | control characters, raw or escaped (`%00`, `%0d`, `%7f`), spaces | refused |
//! | overlong UTF-8 (`%c0%ae` is a dot to some) | refused |
//! | dot segments that only some see: `..;x` (Tomcat), `a%2f..%2fb` | refused |
//! | `#` | refused, in the query too: a fragment is never sent |
//! | anything that does not begin with `/` | refused; [`normalize_request_target`] accepts `OPTIONS *` |
//!
//! `MergeSlashes` and `DecodeAndMergeSlashes` normalize further (see [`PathNormalization`]). With
//! `None` nothing is changed or interpreted; control characters, `#` and broken escapes are refused
//! all the same. The query is forwarded unchanged. An escaped percent sign stays escaped: `%2561`
//! is the text `%61`; an application that decodes twice is protected by DENY policies only.
//!
//! Applications may still treat different normalized paths as the same: see [`path_readings()`].

use std::borrow::Cow;

use ambit_model::PathNormalization;
use http::Method;

mod error;
mod escapes;
mod readings;
mod segments;

#[cfg(test)]
mod tests;

pub use error::PathError;
pub use escapes::{canonicalize_escapes, decode_escapes};
pub use readings::{path_equivalence_key, path_readings};

/// Normalized target of a request, in origin form (or `*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalizedTarget<'a> {
    text: Cow<'a, str>,
    /// Byte offset of the end of the path, where the query begins with its question mark.
    path_end: usize,
}

impl NormalizedTarget<'_> {
    /// Returns path and query as they are forwarded.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the path without the query, by which requests are authorized and routed.
    pub fn path(&self) -> &str {
        self.text.get(..self.path_end).unwrap_or_default()
    }

    /// Returns the query without its question mark.
    pub fn query(&self) -> Option<&str> {
        self.text
            .get(self.path_end..)
            .and_then(|query| query.strip_prefix('?'))
    }

    /// Whether normalization changed the target.
    pub fn was_changed(&self) -> bool {
        matches!(self.text, Cow::Owned(_))
    }

    /// Copies the target, so that it can outlive the received text.
    pub fn into_owned(self) -> NormalizedTarget<'static> {
        NormalizedTarget {
            text: Cow::Owned(self.text.into_owned()),
            path_end: self.path_end,
        }
    }
}

impl PathError {
    /// Returns the reason label for metrics and logs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotOriginForm => "path_form",
            Self::ControlCharacter => "path_control_character",
            Self::Fragment => "path_fragment",
            Self::InvalidEscape => "path_escape",
            Self::OverlongEncoding => "path_overlong",
            Self::AboveRoot => "path_above_root",
            Self::EscapedDotSegment => "path_hidden_dot_segment",
        }
    }
}

/// Normalizes the target of a request ([`normalize`]), and accepts `OPTIONS *`.
pub fn normalize_request_target<'a>(
    method: &Method,
    path_and_query: &'a str,
    mode: PathNormalization,
) -> Result<NormalizedTarget<'a>, PathError> {
    if path_and_query == "*" && method == Method::OPTIONS {
        return Ok(NormalizedTarget {
            text: Cow::Borrowed(path_and_query),
            path_end: path_and_query.len(),
        });
    }
    normalize(path_and_query, mode)
}

/// Normalizes a target in origin form, or rejects it. Normalization is idempotent, and does not copy a target that is
/// normalized already.
pub fn normalize(
    path_and_query: &str,
    mode: PathNormalization,
) -> Result<NormalizedTarget<'_>, PathError> {
    if !path_and_query.starts_with('/') && !path_and_query.starts_with('\\') {
        return Err(PathError::NotOriginForm);
    }
    if path_and_query
        .bytes()
        .any(|byte| byte <= b' ' || byte == 0x7f)
    {
        return Err(PathError::ControlCharacter);
    }
    if path_and_query.contains('#') {
        return Err(PathError::Fragment);
    }
    let path_end = path_and_query.find('?').unwrap_or(path_and_query.len());
    let (path, query) = path_and_query.split_at(path_end);
    escapes::validate_escapes(path)?;
    let path = match mode {
        PathNormalization::None if path.starts_with('/') => Cow::Borrowed(path),
        PathNormalization::None => return Err(PathError::NotOriginForm),
        PathNormalization::Base => normalize_path(path, false, false)?,
        PathNormalization::MergeSlashes => normalize_path(path, false, true)?,
        PathNormalization::DecodeAndMergeSlashes => normalize_path(path, true, true)?,
    };
    Ok(match path {
        Cow::Borrowed(_) => NormalizedTarget {
            text: Cow::Borrowed(path_and_query),
            path_end,
        },
        Cow::Owned(mut text) => {
            let path_end = text.len();
            text.push_str(query);
            NormalizedTarget {
                text: Cow::Owned(text),
                path_end,
            }
        }
    })
}

fn normalize_path(
    path: &str,
    decode_slashes: bool,
    merge: bool,
) -> Result<Cow<'_, str>, PathError> {
    let path = escapes::canonicalize_characters(path, decode_slashes);
    segments::validate_segments(&path)?;
    Ok(match path {
        Cow::Borrowed(path) => segments::resolve_dot_segments(path, merge)?,
        Cow::Owned(path) => match segments::resolve_dot_segments(&path, merge)? {
            Cow::Borrowed(_) => Cow::Owned(path),
            Cow::Owned(resolved) => Cow::Owned(resolved),
        },
    })
}
