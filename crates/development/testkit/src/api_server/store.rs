//! Stored objects, their versions, and the history of changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    change::{Change, ChangeKind},
    path::RequestTarget,
};

/// Path of the collection of CRDs.
const CRD_COLLECTION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

type ApiFailure = (u16, &'static str);

#[derive(Debug, Default)]
pub(super) struct Store {
    version: u64,
    /// Version up to which the history of changes was dropped.
    compacted_version: u64,
    next_uid: u64,
    objects: BTreeMap<String, BTreeMap<(String, String), Arc<Value>>>,
    /// Served kinds by the path of their collection. The first stored object of a kind adds the kind.
    kinds: BTreeMap<String, String>,
    history: Vec<Change>,
}

impl Store {
    pub(super) fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.get(collection)?.get(&key)
    }

    /// Returns the object that the target names. For a CRD of a served kind, this is a generated one unless a CRD was
    /// stored.
    pub(super) fn find(&self, target: &RequestTarget) -> Option<Arc<Value>> {
        let put = self.get(&target.collection, &target.namespace, target.name());
        put.cloned().or_else(|| {
            let defines = target.collection == CRD_COLLECTION;
            defines.then(|| self.crd(target.name())).flatten()
        })
    }

    fn crd(&self, name: &str) -> Option<Arc<Value>> {
        let (plural, group) = name.split_once('.')?;
        let kinds = self.kinds().into_iter();
        let versions: Vec<_> = kinds
            .filter_map(|(collection, _)| {
                let path = collection.strip_prefix("/apis/")?.strip_suffix(plural)?;
                let version = path.strip_prefix(group)?.trim_matches('/');
                Some(json!({"name": version, "served": true}))
            })
            .collect();
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition", "metadata": {"name": name},
            "spec": {"group": group, "names": {"plural": plural}, "versions": versions}});
        (!versions.is_empty()).then(|| definition.into())
    }

    pub(super) fn list(&self, collection: &str) -> Vec<Value> {
        let objects = self.objects.get(collection).into_iter();
        objects
            .flat_map(BTreeMap::values)
            .map(|object| Value::clone(object))
            .collect()
    }

    /// Returns one page of a list. All pages have the version of the first: a watch from that version misses no change
    /// in between.
    pub(super) fn list_page(&self, target: &RequestTarget) -> Value {
        let (version, after) = match &target.continuation {
            Some((version, after)) => (*version, Bound::Excluded(after.clone())),
            None => (self.version, Bound::Unbounded),
        };
        let mut items = Vec::new();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        let of_kind = self.objects.get(&target.collection).into_iter();
        let mut last: Option<&(String, String)> = None;
        for (key, object) in of_kind.flat_map(|all| all.range((after.clone(), Bound::Unbounded))) {
            if !target.matches(object) {
                continue;
            }
            if let (true, Some((namespace, name))) = (items.len() == target.limit, last) {
                metadata["continue"] = format!("{version}/{namespace}/{name}").into();
                break;
            }
            items.push(target.visible_part(object));
            last = Some(key);
        }
        json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items})
    }

    /// Starts serving the kind, with or without objects.
    pub(super) fn add_kind(&mut self, collection: &str, kind: &str) {
        self.kinds.insert(collection.to_owned(), kind.to_owned());
    }

    /// Returns the discovery document at a path: the groups, or the kinds of one version of a group; `None` if there
    /// are none.
    pub(super) fn discovery(&self, path: &str) -> Option<Value> {
        match path.trim_end_matches('/') {
            "/api" => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
            "/apis" => Some(self.groups()),
            version => self.resources(version),
        }
    }

    /// Returns every served kind with its collection's path.
    fn kinds(&self) -> BTreeSet<(&str, &str)> {
        let with_objects = self.objects.iter().filter_map(|(collection, of_kind)| {
            let kind = of_kind.values().next()?["kind"].as_str()?;
            Some((collection.as_str(), kind))
        });
        let declared = self.kinds.iter();
        let declared = declared.map(|(collection, kind)| (collection.as_str(), kind.as_str()));
        with_objects.chain(declared).collect()
    }

    fn groups(&self) -> Value {
        let mut groups = BTreeMap::<&str, BTreeSet<&str>>::new();
        for (collection, _) in self.kinds() {
            let mut parts = collection.trim_start_matches('/').split('/');
            if let (Some("apis"), Some(group), Some(version)) =
                (parts.next(), parts.next(), parts.next())
            {
                groups.entry(group).or_default().insert(version);
            }
        }
        let groups: Vec<_> = groups
            .into_iter()
            .map(|(group, versions)| {
                let versions: Vec<_> = versions
                    .into_iter()
                    .map(|version| {
                        json!({"groupVersion": format!("{group}/{version}"), "version": version})
                    })
                    .collect();
                json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
            })
            .collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    fn resources(&self, group_version: &str) -> Option<Value> {
        const VERBS: [&str; 7] = [
            "create", "delete", "get", "list", "patch", "update", "watch",
        ];
        let prefix = format!("{group_version}/");
        let resources: Vec<_> = self
            .kinds()
            .into_iter()
            .filter_map(|(collection, kind)| Some((collection.strip_prefix(&prefix)?, kind)))
            .filter(|(plural, _)| !plural.contains('/'))
            .map(|(plural, kind)| {
                json!({"name": plural, "singularName": kind.to_lowercase(), "kind": kind,
                    "namespaced": true, "verbs": VERBS})
            })
            .collect();
        let name = group_version.trim_start_matches("/apis/");
        let name = name.trim_start_matches("/api/");
        (!resources.is_empty()).then(|| {
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name,
                "resources": resources})
        })
    }

    pub(super) fn put(&mut self, collection: &str, mut object: Value) -> Change {
        let metadata = &mut object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let key = (text(&metadata["namespace"]), text(&metadata["name"]));
        assert!(!key.1.is_empty(), "an object without a name");
        self.version += 1;
        metadata["resourceVersion"] = self.version.to_string().into();
        let of_kind = self.objects.entry(collection.to_owned()).or_default();
        if metadata["uid"].is_null() {
            self.next_uid += 1;
            metadata["uid"] = match of_kind.get(&key) {
                Some(before) => before["metadata"]["uid"].clone(),
                None => format!("00000000-0000-4000-8000-{:012}", self.next_uid).into(),
            };
        }
        let object = Arc::new(object);
        let before = of_kind.insert(key, Arc::clone(&object));
        let change = Change {
            version: self.version,
            collection: collection.to_owned(),
            kind: match before {
                Some(_) => ChangeKind::Modified,
                None => ChangeKind::Added,
            },
            object,
        };
        self.history.push(change.clone());
        change
    }

    pub(super) fn delete(
        &mut self,
        collection: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Change> {
        let key = (namespace.to_owned(), name.to_owned());
        let object = self.objects.get_mut(collection)?.remove(&key)?;
        self.version += 1;
        let mut object = Arc::unwrap_or_clone(object);
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let change = Change {
            version: self.version,
            collection: collection.to_owned(),
            kind: ChangeKind::Deleted,
            object: Arc::new(object),
        };
        self.history.push(change.clone());
        Some(change)
    }

    pub(super) fn create(
        &mut self,
        target: &RequestTarget,
        mut object: Value,
    ) -> Result<Change, ApiFailure> {
        let metadata = &mut object["metadata"];
        if metadata["name"].is_null() {
            let prefix = metadata["generateName"].as_str().unwrap_or_default();
            metadata["name"] = format!("{prefix}{}", self.version + 1).into();
        }
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        if !target.namespace.is_empty() {
            metadata["namespace"] = target.namespace.clone().into();
        }
        if self
            .get(&target.collection, &target.namespace, &name)
            .is_some()
        {
            return Err((409, "AlreadyExists"));
        }
        Ok(self.put(&target.collection, object))
    }

    pub(super) fn replace(
        &mut self,
        target: &RequestTarget,
        object: Value,
    ) -> Result<Change, ApiFailure> {
        let current = self
            .get(&target.collection, &target.namespace, target.name())
            .ok_or((404, "NotFound"))?;
        let given = &object["metadata"]["resourceVersion"];
        if !given.is_null() && *given != current["metadata"]["resourceVersion"] {
            return Err((409, "Conflict"));
        }
        Ok(self.put(&target.collection, object))
    }

    /// Applies a merge patch; with `apply`, a missing object is created, and conditions are merged by type.
    pub(super) fn patch(
        &mut self,
        target: &RequestTarget,
        patch: Value,
        apply: bool,
    ) -> Result<Change, ApiFailure> {
        let current = self.get(&target.collection, &target.namespace, target.name());
        let mut object = match current.cloned() {
            Some(current) => {
                for field in ["uid", "resourceVersion"] {
                    let expected = &patch["metadata"][field];
                    if !expected.is_null() && *expected != current["metadata"][field] {
                        return Err((409, "Conflict"));
                    }
                }
                Arc::unwrap_or_clone(current)
            }
            None if apply => json!({}),
            None => return Err((404, "NotFound")),
        };
        let conditions = apply.then(|| merged_conditions(&object, &patch)).flatten();
        json_patch::merge(&mut object, &patch);
        if let Some(conditions) = conditions {
            object["status"]["conditions"] = conditions;
        }
        Ok(self.put(&target.collection, object))
    }

    /// Returns the changes since a version; `None` if the history since then was dropped. A version in the future has
    /// no changes.
    pub(super) fn changes_since(&self, version: u64) -> Option<Vec<Change>> {
        (version >= self.compacted_version).then(|| {
            let later = self.history.iter().filter(|of| of.version > version);
            later.cloned().collect()
        })
    }

    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.compacted_version = self.version;
        self.history.clear();
    }

    pub(super) fn restart_versions(&mut self) {
        self.version = 0;
        self.compacted_version = 0;
        self.history.clear();
    }
}

/// Merges the status conditions of an object with those of a patch, if both have some.
fn merged_conditions(object: &Value, patch: &Value) -> Option<Value> {
    let conditions = |of: &Value| of.pointer("/status/conditions")?.as_array().cloned();
    let (mut merged, new) = (conditions(object)?, conditions(patch)?);
    for condition in new {
        match merged
            .iter_mut()
            .find(|one| one["type"] == condition["type"])
        {
            Some(one) => *one = condition,
            None => merged.push(condition),
        }
    }
    Some(merged.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &str = "/api/v1/pods";

    fn store() -> Store {
        let mut store = Store::default();
        for (name, app) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x")] {
            let labels = json!({"app": app});
            let metadata = json!({"namespace": "ns", "name": name, "labels": labels});
            store.put(PODS, json!({"kind": "Pod", "metadata": metadata}));
        }
        store
    }

    fn target(query: &str) -> RequestTarget {
        RequestTarget::parse(&format!("{PODS}?{query}").parse().unwrap(), false).unwrap()
    }

    fn names(list: &Value) -> Vec<&str> {
        let items = list["items"].as_array().unwrap();
        items
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn list_pages_share_a_version_and_no_object_repeats() {
        let mut store = store();
        let first = store.list_page(&target("limit=2&labelSelector=app%3Dx"));
        assert_eq!(names(&first), ["a", "c"]);
        store.delete(PODS, "ns", "a");
        let next = first["metadata"]["continue"].as_str().unwrap();
        let rest = store.list_page(&target(&format!(
            "limit=2&labelSelector=app%3Dx&continue={next}"
        )));
        assert_eq!(names(&rest), ["d"]);
        assert!(rest["metadata"]["continue"].is_null());
        let version = |list: &Value| list["metadata"]["resourceVersion"].clone();
        assert_eq!(version(&first), version(&rest));
        let since = store.changes_since(version(&rest).as_str().unwrap().parse().unwrap());
        assert_eq!(
            since.unwrap().len(),
            1,
            "the deletion in between is not missed"
        );
    }

    #[test]
    fn selectors_support_equality_inequality_and_existence() {
        let store = store();
        for (selector, found) in [
            ("app%3D%3Dx", "acd"),
            ("app!%3Dx", "b"),
            ("app", "abcd"),
            ("!app", ""),
            ("app,app!%3Dy", "acd"),
        ] {
            let list = store.list_page(&target(&format!("labelSelector={selector}")));
            assert_eq!(names(&list).concat(), found, "{selector}");
        }
        let list = store.list_page(&target("fieldSelector=metadata.name%3Db"));
        assert_eq!(names(&list), ["b"]);
    }

    #[test]
    fn discovery_lists_declared_and_used_kinds() {
        let mut store = store();
        store.add_kind("/apis/a.io/v1/things", "Thing");
        let kinds = |store: &Store, group: &str| {
            let list = store.discovery(group)?;
            assert_eq!(list["kind"], "APIResourceList");
            Some(list["resources"][0]["kind"].as_str()?.to_owned())
        };
        assert_eq!(kinds(&store, "/api/v1").as_deref(), Some("Pod"));
        assert_eq!(kinds(&store, "/apis/a.io/v1").as_deref(), Some("Thing"));
        assert_eq!(kinds(&store, "/apis/a.io/v2"), None);
        let groups = store.discovery("/apis").unwrap();
        assert_eq!(groups["groups"][0]["name"], "a.io");
        assert_eq!(groups["groups"][0]["versions"][0]["version"], "v1");
    }
}
