//! One CNI network configuration: a list of plugins (`.conflist`), or a single plugin (`.conf`, the old form).

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    MARK, PLUGIN_NAME,
    json::{self, Object},
};

/// Reason why a file is no valid network configuration. Runtimes skip such files, or stop at them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConf {
    /// Invalid JSON, for instance of a file that is still being written.
    #[error("it is not JSON of the right form: {0}")]
    Json(String),
    /// Network configuration without `name`, which every plugin needs.
    #[error("it has no network name")]
    MissingName,
    /// Empty list of plugins, `plugins`.
    #[error("its list of plugins is missing or empty")]
    MissingPlugins,
    /// Plugin without `type`; often a list in a `.conf` file.
    #[error("a plugin in it has no type")]
    MissingType,
}

/// Network configuration as a runtime parses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The network's name; runtimes and plugins key their records by it.
    pub name: String,
    /// CNI specification version of the configuration, `cniVersion`.
    pub cni_version: Option<String>,
    /// Further CNI versions that runtimes may choose from, `cniVersions`.
    pub cni_versions: Vec<String>,
    /// Whether runtimes must not call CHECK (`disableCheck`).
    pub disable_check: bool,
    /// Whether runtimes must not call GC (`disableGC`).
    pub disable_gc: bool,
    /// Plugins in the order in which ADD calls them.
    pub plugins: Vec<Plugin>,
    /// Whether the configuration is a list rather than a single plugin in the old form.
    pub is_list: bool,
    /// Whether the configuration has Ambit's mark, [`MARK`].
    pub is_marked: bool,
}

/// Plugin of a network configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Name of the plugin's executable, `type`.
    pub kind: String,
    /// Capabilities for runtime arguments that the plugin declares, `capabilities`.
    pub capabilities: BTreeSet<String>,
    /// Configuration of the plugin, byte for byte as in the file.
    pub text: String,
}

impl Network {
    /// Parses the contents of the file called `name`: a `.conflist` holds a plugin list, any other file a single
    /// plugin.
    ///
    /// # Errors
    /// When a runtime could not use it.
    pub fn parse(name: &str, text: &str) -> Result<Self, InvalidConf> {
        let object = Object::parse(text).map_err(invalid_json)?;
        let is_list = name.ends_with(".conflist");
        let plugins = if is_list {
            let listed = object.get("plugins").ok_or(InvalidConf::MissingPlugins)?;
            let listed: Vec<&RawValue> =
                serde_json::from_str(listed.get()).map_err(invalid_json)?;
            listed
                .into_iter()
                .map(|raw| Plugin::parse(raw.get()))
                .collect::<Result<Vec<_>, _>>()?
        } else {
            vec![Plugin::parse(text)?]
        };
        if plugins.is_empty() {
            return Err(InvalidConf::MissingPlugins);
        }
        Ok(Self {
            name: object
                .text("name")
                .filter(|name| !name.is_empty())
                .ok_or(InvalidConf::MissingName)?,
            cni_version: object.text("cniVersion").filter(|text| !text.is_empty()),
            cni_versions: object
                .get("cniVersions")
                .and_then(|raw| serde_json::from_str(raw.get()).ok())
                .unwrap_or_default(),
            disable_check: bool_member(&object, "disableCheck"),
            disable_gc: bool_member(&object, "disableGC"),
            plugins,
            is_list,
            is_marked: object.get(MARK).is_some(),
        })
    }

    /// Whether all plugins of the configuration are Ambit's.
    pub fn is_ours(&self) -> bool {
        self.is_marked || self.plugins.iter().all(Plugin::is_ours)
    }

    /// Returns the capabilities that any plugin of the network declares.
    pub fn capabilities(&self) -> BTreeSet<String> {
        let all = self.plugins.iter().flat_map(|plugin| &plugin.capabilities);
        all.cloned().collect()
    }

    /// Returns the CNI version in which the plugins are called: `requested` if the configuration offers it, else the
    /// newest version that the configuration offers and `known` (oldest first) contains.
    pub fn select_version<'a>(&'a self, requested: &'a str, known: &[&str]) -> Option<&'a str> {
        let mut offered: Vec<&str> = self.cni_versions.iter().map(String::as_str).collect();
        offered.extend(self.cni_version.as_deref());
        if offered.contains(&requested) {
            return Some(requested);
        }
        let place = |version: &&str| known.iter().position(|known| known == version);
        let newest = offered.iter().copied().max_by_key(place);
        newest.filter(|version| place(version).is_some())
    }
}

impl Plugin {
    fn parse(text: &str) -> Result<Self, InvalidConf> {
        let object = Object::parse(text).map_err(invalid_json)?;
        let capabilities = object.get("capabilities").map(|raw| {
            Object::parse(raw.get()).map(|capabilities| {
                let capabilities = capabilities.0.into_iter();
                capabilities
                    .filter(|(_, value)| value.get() == "true")
                    .map(|(name, _)| name)
                    .collect()
            })
        });
        Ok(Self {
            kind: object
                .text("type")
                .filter(|kind| !kind.is_empty())
                .ok_or(InvalidConf::MissingType)?,
            capabilities: capabilities
                .transpose()
                .map_err(invalid_json)?
                .unwrap_or_default(),
            text: text.to_owned(),
        })
    }

    /// Whether the plugin is Ambit's.
    pub fn is_ours(&self) -> bool {
        self.kind == PLUGIN_NAME
    }

    /// Returns the plugin's configuration with `members` added, as it is passed to the plugin for one call.
    ///
    /// # Errors
    /// Never for a configuration that was parsed.
    pub fn config_with_members(
        &self,
        members: &[(&str, Box<RawValue>)],
    ) -> Result<String, serde_json::Error> {
        json::with_members(&self.text, members)
    }
}

/// Returns the value of the boolean member `key`, which older configurations write as a string.
fn bool_member(object: &Object<'_>, key: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum BoolOrString {
        Bool(bool),
        Text(String),
    }
    let value = object
        .get(key)
        .and_then(|raw| serde_json::from_str(raw.get()).ok());
    match value {
        Some(BoolOrString::Bool(value)) => value,
        Some(BoolOrString::Text(text)) => text.eq_ignore_ascii_case("true"),
        None => false,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid_json(error: serde_json::Error) -> InvalidConf {
    InvalidConf::Json(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN_VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

    #[test]
    fn a_list_is_read() {
        let text = r#"{"cniVersion":"1.0.0","name":"net","disableCheck":"True","plugins":[
            {"type":"bridge","x":1.50},
            {"type":"portmap","capabilities":{"portMappings":true,"y":false}}]}"#;
        let network = Network::parse("10-x.conflist", text).unwrap();
        assert_eq!(
            (network.name.as_str(), network.is_list, network.is_ours()),
            ("net", true, false)
        );
        assert!(network.disable_check && !network.disable_gc);
        assert_eq!(network.plugins[0].text, r#"{"type":"bridge","x":1.50}"#);
        assert_eq!(
            network.capabilities(),
            BTreeSet::from(["portMappings".to_owned()])
        );
    }

    #[test]
    fn a_single_plugin_is_read() {
        let text = r#"{"cniVersion":"0.2.0","name":"net","type":"flannel"}"#;
        for name in ["10-x.conf", "10-x.json"] {
            let network = Network::parse(name, text).unwrap();
            assert_eq!(network.plugins[0].kind, "flannel");
            assert!(!network.is_list);
        }
    }

    #[test]
    fn configurations_unusable_by_runtimes_are_invalid() {
        for (name, text, expected) in [
            ("a.conflist", r#"{"name":"n"}"#, InvalidConf::MissingPlugins),
            (
                "a.conflist",
                r#"{"name":"n","plugins":[]}"#,
                InvalidConf::MissingPlugins,
            ),
            (
                "a.conflist",
                r#"{"name":"n","plugins":[{}]}"#,
                InvalidConf::MissingType,
            ),
            (
                "a.conflist",
                r#"{"plugins":[{"type":"x"}]}"#,
                InvalidConf::MissingName,
            ),
            (
                "a.conf",
                r#"{"name":"n","plugins":[{"type":"x"}]}"#,
                InvalidConf::MissingType,
            ),
            ("a.conf", r#"{"type":"x"}"#, InvalidConf::MissingName),
        ] {
            assert_eq!(Network::parse(name, text).unwrap_err(), expected, "{text}");
        }
        for text in ["", "{", "[]", r#"{"name":"n","plugins":3}"#, "null"] {
            let error = Network::parse("a.conflist", text).unwrap_err();
            assert!(matches!(error, InvalidConf::Json(_)), "{text}: {error}");
        }
    }

    #[test]
    fn own_configurations_have_the_mark_or_only_our_plugin() {
        for (text, expected) in [
            (r#"{"name":"n","plugins":[{"type":"ambit-cni"}]}"#, true),
            (
                r#"{"name":"n","plugins":[{"type":"x"},{"type":"ambit-cni"}]}"#,
                false,
            ),
            (
                r#"{"name":"n","ambit":{},"plugins":[{"type":"x"},{"type":"ambit-cni"}]}"#,
                true,
            ),
        ] {
            assert_eq!(
                Network::parse("a.conflist", text).unwrap().is_ours(),
                expected
            );
        }
    }

    #[test]
    fn the_version_is_the_callers_if_offered() {
        for (members, requested, expected) in [
            (r#""cniVersion":"1.0.0""#, "1.0.0", Some("1.0.0")),
            (r#""cniVersion":"0.3.1""#, "1.0.0", Some("0.3.1")),
            (
                r#""cniVersion":"1.0.0","cniVersions":["0.4.0","1.1.0"]"#,
                "0.4.0",
                Some("0.4.0"),
            ),
            (
                r#""cniVersion":"1.0.0","cniVersions":["0.4.0","1.1.0","9.0.0"]"#,
                "0.2.0",
                Some("1.1.0"),
            ),
            (r#""cniVersion":"9.0.0""#, "1.0.0", None),
            (r#""x":1"#, "1.0.0", None),
        ] {
            let text = format!(r#"{{"name":"n","plugins":[{{"type":"x"}}],{members}}}"#);
            let network = Network::parse("a.conflist", &text).unwrap();
            assert_eq!(
                network.select_version(requested, &KNOWN_VERSIONS),
                expected,
                "{members}"
            );
        }
    }
}
