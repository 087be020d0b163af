//! One overlay of an object: parses and validates it, merges it into the object, and validates the result.

use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v2::HorizontalPodAutoscaler,
    core::v1::{Service, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    InvalidParameters, WaypointObjectKind,
    field_path::{FieldError, FieldPath},
    merge::{self, merge},
    permitted_fields,
};

/// Overlay in a ConfigMap, as text.
pub(crate) struct Overlay<'a> {
    /// Namespace and name of the ConfigMap.
    pub(crate) config_map: String,
    pub(crate) object_kind: WaypointObjectKind,
    pub(crate) text: &'a str,
}

impl Overlay<'_> {
    /// Parses the overlay's YAML text.
    pub(crate) fn parse(&self) -> Result<Value, InvalidParameters> {
        parse_yaml(self.text).map_err(|wrong| self.invalid_overlay(wrong))
    }

    /// Merges the overlay into the object; returns `None` if the overlay deletes it. `base` is the object without any
    /// overlay.
    pub(crate) fn apply(
        &self,
        overlay: &Value,
        over: Option<Value>,
        base: &Value,
    ) -> Result<Option<Value>, InvalidParameters> {
        let laid = self.try_apply(overlay, over, base);
        laid.map_err(|wrong| self.invalid_overlay(wrong))
    }

    fn invalid_overlay(
        &self,
        FieldError {
            path: place,
            reason: why,
        }: FieldError,
    ) -> InvalidParameters {
        InvalidParameters::InvalidOverlay {
            map: self.config_map.clone(),
            key: self.object_kind.overlay_key(),
            place,
            why,
        }
    }

    fn try_apply(
        &self,
        overlay: &Value,
        over: Option<Value>,
        base: &Value,
    ) -> Result<Option<Value>, FieldError> {
        let may_go = matches!(
            self.object_kind,
            WaypointObjectKind::Autoscaler | WaypointObjectKind::DisruptionBudget
        );
        if may_go && merge::is_delete_patch(overlay) {
            return Ok(None);
        }
        permitted_fields::check_overlay(self.object_kind, overlay, base)?;
        let mut object = over.unwrap_or_else(|| base.clone());
        merge(&mut object, overlay)?;
        if self.object_kind == WaypointObjectKind::DisruptionBudget {
            remove_excluded_field(&mut object, overlay);
        }
        validate_object(self.object_kind, &object)?;
        Ok(Some(object))
    }
}

/// Parses YAML in which `yes` and `on` are strings, not booleans: a label may have such a value.
fn parse_yaml(text: &str) -> Result<Value, FieldError> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let value = serde_saphyr::from_str_with_options(text, options).map_err(|error| FieldError {
        path: error
            .location()
            .map_or_else(|| ".".to_owned(), |at| format!("line {}", at.line())),
        reason: format!("is not YAML: {}", error.without_snippet()),
    })?;
    match value {
        Value::Null => Ok(Value::Object(Map::new())),
        value => Ok(value),
    }
}

/// Removes the PodDisruptionBudget's field that excludes the field of the overlay: Kubernetes accepts only one of
/// `minAvailable` and `maxUnavailable`.
fn remove_excluded_field(budget: &mut Value, overlay: &Value) {
    let field_of = |field: &str| {
        let value = overlay.get("spec").and_then(|spec| spec.get(field));
        value.is_some_and(|value| !value.is_null())
    };
    let other = match (field_of("minAvailable"), field_of("maxUnavailable")) {
        (true, false) => "maxUnavailable",
        (false, true) => "minAvailable",
        _ => return,
    };
    let spec = budget.get_mut("spec").and_then(Value::as_object_mut);
    if let Some(spec) = spec {
        spec.remove(other);
    }
}

/// Checks that Kubernetes can parse the object, without unknown fields.
fn validate_object(part: WaypointObjectKind, object: &Value) -> Result<(), FieldError> {
    match part {
        WaypointObjectKind::ServiceAccount => check_type::<ServiceAccount>(object),
        WaypointObjectKind::Service => check_type::<Service>(object),
        WaypointObjectKind::Deployment => check_type::<Deployment>(object),
        WaypointObjectKind::DisruptionBudget => {
            check_type::<PodDisruptionBudget>(object)?;
            let both = ["minAvailable", "maxUnavailable"].map(|field| spec_field(object, field));
            match both {
                [Some(_), Some(_)] => Err(FieldPath::default()
                    .join_member("spec")
                    .error("has both minAvailable and maxUnavailable: give one")),
                _ => Ok(()),
            }
        }
        WaypointObjectKind::Autoscaler => {
            check_type::<HorizontalPodAutoscaler>(object)?;
            let least = spec_field(object, "minReplicas").and_then(Value::as_i64);
            let most = spec_field(object, "maxReplicas").and_then(Value::as_i64);
            let most_at = FieldPath::default()
                .join_member("spec")
                .join_member("maxReplicas");
            match most {
                None => Err(most_at.error("is missing")),
                Some(most) if most < least.unwrap_or(1).max(1) => {
                    Err(most_at.error("is less than minReplicas"))
                }
                Some(_) => Ok(()),
            }
        }
    }
}

fn spec_field<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("spec")?.get(field)
}

fn check_type<T: DeserializeOwned + Serialize>(object: &Value) -> Result<(), FieldError> {
    let read: T = serde_path_to_error::deserialize(object).map_err(|error| FieldError {
        path: error.path().to_string(),
        reason: error.into_inner().to_string(),
    })?;
    let written = serde_json::to_value(read)
        .map_err(|error| FieldPath::default().error(error.to_string()))?;
    match first_lost_member(object, &written, &FieldPath::default()) {
        Some(place) => Err(place.error("is no field of this kind")),
        None => Ok(()),
    }
}

/// Returns the first member that is lost when the object is parsed to a Kubernetes type and serialized again.
fn first_lost_member(before: &Value, after: &Value, path: &FieldPath) -> Option<FieldPath> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before.iter().find_map(|(name, value)| {
            let place = path.join_member(name);
            match after.get(name) {
                Some(after) => first_lost_member(value, after, &place),
                None if value.is_null() => None,
                None => Some(place),
            }
        }),
        (Value::Array(before), Value::Array(after)) => {
            let pairs = before.iter().zip(after).enumerate();
            let mut first_lost_member = pairs.filter_map(|(index, (before, after))| {
                first_lost_member(before, after, &path.join_element(index))
            });
            first_lost_member.next()
        }
        _ => None,
    }
}
