//! Parsing of HTTPRoutes whose parents are services.

use ambit_k8s_api::{HTTPRoute, gateway::ParentReference};
use serde_json::Value;

use crate::{
    objects::route::{
        input::RouteRules,
        object::{RouteObject, note_hostnames},
        rules::{self, RouteRuleInput},
    },
    problem::{FieldError, Note},
};

impl RouteObject for HTTPRoute {
    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn set_readable(&mut self, parent_refs: Vec<ParentReference>, _: Option<&Value>) {
        self.spec.parent_refs = parent_refs;
    }

    fn rules(&self, namespace: &str, notes: &mut Vec<Note>) -> Result<RouteRules, FieldError> {
        note_hostnames(&self.spec.hostnames, notes);
        let rules = rules::read(&self.spec, namespace, notes)?;
        Ok(RouteRules::Http(rules))
    }

    /// Returns a rule that answers all requests with an error.
    fn unusable(&self) -> RouteRules {
        RouteRules::Http(vec![RouteRuleInput::unusable()])
    }
}
