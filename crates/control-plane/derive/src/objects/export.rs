//! Visibility of a ServiceEntry to other namespaces (`exportTo`).

/// Namespaces that a ServiceEntry is visible in, ordered from the fewest to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Export {
    /// Visible in no namespace (`~`).
    None,
    /// Visible in the entry's own namespace only (`.`).
    Own,
    /// Visible in all namespaces (`*`).
    All,
}
