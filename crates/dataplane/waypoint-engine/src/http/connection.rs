//! Downstream HTTP connections: timeouts, memory charges for requests, and closing.

pub(super) mod charged_body;
pub(super) mod failure;
pub(super) mod half_close;
pub(super) mod header_block;
pub(super) mod header_timeout;
pub(super) mod linger;
pub(super) mod not_http;
pub(super) mod overload;
