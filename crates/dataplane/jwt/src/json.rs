//! Strict JSON parser for signed texts. Rejects duplicate names, since two parsers may pick different values, and deep
//! nesting.

use std::{collections::BTreeMap, fmt};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Maximum nesting depth of lists and objects.
const MAX_DEPTH: usize = 16;

/// JSON value of a token or key set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    /// The value `null`.
    Null,
    /// True or false.
    Bool(bool),
    /// Number in its original spelling.
    Number(serde_json::Number),
    /// String value of JSON.
    Text(String),
    /// Array of JSON values.
    List(Vec<Self>),
    /// Object of names and JSON values.
    Object(BTreeMap<String, Self>),
}

impl Json {
    /// Parses a text that consists of exactly one JSON value.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        let read = StrictJsonSeed(MAX_DEPTH).deserialize(&mut reader)?;
        reader.end()?;
        Ok(read)
    }

    /// Returns the member of an object with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.get(name),
            _ => None,
        }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Serde seed that deserializes one JSON value; the number is the remaining nesting depth.
struct StrictJsonSeed(usize);

impl<'de> DeserializeSeed<'de> for StrictJsonSeed {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Json, D::Error> {
        reader.deserialize_any(self)
    }
}

impl StrictJsonSeed {
    fn nested_seed<E: de::Error>(&self) -> Result<Self, E> {
        let left = self.0.checked_sub(1);
        left.map(Self).ok_or_else(|| E::custom("nested too deeply"))
    }
}

impl<'de> Visitor<'de> for StrictJsonSeed {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Json, E> {
        let number = serde_json::Number::from_f64(value);
        number
            .map(Json::Number)
            .ok_or_else(|| E::custom("no number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element_seed(self.nested_seed()?)? {
            all.push(one);
        }
        Ok(Json::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(self.nested_seed()?)?;
            if let Some(_twice) = members.insert(name, value) {
                return Err(de::Error::custom("a name is there twice"));
            }
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_json_is_refused() {
        for text in [
            r#"{"sub":"a","sub":"b"}"#,
            r#"{"a":{"b":1,"b":2}}"#,
            r#"{"sub":"a","s\u0075b":"b"}"#,
            r#"{"a":1} "#.repeat(2).as_str(),
            r#"{"a":1}x"#,
            "",
            r#"{"a":1e999}"#,
            r#"{"a":"\ud800"}"#,
            &format!("{}1{}", "[".repeat(17), "]".repeat(17)),
            &"[".repeat(100_000),
        ] {
            assert!(Json::parse(text.as_bytes()).is_err(), "{text:.60}");
        }
        let deep = format!("{}1{}", "[".repeat(16), "]".repeat(16));
        assert!(Json::parse(deep.as_bytes()).is_ok());
        assert!(Json::parse(b"{\"a\":\"\xff\"}").is_err());
    }
}
