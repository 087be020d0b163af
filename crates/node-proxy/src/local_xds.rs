//! `LOCAL_XDS_PATH` and `LOCAL_XDS`: workloads, services and policies from a file or a variable.
//!
//! Istio's node proxy format; unknown fields are refused with their place. A file is followed: each
//! change is applied as the difference to what the file said before, and one that cannot be read
//! leaves everything as it is.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use ambit_model::{ArcStr, Authorization, Service, Workload};
use serde::Deserialize;

use crate::state::{SharedState, Update};

/// How often a followed file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a file may say.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalMesh {
    /// As `/config_dump` prints them; `services` also as a map of name to ports.
    pub workloads: Vec<Workload>,
    /// As `/config_dump` prints them, without endpoints.
    pub services: Vec<Service>,
    /// As `/config_dump` prints them.
    pub policies: Vec<Authorization>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LocalMeshError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not what it should be; the text has line and column.
    #[error("not a local mesh: {0}")]
    Parse(#[source] Box<serde_saphyr::Error>),
    /// An entry lacks the name it is kept by.
    #[error("{list}[{index}] has no {field}")]
    Nameless {
        /// Which list.
        list: &'static str,
        /// Counted from 0.
        index: usize,
        /// What it lacks.
        field: &'static str,
    },
}

/// Reads the text of a file or of `LOCAL_XDS`.
pub fn parse(text: &str) -> Result<LocalMesh, LocalMeshError> {
    let mut mesh: LocalMesh =
        serde_saphyr::from_str(text).map_err(|source| LocalMeshError::Parse(Box::new(source)))?;
    let nameless = |list, index, field| Err(LocalMeshError::Nameless { list, index, field });
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

/// Reads a file.
pub fn read(path: &Path) -> Result<LocalMesh, LocalMeshError> {
    let text = fs::read_to_string(path).map_err(|source| LocalMeshError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text)
}

impl LocalMesh {
    /// Puts everything into the state.
    pub fn apply_to(&self, state: &SharedState) {
        self.replace(&Self::default(), state);
        state.mark_addresses_known();
        state.mark_policies_known();
    }

    /// Puts everything into the state that `before` also had, and takes out what it no longer says.
    pub fn replace(&self, before: &Self, state: &SharedState) {
        let mut updates: Vec<Update> = Vec::new();
        updates.extend(self.policies.iter().cloned().map(Update::Policy));
        updates.extend(
            self.services
                .iter()
                .cloned()
                .map(|one| Update::Service(Box::new(one))),
        );
        updates.extend(
            self.workloads
                .iter()
                .cloned()
                .map(|one| Update::Workload(Box::new(one))),
        );
        let (addresses, policies) = self.names();
        let (old_addresses, old_policies) = before.names();
        updates.extend(
            old_addresses
                .difference(&addresses)
                .cloned()
                .map(Update::AddressGone),
        );
        updates.extend(
            old_policies
                .difference(&policies)
                .cloned()
                .map(Update::PolicyGone),
        );
        state.apply(&mut updates);
    }

    fn names(&self) -> (BTreeSet<ArcStr>, BTreeSet<ArcStr>) {
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

/// Follows a file until the task is dropped. `current` is what was applied from it at the start.
pub async fn follow(path: PathBuf, mut current: LocalMesh, state: SharedState) {
    let mut seen = stamp(&path);
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let now = stamp(&path);
        if now == seen {
            continue;
        }
        seen = now;
        match read(&path) {
            Ok(mesh) => {
                mesh.replace(&current, &state);
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

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
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
    fn an_empty_text_is_an_empty_mesh() {
        assert_eq!(parse("{}").unwrap(), LocalMesh::default());
        assert_eq!(parse("").unwrap(), LocalMesh::default());
    }

    #[test]
    fn an_unknown_field_is_refused_with_its_place() {
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
    fn a_change_of_the_file_takes_out_what_it_no_longer_says() {
        let state = SharedState::new(StateConfig::default());
        let first = parse(
            "workloads: [{uid: a}, {uid: b}]\nservices: [{namespace: n, hostname: h}]\n\
             policies: [{namespace: n, name: p}]",
        )
        .unwrap();
        first.apply_to(&state);
        parse("workloads: [{uid: b, name: changed}]")
            .unwrap()
            .replace(&first, &state);
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
        let following = tokio::spawn(follow(path.clone(), mesh, state.clone()));
        tokio::task::yield_now().await;

        fs::write(&path, "workloads: [{uid: a, colour: red}]").unwrap();
        tokio::time::advance(LOOK_EVERY * 2).await;
        tokio::task::yield_now().await;
        assert!(state.table().workload("a").is_some());

        fs::write(&path, "workloads: [{uid: something-else}]").unwrap();
        changes.changed().await.unwrap();
        assert!(state.table().workload("something-else").is_some());
        assert!(state.table().workload("a").is_none());
        following.abort();
    }
}
