//! Paths of the sockets by which supervisors, holders and standbys find each other.

use std::path::{Path, PathBuf};

use ambit_rt::Env;

/// Paths of the sockets by which supervisors, holders and standbys find each other; each socket is optional.
#[derive(Clone, Debug, Default)]
pub struct SupervisorSockets {
    /// Socket at which a successor connects to its predecessor, in a directory that both can access.
    pub handover: Option<PathBuf>,
    /// Socket of the active supervisor and its standby, in a directory that only the two can access.
    pub standby_pair: Option<PathBuf>,
    /// Socket of the holder: a process that stores a copy of the items in case no supervisor is left.
    pub holder: Option<PathBuf>,
    /// Socket at which this process serves as the holder of supervisors in other containers. Its own worker does not
    /// use their items.
    pub hosted_holder: Option<PathBuf>,
}

impl SupervisorSockets {
    /// Reads the paths from `AMBIT_HANDOVER_UDS` and `AMBIT_HOLDER_UDS`, by default beside the node agent's socket, and
    /// from `AMBIT_PAIR_UDS`, without which there is no standby.
    pub fn from_env(env: &Env, agent: &Path) -> Self {
        let named = |variable| {
            env.get(variable)
                .filter(|path: &&str| !path.is_empty())
                .map(PathBuf::from)
        };
        let beside = |name: &str| agent.with_file_name(name);
        Self {
            handover: Some(
                named("AMBIT_HANDOVER_UDS").unwrap_or_else(|| beside("ambit-handover.sock")),
            ),
            holder: Some(named("AMBIT_HOLDER_UDS").unwrap_or_else(|| beside("ambit-holder.sock"))),
            standby_pair: named("AMBIT_PAIR_UDS"),
            hosted_holder: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_sockets_are_beside_the_agents_socket() {
        let agent = Path::new("/run/x/ztunnel.sock");
        let SupervisorSockets {
            handover,
            holder,
            standby_pair: pair,
            ..
        } = SupervisorSockets::from_env(&Env::from_pairs([("", ""); 0]), agent);
        assert_eq!(handover, Some("/run/x/ambit-handover.sock".into()));
        assert_eq!(holder, Some("/run/x/ambit-holder.sock".into()));
        assert_eq!(pair, None);
        let env = Env::from_pairs([("AMBIT_HANDOVER_UDS", "/elsewhere")]);
        let meeting = SupervisorSockets::from_env(&env, agent);
        assert_eq!(meeting.handover, Some("/elsewhere".into()));
    }
}
