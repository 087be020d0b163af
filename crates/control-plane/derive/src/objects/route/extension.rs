//! Filters of the type `ExtensionRef`: objects of Ambit's own kinds in the route's namespace. A request must not skip a
//! filter that its rule names, so all requests of the rule fail if the object does not exist.

use ambit_k8s_api::{Kind, ObjectKey, ambit, gateway::LocalObjectReference};

use crate::{objects::route::reader::RuleReader, problem::FieldError};

/// Filter of the type `ExtensionRef`, with the key of the object that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtensionFilterInput(pub(crate) ObjectKey);

impl ExtensionFilterInput {
    /// Returns the key of the object that the filter names.
    pub(crate) fn target(&self) -> &ObjectKey {
        &self.0
    }

    /// Whether another filter refers to an object of the same kind.
    pub(crate) fn has_same_kind(&self, other: &Self) -> bool {
        self.0.kind == other.0.kind
    }
}

impl RuleReader<'_> {
    /// Parses a filter of the type `ExtensionRef`; other API groups and kinds than Ambit's make the rule unusable.
    pub(crate) fn parse_extension(
        &mut self,
        at: &str,
        from: &LocalObjectReference,
        namespace: &str,
    ) -> Result<Option<ExtensionFilterInput>, FieldError> {
        let at = format!("{at}.extensionRef");
        self.note_unknown_fields(&at, &from.other);
        let LocalObjectReference {
            group, kind, name, ..
        } = from;
        let known = match (group.as_str(), kind.as_str()) {
            (ambit::GROUP, "HTTPFault") => Kind::HTTPFault,
            _ => {
                let what = format!("{kind:?} of the group {group:?} is not supported");
                self.mark_unsupported(at, &what);
                return Ok(None);
            }
        };
        if !ambit_k8s_api::is_dns_name(name, 253) {
            let message = format!("{name:?} is no name of an object");
            return Err(FieldError::new(format!("{at}.name"), message));
        }
        let key = ObjectKey::new(known, namespace, name.as_str());
        Ok(Some(ExtensionFilterInput(key)))
    }
}
