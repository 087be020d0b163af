//! Reports exchanges to metrics, access logs, traces and flow events.

pub(super) mod observer;
pub(super) mod record;
pub(super) mod redact;
