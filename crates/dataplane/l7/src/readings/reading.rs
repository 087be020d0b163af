//! Selection of the readings of an attribute that must match.

/// Mode that selects which readings of an attribute must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadingMode {
    /// Any reading: for denials and rate limits.
    AnyReading,
    /// All readings except those from override headers: for permissions.
    AllReadings,
    /// All readings including those from override headers: for exceptions from a denial.
    DenialException,
}
