//! Derivation: applies changed objects, and renders records, status conditions and problems.

pub(crate) mod apply;
pub(crate) mod flush;
pub(crate) mod hosts;
pub(crate) mod survey;
pub(crate) mod table;
