//! Reverse index of references between objects: when an object changes, the objects that refer to it are rendered
//! again.

use std::collections::{BTreeSet, HashMap};

use ambit_k8s_api::ObjectKey;
use ambit_model::{ArcStr, GatewayName};

use crate::objects::gateway_address::Address;

/// Kind of reference. Each variant names the objects that refer, and by which name they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReferenceKind {
    /// Pods, by the node that they run on.
    OnNode,
    /// Services and ServiceEntries, by the hosts that they declare.
    Declares,
    /// ServiceEntries, by each namespace for which one of their hosts is a short name of a Service (`NAME.NAMESPACE`).
    ShortName,
    /// Objects, by the Gateway that their labels select as waypoint.
    Bound,
    /// Objects, by the Gateway that their labels select as canary waypoint.
    Canary,
    /// Pods whose own label selects a waypoint or `none`, by their namespace.
    PodWaypointLabel,
    /// Routes, by the services that are their parents.
    RouteParent,
    /// Routes, by the services of their backends and mirrors, and by the objects of their filters.
    RouteBackend,
    /// Routes, by the hosts of their backends and mirrors.
    RouteHost,
    /// VirtualServices, by the hosts that they route.
    VirtualHost,
    /// VirtualServices with a rule that matches all requests, by the hosts that they route.
    CatchAll,
    /// Gateways, by the address in their status.
    GatewayAddress,
    /// DestinationRules, by their host.
    DestinationRule,
    /// DestinationRules that have subsets, for the mesh as a whole.
    HasSubsets,
    /// Objects, by the hosts of the services that waypoints call on their behalf.
    Calls,
    /// ReferenceGrants that permit pods as endpoints, for the mesh as a whole.
    GrantsPods,
    /// All BackendTLSPolicies, for the mesh as a whole.
    BackendTls,
    /// Policies, by the names of their extension providers.
    Provider,
    /// Policies, by the objects that their `targetRefs` name.
    PolicyTarget,
    /// WasmPlugins, by the Secrets with their image pull credentials.
    PullSecret,
}

/// Name by which an object refers to another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Referent {
    /// The mesh as a whole, for objects that are only listed.
    Mesh,
    Address(Address),
    Gateway(GatewayName),
    /// Name of a host, a namespace, a node or a provider.
    Name(ArcStr),
    Object(ObjectKey),
}

/// Type that can be the name in a reference.
pub(crate) trait ReferentName: Clone {
    fn referent(self) -> Referent;
    fn of(referent: &Referent) -> Option<&Self>;
}

/// Implements [`ReferentName`] for a variant of [`Referent`].
macro_rules! names {
    ($($variant:ident: $type:ty),*) => {
        $(impl ReferentName for $type {
            fn referent(self) -> Referent {
                Referent::$variant(self)
            }

            fn of(referent: &Referent) -> Option<&Self> {
                match referent {
                    Referent::$variant(name) => Some(name),
                    _ => None,
                }
            }
        })*
    };
}

names!(Address: Address, Gateway: GatewayName, Name: ArcStr, Object: ObjectKey);

/// Objects by kind of reference and by the name that they refer to.
#[derive(Debug, Default)]
pub(crate) struct References(HashMap<ReferenceKind, HashMap<Referent, BTreeSet<ObjectKey>>>);

impl References {
    /// Replaces the names that an object refers to by one kind of reference.
    pub(crate) fn replace<N: ReferentName>(
        &mut self,
        kind: ReferenceKind,
        key: &ObjectKey,
        old: impl IntoIterator<Item = N>,
        new: impl IntoIterator<Item = N>,
    ) {
        for name in old {
            self.remove(kind, &name.referent(), key);
        }
        for name in new {
            self.insert(kind, name.referent(), key);
        }
    }

    /// Adds an object to, or removes it from, the objects that [`References::of_mesh`] returns.
    pub(crate) fn set(&mut self, kind: ReferenceKind, key: &ObjectKey, refers: bool) {
        if refers {
            self.insert(kind, Referent::Mesh, key);
        } else {
            self.remove(kind, &Referent::Mesh, key);
        }
    }

    fn insert(&mut self, kind: ReferenceKind, referent: Referent, key: &ObjectKey) {
        let named = self.0.entry(kind).or_default();
        named.entry(referent).or_default().insert(key.clone());
    }

    fn remove(&mut self, kind: ReferenceKind, referent: &Referent, key: &ObjectKey) {
        if let Some(named) = self.0.get_mut(&kind)
            && let Some(keys) = named.get_mut(referent)
        {
            keys.remove(key);
            if keys.is_empty() {
                named.remove(referent);
            }
        }
    }

    /// Returns every name to which at least one object refers by a kind of reference.
    pub(crate) fn names<N: ReferentName + 'static>(
        &self,
        kind: ReferenceKind,
    ) -> impl Iterator<Item = &N> {
        let named = self.0.get(&kind).into_iter();
        named.flat_map(HashMap::keys).filter_map(N::of)
    }

    /// Returns the objects that refer to a name.
    pub(crate) fn of<N: ReferentName>(
        &self,
        kind: ReferenceKind,
        name: &N,
    ) -> impl Iterator<Item = &ObjectKey> + use<'_, N> {
        self.keys(kind, &name.clone().referent())
    }

    /// Returns the objects listed under [`Referent::Mesh`].
    pub(crate) fn of_mesh(&self, kind: ReferenceKind) -> impl Iterator<Item = &ObjectKey> {
        self.keys(kind, &Referent::Mesh)
    }

    fn keys(
        &self,
        kind: ReferenceKind,
        referent: &Referent,
    ) -> impl Iterator<Item = &ObjectKey> + use<'_> {
        let keys = self.0.get(&kind).and_then(|named| named.get(referent));
        keys.into_iter().flatten()
    }

    /// Whether any object refers to a name.
    pub(crate) fn is_named<N: ReferentName>(&self, kind: ReferenceKind, name: &N) -> bool {
        self.of(kind, name).next().is_some()
    }
}
