//! Subscriptions of one client: the records that it has, and the records that it must be sent.
//!
//! Does no IO: takes requests and store changes, returns pushes. A client is sent the next push of a type only after it
//! has acknowledged or rejected the last one, so that a slow client costs only a cursor; changes in the meantime reach
//! it in one push. Requests for single records are answered at once.
//!
//! A policy, which workloads may reference, is removed at a client only after the client has answered all earlier
//! pushes of workloads: a workload that still references a removed policy would refuse its connections.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use ambit_model::ArcStr;
use ambit_wire::discovery::DeltaDiscoveryRequest;

use crate::{
    batch::{Batch, Push, StepContent},
    encoded_record::{EncodedRecord, RecordKind},
    resource::ResourceType,
    scope::{Client, View},
    store::Store,
};

/// Maximum number of names in one subscription.
const MAX_SUBSCRIBED_NAMES: usize = 200_000;
/// Maximum length of a subscribed name, in bytes.
const MAX_NAME_BYTES: usize = 1024;
/// Maximum length of a stored rejection (NACK) text, in characters.
const MAX_ERROR_CHARS: usize = 2048;

/// Reason why the server closes a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The client subscribes to too many names.
    #[error(
        "a subscription may hold {MAX_SUBSCRIBED_NAMES} names of at most {MAX_NAME_BYTES} bytes"
    )]
    TooManyNames,
    /// The client has missed removals that are no longer in the log.
    #[error(
        "too many changes since the last acknowledgement: reconnect with the versions you have"
    )]
    TooFarBehind,
}

/// Status of one subscription, for debug pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionStatus {
    /// Resource type of the subscription.
    pub resource_type: ResourceType,
    /// Nonce of the last push; empty before the first push.
    pub sent_nonce: String,
    /// Nonce of the push that was last acknowledged.
    pub acknowledged_nonce: String,
    /// Whether the subscription is a wildcard rather than a list of names.
    pub is_wildcard: bool,
    /// Number of subscribed names.
    pub name_count: usize,
    /// Error text of the last rejection (NACK), until the next acknowledgement.
    pub error: Option<String>,
}

/// Effect of a request on the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOutcome {
    /// Whether the client rejected a push.
    pub is_rejection: bool,
    /// Whether the client acknowledged a push other than the last one.
    pub is_stale: bool,
}

#[derive(Debug)]
struct Subscription {
    /// Records of the type that the client may see.
    view: View,
    is_wildcard: bool,
    /// Names to which the client subscribes, aliases included.
    subscribed_names: HashSet<ArcStr>,
    /// Versions of the records that a client without a wildcard subscription has, by name.
    known_versions: HashMap<ArcStr, String>,
    /// Store revision up to which changes were sent.
    cursor: u64,
    /// Store revision up to which the last push carries changes.
    sent_up_to: u64,
    /// Store revision up to which the client has acknowledged all pushes.
    acknowledged_up_to: u64,
    sent_nonce: String,
    acknowledged_nonce: String,
    awaits_acknowledgement: bool,
    error: Option<String>,
}

/// Delta xDS session of one client: its subscriptions, and the removals that are withheld from it.
#[derive(Debug)]
pub struct Session {
    client: Client,
    /// Seed that makes nonces unique to the stream.
    seed: u64,
    push_count: u64,
    subscriptions: BTreeMap<ResourceType, Subscription>,
    /// Names of removed records that the client still has, because its other records may reference them; each batch
    /// with the revision up to which the client must acknowledge pushes of the referencing types first.
    withheld_removals: Vec<(u64, Arc<Batch>)>,
}

impl Session {
    /// Creates the session of a client's stream.
    pub fn new(client: Client, seed: u64) -> Self {
        Self {
            client,
            seed,
            push_count: 0,
            subscriptions: BTreeMap::new(),
            withheld_removals: Vec::new(),
        }
    }

    /// Handles one request of the client; returns pushes that are due at once. Unknown types are ignored.
    pub fn on_request(
        &mut self,
        request: &DeltaDiscoveryRequest,
        store: &Store,
    ) -> Result<(RequestOutcome, Vec<Push>), SessionError> {
        let mut outcome = RequestOutcome::default();
        let kind = ResourceType::from_type_url(&request.type_url);
        let Some(view) = kind.and_then(|kind| self.client.view(kind)) else {
            return Ok((outcome, Vec::new()));
        };
        let kind = view.resource_type();
        check_names(request)?;
        let is_first = !self.subscriptions.contains_key(&kind);
        let subscription = self.subscriptions.entry(kind);
        let subscription = subscription.or_insert_with(|| Subscription::new(view));
        if !is_first && !request.response_nonce.is_empty() {
            if request.response_nonce == subscription.sent_nonce {
                subscription.record_acknowledgement(request, &mut outcome);
            } else {
                outcome.is_stale = true;
            }
        }
        let mut pushes = Vec::new();
        let records = if is_first {
            Some(subscription.subscribe(request, store, &self.client))
        } else {
            subscription.update_subscription(request, store)
        };
        if let Some(batch) = records {
            let batch = self.withhold_removals(batch, store);
            pushes.push(self.push(batch, store));
        }
        let names = self
            .subscriptions
            .get(&kind)
            .map_or(0, |subscription| subscription.subscribed_names.len());
        if names > MAX_SUBSCRIBED_NAMES {
            return Err(SessionError::TooManyNames);
        }
        pushes.extend(self.on_change(store)?);
        Ok((outcome, pushes))
    }

    /// Returns pushes of the changes since the last call, for every type whose last push was
    /// answered.
    pub fn on_change(&mut self, store: &Store) -> Result<Vec<Push>, SessionError> {
        let mut pushes = Vec::new();
        let kinds: Vec<_> = self.subscriptions.keys().copied().collect();
        for kind in kinds {
            let Some(subscription) = self.subscriptions.get_mut(&kind) else {
                continue;
            };
            if subscription.awaits_acknowledgement {
                if kind.is_referenced() && subscription.is_behind(store)? {
                    // New records of other types may reference new ones of this type: wait with
                    // everything.
                    return Ok(pushes);
                }
                continue;
            }
            let batch = if kind.is_referenced() {
                let gone = subscription.wildcard_changes(StepContent::RemovalsOnly, store)?;
                if !gone.is_empty() {
                    self.withheld_removals.push((store.revision(), gone));
                }
                subscription.wildcard_changes(StepContent::RecordsOnly, store)?
            } else {
                subscription.changed_records(store, &self.client)?
            };
            subscription.cursor = store.revision();
            if batch.is_empty() {
                subscription.acknowledged_up_to = subscription.cursor;
            } else {
                pushes.push(self.push(batch, store));
            }
        }
        for kind in ResourceType::all().filter(|kind| kind.is_referenced()) {
            if let Some(gone) = self.take_possible_removals(kind, store) {
                pushes.push(self.push(gone, store));
            }
        }
        Ok(pushes)
    }

    /// Withholds the batch's removals of records that other records may reference, for
    /// [`Self::take_possible_removals`].
    fn withhold_removals(&mut self, batch: Arc<Batch>, store: &Store) -> Arc<Batch> {
        let view = &batch.view;
        if !view.resource_type().is_referenced() || batch.removed_names.is_empty() {
            return batch;
        }
        let gone = Batch::new(view.clone(), Vec::new(), batch.removed_names.clone());
        self.withheld_removals
            .push((store.revision(), Arc::new(gone)));
        let there = Batch::new(view.clone(), batch.resources.clone(), Vec::new());
        Arc::new(there)
    }

    /// Returns the removals of a referenced type that are now possible, since no acknowledged record of the client
    /// references the records. A rejection counts as acknowledgement, or one bad record would keep a policy in force
    /// for good.
    fn take_possible_removals(&mut self, kind: ResourceType, store: &Store) -> Option<Arc<Batch>> {
        let subscription = self.subscriptions.get(&kind)?;
        if subscription.awaits_acknowledgement {
            return None;
        }
        let view = subscription.view.clone();
        let others = self.subscriptions.iter();
        let others = others.filter(|(other, _)| !other.is_referenced());
        let answered = others
            .map(|(_, subscription)| subscription.acknowledged_up_to)
            .min()
            .unwrap_or(u64::MAX);
        let due = |(revision, batch): &mut (u64, Arc<Batch>)| {
            batch.view.resource_type() == kind && *revision <= answered
        };
        let due: Vec<_> = self.withheld_removals.extract_if(.., due).collect();
        // A record that exists again has been sent, or will be.
        let is_back = |name: &ArcStr| store.record(kind.collection(), name).is_some();
        match due.as_slice() {
            [] => None,
            [(_, one)] if !one.removed_names.iter().any(is_back) => Some(Arc::clone(one)),
            _ => {
                let names: BTreeSet<&ArcStr> = due
                    .iter()
                    .flat_map(|(_, batch)| &batch.removed_names)
                    .collect();
                let gone = names.into_iter().filter(|name| !is_back(name)).cloned();
                let batch = Batch::new(view, Vec::new(), gone.collect());
                (!batch.is_empty()).then(|| Arc::new(batch))
            }
        }
    }

    /// Returns the status of each of the client's subscriptions.
    pub fn status(&self) -> Vec<SubscriptionStatus> {
        let status = |(kind, subscription): (&ResourceType, &Subscription)| SubscriptionStatus {
            resource_type: *kind,
            sent_nonce: subscription.sent_nonce.clone(),
            acknowledged_nonce: subscription.acknowledged_nonce.clone(),
            is_wildcard: subscription.is_wildcard,
            name_count: subscription.subscribed_names.len(),
            error: subscription.error.clone(),
        };
        self.subscriptions.iter().map(status).collect()
    }

    fn push(&mut self, batch: Arc<Batch>, store: &Store) -> Push {
        self.push_count += 1;
        let nonce = format!(
            "{:x}-{:x}-{:016x}",
            store.revision(),
            self.push_count,
            self.seed
        );
        if let Some(subscription) = self.subscriptions.get_mut(&batch.view.resource_type()) {
            subscription.sent_nonce.clone_from(&nonce);
            subscription.sent_up_to = subscription.cursor;
            subscription.awaits_acknowledgement = true;
        }
        Push {
            nonce,
            system_version: store.revision().to_string(),
            batch,
        }
    }
}

impl Subscription {
    fn new(view: View) -> Self {
        Self {
            view,
            is_wildcard: false,
            subscribed_names: HashSet::new(),
            known_versions: HashMap::new(),
            cursor: 0,
            sent_up_to: 0,
            acknowledged_up_to: 0,
            sent_nonce: String::new(),
            acknowledged_nonce: String::new(),
            awaits_acknowledgement: false,
            error: None,
        }
    }

    fn record_acknowledgement(
        &mut self,
        request: &DeltaDiscoveryRequest,
        outcome: &mut RequestOutcome,
    ) {
        self.awaits_acknowledgement = false;
        self.acknowledged_up_to = self.sent_up_to;
        match &request.error_detail {
            Some(error) => {
                outcome.is_rejection = true;
                self.error = Some(error.message.chars().take(MAX_ERROR_CHARS).collect());
            }
            None => {
                self.error = None;
                self.acknowledged_nonce.clone_from(&request.response_nonce);
            }
        }
    }

    /// Handles the first request of a type. Records whose current version the client already has are not sent again.
    fn subscribe(
        &mut self,
        request: &DeltaDiscoveryRequest,
        store: &Store,
        client: &Client,
    ) -> Arc<Batch> {
        let has = |names: &[String]| names.iter().any(|name| name == "*");
        let may_be_wildcard = self.view.may_be_wildcard();
        let asks_all =
            request.resource_names_subscribe.is_empty() || has(&request.resource_names_subscribe);
        self.is_wildcard = self.view.resource_type().is_always_wildcard()
            || (may_be_wildcard && asks_all && !has(&request.resource_names_unsubscribe));
        self.cursor = store.revision();
        let claimed = &request.initial_resource_versions;
        if self.is_wildcard {
            return self.all_records(claimed, store);
        }
        let mut records = SubscribedRecords::new(&self.view, store);
        for (name, version) in claimed {
            self.known_versions.insert(name.into(), version.clone());
            records.add_by_name(name);
        }
        for name in request
            .resource_names_subscribe
            .iter()
            .filter(|name| *name != "*")
        {
            self.subscribed_names.insert(name.into());
            records.add_by_name(name);
        }
        for name in store.names_on_node(self.view.collection(), &client.node) {
            records.found_names.insert(name.clone());
        }
        records.into_batch(&mut self.known_versions, Vec::new())
    }

    /// Applies a request's changes to the subscription, and returns the records to send; `None` if the request only
    /// unsubscribes or acknowledges.
    fn update_subscription(
        &mut self,
        request: &DeltaDiscoveryRequest,
        store: &Store,
    ) -> Option<Arc<Batch>> {
        for name in &request.resource_names_unsubscribe {
            if name == "*" {
                if !self.view.resource_type().is_always_wildcard() {
                    self.is_wildcard = false;
                }
            } else {
                self.subscribed_names.remove(name.as_str());
                self.known_versions.remove(name.as_str());
            }
        }
        if request.resource_names_subscribe.is_empty() {
            return None;
        }
        let mut names = request.resource_names_subscribe.iter();
        if self.is_wildcard || (self.view.may_be_wildcard() && names.any(|name| name == "*")) {
            self.is_wildcard = true;
            self.cursor = store.revision();
            return Some(self.all_records(&request.initial_resource_versions, store));
        }
        let mut records = SubscribedRecords::new(&self.view, store);
        let names = request.resource_names_subscribe.iter();
        for name in names.filter(|name| *name != "*") {
            self.subscribed_names.insert(name.into());
            // A repeated subscription is sent again: the client may have lost the record.
            for found in records.add_by_name(name) {
                self.known_versions.remove(&found);
            }
        }
        Some(records.into_batch(&mut self.known_versions, Vec::new()))
    }

    fn is_behind(&self, store: &Store) -> Result<bool, SessionError> {
        let mut changed = store
            .changed_since(self.view.collection(), self.cursor)
            .ok_or(SessionError::TooFarBehind)?;
        Ok(changed.next().is_some())
    }

    /// Returns the batch of changes since the cursor, for a wildcard subscription.
    fn wildcard_changes(
        &self,
        part: StepContent,
        store: &Store,
    ) -> Result<Arc<Batch>, SessionError> {
        let batch = store.step(&self.view, part, self.cursor);
        batch.ok_or(SessionError::TooFarBehind)
    }

    fn changed_records(
        &mut self,
        store: &Store,
        client: &Client,
    ) -> Result<Arc<Batch>, SessionError> {
        if self.is_wildcard {
            return self.wildcard_changes(StepContent::RecordsAndRemovals, store);
        }
        let changed = store
            .changed_since(self.view.collection(), self.cursor)
            .ok_or(SessionError::TooFarBehind)?;
        let mut removed = Vec::new();
        let mut records = SubscribedRecords::new(&self.view, store);
        for name in changed {
            match store.record(self.view.collection(), name) {
                Some(entry) if self.must_receive(entry, client) => records.add(entry),
                Some(_) => {}
                None => {
                    if self.known_versions.remove(name).is_some() {
                        removed.push(name.clone());
                    }
                }
            }
        }
        Ok(records.into_batch(&mut self.known_versions, removed))
    }

    /// Returns all records except for versions that the client claims to have, and removals of claimed records that no
    /// longer exist.
    fn all_records(&mut self, claimed: &HashMap<String, String>, store: &Store) -> Arc<Batch> {
        if claimed.is_empty() {
            let snapshot = store.snapshot(&self.view);
            self.cursor = snapshot.revision;
            return snapshot.batch;
        }
        let has = |entry: &EncodedRecord| claimed.get(entry.name.as_str()) == Some(&entry.version);
        let resources = store.visible_records(&self.view);
        let resources = resources.filter(|entry| !has(entry)).cloned().collect();
        let exists = |name: &str| store.visible_record(&self.view, name).is_some();
        let removed = claimed
            .keys()
            .filter(|name| !exists(name))
            .map(ArcStr::from)
            .collect();
        Arc::new(Batch::new(self.view.clone(), resources, removed))
    }

    /// Returns whether a client without a wildcard must receive a record: it subscribed to one of the record's names,
    /// it has the record, the record is on the client's node, or is an endpoint of a service that the client has.
    fn must_receive(&self, entry: &EncodedRecord, client: &Client) -> bool {
        let known = |name: &ArcStr| self.known_versions.contains_key(name);
        let is_subscribed = |name: &ArcStr| self.subscribed_names.contains(name);
        let by_place = match &entry.kind {
            RecordKind::Workload { node: of, services } => {
                (!client.node.is_empty() && *of == client.node) || services.iter().any(known)
            }
            RecordKind::Service | RecordKind::Policy | RecordKind::Waypoint => false,
        };
        known(&entry.name)
            || is_subscribed(&entry.name)
            || entry.aliases.iter().any(is_subscribed)
            || by_place
    }
}

fn check_names(request: &DeltaDiscoveryRequest) -> Result<(), SessionError> {
    let lists = [
        &request.resource_names_subscribe,
        &request.resource_names_unsubscribe,
    ];
    let claimed = &request.initial_resource_versions;
    let too_long = |name: &String| name.len() > MAX_NAME_BYTES;
    let too_many = lists.iter().any(|list| list.len() > MAX_SUBSCRIBED_NAMES)
        || claimed.len() > 5 * MAX_SUBSCRIBED_NAMES;
    let long = lists.into_iter().flatten().any(too_long)
        || claimed
            .iter()
            .any(|(name, version)| too_long(name) || too_long(version));
    if too_many || long {
        Err(SessionError::TooManyNames)
    } else {
        Ok(())
    }
}

/// Records that a client subscribes to by name, with the endpoints of subscribed services.
struct SubscribedRecords<'a> {
    view: View,
    store: &'a Store,
    found_names: BTreeSet<ArcStr>,
    missing_names: BTreeSet<ArcStr>,
}

impl<'a> SubscribedRecords<'a> {
    fn new(view: &View, store: &'a Store) -> Self {
        Self {
            view: view.clone(),
            store,
            found_names: BTreeSet::new(),
            missing_names: BTreeSet::new(),
        }
    }

    /// Adds the record with this name or alias; for a service, also its endpoints. Returns the names of the records
    /// that have this name or alias.
    fn add_by_name(&mut self, key: &str) -> Vec<ArcStr> {
        let by_name = self
            .store
            .record(self.view.collection(), key)
            .map(|entry| &entry.name);
        let names: Vec<ArcStr> = by_name
            .into_iter()
            .chain(self.store.names_by_alias(self.view.collection(), key))
            .cloned()
            .collect();
        if names.is_empty() {
            self.missing_names.insert(key.into());
        }
        for name in &names {
            if let Some(entry) = self.store.record(self.view.collection(), name) {
                self.add(entry);
            }
        }
        names
    }

    fn add(&mut self, entry: &EncodedRecord) {
        if entry.kind == RecordKind::Service {
            self.found_names.extend(
                self.store
                    .endpoint_names(self.view.collection(), &entry.name)
                    .cloned(),
            );
        }
        self.found_names.insert(entry.name.clone());
    }

    /// Returns the batch of collected records that the client lacks, and of names that do not exist; updates `known`.
    fn into_batch(
        self,
        known: &mut HashMap<ArcStr, String>,
        mut removed: Vec<ArcStr>,
    ) -> Arc<Batch> {
        let mut resources = Vec::new();
        for name in &self.found_names {
            let Some(entry) = self.store.record(self.view.collection(), name) else {
                continue;
            };
            if !self.view.contains(entry) || known.get(name) == Some(&entry.version) {
                continue;
            }
            known.insert(name.clone(), entry.version.clone());
            resources.push(Arc::clone(entry));
        }
        for name in &self.missing_names {
            known.remove(name);
        }
        removed.extend(self.missing_names);
        Arc::new(Batch::new(self.view, resources, removed).with_aliases())
    }
}

#[cfg(test)]
mod tests;
