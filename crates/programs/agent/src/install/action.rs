//! Change of one file in the directory of network configurations.

/// Write or removal of one file in the directory of network configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileAction {
    /// Writes `text` to the file `name`. An existing file keeps its owner and permissions, and stays unchanged if its
    /// content is not `expected`.
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
