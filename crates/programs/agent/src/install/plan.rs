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
    ConfFile, Network, Primary,
    directory::{self, SETTLES_WITHIN},
    edit,
};

use super::{action::Action, entry::Entry, mode::Mode};

/// Time for which Ambit's configuration outlives the primary CNI's: some CNIs remove theirs while they restart, and new
/// pods then wait in the plugin. After that, Ambit's is removed, since it would make the node appear to have a network.
pub const GRACE_WITHOUT_PRIMARY: Duration = Duration::from_secs(30);

/// Names of Ambit's own configuration in order of preference: the first that sorts before the primary's is used.
const NAMES: [&str; 4] = [
    "02-ambit-cni.conflist",
    "00-ambit-cni.conflist",
    "0-ambit-cni.conflist",
    "!ambit-cni.conflist",
];

/// Name of Ambit's own configuration in standalone mode.
const STANDALONE_NAME: &str = "YYY-ambit-cni.conf";

/// Plugins that read the directory in which they are configured themselves, so that an owned configuration could make
/// Ambit's plugin call itself.
const READS_DIRECTORY: [&str; 3] = ["multus", "multus-shim", "genie"];

/// Desired content of the directory of network configurations.
#[derive(Clone, Debug)]
pub struct DesiredConfig {
    /// Mode in which the runtime calls the plugin.
    pub mode: Mode,
    /// Name of the primary configuration; `None`: the first usable file.
    pub primary: Option<String>,
    /// Preferred name of Ambit's own configuration; it must sort before the primary's.
    pub own_name: Option<String>,
    /// Permissions of Ambit's own configuration.
    pub file_mode: u32,
    /// Settings in the configuration of Ambit's plugin.
    pub entry: Entry,
}

/// Changes of the directory, and the state that they lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Changes of files, in the order to carry them out.
    pub actions: Vec<Action>,
    /// State of the installation after the changes.
    pub state: State,
    /// Delay of the next check, if it is needed before the regular one.
    pub look_again: Option<Duration>,
}

/// State of the installation: whether the runtime calls the plugin for pods that start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The runtime calls the plugin for new pods.
    Installed {
        /// Mode in which the plugin is called, never `Auto`.
        mode: Mode,
        /// Name of the file that has the plugin: the primary's, or Ambit's own.
        file: String,
    },
    /// The runtime does not call the plugin yet, for this reason.
    Waiting(String),
    /// A file is still being written; the previous state remains valid.
    Settling,
}

/// Compares the directory's files with the desired content. `absent` is the time since a primary configuration last
/// existed.
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

/// Returns the changes that remove Ambit's files and entries from the directory.
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

/// Plans for a directory without a primary configuration: Ambit's files stay for [`GRACE_WITHOUT_PRIMARY`], so that a
/// restart of the primary CNI is not mistaken for its removal.
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

/// Returns the changes that remove Ambit's entry from every list but `chained`, and every file of Ambit but `own`.
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
