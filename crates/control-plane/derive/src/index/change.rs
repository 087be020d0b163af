//! Change of an object, as its kind gets it.

use ambit_k8s_api::ObjectKey;

/// An object is understood in another way than before; `None` is one that is not there.
#[derive(Debug)]
pub(crate) struct Change<'a, I> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) old: Option<&'a I>,
    pub(crate) new: Option<&'a I>,
}

impl<'a, I> Change<'a, I> {
    /// Both forms, those that exist.
    pub(crate) fn both(&self) -> impl Iterator<Item = &'a I> {
        self.old.into_iter().chain(self.new)
    }
}
