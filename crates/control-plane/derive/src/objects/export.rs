//! Visibility of a ServiceEntry.

/// Namespaces that see an entry, from the fewest to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Export {
    /// Export to no namespace.
    None,
    /// Its own namespace.
    Own,
    /// Export to all namespaces.
    All,
}
