//! Change of one file in the directory of network configurations.

/// Write or removal of one file in the directory of network configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileAction {
    /// Writes `text` to the file. An existing file keeps its owner and permissions, and is left alone if it differs
    /// from `expected`.
    Write {
        /// Name of the file.
        name: String,
        /// Desired content of the file.
        text: String,
        /// Content that the file had when it was read; `None` overwrites any content.
        expected: Option<String>,
    },
    /// Removes the file of this name.
    Remove {
        /// Name of the file.
        name: String,
    },
}
