//! JSON forms of authorization policies.

use ambit_model::{
    Action, ArcStr, Authorization, Match, Rule, Scope, ServiceAccountMatch, StringMatch,
};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::{DeserializeAs, SerializeAs, serde_as};

use crate::forms;

/// JSON form of [`Scope`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Scope")]
enum ScopeForm {
    Global,
    Namespace,
    WorkloadSelector,
}

/// JSON form of [`Action`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Action")]
enum ActionForm {
    Allow,
    Deny,
}

/// JSON form of [`Authorization`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(
    remote = "Authorization",
    rename_all = "camelCase",
    default = "Authorization::default",
    deny_unknown_fields
)]
struct AuthorizationForm {
    name: ArcStr,
    namespace: ArcStr,
    #[serde_as(as = "ScopeForm")]
    scope: Scope,
    #[serde_as(as = "ActionForm")]
    action: Action,
    #[serde_as(as = "Vec<Vec<Vec<MatchForm>>>")]
    rules: Vec<Rule>,
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_understood: Option<ArcStr>,
}

/// JSON form of [`Match`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(
    remote = "Match",
    rename_all = "camelCase",
    default = "Match::default",
    deny_unknown_fields
)]
struct MatchForm {
    #[serde_as(as = "Vec<StringMatchForm>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<StringMatch>,
    #[serde_as(as = "Vec<StringMatchForm>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_namespaces: Vec<StringMatch>,
    #[serde_as(as = "Vec<StringMatchForm>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    principals: Vec<StringMatch>,
    #[serde_as(as = "Vec<StringMatchForm>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_principals: Vec<StringMatch>,
    #[serde_as(as = "Vec<ServiceAccountForm>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    service_accounts: Vec<ServiceAccountMatch>,
    #[serde_as(as = "Vec<ServiceAccountForm>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_service_accounts: Vec<ServiceAccountMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    source_ips: Vec<IpNet>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_source_ips: Vec<IpNet>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    destination_ips: Vec<IpNet>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_destination_ips: Vec<IpNet>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    destination_ports: Vec<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_destination_ports: Vec<u16>,
}

/// JSON form of [`ServiceAccountMatch`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "ServiceAccountMatch", rename_all = "camelCase")]
struct ServiceAccountForm {
    namespace: ArcStr,
    service_account: ArcStr,
}

/// JSON form of [`StringMatch`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "StringMatch")]
pub(crate) enum StringMatchForm {
    Exact(ArcStr),
    Prefix(ArcStr),
    Suffix(ArcStr),
    #[serde(with = "empty_list")]
    Presence,
}

/// Serializes a variant without data as an empty list, as Istio's ztunnel does.
mod empty_list {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
        [(); 0].serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        <[(); 0]>::deserialize(deserializer).map(|[]| ())
    }
}

forms!(
    ScopeForm of Scope,
    ActionForm of Action,
    AuthorizationForm of Authorization,
    MatchForm of Match,
    ServiceAccountForm of ServiceAccountMatch,
    StringMatchForm of StringMatch,
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Json;

    #[test]
    fn a_policy_prints_the_keys_istioctl_reads() {
        let policy = Json(Authorization {
            name: "p".into(),
            namespace: "default".into(),
            scope: Scope::WorkloadSelector,
            rules: vec![vec![vec![Match {
                not_principals: vec![StringMatch::Presence],
                not_destination_ports: vec![9999],
                ..Match::default()
            }]]],
            ..Authorization::default()
        });
        let json = serde_json::to_value(&policy).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "name": "p", "namespace": "default", "scope": "WorkloadSelector", "action": "Allow",
                "dryRun": false,
                "rules": [[[{"notPrincipals": [{"Presence": []}], "notDestinationPorts": [9999]}]]],
            })
        );
        let read: Json<Authorization> = serde_json::from_value(json).unwrap();
        assert_eq!(read, policy);
    }

    #[test]
    fn missing_fields_of_a_policy_have_the_defaults_of_the_model() {
        let read: Json<Authorization> = serde_json::from_str(r#"{"name":"p"}"#).unwrap();
        let named = Authorization {
            name: "p".into(),
            ..Authorization::default()
        };
        assert_eq!(read, Json(named));
        let unknown = r#"{"name":"p","rules":[[[{"paths":[]}]]]}"#;
        let error = serde_json::from_str::<Json<Authorization>>(unknown).unwrap_err();
        assert!(error.to_string().contains("paths"), "{error}");
    }
}
