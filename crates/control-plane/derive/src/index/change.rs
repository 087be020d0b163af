//! Change of an object, as its kind gets it.

use ambit_k8s_api::ObjectKey;

/// Stored inputs of an object before and after a change; `None` if the object is not there.
#[derive(Debug)]
pub(crate) struct Change<'a, I> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) old: Option<&'a I>,
    pub(crate) new: Option<&'a I>,
}

impl<'a, I> Change<'a, I> {
    /// Returns the inputs that exist, the old one first.
    pub(crate) fn both(&self) -> impl Iterator<Item = &'a I> {
        self.old.into_iter().chain(self.new)
    }
}
