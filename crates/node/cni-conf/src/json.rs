//! JSON objects and arrays whose members keep their exact bytes.
//!
//! A configuration belongs to another owner: the order of its keys, its numbers and its white space
//! must be preserved, so nothing is read into a tree and written again.

use std::{fmt, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// Members of a JSON object in their order, with the exact bytes of each value.
#[derive(Debug)]
pub struct Object<'a>(pub Vec<(String, &'a RawValue)>);

impl<'a> Object<'a> {
    /// Parses `text`, and records the positions of its members.
    ///
    /// # Errors
    /// When it is not one JSON object.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the member called `key`; the last one of duplicates, as in every reader of the
    /// format.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        let members = self.0.iter().rev();
        members
            .filter(|(name, _)| name == key)
            .map(|(_, value)| *value)
            .next()
    }

    /// Returns the text of the member called `key`, if it is a string.
    pub fn text(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(String, &'de RawValue)>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Members).map(Self)
    }
}

/// Returns `object` with `members` set: each replaces the member of its name, or is appended.
///
/// # Errors
/// When `object` is not a JSON object.
pub fn with_members(
    object: &str,
    members: &[(&str, Box<RawValue>)],
) -> Result<String, serde_json::Error> {
    let old = Object::parse(object)?;
    let retained = old
        .0
        .iter()
        .filter(|(name, _)| members.iter().all(|(set, _)| set != name))
        .map(|(name, value)| (name.as_str(), *value));
    let set = members.iter().map(|(name, value)| (*name, &**value));
    let mut text = String::with_capacity(object.len() + 256);
    for (name, value) in retained.chain(set) {
        text.push(if text.is_empty() { '{' } else { ',' });
        text.push_str(&serde_json::to_string(name)?);
        text.push(':');
        text.push_str(value.get());
    }
    if text.is_empty() {
        text.push('{');
    }
    text.push('}');
    Ok(text)
}

/// Serializes any value as raw JSON.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn serialize_raw(
    value: &(impl serde::Serialize + ?Sized),
) -> Result<Box<RawValue>, serde_json::Error> {
    serde_json::value::to_raw_value(value)
}

/// Returns the byte range of `part`, which was borrowed from `whole`.
pub(crate) fn byte_range(whole: &str, part: &RawValue) -> Range<usize> {
    let start = part.get().as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.get().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_their_bytes() {
        let text = r#" { "b" : 1.50e3, "a":[ 1 ], "b": 2 } "#;
        let object = Object::parse(text).unwrap();
        let names: Vec<_> = object.0.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "a", "b"]);
        assert_eq!(object.get("b").unwrap().get(), "2");
        assert_eq!(&text[byte_range(text, object.get("a").unwrap())], "[ 1 ]");
        assert!(object.get("c").is_none() && object.text("a").is_none());
    }

    #[test]
    fn members_are_set_in_place_of_others() {
        let set = [
            ("a", serialize_raw("x").unwrap()),
            ("c", serialize_raw(&[1]).unwrap()),
        ];
        let text = r#"{"b":1.50, "a":[ 1 ]}"#;
        assert_eq!(
            with_members(text, &set).unwrap(),
            r#"{"b":1.50,"a":"x","c":[1]}"#
        );
        assert_eq!(with_members("{}", &[]).unwrap(), "{}");
        assert!(with_members("[]", &[]).is_err());
    }
}
