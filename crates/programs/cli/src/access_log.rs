//! Lines of a node proxy's access log, Ambit's or Istio's: text with `key=value` fields.

use std::collections::BTreeMap;

/// Parsed line of a node proxy's access log: its fields by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessLogLine(BTreeMap<String, String>);

impl AccessLogLine {
    /// Parses a line of a node proxy's log; returns `None` if it is not an access log line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split('\t');
        parts.find(|part| *part == "access" || part.starts_with("access:"))?;
        let fields = parts.next_back()?;
        let mut map = BTreeMap::new();
        let mut rest = fields.trim();
        while let Some((key, after)) = rest.split_once('=') {
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted_value(quoted),
                None => {
                    let (value, after) = after.split_once(' ').unwrap_or((after, ""));
                    (value.to_owned(), after)
                }
            };
            map.insert(key.trim().to_owned(), value);
            rest = after.trim_start();
        }
        Some(Self(map))
    }

    /// Returns the value of a field, if the line has it.
    pub(crate) fn field(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

fn quoted_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, text.get(at + 1..).unwrap_or_default()),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_quoted_and_not() {
        let line = "2026-01-01T00:00:00Z\tinfo\taccess\tconnection complete\t\
                    src.addr=10.0.0.1:5 src.identity=\"spiffe://a/ns/b/sa/c\" error=\"a \\\"b\\\"\" duration=\"1ms\"";
        let line = AccessLogLine::parse(line).unwrap();
        assert_eq!(line.field("src.addr"), Some("10.0.0.1:5"));
        assert_eq!(line.field("src.identity"), Some("spiffe://a/ns/b/sa/c"));
        assert_eq!(line.field("error"), Some("a \"b\""));
        assert_eq!(line.field("duration"), Some("1ms"));
        assert_eq!(
            AccessLogLine::parse("x\tinfo\tambit_xds::client\tconnected\ta=b"),
            None
        );
        assert_eq!(AccessLogLine::parse(""), None);
    }
}
