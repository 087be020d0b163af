//! Plans the content of the directory of network configurations, and the changes to reach it. Pure.
//!
//! Every pass compares the whole directory with its desired content, without a memory of earlier passes: Ambit's files
//! and entries are recognized by their content. So an agent that was replaced, killed or started in another mode
//! continues from any state.
//!
//! - *Owned*: one list of ours that sorts before the primary's file. Nobody else's file is touched.
//! - *Chained*: our entry last in the primary's list, in no other list. A primary in the old form (one
//!   plugin, no list) stays as it is: a list of ours that sorts before it holds a copy of it and our
//!   entry. Renaming it would break what looks for it.
//! - *Standalone*: one file of ours.

use std::time::Duration;

use ambit_cni_conf::{
    ConfFile, Network, PrimaryConf,
    directory::{self, FILE_SETTLE_TIME},
    edit,
};

use super::{action::FileAction, entry::PluginEntry, mode::InstallMode};

/// Time for which Ambit's configuration outlives the primary CNI's: some CNIs remove theirs while they restart, and new
/// pods then wait in the plugin. After that, Ambit's is removed, since it would make the node appear to have a network.
pub const GRACE_WITHOUT_PRIMARY: Duration = Duration::from_secs(30);

/// Names of Ambit's own configuration in order of preference: the first that sorts before the primary's is used.
const OWN_FILE_NAMES: [&str; 4] = [
    "02-ambit-cni.conflist",
    "00-ambit-cni.conflist",
    "0-ambit-cni.conflist",
    "!ambit-cni.conflist",
];

/// Name of Ambit's configuration file in standalone mode.
const STANDALONE_NAME: &str = "YYY-ambit-cni.conf";

/// Plugins that read the directory in which they are configured, so that with an owned configuration Ambit's plugin
/// would call itself.
const DIRECTORY_READING_PLUGINS: [&str; 3] = ["multus", "multus-shim", "genie"];

/// Desired content of the directory of network configurations.
#[derive(Clone, Debug)]
pub struct DesiredConfig {
    /// Mode in which the runtime calls the plugin.
    pub mode: InstallMode,
    /// Name of the file with the primary configuration; `None` selects the first usable file.
    pub primary: Option<String>,
    /// Preferred name of Ambit's own configuration file; must sort before the primary's.
    pub own_name: Option<String>,
    /// Permissions of Ambit's own configuration.
    pub file_mode: u32,
    /// Settings in the configuration of Ambit's plugin.
    pub entry: PluginEntry,
}

/// Planned changes of the directory of configurations, and the state of the installation after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallPlan {
    /// Changes of files, in the order to carry them out.
    pub actions: Vec<FileAction>,
    /// State of the installation after the changes.
    pub state: InstallState,
    /// Delay of the next check, if it is due before the regular one.
    pub next_check: Option<Duration>,
}

/// State of the installation: whether the runtime calls the plugin for pods that start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallState {
    /// The runtime calls the plugin for new pods.
    Installed {
        /// Mode in which the plugin is called, never `Auto`.
        mode: InstallMode,
        /// Name of the file that has the plugin: the primary's, or Ambit's own.
        file: String,
    },
    /// The runtime does not call the plugin yet, for this reason.
    Waiting(String),
    /// A file is still being written; the previous state of the installation remains valid.
    Settling,
}

/// Compares the directory's files with the desired content. `absent_for` is the time since a primary configuration last
/// existed.
pub fn plan(files: &[ConfFile], desired: &DesiredConfig, absent_for: Duration) -> InstallPlan {
    if desired.mode == InstallMode::Standalone {
        return plan_standalone(files, desired);
    }
    match directory::find_primary_conf(files, desired.primary.as_deref()) {
        PrimaryConf::Valid(file, network) => plan_with_primary(files, desired, file, &network),
        PrimaryConf::Settling(file, _) => InstallPlan {
            actions: Vec::new(),
            state: InstallState::Settling,
            next_check: Some(FILE_SETTLE_TIME.saturating_sub(file.age)),
        },
        PrimaryConf::Unreadable(file, error) => InstallPlan {
            actions: Vec::new(),
            state: InstallState::Waiting(format!(
                "{} cannot be read here, and the runtime may use it: {error}; put the file itself into the directory, or \
                 remove it",
                file.name
            )),
            next_check: None,
        },
        PrimaryConf::None => plan_without_primary(files, desired, absent_for),
    }
}

/// Returns the changes that remove Ambit's files and entries from the directory.
pub fn removal_actions(files: &[ConfFile]) -> Vec<FileAction> {
    cleanup_actions(files, None, None)
}

fn plan_with_primary(
    files: &[ConfFile],
    desired: &DesiredConfig,
    primary: &ConfFile,
    network: &Network,
) -> InstallPlan {
    let mode = match desired.mode {
        InstallMode::Auto if reads_directory(network) => InstallMode::Chained,
        InstallMode::Auto => InstallMode::Owned,
        mode => mode,
    };
    let waiting = |why: String| InstallPlan {
        actions: Vec::new(),
        state: InstallState::Waiting(why),
        next_check: None,
    };
    let text = primary.text.as_deref().unwrap_or_default();
    let unusable = |error: serde_json::Error| format!("{} cannot be used: {error}", primary.name);
    let installed = InstallState::Installed {
        mode,
        file: primary.name.clone(),
    };
    let in_list = mode == InstallMode::Chained && network.is_list;
    if in_list {
        let entry = desired.entry.chained_entry().to_string();
        return match edit::add_plugin_entry(text, &entry) {
            Ok(changed) => {
                let write = changed.map(|changed| write_action(primary, changed));
                let mut actions: Vec<_> = write.into_iter().collect();
                actions.extend(cleanup_actions(files, Some(&primary.name), None));
                InstallPlan {
                    actions,
                    state: installed,
                    next_check: None,
                }
            }
            Err(error) => waiting(unusable(error)),
        };
    }
    let own = if mode == InstallMode::Owned {
        let pinned = desired.primary.as_deref();
        desired
            .entry
            .owned_config(&primary.name, text, network, pinned)
    } else {
        desired.entry.to_plugin_list(&primary.name, text)
    };
    let own = match own {
        Ok(own) => own,
        Err(error) => return waiting(unusable(error)),
    };
    let Some(name) = own_name(files, desired, &primary.name) else {
        return waiting(format!(
            "no configuration of ours can come before {}: rename it, or choose the chained mode",
            primary.name
        ));
    };
    let mut actions = own_file_actions(files, &name, own);
    actions.extend(cleanup_actions(files, None, Some(&name)));
    InstallPlan {
        actions,
        state: installed,
        next_check: None,
    }
}

/// Plans for a directory without a primary configuration: Ambit's files stay for [`GRACE_WITHOUT_PRIMARY`], so that a
/// restart of the primary CNI is not mistaken for its removal.
fn plan_without_primary(
    files: &[ConfFile],
    desired: &DesiredConfig,
    absent_for: Duration,
) -> InstallPlan {
    let why = match &desired.primary {
        Some(name) => format!("there is no usable network configuration {name}"),
        None => "the primary CNI has not written a usable network configuration".to_owned(),
    };
    let actions = removal_actions(files);
    let left = GRACE_WITHOUT_PRIMARY.saturating_sub(absent_for);
    let wait = !actions.is_empty() && !left.is_zero();
    InstallPlan {
        actions: if wait { Vec::new() } else { actions },
        state: InstallState::Waiting(why),
        next_check: wait.then_some(left),
    }
}

fn plan_standalone(files: &[ConfFile], desired: &DesiredConfig) -> InstallPlan {
    let named = desired.primary.as_ref().or(desired.own_name.as_ref());
    let name = named.map_or(STANDALONE_NAME, String::as_str).to_owned();
    let text = match desired.entry.standalone_config() {
        Ok(text) => text,
        Err(error) => {
            return InstallPlan {
                actions: Vec::new(),
                state: InstallState::Waiting(error.to_string()),
                next_check: None,
            };
        }
    };
    let mut actions = own_file_actions(files, &name, text);
    actions.extend(cleanup_actions(files, None, Some(&name)));
    InstallPlan {
        actions,
        state: InstallState::Installed {
            mode: InstallMode::Standalone,
            file: name,
        },
        next_check: None,
    }
}

fn reads_directory(network: &Network) -> bool {
    let mut kinds = network.plugins.iter().map(|plugin| plugin.kind.as_str());
    kinds.any(|kind| DIRECTORY_READING_PLUGINS.contains(&kind))
}

/// Returns a name for Ambit's own configuration that sorts before the primary's and is no foreign file's; `None` if
/// there is none.
fn own_name(files: &[ConfFile], desired: &DesiredConfig, primary: &str) -> Option<String> {
    let is_foreign = |name: &str| {
        let there = files.iter().find(|file| file.name == name);
        there.is_some_and(|file| !file.network().is_ok_and(|network| network.is_ours()))
    };
    let chosen = desired
        .own_name
        .as_deref()
        .filter(|name| name.ends_with(".conflist"));
    let mut names = chosen.into_iter().chain(OWN_FILE_NAMES);
    names
        .find(|name| *name < primary && !is_foreign(name))
        .map(ToOwned::to_owned)
}

fn own_file_actions(files: &[ConfFile], name: &str, text: String) -> Vec<FileAction> {
    let there = files.iter().find(|file| file.name == name);
    let held = there.and_then(|file| file.text.as_ref().ok());
    if held == Some(&text) {
        return Vec::new();
    }
    vec![FileAction::Write {
        name: name.to_owned(),
        text,
        expected: None,
    }]
}

fn write_action(file: &ConfFile, text: String) -> FileAction {
    FileAction::Write {
        name: file.name.clone(),
        text,
        expected: file.text.clone().ok(),
    }
}

/// Returns the changes that remove Ambit's entry from every list but `chained`, and every file of Ambit but `own`.
fn cleanup_actions(
    files: &[ConfFile],
    chained: Option<&str>,
    own: Option<&str>,
) -> Vec<FileAction> {
    let mut actions = Vec::new();
    for file in files {
        let Ok(text) = &file.text else {
            continue;
        };
        if file.network().is_ok_and(|network| network.is_ours()) {
            if own != Some(&file.name) {
                actions.push(FileAction::Remove {
                    name: file.name.clone(),
                });
            }
        } else if chained != Some(&file.name)
            && file.name.ends_with(".conflist")
            && let Ok(Some(changed)) = edit::remove_plugin_entry(text)
        {
            actions.push(write_action(file, changed));
        }
    }
    actions
}

#[cfg(test)]
mod tests;
