//! Stores of authorization policies and JWT rules.

use std::{collections::HashMap, sync::Arc};

use ambit_jwt::RequestAuthentications;
use ambit_l7::authz::Policies;
use ambit_model::{ArcStr, Authentication, HttpPolicy, PolicyKey};
use serde_json::Value;

use crate::record_store::{RecordStore, RemovedRecord, to_json};

/// Store of the authorization policies for this waypoint.
#[derive(Debug, Default)]
pub(super) struct PolicyStore {
    pub(super) policies: Arc<Policies>,
    /// Key of the policy in each published record, by xDS resource name.
    keys: HashMap<ArcStr, PolicyKey>,
}

impl RecordStore for PolicyStore {
    type Record = HttpPolicy;

    const BLOCKS_READINESS: bool = true;

    fn put(&mut self, resource: ArcStr, record: HttpPolicy) {
        self.keys.insert(resource, record.key.clone());
        Arc::make_mut(&mut self.policies).insert(record);
    }

    fn remove(&mut self, resource: &ArcStr) -> Option<RemovedRecord> {
        let key = self.keys.remove(resource)?;
        Arc::make_mut(&mut self.policies).remove(&key);
        Some(RemovedRecord::Policy(key))
    }

    fn dump(&self) -> Value {
        let mut all: Vec<_> = self.policies.iter().collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        to_json(&all)
    }
}

/// Store of the JWT rules for this waypoint (RequestAuthentications).
#[derive(Debug, Default)]
pub(super) struct AuthenticationStore {
    pub(super) authentications: Arc<RequestAuthentications>,
    /// Key of the JWT rule in each published record, by xDS resource name.
    keys: HashMap<ArcStr, PolicyKey>,
}

impl RecordStore for AuthenticationStore {
    type Record = Authentication;

    const BLOCKS_READINESS: bool = true;

    fn put(&mut self, resource: ArcStr, record: Authentication) {
        self.keys.insert(resource, record.key.clone());
        Arc::make_mut(&mut self.authentications).insert(record);
    }

    fn remove(&mut self, resource: &ArcStr) -> Option<RemovedRecord> {
        let key = self.keys.remove(resource)?;
        Arc::make_mut(&mut self.authentications).remove(&key);
        None
    }

    fn dump(&self) -> Value {
        to_json(&self.authentications.iter().collect::<Vec<_>>())
    }
}
