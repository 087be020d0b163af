//! What stands in for a policy that cannot be used and of which no usable form is known, because it
//! was written like that or because it was usable before this process began: a DENY of everything in
//! its scope, until it is mended. One that becomes unusable keeps its last usable form instead.

use ambit_k8s_api::{
    AuthorizationPolicy, Kind, Object, ObjectKey, ObjectMeta, PeerAuthentication,
    istio::{AuthorizationPolicySpec, PeerAuthenticationSpec},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Index, Input};
use crate::derive::{peer_auth::PeerAuthInput, policies::PolicyInput};

impl Index {
    /// For an object whose fields contradict each other.
    pub(super) fn stand_in(&self, object: &Object, key: &ObjectKey) -> Option<Input> {
        if self.knows(key) && !self.stand_ins.contains(key) {
            return None;
        }
        match object {
            Object::AuthorizationPolicy(policy) => {
                PolicyInput::stand_in(policy, &self.config).map(Input::Policy)
            }
            Object::PeerAuthentication(policy) => {
                Some(Input::PeerAuth(PeerAuthInput::stand_in(policy)))
            }
            _ => None,
        }
    }

    /// For an object that cannot be read: its scope is read by itself. A scope that cannot be read
    /// either is the whole namespace.
    pub(super) fn stand_in_for_unreadable(&self, key: &ObjectKey, value: &Value) -> Option<Input> {
        let spec = value.get("spec");
        let metadata = ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(key.namespace.to_string()),
            annotations: field(value.get("metadata"), "annotations"),
            creation_timestamp: field(value.get("metadata"), "creationTimestamp"),
            ..ObjectMeta::default()
        };
        let object: Object = match key.kind {
            Kind::AuthorizationPolicy => AuthorizationPolicy {
                metadata,
                spec: AuthorizationPolicySpec {
                    selector: field(spec, "selector"),
                    target_ref: field(spec, "targetRef"),
                    target_refs: field(spec, "targetRefs").unwrap_or_default(),
                    ..AuthorizationPolicySpec::default()
                },
                ..AuthorizationPolicy::default()
            }
            .into(),
            Kind::PeerAuthentication => PeerAuthentication {
                metadata,
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

fn field<T: DeserializeOwned>(spec: Option<&Value>, name: &str) -> Option<T> {
    spec?.get(name).and_then(|value| T::deserialize(value).ok())
}
