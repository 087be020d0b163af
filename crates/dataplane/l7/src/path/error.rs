//! Errors of invalid or ambiguous request targets.

/// Reason why a request target is rejected (400).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Target that is neither in origin form nor the `*` of OPTIONS.
    #[error("the request's target does not begin with a slash")]
    NotOriginForm,
    /// Control character or space, raw or escaped.
    #[error("the request's target has a control character or a space")]
    ControlCharacter,
    /// Fragment after `#`, which clients never send.
    #[error("the request's target has a fragment")]
    Fragment,
    /// Percent sign without two hexadecimal digits.
    #[error("the request's path has a percent sign that escapes nothing")]
    InvalidEscape,
    /// Overlong UTF-8 encoding of a character.
    #[error("the request's path has overlong UTF-8")]
    OverlongEncoding,
    /// Path with more `..` segments than parents.
    #[error("the request's path goes above the root")]
    AboveRoot,
    /// Dot segment that only some implementations recognise.
    #[error("the request's path has a dot segment that is hidden by an escape or a parameter")]
    EscapedDotSegment,
}
