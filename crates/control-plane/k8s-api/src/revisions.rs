//! Revisions of control planes in one mesh, and the tags that name them. Pure.
//!
//! The label `istio.io/rev` of a Gateway, or else of its namespace, names a revision or a tag. The
//! Services of control planes are the directory: each has the label `istio.io/rev`, and one for a
//! tag also has `istio.io/tag`. All control planes read the same Services, so that exactly one
//! revision manages a Gateway.

use std::collections::BTreeMap;

use crate::labels;

/// Revision of Gateways that name none.
pub const DEFAULT_REVISION: &str = "default";

/// Returns the suffix of names of a revision's own objects, such as `-canary`; empty for the
/// default revision.
pub fn name_suffix(revision: &str) -> String {
    match revision {
        DEFAULT_REVISION => String::new(),
        other => format!("-{other}"),
    }
}

/// Revision and tag of a control plane, from the labels of its Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlane {
    revision: String,
    tag: Option<String>,
}

impl ControlPlane {
    /// Parses the labels of a Service; `None` if it does not belong to a control plane of Ambit.
    pub fn from_labels(labels: Option<&BTreeMap<String, String>>) -> Option<Self> {
        let label = |name: &str| labels?.get(name).filter(|value| !value.is_empty());
        let is_ours = label("app").is_some_and(|app| app == "istiod")
            && label(labels::PART_OF).is_some_and(|of| of == "ambit");
        is_ours.then_some(Self {
            revision: label(labels::REVISION)?.clone(),
            tag: label(labels::TAG).cloned(),
        })
    }
}

/// Revisions of the mesh's control planes, as one of them knows them.
#[derive(Clone, Debug)]
pub struct Revisions {
    own_revision: Box<str>,
    /// Control planes by the name of their Service. If several have the same tag, it belongs to the first by name.
    services: BTreeMap<Box<str>, ControlPlane>,
}

impl Revisions {
    /// Creates the directory of a mesh that only has the control plane of the revision `own_revision`.
    pub fn new(own_revision: &str) -> Self {
        Self {
            own_revision: own_revision.into(),
            services: BTreeMap::new(),
        }
    }

    /// Updates the control plane of a Service in the root namespace. Returns whether anything changed.
    pub fn set_control_plane(
        &mut self,
        service: &str,
        control_plane: Option<ControlPlane>,
    ) -> bool {
        let before = match control_plane.clone() {
            Some(of) => self.services.insert(service.into(), of),
            None => self.services.remove(service),
        };
        before != control_plane
    }

    /// Returns the revision of an object, by the labels of the object and of its namespace.
    pub fn revision_of<'a>(
        &'a self,
        object: Option<&'a str>,
        namespace: Option<&'a str>,
    ) -> &'a str {
        let mut named = [object, namespace].into_iter().flatten();
        let name = named
            .find(|name| !name.is_empty())
            .unwrap_or(DEFAULT_REVISION);
        let mut services = self.services.values();
        let tag = services.find(|one| one.tag.as_deref() == Some(name));
        tag.map_or(name, |tag| tag.revision.as_str())
    }

    /// Returns whether this control plane manages an object.
    pub fn is_own_revision(&self, object: Option<&str>, namespace: Option<&str>) -> bool {
        self.revision_of(object, namespace) == &*self.own_revision
    }

    /// Returns whether any control plane of this mesh manages an object, rather than another implementation.
    pub fn is_managed_by_mesh(&self, object: Option<&str>, namespace: Option<&str>) -> bool {
        let revision = self.revision_of(object, namespace);
        let mut services = self.services.values();
        revision == &*self.own_revision || services.any(|one| one.revision == revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(revision: &str, tag: Option<&str>) -> Option<ControlPlane> {
        let mut all = BTreeMap::from([
            ("app".to_owned(), "istiod".to_owned()),
            (labels::PART_OF.to_owned(), "ambit".to_owned()),
            (labels::REVISION.to_owned(), revision.to_owned()),
        ]);
        all.extend(tag.map(|tag| (labels::TAG.to_owned(), tag.to_owned())));
        ControlPlane::from_labels(Some(&all))
    }

    #[test]
    fn own_label_precedes_the_namespace_and_the_default() {
        let revisions = Revisions::new("canary");
        for (object, namespace, revision) in [
            (None, None, DEFAULT_REVISION),
            (None, Some("canary"), "canary"),
            (Some("stable"), Some("canary"), "stable"),
            (Some(""), Some("canary"), "canary"),
            (Some(""), None, DEFAULT_REVISION),
        ] {
            assert_eq!(revisions.revision_of(object, namespace), revision);
            assert_eq!(
                revisions.is_own_revision(object, namespace),
                revision == "canary",
                "{object:?} {namespace:?}"
            );
        }
    }

    #[test]
    fn every_control_plane_resolves_a_tag_to_the_same_revision() {
        let mut first = Revisions::new(DEFAULT_REVISION);
        let mut second = Revisions::new("canary");
        for (tagged, named, owner) in [
            (None, "stable", None),
            (Some(("stable", "canary")), "stable", Some("canary")),
            (
                Some(("stable", "default")),
                "stable",
                Some(DEFAULT_REVISION),
            ),
            // The revision with the tag `default` is the default one.
            (Some(("default", "canary")), "", Some("canary")),
            (None, "", Some(DEFAULT_REVISION)),
        ] {
            let of_tag = tagged.and_then(|(tag, revision)| service(revision, Some(tag)));
            for revisions in [&mut first, &mut second] {
                revisions.set_control_plane("istiod-revision-tag-x", of_tag.clone());
            }
            let owners = [(&first, DEFAULT_REVISION), (&second, "canary")];
            let owners = owners
                .into_iter()
                .filter(|(one, _)| one.is_own_revision(Some(named), None));
            let owners: Vec<_> = owners.map(|(_, name)| name).collect();
            assert_eq!(owners, owner.into_iter().collect::<Vec<_>>(), "{tagged:?}");
        }
    }

    #[test]
    fn control_planes_are_found_by_their_services() {
        let mut revisions = Revisions::new(DEFAULT_REVISION);
        assert!(!revisions.is_managed_by_mesh(Some("canary"), None));
        assert!(revisions.set_control_plane("istiod-canary", service("canary", None)));
        assert!(!revisions.set_control_plane("istiod-canary", service("canary", None)));
        assert!(revisions.is_managed_by_mesh(Some("canary"), None));
        assert!(!revisions.is_own_revision(Some("canary"), None));
        assert!(revisions.set_control_plane("istiod-canary", None));
        assert!(!revisions.is_managed_by_mesh(None, Some("canary")));
        assert!(revisions.is_managed_by_mesh(None, None));
        // Istio's own control plane is not of the mesh.
        let foreign = BTreeMap::from([
            ("app".to_owned(), "istiod".to_owned()),
            (labels::REVISION.to_owned(), "canary".to_owned()),
        ]);
        assert_eq!(ControlPlane::from_labels(Some(&foreign)), None);
        assert_eq!(ControlPlane::from_labels(None), None);
    }
}
