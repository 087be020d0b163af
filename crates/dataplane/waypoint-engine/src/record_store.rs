//! Records of one type, in the form that requests need.

use ambit_model::{ArcStr, NamespacedHostname, PolicyKey};
use serde::Serialize;
use serde_json::Value;

/// Withdrawn object, which is counted no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Removed policy with its metrics.
    Policy(PolicyKey),
    /// A withdrawn destination rule of a service.
    Destination(NamespacedHostname),
}

/// Store of the records of one type.
pub(crate) trait RecordStore {
    /// Type of the records.
    type Record;

    /// Whether nothing is served before all records of the type have been received.
    const IS_NEEDED: bool;

    /// Puts a record in the place of that of the same resource. One that cannot be used is reported, and the record
    /// before it stays.
    fn put(&mut self, resource: ArcStr, record: Self::Record);

    /// Removes the record of a resource, and returns the metrics that it removes.
    fn remove(&mut self, resource: &ArcStr) -> Option<Gone>;

    /// Records with their state for `/config_dump`, without secrets.
    fn dump(&self) -> Value;
}

/// JSON of a record.
pub(crate) fn shown(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_else(|error| error.to_string().into())
}
