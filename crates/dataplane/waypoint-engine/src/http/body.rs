//! Wrappers of request and response bodies that count, time out, hold, replay or copy frames.

pub(super) mod count;
pub(super) mod idle;
pub(super) mod interim;
pub(super) mod prefixed_body;
pub(super) mod replay;
pub(super) mod tee;
