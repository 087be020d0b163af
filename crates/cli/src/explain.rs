//! `policy explain`: which policy decides a connection, and why, from the live state of the proxy that
//! would enforce it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ambit_authz::{
    Connection, Explanation, MissingPolicies, Outcome, PolicySet, PolicyVerdict, Why,
};
use ambit_model::{Action, Identity, Protocol, Scope, Workload};
use clap::Args;
use serde_json::json;

use crate::{
    dump::ConfigDump,
    error::{CliError, ErrorKind},
    output::{Output, structured, table},
};

/// The connection to explain.
#[derive(Clone, Debug, Args)]
pub struct Explain {
    /// Who calls: a pod (`namespace/name`), an address, a SPIFFE id, or `plaintext`
    #[arg(long)]
    pub from: String,
    /// Who is called: a pod (`namespace/name`), an address or a uid
    #[arg(long)]
    pub to: String,
    /// The port of the application that is called
    #[arg(long)]
    pub port: u16,
}

/// Decides as the node proxy of the destination would, and says why.
///
/// # Errors
/// When source or destination are not known.
pub fn run(explain: &Explain, dump: &ConfigDump, output: Output) -> Result<String, CliError> {
    let destination = dump.workload(&explain.to)?;
    let connection = connection(explain, dump, destination)?;
    let mut policies = PolicySet::new(MissingPolicies::Refuse);
    for policy in &dump.policies {
        policies.insert(policy.clone());
    }
    let explanation = policies.explain(destination, &connection);
    if output == Output::Table {
        return Ok(prose(&connection, destination, &explanation));
    }
    let value = json!({
        "from": connection.source.as_ref().map(ToString::to_string),
        "fromAddress": connection.source_ip,
        "to": destination.uid,
        "toAddress": connection.destination,
        "allowed": explanation.decision.allowed,
        "decidedBy": explanation.decision.decided_by.as_ref().map(ToString::to_string),
        "why": explanation.decision.to_string(),
        "policies": explanation.policies.iter().map(|verdict| json!({
            "policy": verdict.policy.to_string(),
            "action": verdict.action,
            "scope": verdict.scope,
            "dryRun": verdict.dry_run,
            "matches": matches!(verdict.outcome, Outcome::Matches { .. }),
        })).collect::<Vec<_>>(),
        "missing": explanation.missing,
    });
    structured(&value, output)
}

fn connection(
    explain: &Explain,
    dump: &ConfigDump,
    destination: &Workload,
) -> Result<Connection, CliError> {
    let (source, source_ip) = source(&explain.from, dump)?;
    let ip = explain
        .to
        .parse()
        .ok()
        .or_else(|| destination.workload_ips.first().copied())
        .ok_or_else(|| {
            CliError::new(
                ErrorKind::NotFound,
                format!("{} has no address", destination.uid),
            )
        })?;
    // Only what arrives by HBONE carries an identity.
    let source = source.filter(|_| destination.protocol == Protocol::Hbone);
    Ok(Connection {
        source,
        source_ip,
        destination: SocketAddr::new(ip, explain.port),
    })
}

/// The identity the caller proves, and its address.
fn source(from: &str, dump: &ConfigDump) -> Result<(Option<Identity>, IpAddr), CliError> {
    // No policy on addresses matches the unspecified one: it stands for "not known".
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    if from == "plaintext" {
        return Ok((None, unknown));
    }
    if from.starts_with("spiffe://") {
        let identity: Identity = from.parse().map_err(|error| {
            CliError::new(ErrorKind::Usage, format!("--from {from:?}")).because(error)
        })?;
        let address = dump
            .workloads
            .iter()
            .find(|workload| workload.identity() == identity)
            .and_then(|workload| workload.workload_ips.first().copied());
        return Ok((Some(identity), address.unwrap_or(unknown)));
    }
    let address = from.parse().ok();
    match (dump.workload(from), address) {
        (Ok(workload), _) => {
            let ip = address.or_else(|| workload.workload_ips.first().copied());
            let identity = (workload.protocol == Protocol::Hbone).then(|| workload.identity());
            Ok((identity, ip.unwrap_or(unknown)))
        }
        // An address outside the mesh: plaintext.
        (Err(_), Some(ip)) => Ok((None, ip)),
        (Err(error), None) => Err(error),
    }
}

fn prose(connection: &Connection, destination: &Workload, explanation: &Explanation) -> String {
    let source = connection.source.as_ref().map_or_else(
        || format!("{} (plaintext, no identity)", connection.source_ip),
        ToString::to_string,
    );
    let decision = &explanation.decision;
    let verdict = if decision.allowed {
        "ALLOWED"
    } else {
        "DENIED"
    };
    let mut text = format!(
        "{verdict}  {source}\n     ->  {}/{} at {}\n    why  {}\n",
        destination.namespace,
        destination.name,
        connection.destination,
        why(decision)
    );
    for missing in &explanation.missing {
        text +=
            &format!("   note  the destination names the policy {missing}, which is not known\n");
    }
    if !explanation.policies.is_empty() {
        text.push('\n');
        text += &table(
            ["POLICY", "ACTION", "APPLIES BECAUSE", "OUTCOME"],
            explanation.policies.iter().map(row),
        );
    }
    text
}

fn why(decision: &ambit_authz::Decision) -> String {
    match (&decision.why, &decision.decided_by) {
        (Why::Denied, Some(policy)) => format!("the DENY policy {policy} matches"),
        (Why::Allowed, Some(policy)) => {
            format!("the ALLOW policy {policy} matches, and none denies")
        }
        (Why::NoneAllowed, _) => "ALLOW policies apply and none of them matches".into(),
        (Why::NoPolicies, _) => "no policy applies to the destination".into(),
        (Why::NoAllowPolicies, _) => "no ALLOW policy applies, and none denies".into(),
        _ => decision.to_string(),
    }
}

fn row(verdict: &PolicyVerdict) -> [String; 4] {
    let dry_run = if verdict.dry_run { " (dry run)" } else { "" };
    [
        verdict.policy.to_string(),
        match verdict.action {
            Action::Allow => format!("ALLOW{dry_run}"),
            Action::Deny => format!("DENY{dry_run}"),
        },
        match verdict.scope {
            Scope::Global => "it is of the whole mesh".into(),
            Scope::Namespace => "it is of the destination's namespace".into(),
            Scope::WorkloadSelector => "its selector takes the destination".into(),
        },
        match verdict.outcome {
            Outcome::Matches { rule } => format!("rule {} matches", rule + 1),
            Outcome::NoMatch => "no rule matches".into(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump() -> ConfigDump {
        ConfigDump::from_value(json!({
            "workloads": [
                {"uid": "a", "name": "front-1", "namespace": "shop", "workloadIps": ["10.0.0.1"],
                 "protocol": "HBONE", "serviceAccount": "front"},
                {"uid": "b", "name": "cart-1", "namespace": "shop", "workloadIps": ["10.0.0.2"],
                 "protocol": "HBONE", "serviceAccount": "cart",
                 "authorizationPolicies": ["shop/only-front"]},
            ],
            "policies": [{
                "name": "only-front", "namespace": "shop", "scope": "WorkloadSelector",
                "action": "Allow",
                "rules": [[[{"principals": [{"Exact": "cluster.local/ns/shop/sa/front"}]}]]]
            }],
        }))
        .unwrap()
    }

    fn explain(from: &str) -> String {
        let explain = Explain {
            from: from.into(),
            to: "shop/cart-1".into(),
            port: 8080,
        };
        run(&explain, &dump(), Output::Table).unwrap()
    }

    #[test]
    fn the_policy_that_decides_is_named() {
        let text = explain("shop/front-1");
        assert!(
            text.starts_with("ALLOWED  spiffe://cluster.local/ns/shop/sa/front"),
            "{text}"
        );
        assert!(text.contains("shop/only-front matches"), "{text}");
    }

    #[test]
    fn plaintext_has_no_identity() {
        for from in ["plaintext", "192.0.2.7"] {
            let text = explain(from);
            assert!(text.starts_with("DENIED"), "{text}");
            assert!(
                text.contains("ALLOW policies apply and none of them matches"),
                "{text}"
            );
        }
    }
}
