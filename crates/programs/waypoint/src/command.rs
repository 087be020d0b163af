//! The command line: what the process is to be.

use ambit_proxy::admin;
use ambit_rt::Env;

use crate::app;

/// What is printed on request.
const HELP: &str = "ambit-waypoint: the layer 7 proxy of an ambient mesh

Usage: ambit-waypoint [proxy [waypoint] | version | help]

Configured by environment variables: those that node proxies read, and GATEWAY_NAME.
";

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// In order.
    Ended,
    /// With something to print.
    Say(String),
}

/// Does what the arguments say, the program's own name left out.
///
/// # Errors
/// When they make no sense, or the process cannot start.
pub fn run(arguments: &[&str], env: &Env) -> anyhow::Result<Outcome> {
    match arguments {
        [] | ["proxy"] | ["proxy", "waypoint"] => app::run(env).map(|()| Outcome::Ended),
        ["version" | "--version"] => Ok(Outcome::Say(format!("{:#}\n", admin::version()))),
        ["help" | "--help" | "-h"] => Ok(Outcome::Say(HELP.to_owned())),
        other => anyhow::bail!("unknown arguments {other:?}\n\n{HELP}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_told_with_the_help() {
        let env = Env::from_pairs::<&str, &str>([]);
        let error = run(&["proxy", "ztunnel"], &env).unwrap_err().to_string();
        assert!(
            error.contains("ztunnel") && error.contains("Usage"),
            "{error}"
        );
        assert_eq!(run(&["help"], &env).unwrap(), Outcome::Say(HELP.to_owned()));
    }
}
