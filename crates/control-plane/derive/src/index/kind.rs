//! Everything that the mesh knows of one kind of object: the two traits that the kinds implement, one file a
//! kind ([`super::kinds`]).
//!
//! [`Followed`] is for the source that fetches objects; [`MeshKind`] declares the input of an object, its dependants,
//! its records, and its desired conditions.

use std::fmt;

use ambit_k8s_api::{ObjectKey, ObjectMeta, ObjectType};
use ambit_model::{ArcStr, Authorization, GatewayName, WaypointRecord, Workload};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    MeshConfig, PodDirectory, ServiceRecord,
    condition::{ConditionType, PartsType, Standing},
    index::{Index, MeshView},
    problem::{FieldError, Note},
};

/// Extent in which the control plane follows a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// No object is followed.
    Nothing,
    /// Existence of objects alone. Nothing waits for the list of them, and nothing depends on it.
    Presence,
    /// Labels and annotations of all.
    Metadata,
    /// All that [`Followed::cut`] leaves.
    Whole {
        /// Of those objects only whose labels match; of all if `None`.
        labels: Option<&'static str>,
    },
}

/// How objects of a kind come to the control plane.
pub trait Followed: ObjectType {
    /// Extent in which the kind is followed.
    const EXTENT: Extent;

    /// The object without what the mesh does not read, so that tens of thousands need little memory while
    /// they are fetched. Metadata is cut by who fetches.
    #[must_use]
    fn cut(self) -> Self {
        self
    }
}

/// Result of reading an object.
#[derive(Debug)]
pub(crate) struct Read<I> {
    /// `None`: the mesh ignores the object.
    pub(crate) input: Option<I>,
    /// Parts that have not the effect one might expect.
    pub(crate) notes: Vec<Note>,
}

impl<I> Read<I> {
    /// Understood without a remark.
    pub(crate) fn plain(input: I) -> Self {
        Self::of(Some(input), Vec::new())
    }

    pub(crate) fn of(input: Option<I>, notes: Vec<Note>) -> Self {
        Self { input, notes }
    }
}

/// An object is understood in another way than before; `None` is one that is not there.
#[derive(Debug)]
pub(crate) struct Change<'a, I> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) old: Option<&'a I>,
    pub(crate) new: Option<&'a I>,
}

impl<'a, I> Change<'a, I> {
    /// Both forms, those that exist.
    pub(crate) fn both(&self) -> impl Iterator<Item = &'a I> {
        self.old.into_iter().chain(self.new)
    }
}

/// Records of an object, a host or the mesh.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) services: Vec<ServiceRecord>,
    pub(crate) policies: Vec<Authorization>,
    /// Records of waypoints, each with its Gateway.
    pub(crate) waypoint_records: Vec<(GatewayName, WaypointRecord)>,
    /// Notes on parts of an object that have no effect because of others.
    pub(crate) conflicts: Vec<Note>,
}

impl Rendered {
    /// Adds records of waypoints.
    pub(crate) fn add<R: Into<WaypointRecord>>(
        &mut self,
        records: impl IntoIterator<Item = (GatewayName, R)>,
    ) {
        let records = records.into_iter();
        self.waypoint_records
            .extend(records.map(|(gateway, record)| (gateway, record.into())));
    }

    /// Nothing but records of waypoints.
    pub(crate) fn at_waypoints<R: Into<WaypointRecord>>(
        records: impl IntoIterator<Item = (GatewayName, R)>,
    ) -> Self {
        let mut rendered = Self::default();
        rendered.add(records);
        rendered
    }
}

/// Precedence of an object among those that declare the same host.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    /// Kubernetes' own services come first.
    pub(crate) is_kubernetes: bool,
    /// Time of creation, see [`ambit_k8s_api::created`].
    pub(crate) created: &'a str,
    /// Whether every namespace sees it.
    pub(crate) is_public: bool,
}

/// Kind of object in the mesh.
pub(crate) trait MeshKind: Followed {
    /// Input that an object is understood as, and all that is kept of it.
    type Input: Clone + fmt::Debug + PartialEq;

    /// Conditions that this control plane writes on objects of the kind.
    const CONDITIONS: &'static [ConditionType] = &[];

    /// Parts of objects of the kind that have conditions of their own.
    const PARTS: Option<PartsType> = None;

    /// Reads an object. One that cannot be used as it is written is refused as a whole.
    fn read(&self, config: &MeshConfig) -> Result<Read<Self::Input>, FieldError>;

    /// Input for an object that cannot be used and of which no usable form is known, because it was written like that
    /// or because it was usable before this process began. Of a policy this is the refusal of everything in its scope.
    fn substitute(&self, _config: &MeshConfig) -> Option<Self::Input> {
        None
    }

    /// Readable part of an object that cannot be read as a whole, for [`MeshKind::substitute`].
    fn readable_part(_metadata: ObjectMeta, _spec: Option<&Value>) -> Option<Self> {
        None
    }

    /// Puts parts of an object's last form in the place of those of a new form that cannot be used.
    fn inherit(_new: &mut Self::Input, _old: &Self::Input) {}

    /// Marks what depends on an object: what is to be rendered anew.
    fn changed(index: &mut Index, change: &Change<'_, Self::Input>, pods: &mut PodDirectory);

    /// The records that an object makes by itself.
    fn render(_view: &MeshView, _key: &ObjectKey, _input: &Self::Input) -> Rendered {
        Rendered::default()
    }

    /// Whether and how an object competes for a host that it declared with [`Index::declare`].
    fn claim<'a>(_view: &MeshView, _input: &'a Self::Input, _host: &ArcStr) -> Option<Claim<'a>> {
        None
    }

    /// The record that an object makes of a host.
    fn service(_view: &MeshView, _input: &Self::Input, _host: &ArcStr) -> Option<ServiceRecord> {
        None
    }

    /// State of an object that depends on others. `None`: the kind has none.
    fn standing(_view: &MeshView, _key: &ObjectKey, _input: &Self::Input) -> Option<Standing> {
        None
    }

    /// Whether anything of a policy is in force.
    fn is_in_force(_input: &Self::Input) -> bool {
        false
    }

    /// Whether an object is attached to others, of which waypoints take care.
    fn is_attached(&self) -> bool {
        false
    }
}

/// A field, if it is there and can be read.
pub(crate) fn field<T: DeserializeOwned>(of: Option<&Value>, name: &str) -> Option<T> {
    of?.get(name).and_then(|value| T::deserialize(value).ok())
}
