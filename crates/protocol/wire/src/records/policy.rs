//! Codec of L7 authorization policies. One that cannot be decoded in full is replaced by a substitute that denies every
//! request to its targets, or to the whole waypoint if the targets cannot be decoded.

use std::sync::Arc;

use ambit_model::{self as model, PolicyKey};
use ipnet::IpNet;
use prost::Message;

use super::{
    RecordCodec,
    decode_fields::{decode_all, decode_hostname, none_if_empty, object_name, substitute_targets},
    encode_fields,
    provider::provider,
};
use crate::{
    ambit as wire,
    decode::{
        DecodeError, DecodeErrorReason, RecordDecodeError, Substitute, check_resource_name,
        decode_enum, decode_ip_nets, decode_port, decode_ports, decode_prefix,
        decode_service_account_matches, decode_strictly, decode_string_matches,
    },
    security,
    unknown::AMBIT_V1_WAYPOINTPOLICY,
    workload,
};

impl RecordCodec for model::HttpPolicy {
    const TYPE_URL: &'static str = "type.googleapis.com/ambit.v1.WaypointPolicy";
    const SHORT_NAME: &'static str = "WPPDS";

    fn encode(&self) -> Vec<u8> {
        wire::WaypointPolicy::from(self).encode_to_vec()
    }

    fn decode(name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>> {
        let read =
            decode_strictly("waypoint_policy", &AMBIT_V1_WAYPOINTPOLICY, bytes).and_then(policy);
        check_resource_name(
            object_name(name),
            "waypoint_policy.name",
            read,
            |read| read.key.clone(),
            |key, why| Substitute {
                record: Box::new(deny_all_substitute(key, bytes, why)),
                effect: "every request to its targets is denied",
                is_policy: true,
            },
        )
    }
}

/// Targets and dry-run flag of a policy, decoded without its other fields to build the substitute of an invalid one.
#[derive(Message)]
struct PolicyOutline {
    #[prost(bool, tag = "3")]
    for_gateway: bool,
    #[prost(message, repeated, tag = "4")]
    services: Vec<workload::NamespacedHostname>,
    #[prost(bool, tag = "6")]
    dry_run: bool,
}

fn deny_all_substitute(key: PolicyKey, bytes: &[u8], why: model::ArcStr) -> model::HttpPolicy {
    let outline = PolicyOutline::decode(bytes).unwrap_or_default();
    let (for_gateway, services) = substitute_targets(outline.for_gateway, outline.services);
    model::HttpPolicy {
        key,
        for_gateway,
        services,
        action: model::HttpAction::Deny,
        dry_run: outline.dry_run,
        rules: vec![model::HttpRule::default()],
        not_understood: Some(why),
        provider: None,
    }
}

fn policy(from: wire::WaypointPolicy) -> Result<model::HttpPolicy, DecodeError> {
    let action = decode_enum("waypoint_policy.action", from.action)?;
    Ok(model::HttpPolicy {
        key: PolicyKey {
            namespace: from.namespace.into(),
            name: from.name.into(),
        },
        for_gateway: from.for_gateway,
        services: decode_all(from.services, |name| {
            decode_hostname("waypoint_policy.services", Some(name))
        })?,
        action: match action {
            wire::HttpAction::Allow => model::HttpAction::Allow,
            wire::HttpAction::Deny => model::HttpAction::Deny,
            wire::HttpAction::Audit => model::HttpAction::Audit,
            wire::HttpAction::Custom if from.provider.is_none() => {
                return Err(DecodeError::missing("waypoint_policy.provider"));
            }
            wire::HttpAction::Custom => model::HttpAction::Custom,
        },
        dry_run: from.dry_run,
        rules: decode_all(from.rules, rule)?,
        not_understood: none_if_empty(from.not_understood),
        provider: from.provider.map(provider).transpose()?.map(Arc::new),
    })
}

fn rule(from: wire::HttpRule) -> Result<model::HttpRule, DecodeError> {
    Ok(model::HttpRule {
        sources: decode_all(from.sources, source)?,
        operations: decode_all(from.operations, operation)?,
        conditions: decode_all(from.conditions, condition)?,
    })
}

fn source(from: wire::HttpSource) -> Result<model::HttpSource, DecodeError> {
    Ok(model::HttpSource {
        principals: decode_string_matches("http_source.principals", from.principals)?,
        not_principals: decode_string_matches("http_source.not_principals", from.not_principals)?,
        namespaces: decode_string_matches("http_source.namespaces", from.namespaces)?,
        not_namespaces: decode_string_matches("http_source.not_namespaces", from.not_namespaces)?,
        service_accounts: decode_service_account_matches(
            "http_source.service_accounts",
            from.service_accounts,
        )?,
        not_service_accounts: decode_service_account_matches(
            "http_source.not_service_accounts",
            from.not_service_accounts,
        )?,
        trust_domains: decode_string_matches("http_source.trust_domains", from.trust_domains)?,
        not_trust_domains: decode_string_matches(
            "http_source.not_trust_domains",
            from.not_trust_domains,
        )?,
        ip_blocks: decode_ip_nets("http_source.ip_blocks", &from.ip_blocks)?,
        not_ip_blocks: decode_ip_nets("http_source.not_ip_blocks", &from.not_ip_blocks)?,
        remote_ip_blocks: decode_ip_nets("http_source.remote_ip_blocks", &from.remote_ip_blocks)?,
        not_remote_ip_blocks: decode_ip_nets(
            "http_source.not_remote_ip_blocks",
            &from.not_remote_ip_blocks,
        )?,
        request_principals: decode_string_matches(
            "http_source.request_principals",
            from.request_principals,
        )?,
        not_request_principals: decode_string_matches(
            "http_source.not_request_principals",
            from.not_request_principals,
        )?,
    })
}

fn operation(from: wire::HttpOperation) -> Result<model::HttpOperation, DecodeError> {
    Ok(model::HttpOperation {
        hosts: decode_string_matches("http_operation.hosts", from.hosts)?,
        not_hosts: decode_string_matches("http_operation.not_hosts", from.not_hosts)?,
        ports: decode_ports("http_operation.ports", from.ports)?,
        not_ports: decode_ports("http_operation.not_ports", from.not_ports)?,
        methods: decode_string_matches("http_operation.methods", from.methods)?,
        not_methods: decode_string_matches("http_operation.not_methods", from.not_methods)?,
        paths: decode_all(from.paths, pattern)?,
        not_paths: decode_all(from.not_paths, pattern)?,
    })
}

fn pattern(from: wire::PathPattern) -> Result<model::PathPattern, DecodeError> {
    use wire::path_pattern::Kind;
    const FIELD: &str = "path_pattern.kind";
    match from.kind {
        Some(Kind::Text(one)) => decode_string_match(FIELD, one).map(model::PathPattern::Text),
        Some(Kind::Template(template)) => Ok(model::PathPattern::Template(template.into())),
        None => Err(DecodeError::missing(FIELD)),
    }
}

fn decode_string_match(
    field: &'static str,
    from: security::StringMatch,
) -> Result<model::StringMatch, DecodeError> {
    let mut read = decode_string_matches(field, vec![from])?;
    read.pop().ok_or_else(|| DecodeError::missing(field))
}

fn condition(from: wire::HttpCondition) -> Result<model::HttpCondition, DecodeError> {
    let attribute = from
        .attribute
        .ok_or_else(|| DecodeError::missing("http_condition.attribute"))?;
    if from.values.is_empty() && from.not_values.is_empty() {
        return Err(DecodeError::new(
            "http_condition.values",
            DecodeErrorReason::EmptyField,
        ));
    }
    Ok(model::HttpCondition {
        attribute: self::attribute(attribute)?,
        values: decode_all(from.values, decode_value)?,
        not_values: decode_all(from.not_values, decode_value)?,
    })
}

fn attribute(from: wire::HttpAttribute) -> Result<model::HttpAttribute, DecodeError> {
    use wire::HttpAttributeKind as Kind;
    const FIELD: &str = "http_attribute.kind";
    Ok(match decode_enum(FIELD, from.kind)? {
        Kind::Unspecified => return Err(DecodeError::missing(FIELD)),
        Kind::Header if from.header.is_empty() => {
            return Err(DecodeError::missing("http_attribute.header"));
        }
        Kind::Header => model::HttpAttribute::Header(from.header.into()),
        Kind::SourceIp => model::HttpAttribute::SourceIp,
        Kind::RemoteIp => model::HttpAttribute::RemoteIp,
        Kind::SourceNamespace => model::HttpAttribute::SourceNamespace,
        Kind::SourceServiceAccount => model::HttpAttribute::SourceServiceAccount,
        Kind::SourceTrustDomain => model::HttpAttribute::SourceTrustDomain,
        Kind::SourcePrincipal => model::HttpAttribute::SourcePrincipal,
        Kind::DestinationIp => model::HttpAttribute::DestinationIp,
        Kind::DestinationPort => model::HttpAttribute::DestinationPort,
        Kind::ConnectionSni => model::HttpAttribute::ConnectionSni,
        Kind::RequestPrincipal => model::HttpAttribute::RequestPrincipal,
        Kind::RequestAudiences => model::HttpAttribute::RequestAudiences,
        Kind::RequestPresenter => model::HttpAttribute::RequestPresenter,
        Kind::RequestClaim if from.claim.is_empty() => {
            return Err(DecodeError::missing("http_attribute.claim"));
        }
        Kind::RequestClaim => {
            let names = from.claim.into_iter().map(Into::into);
            model::HttpAttribute::RequestClaim(names.collect())
        }
    })
}

fn decode_value(from: wire::HttpValue) -> Result<model::HttpValue, DecodeError> {
    use wire::http_value::Kind;
    const FIELD: &str = "http_value.kind";
    match from.kind {
        Some(Kind::Text(one)) => decode_string_match(FIELD, one).map(model::HttpValue::Text),
        Some(Kind::Net(net)) => {
            decode_prefix(FIELD, &net.address, net.length).map(model::HttpValue::Net)
        }
        Some(Kind::Port(number)) => decode_port(FIELD, number).map(model::HttpValue::Port),
        None => Err(DecodeError::missing(FIELD)),
    }
}

impl From<&model::HttpPolicy> for wire::WaypointPolicy {
    fn from(from: &model::HttpPolicy) -> Self {
        let action = match from.action {
            model::HttpAction::Allow => wire::HttpAction::Allow,
            model::HttpAction::Deny => wire::HttpAction::Deny,
            model::HttpAction::Audit => wire::HttpAction::Audit,
            model::HttpAction::Custom => wire::HttpAction::Custom,
        };
        Self {
            namespace: from.key.namespace.to_string(),
            name: from.key.name.to_string(),
            for_gateway: from.for_gateway,
            services: encode_fields::encode_all::<_, workload::NamespacedHostname>(&from.services),
            action: action.into(),
            dry_run: from.dry_run,
            rules: encode_fields::encode_all(&from.rules),
            not_understood: encode_fields::encode_optional(from.not_understood.as_ref()),
            provider: from.provider.as_deref().map(Into::into),
        }
    }
}

impl From<&model::HttpRule> for wire::HttpRule {
    fn from(from: &model::HttpRule) -> Self {
        Self {
            sources: encode_fields::encode_all(&from.sources),
            operations: encode_fields::encode_all(&from.operations),
            conditions: encode_fields::encode_all(&from.conditions),
        }
    }
}

impl From<&model::HttpSource> for wire::HttpSource {
    fn from(from: &model::HttpSource) -> Self {
        Self {
            principals: encode_fields::encode_all(&from.principals),
            not_principals: encode_fields::encode_all(&from.not_principals),
            namespaces: encode_fields::encode_all(&from.namespaces),
            not_namespaces: encode_fields::encode_all(&from.not_namespaces),
            service_accounts: encode_fields::encode_all(&from.service_accounts),
            not_service_accounts: encode_fields::encode_all(&from.not_service_accounts),
            trust_domains: encode_fields::encode_all(&from.trust_domains),
            not_trust_domains: encode_fields::encode_all(&from.not_trust_domains),
            ip_blocks: encode_fields::encode_all::<IpNet, security::Address>(&from.ip_blocks),
            not_ip_blocks: encode_fields::encode_all(&from.not_ip_blocks),
            remote_ip_blocks: encode_fields::encode_all(&from.remote_ip_blocks),
            not_remote_ip_blocks: encode_fields::encode_all(&from.not_remote_ip_blocks),
            request_principals: encode_fields::encode_all(&from.request_principals),
            not_request_principals: encode_fields::encode_all(&from.not_request_principals),
        }
    }
}

impl From<&model::HttpOperation> for wire::HttpOperation {
    fn from(from: &model::HttpOperation) -> Self {
        let ports = |ports: &[u16]| ports.iter().copied().map(u32::from).collect();
        Self {
            hosts: encode_fields::encode_all(&from.hosts),
            not_hosts: encode_fields::encode_all(&from.not_hosts),
            ports: ports(&from.ports),
            not_ports: ports(&from.not_ports),
            methods: encode_fields::encode_all(&from.methods),
            not_methods: encode_fields::encode_all(&from.not_methods),
            paths: encode_fields::encode_all(&from.paths),
            not_paths: encode_fields::encode_all(&from.not_paths),
        }
    }
}

impl From<&model::PathPattern> for wire::PathPattern {
    fn from(from: &model::PathPattern) -> Self {
        use wire::path_pattern::Kind;
        let kind = match from {
            model::PathPattern::Text(text) => Kind::Text(text.into()),
            model::PathPattern::Template(template) => Kind::Template(template.to_string()),
        };
        Self { kind: Some(kind) }
    }
}

impl From<&model::HttpCondition> for wire::HttpCondition {
    fn from(from: &model::HttpCondition) -> Self {
        Self {
            attribute: Some((&from.attribute).into()),
            values: encode_fields::encode_all(&from.values),
            not_values: encode_fields::encode_all(&from.not_values),
        }
    }
}

impl From<&model::HttpAttribute> for wire::HttpAttribute {
    fn from(from: &model::HttpAttribute) -> Self {
        use model::HttpAttribute as From;
        use wire::HttpAttributeKind as Kind;
        let kind = match from {
            From::Header(_) => Kind::Header,
            From::SourceIp => Kind::SourceIp,
            From::RemoteIp => Kind::RemoteIp,
            From::SourceNamespace => Kind::SourceNamespace,
            From::SourceServiceAccount => Kind::SourceServiceAccount,
            From::SourceTrustDomain => Kind::SourceTrustDomain,
            From::SourcePrincipal => Kind::SourcePrincipal,
            From::DestinationIp => Kind::DestinationIp,
            From::DestinationPort => Kind::DestinationPort,
            From::ConnectionSni => Kind::ConnectionSni,
            From::RequestPrincipal => Kind::RequestPrincipal,
            From::RequestAudiences => Kind::RequestAudiences,
            From::RequestPresenter => Kind::RequestPresenter,
            From::RequestClaim(_) => Kind::RequestClaim,
        };
        Self {
            kind: kind.into(),
            header: match from {
                From::Header(name) => name.to_string(),
                _ => String::new(),
            },
            claim: match from {
                From::RequestClaim(names) => encode_fields::encode_texts(names),
                _ => Vec::new(),
            },
        }
    }
}

impl From<&model::HttpValue> for wire::HttpValue {
    fn from(from: &model::HttpValue) -> Self {
        use wire::http_value::Kind;
        let kind = match from {
            model::HttpValue::Text(text) => Kind::Text(text.into()),
            model::HttpValue::Net(net) => Kind::Net(net.into()),
            model::HttpValue::Port(port) => Kind::Port((*port).into()),
        };
        Self { kind: Some(kind) }
    }
}
