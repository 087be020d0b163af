//! What stands in for a policy that was there before us and cannot be used.
//!
//! What it said in an earlier life is not known, so everything in its scope is refused until it is
//! mended. One that comes later and cannot be used has no effect: what was in force stays. On Kubernetes
//! its status keeps that it never had any, so that replicas that start later agree with those that saw
//! it come.

use ambit_k8s_api::{
    AuthorizationPolicy, Kind, Object, ObjectKey, ObjectMeta, PeerAuthentication,
    istio::{AuthorizationPolicySpec, PeerAuthenticationSpec},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Index, Input};
use crate::{
    derive::{peer_auth::PeerAuthInput, policies::PolicyInput},
    status::{ACCEPTED, VOID},
};

impl Index {
    /// For an object whose fields contradict each other.
    pub(super) fn stand_in(&self, object: &Object, key: &ObjectKey) -> Option<Input> {
        if !self.starting || self.knows(key) {
            return None;
        }
        let generation = object.metadata().generation;
        match object {
            Object::AuthorizationPolicy(policy) if !is_void(&policy.status, generation) => {
                PolicyInput::stand_in(policy, &self.config).map(Input::Policy)
            }
            Object::PeerAuthentication(policy) if !is_void(&policy.status, generation) => {
                Some(Input::PeerAuth(PeerAuthInput::stand_in(policy)))
            }
            _ => None,
        }
    }

    /// For an object that cannot be read: its scope is read by itself. A scope that cannot be read
    /// either is the whole namespace.
    pub(super) fn stand_in_for_unreadable(&self, key: &ObjectKey, value: &Value) -> Option<Input> {
        let spec = value.get("spec");
        let generation = value.pointer("/metadata/generation");
        let metadata = ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(key.namespace.to_string()),
            generation: generation.and_then(Value::as_i64),
            ..ObjectMeta::default()
        };
        let status = value.get("status").cloned().unwrap_or_default();
        let object: Object = match key.kind {
            Kind::AuthorizationPolicy => AuthorizationPolicy {
                metadata,
                status,
                spec: AuthorizationPolicySpec {
                    selector: field(spec, "selector"),
                    target_ref: field(spec, "targetRef"),
                    target_refs: field(spec, "targetRefs"),
                    ..AuthorizationPolicySpec::default()
                },
                ..AuthorizationPolicy::default()
            }
            .into(),
            Kind::PeerAuthentication => PeerAuthentication {
                metadata,
                status,
                spec: PeerAuthenticationSpec {
                    selector: field(spec, "selector"),
                    ..PeerAuthenticationSpec::default()
                },
                ..PeerAuthentication::default()
            }
            .into(),
            _ => return None,
        };
        self.stand_in(&object, key)
    }
}

/// Whether a leader noted that the object, as it is written now, never had any effect.
fn is_void(status: &Value, generation: Option<i64>) -> bool {
    let conditions = status.get("conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        let is =
            |field: &str, text: &str| condition.get(field).and_then(Value::as_str) == Some(text);
        let of = condition.get("observedGeneration").and_then(Value::as_i64);
        is("type", ACCEPTED) && is("reason", VOID) && of.is_some() && of == generation
    })
}

fn field<T: DeserializeOwned>(spec: Option<&Value>, name: &str) -> Option<T> {
    spec?.get(name).and_then(|value| T::deserialize(value).ok())
}
