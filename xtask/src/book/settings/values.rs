//! Reads the chart's values with the comments before them. YAML parsers drop comments; the file's form is simple: one
//! key per line, two spaces per level.

/// Value of the chart, with its comment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChartValue {
    /// Keys from the outermost on, separated by dots.
    pub(super) path: String,
    /// Default value as it is written in the file; empty for a group of values.
    pub(super) default: String,
    pub(super) comment: String,
}

/// Returns the values that have a comment or a default, in the order of the file.
pub(super) fn parse_chart_values(text: &str) -> Vec<ChartValue> {
    let mut values: Vec<ChartValue> = Vec::new();
    let mut keys: Vec<(usize, &str)> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if content.is_empty() {
            // A comment that is followed by nothing is of the file.
            comment.clear();
        } else if let Some(text) = content.strip_prefix('#') {
            comment.push(text.trim());
        } else if content.starts_with("- ") {
            if let Some(last) = values.last_mut() {
                if !last.default.is_empty() {
                    last.default.push(' ');
                }
                last.default.push_str(content);
            }
        } else if let Some((key, default)) = content.split_once(':') {
            keys.retain(|(outer, _)| *outer < indent);
            keys.push((indent, key));
            let path: Vec<_> = keys.iter().map(|(_, key)| *key).collect();
            values.push(ChartValue {
                path: path.join("."),
                default: default.trim().to_owned(),
                comment: comment.join(" "),
            });
            comment.clear();
        }
    }
    values.retain(|value| !value.default.is_empty() || !value.comment.is_empty());
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_path_default_and_comment() {
        let text = "# Of the file.\n\nglobal:\n  # Registry of\n  # images.\n  hub: ambit\n  proxy:\n    domain: local\n\
                    # The agent.\ncni:\n  tolerations:\n    - {operator: Exists}\n";
        let value = |path: &str, default: &str, comment: &str| ChartValue {
            path: path.to_owned(),
            default: default.to_owned(),
            comment: comment.to_owned(),
        };
        let expected = [
            value("global.hub", "ambit", "Registry of images."),
            value("global.proxy.domain", "local", ""),
            value("cni", "", "The agent."),
            value("cni.tolerations", "- {operator: Exists}", ""),
        ];
        assert_eq!(parse_chart_values(text), expected);
    }
}
