//! The graph of references between objects: an object is rendered anew when an object that it names changes.

use std::collections::{BTreeSet, HashMap};

use ambit_k8s_api::ObjectKey;
use ambit_model::{ArcStr, GatewayName};

use crate::objects::gateway_address::Address;

/// Kind of reference from an object to something that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Edge {
    /// Pods of a node.
    OnNode,
    /// Objects that declare a host.
    Declares,
    /// ServiceEntries of which a host would be a short name of a Service in the namespace.
    ShortName,
    /// Objects whose labels name a Gateway.
    Bound,
    /// Objects whose labels name a Gateway as a canary.
    Canary,
    /// Pods that choose their waypoint themselves, by namespace.
    ChoosesIn,
    /// Routes by the objects that they are for.
    RouteParent,
    /// Routes by the objects of their backends.
    RouteBackend,
    /// Routes by their backends of the kind Hostname.
    RouteHost,
    /// VirtualServices by the hosts that they are for.
    VirtualHost,
    /// VirtualServices with a rule for all requests, by the hosts that they are for.
    CatchAll,
    /// Gateways by where their controllers say that they are.
    GatewayAddress,
    /// Destination rules by the hosts that they are for.
    DestinationRule,
    /// Destination rules that have subsets.
    HasSubsets,
    /// Objects by the hosts that waypoints call because of them.
    Calls,
    /// ReferenceGrants that name pods.
    GrantsPods,
    /// Policies of TLS with backends.
    BackendTls,
    /// Policies by the providers that they name.
    Provider,
    /// Policies by the objects that they are attached to.
    PolicyTarget,
    /// Plugins by the Secrets that they name.
    PullSecret,
}

/// Name that an object refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Referent {
    /// The mesh as a whole.
    Mesh,
    Address(Address),
    Gateway(GatewayName),
    /// A host, or the name of a namespace, a node or a provider.
    Name(ArcStr),
    Object(ObjectKey),
}

/// Type of the names of a kind of reference.
pub(crate) trait Name: Clone {
    fn referent(self) -> Referent;
    fn of(referent: &Referent) -> Option<&Self>;
}

/// Implements [`Name`] for a variant of [`Referent`].
macro_rules! names {
    ($($variant:ident: $type:ty),*) => {
        $(impl Name for $type {
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

/// Objects by the names that they refer to, for every kind of reference.
#[derive(Debug, Default)]
pub(crate) struct References(HashMap<Edge, HashMap<Referent, BTreeSet<ObjectKey>>>);

impl References {
    /// Replaces the names that an object refers to.
    pub(crate) fn replace<N: Name>(
        &mut self,
        edge: Edge,
        key: &ObjectKey,
        old: impl IntoIterator<Item = N>,
        new: impl IntoIterator<Item = N>,
    ) {
        for name in old {
            self.remove(edge, &name.referent(), key);
        }
        for name in new {
            self.insert(edge, name.referent(), key);
        }
    }

    /// Sets whether an object is one of those that [`References::of_mesh`] returns.
    pub(crate) fn set(&mut self, edge: Edge, key: &ObjectKey, refers: bool) {
        if refers {
            self.insert(edge, Referent::Mesh, key);
        } else {
            self.remove(edge, &Referent::Mesh, key);
        }
    }

    fn insert(&mut self, edge: Edge, referent: Referent, key: &ObjectKey) {
        let named = self.0.entry(edge).or_default();
        named.entry(referent).or_default().insert(key.clone());
    }

    fn remove(&mut self, edge: Edge, referent: &Referent, key: &ObjectKey) {
        if let Some(named) = self.0.get_mut(&edge)
            && let Some(keys) = named.get_mut(referent)
        {
            keys.remove(key);
            if keys.is_empty() {
                named.remove(referent);
            }
        }
    }

    /// Returns all names that objects refer to.
    pub(crate) fn names<N: Name + 'static>(&self, edge: Edge) -> impl Iterator<Item = &N> {
        let named = self.0.get(&edge).into_iter();
        named.flat_map(HashMap::keys).filter_map(N::of)
    }

    /// Returns the objects that refer to a name.
    pub(crate) fn of<N: Name>(
        &self,
        edge: Edge,
        name: &N,
    ) -> impl Iterator<Item = &ObjectKey> + use<'_, N> {
        self.keys(edge, &name.clone().referent())
    }

    /// Returns the objects that refer to the mesh as a whole.
    pub(crate) fn of_mesh(&self, edge: Edge) -> impl Iterator<Item = &ObjectKey> {
        self.keys(edge, &Referent::Mesh)
    }

    fn keys(&self, edge: Edge, referent: &Referent) -> impl Iterator<Item = &ObjectKey> + use<'_> {
        let keys = self.0.get(&edge).and_then(|named| named.get(referent));
        keys.into_iter().flatten()
    }

    /// Whether any object refers to a name.
    pub(crate) fn is_named<N: Name>(&self, edge: Edge, name: &N) -> bool {
        self.of(edge, name).next().is_some()
    }
}
