//! Redirection inside a pod's network namespace as a value: computed, rendered and compared without IO.
//!
//! [`plan`] turns a [`RedirectionSpec`] into a [`Ruleset`], which knows of no backend. From there
//! [`nft::lower`] builds netlink-level expressions ([`nft::diff`] compares them with the kernel's),
//! [`nft_text::render`] the same as readable text, and [`iptables`] the text for
//! `iptables-restore`.
//!
//! Invariant: nothing here performs a system call.
#![forbid(unsafe_code)]

pub mod foreign;
pub mod iptables;
pub mod nft;
pub mod nft_text;
mod plan;
mod ruleset;
mod spec;

pub use plan::{
    Translated, bpf_guards, host_ruleset, plan, plan_by_bpf, plan_capturing, plan_released,
    plan_released_by_bpf,
};
pub use ruleset::{
    Action, Chain, ChainKind, Family, InboundGuard, Match, PolicyRouting, Rule, Ruleset,
    outbound_routing, policy_routing,
};
pub use spec::{
    Backend, Cgroup, HostMember, HostSpec, ProbePorts, RedirectionSpec, SpecError,
    is_interface_name, marks, probes,
};
