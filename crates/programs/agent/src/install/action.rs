//! A change of one file in the directory of network configurations.

/// Change of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes this text to the file. An existing file keeps its owner and permissions, and stays if it differs from
    /// `expected`.
    Write {
        /// Name of the file.
        name: String,
        /// Desired content of the file.
        text: String,
        /// Content that the file had when it was read.
        expected: Option<String>,
    },
    /// Remove the file.
    Remove {
        /// Name of the file.
        name: String,
    },
}
