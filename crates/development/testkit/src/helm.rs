use std::process::Command;

use crate::{built_binary, target_directory};

/// Returns a command that runs real Helm, without the user's settings.
pub fn helm_command() -> Command {
    let nothing = target_directory().join("helm");
    let mut command = Command::new(built_binary("helm"));
    for home in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(home, &nothing);
    }
    command
}
