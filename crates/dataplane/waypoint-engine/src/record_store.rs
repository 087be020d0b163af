//! Interface of stores of published records of one type.

use ambit_model::{ArcStr, NamespacedHostname, PolicyKey};
use serde::Serialize;
use serde_json::Value;

/// Withdrawn object, whose metrics end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovedRecord {
    /// Removed authorization policy or JWT rule.
    Policy(PolicyKey),
    /// Removed destination rule of a service.
    Destination(NamespacedHostname),
}

/// Store of the records of one type.
pub(crate) trait RecordStore {
    /// Type of the records.
    type Record;

    /// Whether serving waits until all initial records of the type have been received.
    const IS_NEEDED: bool;

    /// Replaces the record of a resource. An unusable record is reported, and the previous one stays.
    fn put(&mut self, resource: ArcStr, record: Self::Record);

    /// Removes the record of a resource, and returns the metrics that it removes.
    fn remove(&mut self, resource: &ArcStr) -> Option<RemovedRecord>;

    /// Returns the records with their state for `/config_dump`, without secrets.
    fn dump(&self) -> Value;
}

/// Returns the JSON of a record.
pub(crate) fn to_json(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_else(|error| error.to_string().into())
}
