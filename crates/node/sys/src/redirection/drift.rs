//! Differences between desired and current redirection, and the result of repairing them.

use std::fmt;

/// Result of [`apply`](super::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The rules were as desired, so nothing was written.
    Unchanged,
    /// No own rules existed; all of them were installed.
    Installed,
    /// Existing rules differed and were repaired.
    Repaired {
        /// Part that differed.
        what: Drift,
    },
}

/// The differences between the desired and the current state of a namespace. Empty: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// One short phrase a difference, such as "the rules of chain nat-output differ".
    pub items: Vec<String>,
    /// Whether no own rules were found at all.
    pub nothing_found: bool,
}

impl Drift {
    /// Whether current and desired state are equal.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Creates a report with nothing found and nothing missing.
    pub(super) fn of_nothing() -> Self {
        Self {
            items: Vec::new(),
            nothing_found: true,
        }
    }

    pub(super) fn into_applied(self) -> Applied {
        if self.is_empty() {
            Applied::Unchanged
        } else if self.nothing_found {
            Applied::Installed
        } else {
            Applied::Repaired { what: self }
        }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.items.join("; "))
    }
}
