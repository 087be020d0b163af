//! Where a supervisor meets others.

use std::path::{Path, PathBuf};

use ambit_rt::Env;

/// Sockets by which supervisors, holders and standbys find each other; each is optional.
#[derive(Clone, Debug, Default)]
pub struct Meeting {
    /// A socket at which a successor finds its predecessor: in a directory that both see.
    pub handover: Option<PathBuf>,
    /// The socket of a pair, one of which serves: in a directory that only the two see.
    pub pair: Option<PathBuf>,
    /// The socket of a process that also holds the items, for when no supervisor is left.
    pub holder: Option<PathBuf>,
    /// A socket at which this process holds items for others. Its own worker has nothing to do with them.
    pub hold_for_others: Option<PathBuf>,
}

impl Meeting {
    /// `AMBIT_HANDOVER_UDS`, `AMBIT_HOLDER_UDS`: by default beside the node agent's socket. `AMBIT_PAIR_UDS`: by
    /// default nowhere, there is no standby.
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
            pair: named("AMBIT_PAIR_UDS"),
            hold_for_others: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_met_beside_the_agents_socket() {
        let agent = Path::new("/run/x/ztunnel.sock");
        let Meeting {
            handover,
            holder,
            pair,
            ..
        } = Meeting::from_env(&Env::from_pairs([("", ""); 0]), agent);
        assert_eq!(handover, Some("/run/x/ambit-handover.sock".into()));
        assert_eq!(holder, Some("/run/x/ambit-holder.sock".into()));
        assert_eq!(pair, None);
        let env = Env::from_pairs([("AMBIT_HANDOVER_UDS", "/elsewhere")]);
        let meeting = Meeting::from_env(&env, agent);
        assert_eq!(meeting.handover, Some("/elsewhere".into()));
    }
}
