//! Kinds of objects, one file each: which records become stale by a change, the records of an object, and its status
//! conditions.

pub(crate) mod authorization_policy;
pub(crate) mod backend_tls_policy;
pub(crate) mod callers;
pub(crate) mod config_map;
pub(crate) mod destination_rule;
pub(crate) mod endpoint_slice;
pub(crate) mod extensions;
pub(crate) mod gateway;
pub(crate) mod gateway_class;
pub(crate) mod http_fault;
pub(crate) mod kind;
pub(crate) mod namespace;
pub(crate) mod node;
pub(crate) mod others;
pub(crate) mod peer_authentication;
pub(crate) mod pod;
pub(crate) mod rate_limit;
pub(crate) mod reference_grant;
pub(crate) mod request_authentication;
pub(crate) mod route;
pub(crate) mod secret;
pub(crate) mod service;
pub(crate) mod service_entry;
pub(crate) mod telemetry;
pub(crate) mod unread;
pub(crate) mod wasm_plugin;
pub(crate) mod workload_entry;
