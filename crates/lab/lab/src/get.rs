//! Outcomes of `ambit-lab-tool get`, and the outcomes that a test can wait for.

use std::net::IpAddr;

/// Name of the program with servers and clients for pods of labs; it is in the directory of `ambit`.
pub const LAB_TOOL: &str = "ambit-lab-tool";

/// Text of a node proxy's access log for connections that a policy denies.
const POLICY_REJECTION_TEXT: &str = "connection closed due to policy rejection: ";

/// Outcome of one run of `ambit-lab-tool get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// Response status below 400.
    Success,
    /// Response status of 400 or more.
    HttpError,
    /// The host name does not resolve.
    UnknownHost,
    /// Connection refused, or host or network unreachable.
    Refused,
    /// Connection closed before the end of the response.
    Closed,
    /// The connection was reset.
    Reset,
    /// Timeout without a response.
    TimedOut,
    /// Any other failure, with the exit code.
    Other(i32),
}

impl GetOutcome {
    /// Converts the exit code of `ambit-lab-tool get`, which is curl's.
    pub fn from_exit_code(code: i32) -> Self {
        match code {
            0 => Self::Success,
            22 => Self::HttpError,
            6 => Self::UnknownHost,
            7 => Self::Refused,
            52 => Self::Closed,
            56 => Self::Reset,
            28 => Self::TimedOut,
            other => Self::Other(other),
        }
    }

    /// Whether the connection was established and then closed without a response.
    pub fn is_terminated(self) -> bool {
        matches!(self, Self::Closed | Self::Reset)
    }
}

/// Outcome of a `GET` that a test waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutcome<'a> {
    /// A response with a status below 400.
    Success,
    /// The connection is closed, and the access log has a policy denial whose reason contains this text, such as the
    /// name of a DENY policy.
    Denial(&'a str),
    /// Failure of this kind.
    Failure(GetOutcome),
}

/// `true` expects a response, `false` a denial by any policy.
impl From<bool> for ExpectedOutcome<'_> {
    fn from(success: bool) -> Self {
        if success {
            Self::Success
        } else {
            Self::Denial("")
        }
    }
}

impl From<GetOutcome> for ExpectedOutcome<'_> {
    fn from(ending: GetOutcome) -> Self {
        match ending {
            GetOutcome::Success => Self::Success,
            failure => Self::Failure(failure),
        }
    }
}

impl ExpectedOutcome<'_> {
    /// Whether `ending` is possible for the expected outcome. A denial also needs a line in the access log
    /// ([`count_denials`]).
    pub fn matches(self, ending: GetOutcome) -> bool {
        match self {
            Self::Success => ending == GetOutcome::Success,
            Self::Denial(_) => ending.is_terminated(),
            Self::Failure(failure) => ending == failure,
        }
    }
}

/// Counts the lines of an access log that report a denied connection of this client, with `policy` in the reason.
pub fn count_denials(log: &str, client: &[IpAddr], policy: &str) -> usize {
    let sources: Vec<String> = client
        .iter()
        .map(|ip| match ip {
            IpAddr::V4(ip) => format!("src.addr={ip}:"),
            IpAddr::V6(ip) => format!("src.addr=[{ip}]:"),
        })
        .collect();
    log.lines()
        .filter(|line| {
            let reason = line.split_once(POLICY_REJECTION_TEXT);
            reason.is_some_and(|(_, reason)| reason.contains(policy))
                && sources.iter().any(|source| line.contains(source.as_str()))
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_the_clients_own_and_by_that_policy() {
        let line = |src: &str, why: &str| {
            format!(
                "2026\terror\taccess\tconnection complete src.addr={src} dst.addr=10.0.0.2:15008 \
                 error=\"connection closed due to {why}\"\n"
            )
        };
        let denied = "policy rejection: explicitly denied by: shop/no-echo";
        let log = line("10.0.0.1:33333", denied)
            + &line("10.0.0.11:33333", denied)
            + &line("[fd00::1]:33333", denied)
            + &line("10.0.0.1:33334", "connection failed");
        let client = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(count_denials(&log, &client, ""), 2);
        assert_eq!(count_denials(&log, &client[..1], "shop/no-echo"), 1);
        assert_eq!(count_denials(&log, &client, "shop/other"), 0);
    }

    #[test]
    fn only_closed_connections_may_be_denials() {
        let denial = ExpectedOutcome::from(false);
        for (code, permitted) in [
            (56, true),
            (52, true),
            (7, false),
            (28, false),
            (6, false),
            (22, false),
            (0, false),
        ] {
            assert_eq!(
                denial.matches(GetOutcome::from_exit_code(code)),
                permitted,
                "{code}"
            );
        }
        assert!(ExpectedOutcome::from(true).matches(GetOutcome::from_exit_code(0)));
        assert!(
            ExpectedOutcome::from(GetOutcome::TimedOut).matches(GetOutcome::from_exit_code(28))
        );
        assert!(
            !ExpectedOutcome::from(GetOutcome::TimedOut).matches(GetOutcome::from_exit_code(56))
        );
    }
}
