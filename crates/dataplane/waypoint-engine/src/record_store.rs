//! Interface of the stores of published records, one store per record type.

use ambit_model::{ArcStr, NamespacedHostname, PolicyKey};
use serde::Serialize;
use serde_json::Value;

/// Removed Kubernetes object whose metrics must be removed as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovedRecord {
    /// Removed authorization policy or JWT rule, by its key.
    Policy(PolicyKey),
    /// Service whose `DestinationRule` or `BackendTLSPolicy` was removed.
    Destination(NamespacedHostname),
}

/// Store of all published records of one type.
pub(crate) trait RecordStore {
    /// Type of the records that the store keeps.
    type Record;

    /// Whether requests wait until all initial records of the type have been received.
    const BLOCKS_READINESS: bool;

    /// Stores the record of an xDS resource in place of the previous one. An unusable record is logged, and the
    /// previous one stays.
    fn put(&mut self, resource: ArcStr, record: Self::Record);

    /// Removes the record of an xDS resource. Returns the removed object, if its metrics must be removed too.
    fn remove(&mut self, resource: &ArcStr) -> Option<RemovedRecord>;

    /// Returns the records with their state for `/config_dump`, without secrets.
    fn dump(&self) -> Value;
}

/// Serializes a record to JSON.
pub(crate) fn to_json(record: &impl Serialize) -> Value {
    serde_json::to_value(record).unwrap_or_else(|error| error.to_string().into())
}
