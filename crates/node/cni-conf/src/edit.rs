//! Appends Ambit's plugin to a plugin list that belongs to another owner, and removes it again; all other bytes stay
//! unchanged.

use serde_json::{Value, value::RawValue};

use crate::{
    PLUGIN_NAME,
    json::{self, Object},
};

/// Returns the plugin list `text` with `entry` as its last plugin and without other entries of Ambit's plugin; `None`
/// if `text` needs no change.
///
/// # Errors
/// When `text` is not a list of plugins.
pub fn add_plugin_entry(text: &str, entry: &str) -> Result<Option<String>, serde_json::Error> {
    let elements = plugin_ranges(text)?;
    let ours = elements.iter().filter(|element| element.is_ours).count();
    if let Some(last) = elements.last()
        && last.is_ours
        && ours == 1
        && is_same_json(text.get(last.start..last.end).unwrap_or_default(), entry)
    {
        return Ok(None);
    }
    let clean = remove_plugin_entry(text)?.unwrap_or_else(|| text.to_owned());
    let Some(last) = self::plugin_ranges(&clean)?.pop() else {
        return Ok(None);
    };
    let (before, after) = clean.split_at(last.end);
    let space = clean.get(last.gap..last.start).unwrap_or_default();
    let space = space.rsplit([',', '[']).next().unwrap_or_default();
    Ok(Some(format!("{before},{space}{entry}{after}")))
}

/// Removes Ambit's plugins from the plugin list; `None` if it has none.
///
/// # Errors
/// When `text` is not a list of plugins.
pub fn remove_plugin_entry(text: &str) -> Result<Option<String>, serde_json::Error> {
    let elements = plugin_ranges(text)?;
    if !elements.iter().any(|element| element.is_ours) {
        return Ok(None);
    }
    let mut result = String::with_capacity(text.len());
    let mut written = 0;
    let mut any_kept = false;
    for (index, element) in elements.iter().enumerate() {
        if !element.is_ours {
            any_kept = true;
            continue;
        }
        // Removes the comma before it or, when it is the first that remains, the comma after it.
        let (from, to) = if any_kept {
            (element.gap, element.end)
        } else {
            let next = elements.get(index + 1);
            (element.start, next.map_or(element.end, |next| next.start))
        };
        result.push_str(text.get(written..from).unwrap_or_default());
        written = to;
    }
    result.push_str(text.get(written..).unwrap_or_default());
    Ok(Some(result))
}

/// Byte range of one plugin in the text of a plugin list; `gap` is the end of the previous plugin, or the beginning of
/// the list.
struct PluginRange {
    gap: usize,
    start: usize,
    end: usize,
    is_ours: bool,
}

fn plugin_ranges(text: &str) -> Result<Vec<PluginRange>, serde_json::Error> {
    let object = Object::parse(text)?;
    let Some(list) = object.get("plugins") else {
        return Ok(Vec::new());
    };
    let plugins: Vec<&RawValue> = serde_json::from_str(list.get())?;
    let mut gap = json::byte_range(text, list).start;
    let mut elements = Vec::with_capacity(plugins.len());
    for plugin in plugins {
        let at = json::byte_range(text, plugin);
        let kind = Object::parse(plugin.get()).ok();
        let kind = kind.and_then(|plugin| plugin.text("type"));
        elements.push(PluginRange {
            gap,
            start: at.start,
            end: at.end,
            is_ours: kind.is_some_and(|kind| kind == PLUGIN_NAME),
        });
        gap = at.end;
    }
    Ok(elements)
}

fn is_same_json(a: &str, b: &str) -> bool {
    let read = |text| serde_json::from_str::<Value>(text).ok();
    read(a).is_some_and(|a| Some(a) == read(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENTRY: &str = r#"{"type":"ambit-cni","n":1}"#;

    fn with_ambit_entry(text: &str) -> String {
        add_plugin_entry(text, ENTRY).unwrap().unwrap()
    }

    #[test]
    fn entry_is_appended_in_the_style_of_the_file() {
        let text = "{\n  \"plugins\": [\n    {\"type\":\"a\"},\n    {\"type\":\"b\"}\n  ],\n  \"x\": 1.50\n}\n";
        let expected = "{\n  \"plugins\": [\n    {\"type\":\"a\"},\n    {\"type\":\"b\"},\n    {\"type\":\"ambit-cni\",\"n\":1}\n  ],\n  \"x\": 1.50\n}\n";
        assert_eq!(with_ambit_entry(text), expected);
        assert_eq!(add_plugin_entry(expected, ENTRY).unwrap(), None);
        assert_eq!(
            with_ambit_entry(r#"{"plugins":[{"type":"a"}]}"#),
            r#"{"plugins":[{"type":"a"},{"type":"ambit-cni","n":1}]}"#
        );
        assert_eq!(
            with_ambit_entry("{\"plugins\":[\n {\"type\":\"a\"}\n]}"),
            "{\"plugins\":[\n {\"type\":\"a\"},\n {\"type\":\"ambit-cni\",\"n\":1}\n]}"
        );
    }

    #[test]
    fn old_duplicate_and_misplaced_entries_are_replaced() {
        for plugins in [
            r#"{"type":"a"},{"type":"ambit-cni","n":2}"#,
            r#"{"type":"ambit-cni","n":1},{"type":"a"}"#,
            r#"{"type":"ambit-cni"},{"type":"ambit-cni"},{"type":"a"},{"type":"ambit-cni","n":1},{"type":"ambit-cni","n":1}"#,
        ] {
            assert_eq!(
                with_ambit_entry(&format!(r#"{{"plugins":[{plugins}]}}"#)),
                r#"{"plugins":[{"type":"a"},{"type":"ambit-cni","n":1}]}"#
            );
        }
    }

    #[test]
    fn list_with_only_our_plugin_becomes_empty() {
        let text = r#"{"plugins":[ {"type":"ambit-cni"} ]}"#;
        assert_eq!(
            remove_plugin_entry(text).unwrap().unwrap(),
            r#"{"plugins":[  ]}"#
        );
        assert_eq!(
            remove_plugin_entry(r#"{"plugins":[{"type":"a"}]}"#).unwrap(),
            None
        );
        assert_eq!(remove_plugin_entry(r#"{"type":"a"}"#).unwrap(), None);
        assert!(remove_plugin_entry("[]").is_err() && add_plugin_entry("", ENTRY).is_err());
    }

    fn any_whitespace() -> impl Strategy<Value = String> {
        "[ \n\t]{0,3}"
    }

    /// Generates a plugin list without Ambit's plugin, in any layout and with unknown keys.
    fn any_plugin_list() -> impl Strategy<Value = String> {
        let value = prop_oneof![
            Just("1.50e+3".to_owned()),
            Just(r#""a\u0041,]}""#.to_owned()),
            Just("[1 , {}]".to_owned()),
            Just("123456789012345678901234567890".to_owned()),
        ];
        let member = (r#""[a-z]{1,4}""#, any_whitespace(), value)
            .prop_map(|(key, space, value)| format!("{key}{space}:{space}{value}"));
        let members = proptest::collection::vec(member, 0..3).boxed();
        let plugin =
            ("[a-z]{1,8}", members.clone(), any_whitespace()).prop_map(|(kind, members, space)| {
                let mut all = vec![format!(r#""type":{space}"{kind}""#)];
                all.extend(members.into_iter().filter(|m| !m.starts_with("\"type\"")));
                format!("{{{space}{}{space}}}", all.join(&format!("{space},")))
            });
        let plugins = proptest::collection::vec((any_whitespace(), plugin, any_whitespace()), 1..4);
        (members, plugins, any_whitespace(), any::<bool>()).prop_map(
            |(members, plugins, space, first)| {
                let plugins: Vec<_> = plugins
                    .into_iter()
                    .map(|(before, plugin, after)| format!("{before}{plugin}{after}"))
                    .collect();
                let list = format!(r#""plugins":{space}[{}]"#, plugins.join(","));
                let mut all: Vec<_> = members
                    .into_iter()
                    .filter(|m| !m.starts_with("\"plugins\""))
                    .collect();
                all.insert(if first { 0 } else { all.len() }, list);
                format!("{space}{{{}{space}}}{space}", all.join(","))
            },
        )
    }

    proptest! {
        #[test]
        fn removing_an_added_entry_restores_the_bytes(text in any_plugin_list()) {
            let chained = add_plugin_entry(&text, ENTRY).unwrap().unwrap();
            prop_assert_eq!(add_plugin_entry(&chained, ENTRY).unwrap(), None);
            let list: Value = serde_json::from_str(&chained).unwrap();
            prop_assert_eq!(&list["plugins"].as_array().unwrap().last().unwrap()["n"], 1);
            let before: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(
                list["plugins"].as_array().unwrap().len(),
                before["plugins"].as_array().unwrap().len() + 1
            );
            prop_assert_eq!(remove_plugin_entry(&chained).unwrap().unwrap(), text);
        }

        #[test]
        fn editing_arbitrary_text_never_panics(text in "[\\[\\]{},:\" a-z]{0,60}", more in any::<String>()) {
            for text in [text, format!("{{\"plugins\":[{more}]}}")] {
                drop(add_plugin_entry(&text, ENTRY));
                drop(remove_plugin_entry(&text));
            }
        }
    }
}
