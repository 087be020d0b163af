//! Previous waypoints of objects: when an object's label is changed to another waypoint, the object continues to use
//! the previous one until the new one has been ready for the first time. A status condition of the new waypoint's
//! Gateway records them, so that a control plane that restarts can read which waypoint was in use.
//!
//! The condition's message is a list of `KIND NAMESPACE/NAME keeps NAMESPACE/GATEWAY`, separated by `; `; a Namespace
//! has its name alone.

use std::collections::BTreeMap;

use ambit_k8s_api::{Kind, ObjectKey, status::conditions};
use ambit_model::GatewayName;
use serde_json::Value;

use crate::condition::{ConditionContent, GATEWAY_REPLACES, MAX_MESSAGE_CHARS};

/// Kinds of objects whose labels can select a waypoint.
const LABELLED_KINDS: [Kind; 5] = [
    Kind::Namespace,
    Kind::Service,
    Kind::ServiceEntry,
    Kind::WorkloadEntry,
    Kind::Pod,
];
const KEEPS_TEXT: &str = " keeps ";
const SEPARATOR: &str = "; ";

/// Builds the status condition that lists objects and the waypoints that they keep; `None` if there are none. Objects
/// that exceed the maximum length of the message are left out.
pub(crate) fn replaces_condition<'a>(
    kept: impl Iterator<Item = (&'a ObjectKey, &'a GatewayName)>,
) -> Option<ConditionContent> {
    let mut message = String::new();
    for (holder, gateway) in kept {
        let one = format!("{holder}{KEEPS_TEXT}{gateway}");
        if message.len() + SEPARATOR.len() + one.len() > MAX_MESSAGE_CHARS {
            break;
        }
        if !message.is_empty() {
            message.push_str(SEPARATOR);
        }
        message.push_str(&one);
    }
    (!message.is_empty()).then_some(ConditionContent {
        is_true: true,
        reason: "Waiting",
        message,
        needs_attention: false,
    })
}

/// Parses the condition `Replaces` in a Gateway's status: objects and the waypoints that they keep. Entries that cannot
/// be parsed are skipped.
pub(crate) fn read(status: &Value) -> BTreeMap<ObjectKey, GatewayName> {
    let text = |one: &Value, field: &str| Some(one.get(field)?.as_str()?.to_owned());
    let conditions = conditions(status).into_iter();
    let mut own =
        conditions.filter(|one| text(one, "type").as_deref() == Some(GATEWAY_REPLACES.name));
    let message = own.next().and_then(|one| text(&one, "message"));
    let message = message.unwrap_or_default();
    message
        .split(SEPARATOR)
        .filter_map(parse_kept_waypoint)
        .collect()
}

fn parse_kept_waypoint(text: &str) -> Option<(ObjectKey, GatewayName)> {
    let (holder, gateway) = text.split_once(KEEPS_TEXT)?;
    let (kind, name) = holder.split_once(' ')?;
    let kind = LABELLED_KINDS
        .into_iter()
        .find(|one| one.as_str() == kind)?;
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => ("", name),
    };
    let (of, gateway) = gateway.split_once('/')?;
    Some((
        ObjectKey::new(kind, namespace, name),
        GatewayName::new(of, gateway),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(message: &str) -> Value {
        json!({"conditions": [
            {"type": "Accepted", "message": "Namespace other keeps a/b"},
            {"type": GATEWAY_REPLACES.name, "message": message},
        ]})
    }

    #[test]
    fn conditions_are_read_back() {
        let kept: BTreeMap<_, _> = LABELLED_KINDS
            .into_iter()
            .map(|kind| {
                let namespace = if kind == Kind::Namespace { "" } else { "shop" };
                let holder = ObjectKey::new(kind, namespace, "web");
                (holder, GatewayName::new("shop", "old"))
            })
            .collect();
        let condition = replaces_condition(kept.iter()).unwrap();
        assert!(condition.message.contains("Namespace web keeps shop/old"));
        assert_eq!(read(&status(&condition.message)), kept);
    }

    #[test]
    fn what_is_no_such_condition_keeps_nothing() {
        assert_eq!(super::replaces_condition(std::iter::empty()), None);
        for message in [
            "",
            "Namespace shop",
            "Namespace shop keeps old",
            "Secret shop/a keeps shop/old",
            " keeps /",
        ] {
            assert!(read(&status(message)).is_empty(), "{message}");
        }
        assert!(read(&Value::Null).is_empty());
    }

    #[test]
    fn a_condition_names_as_many_as_it_has_room_for() {
        let names = (0..100).map(|number| format!("web-{number}"));
        let holders: Vec<_> = names
            .map(|name| ObjectKey::new(Kind::Service, "shop", name))
            .collect();
        let old = GatewayName::new("shop", "old");
        let condition = replaces_condition(holders.iter().map(|holder| (holder, &old))).unwrap();
        assert!(condition.message.len() <= MAX_MESSAGE_CHARS);
        let back = read(&status(&condition.message));
        assert!((20..100).contains(&back.len()), "{}", back.len());
        assert!(back.keys().all(|holder| holders.contains(holder)));
    }
}
