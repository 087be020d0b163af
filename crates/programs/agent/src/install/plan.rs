//! Desired content of the directory of network configurations, and the changes to reach it. Pure.
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
    ConfFile, Network, Primary,
    directory::{self, SETTLES_WITHIN},
    edit,
};

use super::{action::Action, entry::Entry, mode::Mode};

/// Time for which Ambit's configuration outlives the primary CNI's. Some CNIs remove theirs while they restart, when
/// pods wait in the plugin. After that, the node must not appear to have a network.
pub const GRACE_WITHOUT_PRIMARY: Duration = Duration::from_secs(30);

/// Names of our own configuration, in order of preference: one must come before the primary's.
const NAMES: [&str; 4] = [
    "02-ambit-cni.conflist",
    "00-ambit-cni.conflist",
    "0-ambit-cni.conflist",
    "!ambit-cni.conflist",
];

/// Name of our own configuration in standalone mode.
const STANDALONE_NAME: &str = "YYY-ambit-cni.conf";

/// Plugins that read configurations from the directory in which they are configured, so that an owned configuration
/// could call itself.
const READS_DIRECTORY: [&str; 3] = ["multus", "multus-shim", "genie"];

/// Desired content of the directory.
#[derive(Clone, Debug)]
pub struct DesiredConfig {
    /// Mode of chaining the plugin.
    pub mode: Mode,
    /// Only file name to accept as the primary configuration.
    pub primary: Option<String>,
    /// The name of our own configuration, if it must be a certain one.
    pub own_name: Option<String>,
    /// Permissions of our own configuration.
    pub file_mode: u32,
    /// Configuration of the plugin.
    pub entry: Entry,
}

/// Plan of one pass over the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Changes, in order.
    pub actions: Vec<Action>,
    /// State after the actions.
    pub state: State,
    /// Time until the next check without events.
    pub look_again: Option<Duration>,
}

/// Whether pods that start now reach the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// New pods use the plugin.
    Installed {
        /// Resolved mode, never `Auto`.
        mode: Mode,
        /// The primary's file, or ours in standalone mode.
        file: String,
    },
    /// New pods do not use the plugin yet.
    Waiting(String),
    /// Incomplete file; the earlier state stays.
    Settling,
}

/// Compares the directory with its desired content. `absent` is the time since when there has been no primary
/// configuration.
pub fn plan(files: &[ConfFile], desired: &DesiredConfig, absent: Duration) -> Plan {
    if desired.mode == Mode::Standalone {
        return standalone(files, desired);
    }
    match directory::primary(files, desired.primary.as_deref()) {
        Primary::Found(file, network) => with_primary(files, desired, file, &network),
        Primary::Settling(file, _) => Plan {
            actions: Vec::new(),
            state: State::Settling,
            look_again: Some(SETTLES_WITHIN.saturating_sub(file.age)),
        },
        Primary::Unreadable(file, error) => Plan {
            actions: Vec::new(),
            state: State::Waiting(format!(
                "{} cannot be read here, and the runtime may use it: {error}; put the file itself into the directory, or \
                 remove it",
                file.name
            )),
            look_again: None,
        },
        Primary::None => without_primary(files, desired, absent),
    }
}

/// Returns the changes that uninstall Ambit from the directory.
pub fn removal(files: &[ConfFile]) -> Vec<Action> {
    tidy(files, None, None)
}

fn with_primary(
    files: &[ConfFile],
    desired: &DesiredConfig,
    primary: &ConfFile,
    network: &Network,
) -> Plan {
    let mode = match desired.mode {
        Mode::Auto if reads_directory(network) => Mode::Chained,
        Mode::Auto => Mode::Owned,
        mode => mode,
    };
    let waiting = |why: String| Plan {
        actions: Vec::new(),
        state: State::Waiting(why),
        look_again: None,
    };
    let text = primary.text.as_deref().unwrap_or_default();
    let unusable = |error: serde_json::Error| format!("{} cannot be used: {error}", primary.name);
    let installed = State::Installed {
        mode,
        file: primary.name.clone(),
    };
    let in_list = mode == Mode::Chained && network.is_list;
    if in_list {
        let entry = desired.entry.chained().to_string();
        return match edit::chain(text, &entry) {
            Ok(changed) => {
                let write = changed.map(|changed| write(primary, changed));
                let mut actions: Vec<_> = write.into_iter().collect();
                actions.extend(tidy(files, Some(&primary.name), None));
                Plan {
                    actions,
                    state: installed,
                    look_again: None,
                }
            }
            Err(error) => waiting(unusable(error)),
        };
    }
    let own = if mode == Mode::Owned {
        let pinned = desired.primary.as_deref();
        desired.entry.owned(&primary.name, text, network, pinned)
    } else {
        desired.entry.list_of(&primary.name, text)
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
    let mut actions = own_file(files, &name, own);
    actions.extend(tidy(files, None, Some(&name)));
    Plan {
        actions,
        state: installed,
        look_again: None,
    }
}

/// Plans for a directory without a primary configuration: Ambit's files stay for [`GRACE_WITHOUT_PRIMARY`], so that the restart of
/// the node's network is not blocked.
fn without_primary(files: &[ConfFile], desired: &DesiredConfig, absent: Duration) -> Plan {
    let why = match &desired.primary {
        Some(name) => format!("there is no usable network configuration {name}"),
        None => "the primary CNI has not written a usable network configuration".to_owned(),
    };
    let actions = removal(files);
    let left = GRACE_WITHOUT_PRIMARY.saturating_sub(absent);
    let wait = !actions.is_empty() && !left.is_zero();
    Plan {
        actions: if wait { Vec::new() } else { actions },
        state: State::Waiting(why),
        look_again: wait.then_some(left),
    }
}

fn standalone(files: &[ConfFile], desired: &DesiredConfig) -> Plan {
    let named = desired.primary.as_ref().or(desired.own_name.as_ref());
    let name = named.map_or(STANDALONE_NAME, String::as_str).to_owned();
    let text = match desired.entry.standalone() {
        Ok(text) => text,
        Err(error) => {
            return Plan {
                actions: Vec::new(),
                state: State::Waiting(error.to_string()),
                look_again: None,
            };
        }
    };
    let mut actions = own_file(files, &name, text);
    actions.extend(tidy(files, None, Some(&name)));
    Plan {
        actions,
        state: State::Installed {
            mode: Mode::Standalone,
            file: name,
        },
        look_again: None,
    }
}

fn reads_directory(network: &Network) -> bool {
    let mut kinds = network.plugins.iter().map(|plugin| plugin.kind.as_str());
    kinds.any(|kind| READS_DIRECTORY.contains(&kind))
}

/// Returns an unused name that sorts before the primary's.
fn own_name(files: &[ConfFile], desired: &DesiredConfig, primary: &str) -> Option<String> {
    let is_foreign = |name: &str| {
        let there = files.iter().find(|file| file.name == name);
        there.is_some_and(|file| !file.network().is_ok_and(|network| network.is_ours()))
    };
    let chosen = desired
        .own_name
        .as_deref()
        .filter(|name| name.ends_with(".conflist"));
    let mut names = chosen.into_iter().chain(NAMES);
    names
        .find(|name| *name < primary && !is_foreign(name))
        .map(ToOwned::to_owned)
}

fn own_file(files: &[ConfFile], name: &str, text: String) -> Vec<Action> {
    let there = files.iter().find(|file| file.name == name);
    let held = there.and_then(|file| file.text.as_ref().ok());
    if held == Some(&text) {
        return Vec::new();
    }
    vec![Action::Write {
        name: name.to_owned(),
        text,
        expected: None,
    }]
}

fn write(file: &ConfFile, text: String) -> Action {
    Action::Write {
        name: file.name.clone(),
        text,
        expected: file.text.clone().ok(),
    }
}

/// Removes Ambit's entry from every list but `chained`, and every file of Ambit but `own`.
fn tidy(files: &[ConfFile], chained: Option<&str>, own: Option<&str>) -> Vec<Action> {
    let mut actions = Vec::new();
    for file in files {
        let Ok(text) = &file.text else {
            continue;
        };
        if file.network().is_ok_and(|network| network.is_ours()) {
            if own != Some(&file.name) {
                actions.push(Action::Remove {
                    name: file.name.clone(),
                });
            }
        } else if chained != Some(&file.name)
            && file.name.ends_with(".conflist")
            && let Ok(Some(changed)) = edit::unchain(text)
        {
            actions.push(write(file, changed));
        }
    }
    actions
}

#[cfg(test)]
mod tests;
