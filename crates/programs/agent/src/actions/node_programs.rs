//! BPF programs of the node's pods, and what the agent knows of pods until they are captured.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::AtomicU64,
};

use ambit_bpf::{NetnsCookie, Pins};
use ambit_zds::PodUid;
use parking_lot::Mutex;

/// BPF programs of the node's pods.
#[derive(Debug)]
pub struct NodePrograms {
    /// Directory of all pods' programs.
    pub(super) pins: Pins,
    /// Pods that are prepared, and to which redirection is not yet applied, with the number of node proxies that had
    /// connected before. Locked while programs are removed.
    pub(super) preparing: Mutex<BTreeMap<NetnsCookie, u64>>,
    /// Pods whose capture had been stopped at the last sweep.
    pub(super) stopped: Mutex<BTreeSet<NetnsCookie>>,
    /// Pods whose programs the kernel has refused, with its reason.
    pub(super) refused: Mutex<BTreeMap<PodUid, String>>,
    /// Pods whose node proxy has not entered its listeners, with the error, until another proxy connects.
    pub(super) without_listeners: Mutex<BTreeMap<PodUid, String>>,
    /// Number of node proxies that have connected.
    pub(super) connected_proxies: AtomicU64,
}

impl NodePrograms {
    /// Names the programs that are, or will be, in the directory `pins`.
    pub fn at(pins: Pins) -> Self {
        Self {
            pins,
            preparing: Mutex::default(),
            stopped: Mutex::default(),
            refused: Mutex::default(),
            without_listeners: Mutex::default(),
            connected_proxies: AtomicU64::new(0),
        }
    }

    /// Returns the directory of all pods' programs.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }
}
