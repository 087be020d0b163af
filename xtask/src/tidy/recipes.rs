//! Rules for the files that ARCHITECTURE.md names: each must exist and contain the items that it is named for, and a
//! recipe must name exactly the files of its example.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};

use crate::shell;

/// File extensions by which names are recognised as files.
const SOURCE_EXTENSIONS: [&str; 5] = [".rs", ".proto", ".yaml", ".md", ".toml"];

/// Recipe in ARCHITECTURE.md for an addition, and an existing example of it.
struct Recipe {
    /// Heading of the recipe's section.
    title: &'static str,
    /// Name of the example, which replaces `NAME` in the recipe's paths.
    name: &'static str,
    /// Texts that occur only in files of the example.
    marker_texts: &'static [&'static str],
}

const RECIPES: &[Recipe] = &[
    Recipe {
        title: "### A new kind of object",
        name: "http_fault",
        marker_texts: &[
            "HTTPFault,",
            "HTTPFault;",
            "for HTTPFault",
            "httpfaults",
            "mod http_fault;",
        ],
    },
    Recipe {
        title: "### A new type of record",
        name: "telemetry",
        marker_texts: &["WaypointTelemetry", "WAYPOINTTELEMETRY", "    Telemetry: "],
    },
    Recipe {
        title: "### A new filter of routes",
        name: "cors",
        marker_texts: &["HttpCors", "HttpFilter::Cors", "mod cors", "cors_policy"],
    },
];

/// Returns every violation. A file that cannot be read is an error.
pub(super) fn find_violations() -> Result<Vec<String>> {
    let root = shell::workspace_root();
    let mut files = Vec::new();
    for part in ["crates", "charts", "xtask", "fuzz", "build", "examples"] {
        list_files(&root, &root.join(part), &mut files)?;
    }
    let document = root.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&document).context("cannot read ARCHITECTURE.md")?;
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut broken = missing_paths(&text, &files);
    broken.extend(missing_items(&text, &files, read));
    for recipe in RECIPES {
        broken.extend(forgotten_files(recipe, &text, &files, read));
    }
    Ok(broken)
}

/// Adds the paths of all files below a directory, relative to the root.
fn list_files(root: &Path, directory: &Path, files: &mut Vec<String>) -> Result<()> {
    let entries = fs::read_dir(directory);
    for entry in entries.with_context(|| format!("cannot list {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                list_files(root, &path, files)?;
            }
        } else if let Ok(path) = path.strip_prefix(root) {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Returns the paths in backticks that contain a folder and end with one of [`SOURCE_EXTENSIONS`].
fn backticked_paths(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|one| {
        let is_file = SOURCE_EXTENSIONS.iter().any(|ending| one.ends_with(ending));
        one.contains('/') && is_file && !one.contains([' ', '*', '$', '<', '{', '\n'])
    })
}

fn matches_path(file: &str, path: &str) -> bool {
    let before = file.strip_suffix(path);
    before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// Returns the paths in a text that do not exist.
fn missing_paths(text: &str, files: &[String]) -> Vec<String> {
    let named = backticked_paths(text).filter(|path| !path.contains("NAME"));
    let gone = named.filter(|path| !files.iter().any(|file| matches_path(file, path)));
    gone.map(|path| format!("ARCHITECTURE.md names {path}, which is no file"))
        .collect()
}

/// Returns the items in phrases such as ``"`ITEM` in `PATH`"`` that do not occur in that file.
fn missing_items(text: &str, files: &[String], read: impl Fn(&str) -> String) -> Vec<String> {
    let parts: Vec<&str> = text.split('`').collect();
    let phrases = parts.windows(3).skip(1).step_by(2);
    let named = phrases.filter_map(|phrase| match phrase {
        [item, between, path] if between.trim() == "in" && path.ends_with(".rs") => {
            Some((item.rsplit("::").next().unwrap_or(item), *path))
        }
        _ => None,
    });
    let is_gone = |(item, path): &(&str, &str)| {
        let mut candidates = files.iter().filter(|file| matches_path(file, path));
        !candidates.any(|file| read(file).contains(item))
    };
    named
        .filter(is_gone)
        .map(|(item, path)| {
            format!("ARCHITECTURE.md names {item} in {path}, which does not have it")
        })
        .collect()
}

/// Returns the differences between the files of a recipe's example and the files that the recipe names.
fn forgotten_files(
    recipe: &Recipe,
    text: &str,
    files: &[String],
    read: impl Fn(&str) -> String,
) -> Vec<String> {
    let title = recipe.title;
    let Some((_, section)) = text.split_once(&format!("{title}\n")) else {
        return vec![format!("ARCHITECTURE.md has no section {title:?}")];
    };
    let end = section.find("\n##").unwrap_or(section.len());
    let section = section.get(..end).unwrap_or_default();
    let named: BTreeSet<String> = backticked_paths(section)
        .map(|path| path.replace("NAME", recipe.name))
        .collect();
    let is_marked = |file: &String| {
        let text = read(file);
        recipe.marker_texts.iter().any(|mark| text.contains(mark))
    };
    let is_named = |file: &String| {
        // The name of a file includes the folder of its submodules.
        named.iter().any(|path| {
            let folder = path.strip_suffix(".rs").unwrap_or(path);
            matches_path(file, path) || format!("/{file}").contains(&format!("/{folder}/"))
        })
    };
    let shipped: Vec<_> = files.iter().filter(|file| is_shipped(file)).collect();
    let mut broken = Vec::new();
    for file in shipped
        .iter()
        .filter(|file| is_marked(file) && !is_named(file))
    {
        broken.push(format!(
            "{title:?} of ARCHITECTURE.md does not name {file}, which {} needs",
            recipe.name
        ));
    }
    for path in &named {
        let mut found = files.iter().filter(|file| matches_path(file, path));
        if !found.any(is_marked) {
            broken.push(format!(
                "{title:?} of ARCHITECTURE.md names {path}, which {} does not need",
                recipe.name
            ));
        }
    }
    broken
}

/// Returns whether a file is shipped code or a contract, and is not generated.
fn is_shipped(file: &str) -> bool {
    let is_code = [".rs", ".proto", ".yaml"]
        .iter()
        .any(|end| file.ends_with(end));
    let is_test = file.contains("/tests/") || file.ends_with("/tests.rs");
    let is_elsewhere = file.contains("/generated/") || file.contains("/development/");
    is_code && file.starts_with("crates/") && !is_test && !is_elsewhere
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: Recipe = Recipe {
        title: "### A new thing",
        name: "knob",
        marker_texts: &["Knob"],
    };

    fn found(section: &str) -> Vec<String> {
        let text =
            format!("# A\n\n### A new thing\n\n{section}\n\n### Another\n\n`a/src/other.rs`\n");
        let files = [
            "a/src/knob.rs",
            "a/src/knob/tests.rs",
            "b/src/table.rs",
            "b/src/far.rs",
        ];
        let files = files.map(|file| format!("crates/{file}"));
        forgotten_files(&RECIPE, &text, &files, |file| match file {
            "crates/b/src/far.rs" => "fn far() {}".to_owned(),
            _ => "use Knob;".to_owned(),
        })
    }

    #[test]
    fn recipes_name_each_file_and_no_other() {
        assert_eq!(found("`a/src/NAME.rs` and `b/src/table.rs`"), [""; 0]);
        let forgotten = found("`a/src/NAME.rs`");
        assert!(
            forgotten[0].contains("does not name crates/b/src/table.rs"),
            "{forgotten:?}"
        );
        let idle = found("`a/src/NAME.rs`, `b/src/table.rs`, `b/src/far.rs`");
        assert!(idle[0].contains("does not need"), "{idle:?}");
    }

    #[test]
    fn items_must_occur_in_the_file_that_they_are_named_in() {
        let files = ["crates/a/src/pool.rs".to_owned()];
        let text =
            "`Pool::take` in\n  `a/src/pool.rs`; not `gone` here, but `Pond` in `src/pool.rs`.";
        let stale = missing_items(text, &files, |_| {
            "impl Pool { fn take(&self) {} }".to_owned()
        });
        assert_eq!(
            stale,
            ["ARCHITECTURE.md names Pond in src/pool.rs, which does not have it"]
        );
    }

    #[test]
    fn a_path_without_a_file_is_found() {
        let files = ["crates/a/src/lib.rs".to_owned()];
        assert_eq!(
            missing_paths("`a/src/lib.rs`, `lib.rs` and `a/b/*.rs`", &files),
            [""; 0]
        );
        assert_eq!(missing_paths("`b/src/lib.rs`", &files).len(), 1);
        assert_eq!(missing_paths("`rc/lib.rs`", &files).len(), 1);
    }
}
