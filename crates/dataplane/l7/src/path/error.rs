//! Errors of paths.

/// Why a target is refused with status 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Neither origin form nor `*` of OPTIONS.
    #[error("the request's target does not begin with a slash")]
    NotOriginForm,
    /// A control character or a space, raw or escaped.
    #[error("the request's target has a control character or a space")]
    Control,
    /// Fragment after a `#`.
    #[error("the request's target has a fragment")]
    Fragment,
    /// `%` without two hexadecimal digits.
    #[error("the request's path has a percent sign that escapes nothing")]
    BrokenEscape,
    /// Overlong UTF-8 encoding.
    #[error("the request's path has overlong UTF-8")]
    Overlong,
    /// More `..` segments than the path has.
    #[error("the request's path goes above the root")]
    AboveRoot,
    /// A dot segment that only some implementations see.
    #[error("the request's path has a dot segment that is hidden by an escape or a parameter")]
    HiddenDotSegment,
}
