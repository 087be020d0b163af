//! Bodies on their way: counted, timed, held, replayed and copied.

pub(super) mod count;
pub(super) mod idle;
pub(super) mod interim;
pub(super) mod prefixed_body;
pub(super) mod replay;
pub(super) mod tee;
