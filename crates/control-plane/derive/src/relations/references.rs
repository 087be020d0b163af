//! Reverse index of references between objects: when an object changes, the objects that refer to it are rendered
//! again.

use std::collections::{BTreeSet, HashMap};

use ambit_k8s_api::ObjectKey;
use ambit_model::{ArcStr, GatewayName};

use crate::objects::gateway_address::Address;

/// Kind of reference: which objects refer, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReferenceKind {
    /// References of pods to the node that they run on.
    PodNode,
    /// References of Services and ServiceEntries to the hosts that they declare.
    DeclaredHost,
    /// References of ServiceEntries to each namespace for which one of their hosts is a short name of a Service
    /// (`NAME.NAMESPACE`).
    ShortNameNamespace,
    /// References of objects to the Gateway that their labels select as waypoint.
    Waypoint,
    /// References of objects to the Gateway that their labels select as canary waypoint.
    CanaryWaypoint,
    /// References of pods whose own label selects a waypoint or `none` to their namespace.
    PodWaypointLabel,
    /// References of routes to the services that are their parents.
    RouteParent,
    /// References of routes to the services of their backends and mirrors, and to the objects of their filters.
    RouteBackend,
    /// References of routes to the hosts of their backends and mirrors.
    RouteHost,
    /// References of VirtualServices to the hosts that they route.
    VirtualServiceHost,
    /// References of VirtualServices with a rule that matches all requests to the hosts that they route.
    CatchAllHost,
    /// References of Gateways to the address in their status.
    GatewayAddress,
    /// References of DestinationRules to their host.
    DestinationRuleHost,
    /// DestinationRules that have subsets, under the name [`Referent::EntireMesh`].
    RuleWithSubsets,
    /// References of objects to the hosts of the services that waypoints call on their behalf.
    CalledHost,
    /// ReferenceGrants that permit pods as endpoints, under the name [`Referent::EntireMesh`].
    PodGrant,
    /// All BackendTLSPolicies, under the name [`Referent::EntireMesh`].
    BackendTlsPolicy,
    /// References of policies to their extension providers, by name.
    ExtensionProvider,
    /// References of policies to the objects that their `targetRefs` name.
    PolicyTarget,
    /// References of WasmPlugins to the Secrets with their image pull credentials.
    PullSecret,
}

/// Name by which an object refers to another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Referent {
    /// The mesh as a whole: stands for no name, to list all objects of a reference kind.
    EntireMesh,
    Address(Address),
    Gateway(GatewayName),
    /// Name of a host, a namespace, a node or a provider.
    Name(ArcStr),
    Object(ObjectKey),
}

/// Type whose values can be the name in a reference, such as a Gateway's name.
pub(crate) trait ReferentName: Clone {
    fn referent(self) -> Referent;
    fn of(referent: &Referent) -> Option<&Self>;
}

/// Implements [`ReferentName`] for the type in a variant of [`Referent`].
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

/// Reverse index of references: objects by kind of reference and by the name that they refer to.
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

    /// Adds an object to, or removes it from, the objects that [`References::mesh_referrers`] returns.
    pub(crate) fn set_mesh_reference(
        &mut self,
        kind: ReferenceKind,
        key: &ObjectKey,
        refers: bool,
    ) {
        if refers {
            self.insert(kind, Referent::EntireMesh, key);
        } else {
            self.remove(kind, &Referent::EntireMesh, key);
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
    pub(crate) fn referenced_names<N: ReferentName + 'static>(
        &self,
        kind: ReferenceKind,
    ) -> impl Iterator<Item = &N> {
        let named = self.0.get(&kind).into_iter();
        named.flat_map(HashMap::keys).filter_map(N::of)
    }

    /// Returns the objects that refer to a name by one kind of reference.
    pub(crate) fn referrers<N: ReferentName>(
        &self,
        kind: ReferenceKind,
        name: &N,
    ) -> impl Iterator<Item = &ObjectKey> + use<'_, N> {
        self.referring_keys(kind, &name.clone().referent())
    }

    /// Returns the objects listed under [`Referent::EntireMesh`].
    pub(crate) fn mesh_referrers(&self, kind: ReferenceKind) -> impl Iterator<Item = &ObjectKey> {
        self.referring_keys(kind, &Referent::EntireMesh)
    }

    fn referring_keys(
        &self,
        kind: ReferenceKind,
        referent: &Referent,
    ) -> impl Iterator<Item = &ObjectKey> + use<'_> {
        let keys = self.0.get(&kind).and_then(|named| named.get(referent));
        keys.into_iter().flatten()
    }

    /// Whether any object refers to a name by one kind of reference.
    pub(crate) fn is_referenced<N: ReferentName>(&self, kind: ReferenceKind, name: &N) -> bool {
        self.referrers(kind, name).next().is_some()
    }
}
