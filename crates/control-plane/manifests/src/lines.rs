//! Finds the line of a field in a YAML document.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// Returns the line, counted from 1, of the field at `path` (in the format of
/// `serde_path_to_error`, for instance `spec.rules[0].from`), or of its nearest existing ancestor.
pub(crate) fn line_of_path(yaml: &str, path: &str) -> Option<u64> {
    let mut at: Spanned<YamlTree> = serde_saphyr::from_str(yaml).ok()?;
    let mut line = at.referenced.line();
    for step in path_steps(path) {
        // A member is on the line of its key: its value may begin on the next line.
        let next = match at.value {
            YamlTree::Map(members) => members
                .into_iter()
                .find(|(name, _)| name.value == step)
                .map(|(name, value)| (name.referenced.line(), value)),
            YamlTree::List(items) => step
                .parse::<usize>()
                .ok()
                .and_then(|index| items.into_iter().nth(index))
                .map(|item| (item.referenced.line(), item)),
            YamlTree::Leaf => None,
        };
        let Some((found, value)) = next else { break };
        line = found;
        at = value;
    }
    Some(line)
}

/// Returns the lines of a list's items in one pass; a search for each item would parse the document
/// as often.
pub(crate) fn item_lines(yaml: &str, list: &str) -> Vec<u64> {
    let Ok(YamlTree::Map(members)) = serde_saphyr::from_str(yaml) else {
        return Vec::new();
    };
    let mut members = members.into_iter();
    match members.find(|(name, _)| name.value == list) {
        Some((_, list)) => match list.value {
            YamlTree::List(items) => items.iter().map(|item| item.referenced.line()).collect(),
            YamlTree::Map(_) | YamlTree::Leaf => Vec::new(),
        },
        None => Vec::new(),
    }
}

fn path_steps(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[', ']']).filter(|step| !step.is_empty())
}

enum YamlTree {
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
    List(Vec<Spanned<Self>>),
    Leaf,
}

impl<'de> Deserialize<'de> for YamlTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TreeVisitor;

        impl<'de> Visitor<'de> for TreeVisitor {
            type Value = YamlTree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlTree, A::Error> {
                let mut members = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    members.push(entry);
                }
                Ok(YamlTree::Map(members))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<YamlTree, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(YamlTree::List(items))
            }
            fn visit_bool<E>(self, _: bool) -> Result<YamlTree, E> {
                Ok(YamlTree::Leaf)
            }
            fn visit_i64<E>(self, _: i64) -> Result<YamlTree, E> {
                Ok(YamlTree::Leaf)
            }
            fn visit_u64<E>(self, _: u64) -> Result<YamlTree, E> {
                Ok(YamlTree::Leaf)
            }
            fn visit_f64<E>(self, _: f64) -> Result<YamlTree, E> {
                Ok(YamlTree::Leaf)
            }
            fn visit_str<E>(self, _: &str) -> Result<YamlTree, E> {
                Ok(YamlTree::Leaf)
            }
            fn visit_unit<E>(self) -> Result<YamlTree, E> {
                Ok(YamlTree::Leaf)
            }
            fn visit_none<E>(self) -> Result<YamlTree, E> {
                Ok(YamlTree::Leaf)
            }
            fn visit_some<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<YamlTree, D::Error> {
                deserializer.deserialize_any(self)
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<YamlTree, D::Error> {
                IgnoredAny::deserialize(deserializer).map(|_| YamlTree::Leaf)
            }
        }

        deserializer.deserialize_any(TreeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_of_the_field_or_its_nearest_ancestor() {
        let yaml = "kind: A\nspec:\n  rules:\n  - from: x\n  - to:\n    - port: 1\n";
        assert_eq!(line_of_path(yaml, "spec.rules[1].to[0].port"), Some(6));
        assert_eq!(line_of_path(yaml, "spec.rules[1].when"), Some(5));
        assert_eq!(line_of_path(yaml, "nothing"), Some(1));
        assert_eq!(line_of_path("a: [", "a"), None);
    }

    #[test]
    fn lines_of_items_are_found_in_one_pass() {
        let yaml = "kind: List\nitems:\n- a: 1\n-\n  a: 2\n";
        let each = [0, 1].map(|index| line_of_path(yaml, &format!("items[{index}]")).unwrap());
        assert_eq!(item_lines(yaml, "items"), each);
        assert!(item_lines(yaml, "kind").is_empty());
        assert!(item_lines("[", "items").is_empty());
    }
}
