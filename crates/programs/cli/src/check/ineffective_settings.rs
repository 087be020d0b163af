//! Objects and fields of Istio that have no effect in Ambit: one finding for all objects of a kind with the same
//! problem.

use std::collections::BTreeMap;

use super::finding::{Finding, FindingLevel};
use crate::istio::{self, Effect, Mesh, Outcome};

/// Returns findings on Istio's objects and fields that lapse with Ambit, and on kinds that could not be read.
pub(super) fn findings(mesh: &Mesh) -> Vec<Finding> {
    let mut alike: BTreeMap<(String, String, String), Vec<Effect>> = BTreeMap::new();
    let lapsing = istio::effects(mesh).into_iter();
    for effect in lapsing.filter(|one| one.outcome == Outcome::Lapses) {
        let kind = effect.object.split(' ').next().unwrap_or_default();
        let key = (kind.to_owned(), effect.field.clone(), effect.effect.clone());
        alike.entry(key).or_default().push(effect);
    }
    let effects = alike
        .into_values()
        .filter_map(|effects| merge_alike(&effects));
    let unreadable = mesh.unreadable.iter().map(|what| {
        let advice = "use an account that may read it";
        Finding::new(FindingLevel::Warning, "cluster", what, advice)
    });
    effects.chain(unreadable).collect()
}

fn merge_alike(effects: &[Effect]) -> Option<Finding> {
    let (first, others) = effects.split_first()?;
    let about = match others.len() {
        0 => first.object.clone(),
        count => format!("{} and {count} more", first.object),
    };
    let finding = match first.field.as_str() {
        "." => first.effect.clone(),
        field => format!("{field}: {}", first.effect),
    };
    let is_for_all = others.iter().all(|other| other.advice == first.advice);
    let advice = match is_for_all {
        true => first.advice.as_str(),
        false => "`ambit check --from istio` has advice for each",
    };
    Some(Finding::new(FindingLevel::Warning, about, finding, advice))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_that_lapse_alike_are_one_finding() {
        let object = |kind: &str, name: &str| {
            let metadata = json!({"name": name, "namespace": "books"});
            let spec = json!({"hosts": ["reviews"], "tcp": []});
            let object = json!({
                "apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec,
            });
            (object, None)
        };
        let mesh = Mesh {
            objects: vec![
                object("Sidecar", "a"),
                object("Sidecar", "b"),
                object("Sidecar", "c"),
                object("VirtualService", "d"),
            ],
            unreadable: vec!["Pod: no permission for the verb list; not checked".to_owned()],
            ..Mesh::default()
        };
        let found = findings(&mesh);
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.level, one.about.as_str(), one.finding.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (
                    FindingLevel::Warning,
                    "Sidecar books/a and 2 more",
                    "objects of this kind have no effect"
                ),
                (
                    FindingLevel::Warning,
                    "VirtualService books/d",
                    "spec.tcp: has no effect: of a VirtualService waypoints follow the rules for HTTP; use TCPRoute or \
                     TLSRoute"
                ),
                (
                    FindingLevel::Warning,
                    "VirtualService books/d",
                    "status.conditions[ambit.io/Used]: there are no rules for HTTP: it has no effect"
                ),
                (
                    FindingLevel::Warning,
                    "cluster",
                    "Pod: no permission for the verb list; not checked"
                ),
            ]
        );
    }
}
