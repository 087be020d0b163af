//! Captures a pod's TCP by BPF programs: no connection tracking, no translation of addresses, and no entry for each
//! connection.
//!
//! - **Outbound**, programs on the pod's cgroup see each `connect` and mark the socket. A policy rule routes marked
//!   packets to loopback, and the program on the pod's network namespace (`sk_lookup`) gives their opening to
//!   the proxy's listener. The local address of the accepted socket is the original destination, and its peer
//!   the application's socket. A mark belongs to a socket: pre-capture connections are not marked, and marked ones
//!   stay in the proxy until they end, whatever happens to the programs.
//! - **Inbound**, the same program gives openings from other interfaces to the proxy's listener. The kernel
//!   consults it only for packets that belong to no connection, and without a listener it refuses them: nothing
//!   reaches the application in plaintext because a proxy is dead. Its own `connect` fails like that to a port
//!   on which nobody listens.
//! - **Calls of the application** by the proxy, from the client's address, come over loopback, from a socket that
//!   is bound to it and has the mark of spoofed sources. Sockets that the application accepts from them are bound
//!   to loopback too.
//!
//! Rules, routes, and guards against openings that bypass the programs are the caller's: see
//! `netplan/src/plan.rs`. Programs, links and maps are pinned in a directory of a pod's own ([`Pins`]), so that they
//! outlive every process. The programs are written in C (`programs/capture.c`), and `cargo xtask bpf` compiles them.
#![forbid(unsafe_code)]

mod capture;
mod cookie;
mod error;
mod overridden;
mod pins;
mod settings;

pub use capture::{Capture, Listeners, Role, SLOTS};
pub use cookie::NetnsCookie;
pub use error::CaptureError;
pub use overridden::check_overridden;
pub use pins::Pins;
pub use settings::{Marks, Probe, Settings};
