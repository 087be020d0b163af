//! Differences between desired and current redirection, and the result of repairing them.

use std::fmt;

/// Outcome of [`apply`](super::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The rules were as desired; nothing was written.
    Unchanged,
    /// No rules of Ambit's existed; all of them were written.
    Installed,
    /// Some of Ambit's rules existed, but not as desired, and were repaired.
    Repaired {
        /// Differences between desired and previous rules, which were repaired.
        what: Drift,
    },
}

/// Differences between the desired and the current redirection of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Short description of each difference, such as "the rules of chain nat-output differ".
    pub items: Vec<String>,
    /// Whether the namespace had no rules of Ambit's at all.
    pub nothing_found: bool,
    /// Whether the namespace was captured: it had Ambit's guards, which come last, or rules of Istio's agent.
    pub was_captured: bool,
}

impl Drift {
    /// Whether the current redirection equals the desired one.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Creates a drift without differences, for a namespace without Ambit's rules.
    pub(super) fn of_nothing() -> Self {
        Self {
            items: Vec::new(),
            nothing_found: true,
            was_captured: false,
        }
    }

    /// Adds the differences of another part of the same namespace.
    pub(super) fn add(&mut self, part: Self) {
        self.nothing_found &= part.nothing_found;
        self.was_captured |= part.was_captured;
        self.items.extend(part.items);
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
