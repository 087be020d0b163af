//! Envoy's response flags of requests.

use std::{fmt, ops::BitOr};

/// Response flag of Envoy. A denial by policy has none, as in Envoy; its response-code details name the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponseFlag {
    /// `UH`: no endpoint of the upstream is ready.
    NoHealthyUpstream,
    /// `UF`: connecting to the upstream failed.
    UpstreamConnectionFailure,
    /// `UO`: a circuit breaker's limit on connections or requests to the upstream was reached.
    UpstreamOverflow,
    /// `NR`: no route matches.
    NoRoute,
    /// `URX`: the last retry failed too.
    RetryLimitExceeded,
    /// `NC`: the route's backend does not exist.
    NoCluster,
    /// `DC`: the downstream closed the connection.
    DownstreamConnectionTermination,
    /// `UT`: the upstream did not respond within the request timeout.
    UpstreamRequestTimeout,
    /// `LR`: the waypoint reset the stream to the upstream.
    LocalReset,
    /// `UR`: the upstream reset the stream.
    UpstreamRemoteReset,
    /// `UC`: the upstream closed the connection.
    UpstreamConnectionTermination,
    /// `UAEX`: the external authorizer denied the request.
    UnauthorizedExternal,
    /// `SI`: the stream's idle timeout passed.
    StreamIdleTimeout,
    /// `DPE`: the downstream violated HTTP.
    DownstreamProtocolError,
    /// `UPE`: the upstream violated HTTP.
    UpstreamProtocolError,
    /// `DT`: the maximum duration of the request passed.
    DurationTimeout,
    /// `DR`: the downstream reset the stream.
    DownstreamRemoteReset,
    /// `OM`: the request was refused because of overload.
    OverloadManager,
    /// `DI`: fault injection delayed the request.
    DelayInjected,
    /// `FI`: fault injection aborted the request.
    FaultInjected,
    /// `RL`: the request exceeded a rate limit.
    RateLimited,
    /// `RLSE`: the rate-limit service could not be called.
    RateLimiterServiceError,
}

use ResponseFlag as F;

/// Response flags with their texts, in the order in which Envoy writes them.
const FLAG_CODES: [(ResponseFlag, &str); 22] = [
    (F::NoHealthyUpstream, "UH"),
    (F::UpstreamConnectionFailure, "UF"),
    (F::UpstreamOverflow, "UO"),
    (F::NoRoute, "NR"),
    (F::RetryLimitExceeded, "URX"),
    (F::NoCluster, "NC"),
    (F::DownstreamConnectionTermination, "DC"),
    (F::UpstreamRequestTimeout, "UT"),
    (F::LocalReset, "LR"),
    (F::UpstreamRemoteReset, "UR"),
    (F::UpstreamConnectionTermination, "UC"),
    (F::DelayInjected, "DI"),
    (F::FaultInjected, "FI"),
    (F::RateLimited, "RL"),
    (F::UnauthorizedExternal, "UAEX"),
    (F::RateLimiterServiceError, "RLSE"),
    (F::StreamIdleTimeout, "SI"),
    (F::DownstreamProtocolError, "DPE"),
    (F::UpstreamProtocolError, "UPE"),
    (F::DurationTimeout, "DT"),
    (F::DownstreamRemoteReset, "DR"),
    (F::OverloadManager, "OM"),
];

/// Set of response flags; printed as `-` if empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResponseFlags(u32);

impl ResponseFlags {
    /// Adds a flag.
    pub fn insert(&mut self, flag: ResponseFlag) {
        *self = *self | flag;
    }

    /// Returns the flags as Envoy's bit mask, which `response.flags` is in CEL expressions.
    pub fn envoy_bits(self) -> u64 {
        let bit = |flag: ResponseFlag| match flag {
            F::NoHealthyUpstream => 1,
            F::UpstreamRequestTimeout => 2,
            F::LocalReset => 3,
            F::UpstreamRemoteReset => 4,
            F::UpstreamConnectionFailure => 5,
            F::UpstreamConnectionTermination => 6,
            F::UpstreamOverflow => 7,
            F::NoRoute => 8,
            F::DelayInjected => 9,
            F::FaultInjected => 10,
            F::RateLimited => 11,
            F::UnauthorizedExternal => 12,
            F::RateLimiterServiceError => 13,
            F::DownstreamConnectionTermination => 14,
            F::RetryLimitExceeded => 15,
            F::StreamIdleTimeout => 16,
            F::DownstreamProtocolError => 18,
            F::DurationTimeout => 22,
            F::UpstreamProtocolError => 23,
            F::NoCluster => 24,
            F::OverloadManager => 25,
            F::DownstreamRemoteReset => 28,
        };
        let among = FLAG_CODES.iter().filter(|(flag, _)| self.contains(*flag));
        among.fold(0, |bits, (flag, _)| bits | 1 << bit(*flag))
    }

    /// Whether the set contains the flag.
    pub fn contains(self, flag: ResponseFlag) -> bool {
        self.0 & bit(flag) != 0
    }
}

fn bit(flag: ResponseFlag) -> u32 {
    1 << flag as u32
}

impl From<ResponseFlag> for ResponseFlags {
    fn from(flag: ResponseFlag) -> Self {
        Self(bit(flag))
    }
}

impl BitOr<ResponseFlag> for ResponseFlags {
    type Output = Self;

    fn bitor(self, flag: ResponseFlag) -> Self {
        Self(self.0 | bit(flag))
    }
}

impl BitOr for ResponseFlags {
    type Output = Self;

    fn bitor(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

impl fmt::Display for ResponseFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (_, code) in FLAG_CODES.iter().filter(|(flag, _)| self.contains(*flag)) {
            write!(f, "{separator}{code}")?;
            separator = ",";
        }
        match self.0 {
            0 => f.write_str("-"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_written_as_envoys_codes() {
        let mut flags = ResponseFlags::default();
        assert_eq!(flags.to_string(), "-");
        flags.insert(F::RetryLimitExceeded);
        flags.insert(F::UpstreamConnectionFailure);
        assert_eq!(flags.to_string(), "UF,URX");
        assert!(flags.contains(F::RetryLimitExceeded) && !flags.contains(F::NoRoute));
        for (flag, code) in FLAG_CODES {
            assert_eq!(ResponseFlags::from(flag).to_string(), code);
        }
    }
}
