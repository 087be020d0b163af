//! Derivation: objects come in, and records, conditions and problems go out, by the table of the kinds.

pub(crate) mod apply;
pub(crate) mod flush;
pub(crate) mod hosts;
pub(crate) mod survey;
pub(crate) mod table;
