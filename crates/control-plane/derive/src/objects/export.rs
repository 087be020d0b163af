//! Visibility of a ServiceEntry to other namespaces (`exportTo`).

/// Namespaces that a ServiceEntry is visible in, ordered from the fewest to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExportTo {
    /// Visible in no namespace (`~`).
    None,
    /// Visible in the entry's own namespace only (`.`).
    OwnNamespace,
    /// Visible in all namespaces (`*`).
    All,
}
