//! Names and versions of the known resources of one type.

use arcstr::ArcStr;
use hashbrown::HashMap;

/// Versions of the known resources by name. Large meshes have very many of them: a version that is a hexadecimal hash,
/// as usual, is stored as a number.
#[derive(Debug, Default)]
pub(crate) struct ResourceVersions {
    versions: HashMap<ArcStr, Version>,
}

#[derive(Debug, PartialEq, Eq)]
enum Version {
    Hex(u64),
    Text(Box<str>),
}

impl Version {
    fn new(text: &str) -> Self {
        match u64::from_str_radix(text, 16) {
            Ok(number) if format_hex(number) == text => Self::Hex(number),
            _ => Self::Text(text.into()),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Hex(number) => format_hex(*number),
            Self::Text(text) => text.to_string(),
        }
    }
}

fn format_hex(number: u64) -> String {
    format!("{number:x}")
}

impl ResourceVersions {
    pub(crate) fn insert(&mut self, name: ArcStr, version: &str) {
        self.versions.insert(name, Version::new(version));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.versions.remove(name);
        if self.versions.len() < self.versions.capacity() / 8 {
            self.versions.shrink_to(self.versions.len() * 2);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.versions.len()
    }

    pub(crate) fn to_versions(&self) -> Vec<(ArcStr, String)> {
        self.versions
            .iter()
            .map(|(name, version)| (name.clone(), version.text()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_returned_unchanged() {
        let mut known = ResourceVersions::default();
        for version in [
            "",
            "0",
            "1f",
            "001f",
            "1F",
            "ffffffffffffffff",
            "1ffffffffffffffff",
            "+1",
        ] {
            known.insert("a".into(), version);
            assert_eq!(known.to_versions(), [("a".into(), version.to_owned())]);
        }
    }
}
