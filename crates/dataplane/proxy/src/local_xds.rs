//! Workloads, services and policies from a file or a variable (`LOCAL_XDS_PATH`, `LOCAL_XDS`).
//!
//! The format is that of Istio's ztunnel. Unknown fields are errors that name line and column, except in policies: a
//! policy that is not understood in full is treated as if it came from the control plane, see
//! [`InvalidPolicyMode`]. The file is watched: each change is applied as the difference to its previous content,
//! and an unreadable file changes nothing.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ambit_mesh_json::Json;
use ambit_model::{ArcStr, Authorization, PolicyKey, Scope, Service, Workload};
use serde::Deserialize;
use serde_json::Value;

use crate::state::{InvalidPolicyMode, MeshUpdate, SharedState};

/// Interval at which the local mesh file is checked for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Content of a local mesh file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalMesh {
    /// Workloads in the format of `/config_dump`; `services` may also map names to ports.
    #[serde(deserialize_with = "ambit_mesh_json::deserialize_json_list")]
    pub workloads: Vec<Workload>,
    /// Services in the format of `/config_dump`, without endpoints.
    #[serde(deserialize_with = "ambit_mesh_json::deserialize_json_list")]
    pub services: Vec<Service>,
    /// Policies in the format of `/config_dump`.
    #[serde(deserialize_with = "ambit_mesh_json::deserialize_json_list")]
    pub policies: Vec<Authorization>,
}

/// Local mesh file whose policies may have unknown fields.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LenientLocalMesh {
    #[serde(deserialize_with = "ambit_mesh_json::deserialize_json_list")]
    workloads: Vec<Workload>,
    #[serde(deserialize_with = "ambit_mesh_json::deserialize_json_list")]
    services: Vec<Service>,
    policies: Vec<Value>,
}

impl LocalMesh {
    fn read(text: &str) -> Result<Self, Box<serde_saphyr::Error>> {
        let error = match serde_saphyr::from_str::<Self>(text) {
            Ok(mut mesh) => {
                for policy in &mut mesh.policies {
                    if policy.has_empty_clause() {
                        let (key, scope, dry_run) = (policy.key(), policy.scope, policy.dry_run);
                        *policy = fail_closed_substitute(
                            key,
                            scope,
                            dry_run,
                            "a clause without matches".into(),
                        );
                    }
                }
                return Ok(mesh);
            }
            Err(error) => error,
        };
        // Without their types, names such as `no` must stay texts.
        let options = serde_saphyr::options! { strict_booleans: true };
        let Ok(odd) = serde_saphyr::from_str_with_options::<LenientLocalMesh>(text, options) else {
            return Err(Box::new(error));
        };
        Ok(Self {
            workloads: odd.workloads,
            services: odd.services,
            policies: odd.policies.into_iter().map(parse_policy).collect(),
        })
    }
}

/// Parses a policy; returns a fail-closed substitute if the policy cannot be decoded in full.
fn parse_policy(from: Value) -> Authorization {
    let text = |field: &str| match from.get(field) {
        None | Some(Value::Null) => ArcStr::new(),
        Some(Value::String(text)) => text.into(),
        Some(other) => other.to_string().into(),
    };
    let key = PolicyKey {
        namespace: text("namespace"),
        name: text("name"),
    };
    // Where the scope cannot be read it is the policy's namespace, and without one the mesh.
    let declared = match from.get("scope") {
        None => Scope::default(),
        Some(scope) => Json::deserialize(scope).map_or(Scope::Namespace, |Json(scope)| scope),
    };
    let scope = match declared {
        Scope::Namespace if key.namespace.is_empty() => Scope::Global,
        scope => scope,
    };
    let dry_run = from.get("dryRun").and_then(Value::as_bool) == Some(true);
    match Json::<Authorization>::deserialize(from) {
        Ok(Json(policy)) if policy.has_empty_clause() => {
            fail_closed_substitute(key, scope, dry_run, "a clause without matches".into())
        }
        Ok(Json(policy)) => policy,
        Err(error) => fail_closed_substitute(key, scope, dry_run, error.to_string().into()),
    }
}

fn fail_closed_substitute(
    key: PolicyKey,
    scope: Scope,
    dry_run: bool,
    why: ArcStr,
) -> Authorization {
    tracing::error!(policy = %key, ?scope, dry_run, error = %why, "policy not understood");
    Authorization::substitute(key, scope, dry_run, why)
}

/// Error of reading a local mesh file.
#[derive(Debug, thiserror::Error)]
pub enum LocalMeshError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of reading the file.
        #[source]
        source: io::Error,
    },
    /// The file is malformed; the error's text has line and column.
    #[error("not a local mesh: {0}")]
    Parse(#[source] Box<serde_saphyr::Error>),
    /// A record lacks a required name.
    #[error("{list}[{index}] has no {field}")]
    MissingName {
        /// Name of the list that contains the record.
        list: &'static str,
        /// Index of the record in the list, counted from 0.
        index: usize,
        /// Name of the missing field.
        field: &'static str,
    },
}

/// Parses the content of a local mesh file or of `LOCAL_XDS`.
pub fn parse(text: &str) -> Result<LocalMesh, LocalMeshError> {
    let mut mesh = LocalMesh::read(text).map_err(LocalMeshError::Parse)?;
    let nameless = |list, index, field| Err(LocalMeshError::MissingName { list, index, field });
    if let Some(index) = mesh
        .workloads
        .iter()
        .position(|workload| workload.uid.is_empty())
    {
        return nameless("workloads", index, "uid");
    }
    if let Some(index) = mesh
        .services
        .iter()
        .position(|service| service.hostname.is_empty())
    {
        return nameless("services", index, "hostname");
    }
    if let Some(index) = mesh
        .policies
        .iter()
        .position(|policy| policy.name.is_empty())
    {
        return nameless("policies", index, "name");
    }
    for workload in &mut mesh.workloads {
        for ip in &mut workload.workload_ips {
            *ip = ambit_model::canonical_ip(*ip);
        }
    }
    Ok(mesh)
}

/// Reads and parses a local mesh file.
pub fn read(path: &Path) -> Result<LocalMesh, LocalMeshError> {
    let text = fs::read_to_string(path).map_err(|source| LocalMeshError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text)
}

impl LocalMesh {
    /// Adds all records to the mesh state.
    pub fn apply_to(&self, state: &SharedState) {
        self.replace_previous(&Self::default(), state);
        state.mark_addresses_known();
        state.mark_policies_known();
    }

    /// Adds all records to the mesh state, and removes the ones that only `before` had.
    pub fn replace_previous(&self, before: &Self, state: &SharedState) {
        let mut updates: Vec<MeshUpdate> = Vec::new();
        let in_force = |policy: &&Authorization| {
            policy.not_understood.is_none()
                || state.config().invalid_policies == InvalidPolicyMode::Deny
        };
        let policies = self.policies.iter().filter(in_force).cloned();
        updates.extend(policies.map(MeshUpdate::Policy));
        updates.extend(
            self.services
                .iter()
                .cloned()
                .map(|one| MeshUpdate::Service(Box::new(one))),
        );
        updates.extend(
            self.workloads
                .iter()
                .cloned()
                .map(|one| MeshUpdate::Workload(Box::new(one))),
        );
        let (addresses, policies) = self.record_names();
        let (old_addresses, old_policies) = before.record_names();
        updates.extend(
            old_addresses
                .difference(&addresses)
                .cloned()
                .map(MeshUpdate::AddressRemoved),
        );
        updates.extend(
            old_policies
                .difference(&policies)
                .cloned()
                .map(MeshUpdate::PolicyRemoved),
        );
        state.apply(&mut updates);
    }

    fn record_names(&self) -> (BTreeSet<ArcStr>, BTreeSet<ArcStr>) {
        let workloads = self.workloads.iter().map(|workload| workload.uid.clone());
        let services = self
            .services
            .iter()
            .map(|one| one.namespaced_hostname().to_string().into());
        let policies = self
            .policies
            .iter()
            .map(|policy| policy.key().to_string().into());
        (workloads.chain(services).collect(), policies.collect())
    }
}

/// Watches a local mesh file, and applies its changes until the task is dropped. `current` is the content that was
/// applied at the start.
pub async fn watch_mesh_file(path: PathBuf, mut current: LocalMesh, state: SharedState) {
    let mut seen = modification_stamp(&path);
    let mut look = tokio::time::interval(FILE_CHECK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let now = modification_stamp(&path);
        if now == seen {
            continue;
        }
        seen = now;
        match read(&path) {
            Ok(mesh) => {
                mesh.replace_previous(&current, &state);
                current = mesh;
                tracing::info!(path = %path.display(), "local mesh reloaded");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(path = %path.display(), error, "local mesh not reloaded");
            }
        }
    }
}

fn modification_stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateConfig;

    #[test]
    fn the_documented_example_is_read() {
        let mesh = parse(
            r#"
workloads:
- {uid: c1//Pod/default/a, name: a, namespace: default, serviceAccount: default, workloadIps: [127.0.0.1], protocol: HBONE, node: local, network: "", services: {"default/example.com": {80: 8080}}}
services:
- {name: a, namespace: default, hostname: example.com, vips: [/127.10.0.1], ports: {80: 8080}, canonical: true}
policies:
- {name: p, namespace: default, scope: Namespace, action: Allow, dryRun: false, rules: [[[{notDestinationPorts: [9999]}]]]}
"#,
        )
        .unwrap();
        let ports = mesh.workloads[0].services.values().next().unwrap();
        assert_eq!(ports[&80], 8080);
        assert_eq!(mesh.services[0].ports[&80], 8080);
        assert_eq!(
            mesh.policies[0].rules[0][0][0].not_destination_ports,
            [9999]
        );
    }

    #[test]
    fn policy_not_understood_denies_its_scope_until_it_is_corrected() {
        const VALID_POLICY: &str = "policies: [{namespace: n, name: p, scope: Namespace, rules: [[[{notDestinationPorts: [1]}]]]}]";
        let odd = |policy: &str| parse(&format!("policies: [{policy}]")).unwrap();
        for (policy, scope) in [
            (
                "{namespace: n, name: p, scope: Namespace, colour: red}",
                Scope::Namespace,
            ),
            ("{namespace: n, name: p, scope: Galaxy}", Scope::Namespace),
            ("{namespace: n, name: p, rules: [[[]]]}", Scope::Global),
            ("{name: p, scope: Galaxy}", Scope::Global),
            (
                "{namespace: n, name: p, scope: WorkloadSelector, rules: [[[{sourceIps: [1.2.3]}]]]}",
                Scope::WorkloadSelector,
            ),
        ] {
            let read = &odd(policy).policies[0];
            assert!(read.not_understood.is_some(), "{policy}");
            assert_eq!(
                (read.scope, &read.rules[..]),
                (scope, &[vec![]][..]),
                "{policy}"
            );
        }
        let dry = odd("{namespace: n, name: p, dryRun: true, colour: red}");
        assert!(dry.policies[0].dry_run);

        let odd = odd("{namespace: n, name: p, scope: Namespace, colour: red}");
        let good = parse(VALID_POLICY).unwrap();
        let now = |state: &SharedState| state.policies().by_name("n/p").cloned();
        let state = SharedState::new(StateConfig::default());
        good.apply_to(&state);
        odd.replace_previous(&good, &state);
        assert_eq!(state.policies().invalid_policies(), 1);
        good.replace_previous(&odd, &state);
        assert_eq!(*now(&state).unwrap(), good.policies[0]);
        LocalMesh::default().replace_previous(&good, &state);
        assert_eq!(now(&state), None);

        let state = SharedState::new(StateConfig {
            invalid_policies: InvalidPolicyMode::KeepLastGood,
            ..StateConfig::default()
        });
        good.apply_to(&state);
        odd.replace_previous(&good, &state);
        assert_eq!(*now(&state).unwrap(), good.policies[0]);
        LocalMesh::default().replace_previous(&odd, &state);
        assert_eq!(now(&state), None);
    }

    #[test]
    fn an_empty_text_is_an_empty_mesh() {
        assert_eq!(parse("{}").unwrap(), LocalMesh::default());
        assert_eq!(parse("").unwrap(), LocalMesh::default());
    }

    #[test]
    fn unknown_fields_are_rejected_with_their_path() {
        let error = parse("workloads:\n- uid: a\n  colour: red\n")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("colour") && error.contains("line 3"),
            "{error}"
        );
    }

    #[test]
    fn an_entry_without_its_name_is_refused() {
        let error = parse("services:\n- {hostname: a}\n- {name: b}\n")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "services[1] has no hostname");
    }

    #[test]
    fn changed_file_removes_what_it_no_longer_has() {
        let state = SharedState::new(StateConfig::default());
        let first = parse(
            "workloads: [{uid: a}, {uid: b}]\nservices: [{namespace: n, hostname: h}]\n\
             policies: [{namespace: n, name: p}]",
        )
        .unwrap();
        first.apply_to(&state);
        parse("workloads: [{uid: b, name: changed}]")
            .unwrap()
            .replace_previous(&first, &state);
        let table = state.table();
        let uids: Vec<_> = table
            .workloads()
            .map(|workload| workload.uid().to_string())
            .collect();
        assert_eq!(uids, ["b"]);
        assert_eq!(table.workload("b").unwrap().name(), "changed");
        assert_eq!(table.services().count(), 0);
        assert!(state.policies().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_followed_file_is_reloaded_and_a_broken_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mesh.yaml");
        fs::write(&path, "workloads: [{uid: a}]").unwrap();
        let state = SharedState::new(StateConfig::default());
        let mesh = read(&path).unwrap();
        mesh.apply_to(&state);
        let mut changes = state.watch_local();
        let following = tokio::spawn(watch_mesh_file(path.clone(), mesh, state.clone()));
        tokio::task::yield_now().await;

        fs::write(&path, "workloads: [{uid: a, colour: red}]").unwrap();
        tokio::time::advance(FILE_CHECK_INTERVAL * 2).await;
        tokio::task::yield_now().await;
        assert!(state.table().workload("a").is_some());

        fs::write(&path, "workloads: [{uid: something-else}]").unwrap();
        changes.changed().await.unwrap();
        assert!(state.table().workload("something-else").is_some());
        assert!(state.table().workload("a").is_none());
        following.abort();
    }
}
