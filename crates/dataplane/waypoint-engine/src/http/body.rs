//! Wrappers of request and response bodies that count, delay, buffer, replay or copy frames, or limit their idle time.

pub(super) mod count;
pub(super) mod idle;
pub(super) mod interim;
pub(super) mod prefixed_body;
pub(super) mod replay;
pub(super) mod tee;
