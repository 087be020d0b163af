//! BPF programs of the node's pods, and what the agent knows of pods until they are captured.

use std::collections::{BTreeMap, BTreeSet};

use ambit_bpf::{NetnsCookie, Pins};
use ambit_zds::PodUid;
use parking_lot::Mutex;

/// BPF programs of the node's pods.
#[derive(Debug)]
pub struct NodePrograms {
    /// Directory of all pods' programs.
    pub(super) pins: Pins,
    /// Pods that are prepared, and to which redirection is not yet applied. Locked while pods without programs are swept.
    pub(super) preparing: Mutex<BTreeSet<NetnsCookie>>,
    /// Pods whose programs the kernel has refused, with its reason.
    pub(super) refused: Mutex<BTreeMap<PodUid, String>>,
    /// Pods whose node proxy has not entered its listeners, with the error, until another proxy connects.
    pub(super) without_listeners: Mutex<BTreeMap<PodUid, String>>,
}

impl NodePrograms {
    /// Names the programs that are, or will be, in the directory `pins`.
    pub fn at(pins: Pins) -> Self {
        Self {
            pins,
            preparing: Mutex::default(),
            refused: Mutex::default(),
            without_listeners: Mutex::default(),
        }
    }

    /// Returns the directory of all pods' programs.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }
}
