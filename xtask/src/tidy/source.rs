//! Rust files of a package: their text, and which parts of it are test code.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use syn::{Attribute, Item};

use super::workspace::Package;
use crate::shell;

/// Rust file of a package.
pub(super) struct Source {
    /// Path relative to the workspace's root.
    pub(super) path: PathBuf,
    /// Path relative to the package's `src`; `None` outside of it.
    pub(super) path_in_src: Option<PathBuf>,
    /// Whether `cargo xtask gen` writes the file.
    pub(super) is_generated: bool,
    pub(super) text: String,
    pub(super) syntax: syn::File,
}

/// Reads every Rust file of a package.
pub(super) fn read_package(package: &Package) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    walk(&package.dir, &mut paths)?;
    let src = package.dir.join("src");
    let mut sources = Vec::new();
    for path in paths {
        let shown = path.strip_prefix(shell::workspace_root()).unwrap_or(&path);
        let text = fs::read_to_string(&path)?;
        sources.push(
            Source::new(shown, path.strip_prefix(&src).ok(), text)
                .with_context(|| shown.display().to_string())?,
        );
    }
    Ok(sources)
}

impl Source {
    pub(super) fn new(path: &Path, in_src: Option<&Path>, text: String) -> Result<Self> {
        Ok(Self {
            path: path.to_path_buf(),
            path_in_src: in_src.map(Path::to_path_buf),
            is_generated: path
                .components()
                .any(|part| part.as_os_str() == "generated"),
            syntax: syn::parse_file(&text)?,
            text,
        })
    }

    /// Returns the file name.
    pub(super) fn name(&self) -> &str {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.unwrap_or_default()
    }

    /// Returns whether the whole file is test code, by its path.
    pub(super) fn is_test(&self) -> bool {
        let Some(in_src) = &self.path_in_src else {
            return true;
        };
        let below_tests = in_src.components().any(|part| part.as_os_str() == "tests");
        self.name() == "tests.rs" || self.name() == "testing.rs" || below_tests
    }
}

/// Returns whether an item with these attributes is for tests only.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let test = path.is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|of| of.is_ident("test"));
        test || path
            .segments
            .last()
            .is_some_and(|last| last.ident == "test")
    })
}

/// Returns the attributes of an item.
pub(super) fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                walk(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

/// Builds a source file from a text, for tests of the rules.
#[cfg(test)]
pub(super) fn test_source(in_src: &str, text: &str) -> Source {
    let path = Path::new("crates/x/y/src").join(in_src);
    Source::new(&path, Some(Path::new(in_src)), text.to_owned()).unwrap()
}
