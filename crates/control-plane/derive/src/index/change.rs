//! Change of one stored object: its parsed forms before and after.

use ambit_k8s_api::ObjectKey;

/// Parsed forms of an object before and after a change; `None` if the object does not exist.
#[derive(Debug)]
pub(crate) struct Change<'a, I> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) old: Option<&'a I>,
    pub(crate) new: Option<&'a I>,
}

impl<'a, I> Change<'a, I> {
    /// Returns the parsed forms that exist, the old one first.
    pub(crate) fn both_versions(&self) -> impl Iterator<Item = &'a I> {
        self.old.into_iter().chain(self.new)
    }
}
