//! Parsing of a DestinationRule's traffic policy, for a service and its ports.

use std::{collections::BTreeMap, time::Duration};

use ambit_k8s_api::destination::{
    ClientTls, ConnectionPool, KeepaliveProbes, LoadBalancer, OutlierDetection, PortTrafficPolicy,
    ProxyProtocol as Header, RetryBudget, TrafficPolicy,
};
use ambit_model::{
    DestinationHttpVersion, DestinationLimits, DestinationPolicy, LocalityPolicy, OutlierPolicy,
    ProxyProtocol, RetryBudget as Budget, TcpKeepalive,
};

use crate::{
    objects::destination_rule::{
        balancing, tls,
        values::{
            parse_count, parse_duration, parse_duration_or_zero, parse_in_range, parse_thousandths,
            refusal_note,
        },
    },
    problem::{FieldError, Note},
};

/// Message of the note on `tunnel`, which waypoints do not support.
const TUNNEL_UNSUPPORTED_MESSAGE: &str = "tunnels through another proxy are not supported";
/// Maximum number of `portLevelSettings` of one policy.
const MAX_PORT_LEVEL_SETTINGS: usize = 4096;
/// Maximum idle time and interval of TCP keepalive probes: Linux accepts up to 32767 seconds.
const MAX_KEEPALIVE_TIME: Duration = Duration::from_secs(9 * 3600);

type PolicyWithPorts = (DestinationPolicy, BTreeMap<u16, DestinationPolicy>);

/// Settings of one traffic policy: of a DestinationRule, of a subset, or of one port.
#[derive(Clone, Copy)]
struct PolicySettings<'a> {
    balancer: Option<&'a LoadBalancer>,
    pool: Option<&'a ConnectionPool>,
    outliers: Option<&'a OutlierDetection>,
    tls: Option<&'a ClientTls>,
    budget: Option<&'a RetryBudget>,
    proxy_protocol: Option<&'a Header>,
}

pub(crate) fn read(
    from: Option<&TrafficPolicy>,
    factor: u32,
    notes: &mut Vec<Note>,
) -> Result<PolicyWithPorts, FieldError> {
    const AT: &str = "spec.trafficPolicy";
    let Some(from) = from else {
        return Ok(PolicyWithPorts::default());
    };
    parse_traffic_policy(from, AT, factor, notes)
}

/// Parses one traffic policy and its `portLevelSettings`.
fn parse_traffic_policy(
    from: &TrafficPolicy,
    at: &str,
    factor: u32,
    notes: &mut Vec<Note>,
) -> Result<PolicyWithPorts, FieldError> {
    let mut policy = PolicySettings::from_policy(from).read(at, factor, notes)?;
    let mut ports = BTreeMap::new();
    for (index, (port, parts)) in port_level_settings(from, at)?.into_iter().enumerate() {
        let at = format!("{at}.portLevelSettings[{index}]");
        let policy = parts.read(&at, factor, notes)?;
        if ports.insert(port, policy).is_some() {
            let message = format!("there is another for the port {port}");
            return Err(FieldError::new(format!("{at}.port.number"), message));
        }
    }
    if from.tunnel.is_some() {
        notes.push(refusal_note(
            format!("{at}.tunnel"),
            TUNNEL_UNSUPPORTED_MESSAGE,
        ));
        refuse_tunnel((&mut policy, &mut ports));
    }
    Ok((policy, ports))
}

/// Parses the policy of a subset, which overrides its rule's policy setting by setting; as in Istio, the subset's
/// setting for all ports takes precedence over the rule's for one port.
pub(crate) fn parse_subset_policy(
    rule: Option<&TrafficPolicy>,
    subset: Option<&TrafficPolicy>,
    at: &str,
    factor: u32,
    notes: &mut Vec<Note>,
) -> Result<PolicyWithPorts, FieldError> {
    // The rule's own parts have been read, and what is to be noted of them has been noted.
    let mut known = Vec::new();
    let (none_of_rule, none_of_subset) = (TrafficPolicy::default(), TrafficPolicy::default());
    let rule = rule.unwrap_or(&none_of_rule);
    let subset = match subset {
        Some(subset) => {
            parse_traffic_policy(subset, at, 0, notes)?;
            subset
        }
        None => &none_of_subset,
    };
    let of_rule: BTreeMap<_, _> = port_level_settings(rule, at)?.into_iter().collect();
    let of_subset: BTreeMap<_, _> = port_level_settings(subset, at)?.into_iter().collect();
    let (whole, above) = (
        PolicySettings::from_policy(rule),
        PolicySettings::from_policy(subset),
    );
    let mut policy = above
        .with_defaults_from(whole)
        .read(at, factor, &mut known)?;
    let mut ports = BTreeMap::new();
    for port in of_rule.keys().chain(of_subset.keys()) {
        let base = above.with_defaults_from(*of_rule.get(port).unwrap_or(&whole));
        let parts = of_subset
            .get(port)
            .map_or(base, |parts| parts.with_defaults_from(base));
        ports.insert(*port, parts.read(at, factor, &mut known)?);
    }
    if rule.tunnel.is_some() || subset.tunnel.is_some() {
        refuse_tunnel((&mut policy, &mut ports));
    }
    Ok((policy, ports))
}

/// Marks the policies as unsupported, so that waypoints send nothing without the configured tunnel.
fn refuse_tunnel(
    (policy, ports): (
        &mut DestinationPolicy,
        &mut BTreeMap<u16, DestinationPolicy>,
    ),
) {
    for policy in ports.values_mut().chain([policy]) {
        policy
            .unsupported
            .get_or_insert_with(|| TUNNEL_UNSUPPORTED_MESSAGE.into());
    }
}

/// Returns the settings of `portLevelSettings` with their ports, in order.
fn port_level_settings<'a>(
    from: &'a TrafficPolicy,
    at: &str,
) -> Result<Vec<(u16, PolicySettings<'a>)>, FieldError> {
    let at = format!("{at}.portLevelSettings");
    if from.port_level_settings.len() > MAX_PORT_LEVEL_SETTINGS {
        return Err(FieldError::new(
            at,
            format!("more than {MAX_PORT_LEVEL_SETTINGS}"),
        ));
    }
    let one = |(index, of): (usize, &'a PortTrafficPolicy)| {
        let number = of.port.as_ref().map(|port| port.number);
        let port = number.and_then(|number| u16::try_from(number).ok());
        let port = port.filter(|port| *port > 0).ok_or_else(|| {
            let field = format!("{at}[{index}].port.number");
            FieldError::new(field, "a port from 1 to 65535 is needed")
        })?;
        Ok((port, PolicySettings::from_port_policy(of, from)))
    };
    from.port_level_settings
        .iter()
        .enumerate()
        .map(one)
        .collect()
}

impl<'a> PolicySettings<'a> {
    fn from_policy(from: &'a TrafficPolicy) -> Self {
        Self {
            balancer: from.load_balancer.as_ref(),
            pool: from.connection_pool.as_ref(),
            outliers: from.outlier_detection.as_ref(),
            tls: from.tls.as_ref(),
            budget: from.retry_budget.as_ref(),
            proxy_protocol: from.proxy_protocol.as_ref(),
        }
    }

    /// Returns the settings of a port. Settings that cannot be set per port are the policy's; others that the port does
    /// not set are unset, as in Istio.
    fn from_port_policy(from: &'a PortTrafficPolicy, policy: &'a TrafficPolicy) -> Self {
        Self {
            balancer: from.load_balancer.as_ref(),
            pool: from.connection_pool.as_ref(),
            outliers: from.outlier_detection.as_ref(),
            tls: from.tls.as_ref(),
            budget: policy.retry_budget.as_ref(),
            proxy_protocol: policy.proxy_protocol.as_ref(),
        }
    }

    /// Returns the settings of `self`, and those of `below` that `self` does not set.
    fn with_defaults_from(self, below: Self) -> Self {
        Self {
            balancer: self.balancer.or(below.balancer),
            pool: self.pool.or(below.pool),
            outliers: self.outliers.or(below.outliers),
            tls: self.tls.or(below.tls),
            budget: self.budget.or(below.budget),
            proxy_protocol: self.proxy_protocol.or(below.proxy_protocol),
        }
    }

    fn read(
        &self,
        at: &str,
        factor: u32,
        notes: &mut Vec<Note>,
    ) -> Result<DestinationPolicy, FieldError> {
        let mut policy = DestinationPolicy::default();
        if let Some(from) = self.outliers {
            policy.outliers = Some(parse_outlier_detection(
                from,
                &format!("{at}.outlierDetection"),
                notes,
            )?);
        }
        if let Some(from) = self.balancer {
            let at = format!("{at}.loadBalancer");
            (policy.balancing, policy.warmup) = balancing::read(from, factor, &at, notes)?;
            let at = format!("{at}.localityLbSetting");
            let may_eject = policy.outliers.is_some();
            let from = from.locality_lb_setting.as_ref();
            let locality =
                from.map(|from| balancing::parse_locality_policy(from, may_eject, &at, notes));
            policy.locality = locality
                .transpose()?
                .unwrap_or(LocalityPolicy::ServicePreference);
        }
        if let Some(from) = self.pool {
            policy.limits = parse_connection_pool(from, &format!("{at}.connectionPool"), notes)?;
            policy.http_version =
                parse_http_version(from, &format!("{at}.connectionPool.http"), notes);
        }
        if let Some(from) = self.budget {
            policy.limits.retry_budget =
                Some(parse_retry_budget(from, &format!("{at}.retryBudget"))?);
        }
        if let Some(from) = self.tls {
            match tls::read(from, &format!("{at}.tls"), notes) {
                Ok(tls) => policy.tls = tls,
                Err(why) => policy.unsupported = Some(why),
            }
        }
        if let Some(from) = self.proxy_protocol {
            let at = format!("{at}.proxyProtocol");
            policy.proxy_protocol = Some(parse_proxy_protocol(from, &at)?);
        }
        Ok(policy)
    }
}

/// Parses the PROXY protocol version; the default is V1, as in Istio.
fn parse_proxy_protocol(from: &Header, at: &str) -> Result<ProxyProtocol, FieldError> {
    match from.version.as_deref() {
        None | Some("V1") => Ok(ProxyProtocol::V1),
        Some("V2") => Ok(ProxyProtocol::V2),
        Some(other) => {
            let message = format!("{other:?} is neither V1 nor V2");
            Err(FieldError::new(format!("{at}.version"), message))
        }
    }
}

fn parse_retry_budget(from: &RetryBudget, at: &str) -> Result<Budget, FieldError> {
    let minimum = format!("{at}.minRetryConcurrency");
    let most = i64::from(i32::MAX);
    Ok(Budget {
        share: parse_thousandths(&format!("{at}.percent"), from.percent, (0.0, 100.0), 20_000)?,
        minimum: parse_in_range(&minimum, from.min_retry_concurrency, 0, most, 3)?,
    })
}

fn parse_outlier_detection(
    from: &OutlierDetection,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<OutlierPolicy, FieldError> {
    let default = OutlierPolicy::default();
    let number = |name: &str, of: Option<i64>, default: u32| {
        parse_in_range(&format!("{at}.{name}"), of, 0, i64::from(i32::MAX), default)
    };
    let percent =
        |name: &str, of: Option<i64>| parse_in_range(&format!("{at}.{name}"), of, 0, 100, 0);
    if from.consecutive_errors.is_some() {
        let message = "has no effect: use consecutive5xxErrors or consecutiveGatewayErrors";
        notes.push(Note::new(format!("{at}.consecutiveErrors"), message));
    }
    let is_split = from.split_external_local_origin_errors == Some(true);
    const LOCAL: &str = "consecutiveLocalOriginFailures";
    let local = number(LOCAL, from.consecutive_local_origin_failures, 5)?;
    if from.consecutive_local_origin_failures.is_some() && !is_split {
        let message = "has no effect without splitExternalLocalOriginErrors";
        notes.push(Note::new(format!("{at}.{LOCAL}"), message));
    }
    let interval = parse_duration(&format!("{at}.interval"), from.interval.as_deref())?;
    let field = format!("{at}.baseEjectionTime");
    let base = parse_duration(&field, from.base_ejection_time.as_deref())?;
    let most = percent("maxEjectionPercent", from.max_ejection_percent)?;
    Ok(OutlierPolicy {
        server_errors: number(
            "consecutive5xxErrors",
            from.consecutive_5xx_errors,
            default.server_errors,
        )?,
        gateway_errors: number(
            "consecutiveGatewayErrors",
            from.consecutive_gateway_errors,
            0,
        )?,
        local_failures: is_split.then_some(local),
        interval: interval.unwrap_or(default.interval),
        base_ejection: base.unwrap_or(default.base_ejection),
        // Zero is what is left out, as in Istio.
        max_ejection_percent: if most == 0 {
            default.max_ejection_percent
        } else {
            most
        },
        min_health_percent: percent("minHealthPercent", from.min_health_percent)?,
    })
}

/// Parses TCP keepalive settings, in whole seconds, as Linux takes them.
fn parse_keepalive(from: &KeepaliveProbes, at: &str) -> Result<TcpKeepalive, FieldError> {
    let time = |name: &str, of: &Option<String>| {
        let field = format!("{at}.{name}");
        let time = parse_positive_duration(&field, of.as_deref())?;
        match time.filter(|time| !(Duration::from_secs(1)..MAX_KEEPALIVE_TIME).contains(time)) {
            Some(_) => Err(FieldError::new(field, "is not within 1s to 9h")),
            None => Ok(time),
        }
    };
    let probes = parse_in_range(&format!("{at}.probes"), from.probes, 0, 127, 0)?;
    Ok(TcpKeepalive {
        probes: (probes > 0).then_some(probes),
        time: time("time", &from.time)?,
        interval: time("interval", &from.interval)?,
    })
}

/// Parses a duration; zero counts as unset.
fn parse_positive_duration(at: &str, of: Option<&str>) -> Result<Option<Duration>, FieldError> {
    match parse_duration_or_zero(at, of)? {
        Some(Duration::ZERO) => Ok(None),
        _ => parse_duration(at, of),
    }
}

fn parse_connection_pool(
    from: &ConnectionPool,
    at: &str,
    notes: &mut Vec<Note>,
) -> Result<DestinationLimits, FieldError> {
    let mut limits = DestinationLimits::default();
    if let Some(tcp) = &from.tcp {
        let at = format!("{at}.tcp");
        let time = |name: &str, of: &Option<String>| {
            parse_duration(&format!("{at}.{name}"), of.as_deref())
        };
        limits.connections = parse_count(&format!("{at}.maxConnections"), tcp.max_connections)?;
        limits.connect_timeout = time("connectTimeout", &tcp.connect_timeout)?;
        limits.max_connection_duration =
            time("maxConnectionDuration", &tcp.max_connection_duration)?;
        let field = format!("{at}.idleTimeout");
        limits.tcp_idle_timeout = parse_positive_duration(&field, tcp.idle_timeout.as_deref())?;
        if let Some(from) = &tcp.tcp_keepalive {
            let at = format!("{at}.tcpKeepalive");
            limits.keepalive = Some(parse_keepalive(from, &at)?);
            let message = "has an effect on connections in plaintext alone: tunnels to pods of the mesh have pings of HTTP/2";
            notes.push(Note::new(at, message));
        }
    }
    if let Some(http) = &from.http {
        let at = format!("{at}.http");
        let number = |name: &str, of: Option<i64>| parse_count(&format!("{at}.{name}"), of);
        let pending = number("http1MaxPendingRequests", http.http1_max_pending_requests)?;
        limits.pending = (pending > 0).then_some(pending);
        limits.requests = number("http2MaxRequests", http.http2_max_requests)?;
        limits.requests_per_connection =
            number("maxRequestsPerConnection", http.max_requests_per_connection)?;
        limits.retries = number("maxRetries", http.max_retries)?;
        let field = format!("{at}.idleTimeout");
        limits.idle_timeout = parse_duration(&field, http.idle_timeout.as_deref())?;
        limits.streams_per_connection =
            number("maxConcurrentStreams", http.max_concurrent_streams)?;
    }
    Ok(limits)
}

/// Returns the HTTP version for requests to endpoints. `useClientProtocol` takes precedence over `h2UpgradePolicy`, as
/// in Istio; without either, requests are not upgraded to HTTP/2.
fn parse_http_version(
    from: &ConnectionPool,
    at: &str,
    notes: &mut Vec<Note>,
) -> DestinationHttpVersion {
    let Some(http) = &from.http else {
        return DestinationHttpVersion::AsDeclared;
    };
    let upgrades = match http.h2_upgrade_policy.as_deref() {
        Some("UPGRADE") => true,
        None | Some("" | "DEFAULT" | "DO_NOT_UPGRADE") => false,
        Some(_) => {
            let message = "is neither DEFAULT, DO_NOT_UPGRADE nor UPGRADE, and has no effect";
            notes.push(Note::new(format!("{at}.h2UpgradePolicy"), message));
            false
        }
    };
    match http.use_client_protocol {
        Some(true) => DestinationHttpVersion::AsClient,
        _ if upgrades => DestinationHttpVersion::AlwaysHttp2,
        _ => DestinationHttpVersion::AsDeclared,
    }
}
