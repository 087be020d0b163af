//! Visibility of a ServiceEntry to other namespaces (`exportTo`).

/// Namespaces that a ServiceEntry is visible in, ordered from the fewest to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExportTo {
    /// The ServiceEntry is visible in no namespace (`~`).
    None,
    /// The ServiceEntry is visible in its own namespace only (`.`).
    OwnNamespace,
    /// The ServiceEntry is visible in all namespaces (`*`).
    All,
}
