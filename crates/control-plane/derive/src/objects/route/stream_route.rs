//! Parsing of TCPRoutes and TLSRoutes.

use ambit_k8s_api::{TCPRoute, TLSRoute, gateway::ParentReference};
use serde_json::Value;

use crate::{
    objects::{
        readable::deserialize_field,
        route::{
            input::RouteRules,
            object::RouteObject,
            stream_rules::{MAX_HOSTNAMES, StreamInput, StreamRuleReader, parse_server_name},
        },
    },
    problem::{FieldError, Note},
};

impl RouteObject for TCPRoute {
    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn set_readable(&mut self, parent_refs: Vec<ParentReference>, _: Option<&Value>) {
        self.spec.parent_refs = parent_refs;
    }

    fn rules(&self, namespace: &str, notes: &mut Vec<Note>) -> Result<RouteRules, FieldError> {
        let mut reader = StreamRuleReader::new(notes);
        reader.note_unknown_fields("spec", &self.spec.other);
        let stream = reader.read(&self.spec.rules, namespace)?;
        Ok(RouteRules::Stream(stream))
    }

    fn unusable(&self) -> RouteRules {
        RouteRules::Stream(StreamInput::unusable(&[]))
    }
}

impl RouteObject for TLSRoute {
    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn set_readable(&mut self, parent_refs: Vec<ParentReference>, spec: Option<&Value>) {
        self.spec.parent_refs = parent_refs;
        self.spec.hostnames = deserialize_field(spec, "hostnames").unwrap_or_default();
    }

    fn rules(&self, namespace: &str, notes: &mut Vec<Note>) -> Result<RouteRules, FieldError> {
        let mut hostnames = Vec::new();
        let given = &self.spec.hostnames;
        if given.len() > MAX_HOSTNAMES {
            let message = format!("{} are too many: at most {MAX_HOSTNAMES}", given.len());
            return Err(FieldError::new("spec.hostnames", message));
        }
        for (index, one) in given.iter().enumerate() {
            let name = parse_server_name(one).ok_or_else(|| {
                let field = format!("spec.hostnames[{index}]");
                let message =
                    format!("{one:?} is no name of a server, nor one that begins with `*.`");
                FieldError::new(field, message)
            })?;
            hostnames.push(name);
        }
        let mut reader = StreamRuleReader::new(notes);
        reader.note_unknown_fields("spec", &self.spec.other);
        let stream = reader.read(&self.spec.rules, namespace)?;
        Ok(RouteRules::Stream(StreamInput {
            hostnames,
            ..stream
        }))
    }

    /// Returns rules that refuse connections with the route's server names, or all connections if no name can be read.
    fn unusable(&self) -> RouteRules {
        let names = &self.spec.hostnames;
        let all_are_known = names.iter().all(|one| parse_server_name(one).is_some());
        RouteRules::Stream(StreamInput::unusable(if all_are_known {
            names
        } else {
            &[]
        }))
    }
}
