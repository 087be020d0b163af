//! Rules for the structure of the book: the summary has every page, links and anchors resolve, and blocks of commands
//! name the runner of their test.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

/// Page that lists all others.
const SUMMARY_FILE: &str = "SUMMARY.md";
/// Comments that say whether and where a block of commands is tested; one of them must precede each block.
const RUNNER_COMMENTS: &[&str] = &[
    "<!-- run: lab -->",
    "<!-- run: cluster -->",
    "<!-- run: istio",
    "<!-- not run: ",
];

/// Texts of pages by their path below `docs/src`.
pub(super) type Pages = BTreeMap<PathBuf, String>;

/// Returns every violation. `exists` returns whether a file exists, whose path is relative to `docs/src`.
pub(super) fn find_problems(pages: &Pages, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    let summary = pages
        .get(Path::new(SUMMARY_FILE))
        .map_or("", String::as_str);
    let listed: BTreeSet<_> = links(summary).into_iter().map(PathBuf::from).collect();
    for path in pages.keys().filter(|path| *path != Path::new(SUMMARY_FILE)) {
        if !listed.contains(path) {
            broken.push(format!(
                "docs/src/{}: not in {SUMMARY_FILE}",
                path.display()
            ));
        }
    }
    for (path, text) in pages {
        let at = |what: String| format!("docs/src/{}: {what}", path.display());
        for link in links(text) {
            if let Some(problem) = check_link(link, path, pages, &exists) {
                broken.push(at(problem));
            }
        }
        broken.extend(unmarked_code_blocks(text).map(|line| {
            at(format!(
                "line {line}: commands without `<!-- run: … -->` or `<!-- not run: REASON -->`"
            ))
        }));
    }
    broken
}

fn check_link(
    link: &str,
    from: &Path,
    pages: &Pages,
    exists: &impl Fn(&Path) -> bool,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = match target {
        "" => from.to_path_buf(),
        target => normalize_path(&from.parent()?.join(target)),
    };
    let Some(page) = pages.get(&path) else {
        return (!exists(&path)).then(|| format!("the link {link} has no such file"));
    };
    let is_heading =
        anchor.is_empty() || headings(page).any(|heading| heading_anchor(heading) == anchor);
    (!is_heading).then(|| format!("the link {link} has no such heading"))
}

/// Resolves `..` in a path, without following symbolic links.
fn normalize_path(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part != Component::ParentDir || !normal.pop() {
            normal.push(part);
        }
    }
    normal
}

/// Returns the lines outside of fenced blocks, with their numbers from 1.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        (!in_block && !is_fence).then_some((index + 1, line))
    })
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    let lines = prose(text).filter(|(_, line)| line.starts_with('#'));
    lines.map(|(_, line)| line.trim_start_matches('#').trim())
}

/// Returns the anchor of a heading, as mdBook and code hosts generate it.
fn heading_anchor(heading: &str) -> String {
    let letters = heading.to_lowercase();
    let letters = letters.chars().filter_map(|one| match one {
        ' ' => Some('-'),
        one if one.is_alphanumeric() || "-_".contains(one) => Some(one),
        _ => None,
    });
    letters.collect()
}

/// Returns the targets of a page's links and images, outside of code.
pub(super) fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (_, line) in prose(text) {
        // Odd parts are code.
        for part in line.split('`').step_by(2) {
            found.extend(
                part.split("](")
                    .skip(1)
                    .filter_map(|rest| rest.split(')').next()),
            );
        }
        // A link's text may be code, which ends before the target.
        let after_code = line.split("`](").skip(1);
        found.extend(after_code.filter_map(|rest| rest.split(')').next()));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the line numbers of blocks of commands without a preceding comment.
fn unmarked_code_blocks(text: &str) -> impl Iterator<Item = usize> {
    let before = std::iter::once("").chain(text.lines());
    let blocks = before.zip(text.lines()).enumerate();
    blocks.filter_map(|(index, (before, line))| {
        let is_marked = RUNNER_COMMENTS.iter().any(|mark| before.starts_with(mark));
        (line.starts_with("```console") && !is_marked).then_some(index + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_problems(page: &str) -> Vec<String> {
        let pages = [
            (SUMMARY_FILE, "- [A](a.md)\n- [B](b/c.md)"),
            ("a.md", page),
            ("b/c.md", "# The `C`, in short\n[back](../a.md)"),
        ];
        let pages = pages.map(|(path, text)| (PathBuf::from(path), text.to_owned()));
        find_problems(&pages.into(), |path| path == Path::new("images/a.svg"))
    }

    #[test]
    fn links_resolve_to_pages_headings_and_files() {
        let fine = "[c](b/c.md#the-c-in-short) ![a](images/a.svg) [x](https://example.com) `[no](link)`\n```\n[no](link)\n```";
        assert_eq!(found_problems(fine), [""; 0]);
        for (page, expected) in [
            ("[c](c.md)", "c.md has no such file"),
            ("[c](b/c.md#c)", "has no such heading"),
            ("[`c`](images/b.svg)", "images/b.svg has no such file"),
        ] {
            assert!(found_problems(page)[0].contains(expected), "{page}");
        }
    }

    #[test]
    fn every_page_is_in_the_summary() {
        let page = (PathBuf::from("lost.md"), String::new());
        let lost = find_problems(&[page].into(), |_| true);
        assert_eq!(lost, ["docs/src/lost.md: not in SUMMARY.md"]);
    }

    #[test]
    fn commands_name_their_runner() {
        for mark in ["<!-- run: lab -->", "<!-- not run: needs a registry -->"] {
            assert_eq!(
                found_problems(&format!("{mark}\n```console\n$ a\n```")),
                [""; 0]
            );
        }
        assert!(
            found_problems("\n```console\n$ a\n```")[0].contains("a.md: line 2: commands without")
        );
    }
}
