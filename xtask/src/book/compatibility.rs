//! Rules for the compatibility pages: cells of tables are short, paths of tests exist, and COMPATIBILITY.md lists the
//! pages.

use std::{collections::BTreeSet, path::Path};

use super::structure::{Pages, links, prose};

/// Maximum length of a table's cell, in characters.
const MAX_CELL_CHARS: usize = 200;
/// Heading of table columns that list paths, whose cells may be longer.
const TEST_COLUMN: &str = "test";
/// File at the repository's root that lists the compatibility pages.
const POINTER_FILE: &str = "COMPATIBILITY.md";
/// Path of the book's pages in links of [`POINTER_FILE`].
const BOOK_DIRECTORY: &str = "docs/src/";

/// Returns every violation. `pointer` is the text of COMPATIBILITY.md; `exists` returns whether a path exists that
/// begins at the repository's root or with the name of a crate.
pub(super) fn find_problems(
    pages: &Pages,
    pointer: &str,
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    let ours: Vec<_> = pages
        .iter()
        .filter(|(path, _)| is_compatibility_page(path))
        .collect();
    let mut broken = Vec::new();
    for (path, text) in &ours {
        let at =
            |(line, problem)| format!("{BOOK_DIRECTORY}{}: line {line}: {problem}", path.display());
        broken.extend(problems(text, &exists).into_iter().map(at));
    }
    let listed: BTreeSet<_> = links(pointer).into_iter().map(str::to_owned).collect();
    let expected = ours
        .iter()
        .map(|(path, _)| format!("{BOOK_DIRECTORY}{}", path.display()))
        .collect();
    for page in listed.symmetric_difference(&expected) {
        broken.push(format!(
            "{POINTER_FILE} must list the pages on compatibility, no more and no less: {page}"
        ));
    }
    broken
}

/// Returns whether a page is about compatibility.
fn is_compatibility_page(page: &Path) -> bool {
    page == Path::new("compatibility.md") || page.starts_with("compatibility")
}

/// Returns the violations in one page, with their lines.
fn problems(text: &str, exists: &impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut headings: Vec<String> = Vec::new();
    for (line, row) in prose(text) {
        let missing = code_spans(row).filter(|span| is_path(span) && !exists(span));
        found.extend(missing.map(|path| (line, format!("the path {path} does not exist"))));
        let cells = table_cells(row);
        if headings.is_empty() || cells.is_empty() {
            headings = cells;
            continue;
        }
        for (cell, heading) in cells.iter().zip(&headings) {
            let problem = if heading == TEST_COLUMN {
                check_test_cell(cell, exists)
            } else {
                check_cell(cell)
            };
            found.extend(problem.map(|problem| (line, problem)));
        }
    }
    found
}

/// Returns the cells of a table's row; none for lines that are not rows.
fn table_cells(line: &str) -> Vec<String> {
    let Some(row) = line.strip_prefix('|') else {
        return Vec::new();
    };
    let row = row.trim_end().trim_end_matches('|').replace("\\|", "¦");
    row.split('|').map(|cell| cell.trim().to_owned()).collect()
}

fn check_cell(cell: &str) -> Option<String> {
    let length = cell.chars().count();
    if length > MAX_CELL_CHARS {
        let start: String = cell.chars().take(40).collect();
        return Some(format!(
            "a cell of {length} characters, more than {MAX_CELL_CHARS}: move details below the table: {start}…"
        ));
    }
    let is_paragraph = cell.split('`').step_by(2).any(|text| text.contains(". "));
    is_paragraph.then(|| format!("a cell of several sentences: {cell}"))
}

fn check_test_cell(cell: &str, exists: &impl Fn(&str) -> bool) -> Option<String> {
    // [`problems`] finds the others.
    let missing = code_spans(cell).find(|span| !is_path(span) && !exists(span));
    missing.map(|path| format!("the path {path} of a test does not exist"))
}

/// Returns whether text in backticks is the path of a crate's file or directory.
fn is_path(code: &str) -> bool {
    let is_rust = Path::new(code)
        .extension()
        .is_some_and(|extension| extension == "rs");
    let is_below = |directory: &str| {
        code.ends_with(&format!("/{directory}")) || code.contains(&format!("/{directory}/"))
    };
    is_rust || is_below("src") || is_below("tests")
}

/// Returns the texts in backticks within a line.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn found_problems(rows: &str) -> Vec<String> {
        let page = format!("| subject | Ambit | test |\n|---|---|---|\n{rows}");
        let pages = [("compatibility/a.md", page.as_str()), ("b.md", "| x. y |")];
        let pages = pages.map(|(path, text)| (PathBuf::from(path), text.to_owned()));
        let exists = |path: &str| ["cni/tests", "zds"].contains(&path);
        find_problems(&pages.into(), "[a](docs/src/compatibility/a.md)", exists)
    }

    #[test]
    fn cells_are_one_short_sentence() {
        let (fits, too_long) = ("é".repeat(200), "é".repeat(201));
        for fine in [fits.as_str(), "with `a. b` in code", "a\\|b"] {
            assert_eq!(found_problems(&format!("| x | {fine} | `zds` |")), [""; 0]);
        }
        for (cell, expected) in [
            (too_long.as_str(), "line 3: a cell of 201 characters"),
            ("One. Two", "a cell of several sentences: One. Two"),
        ] {
            assert!(found_problems(&format!("| x | {cell} | |"))[0].contains(expected));
        }
    }

    #[test]
    fn paths_of_tests_exist_and_may_be_many() {
        let many = ["`cni/tests`"; 40].join(", ");
        assert_eq!(found_problems(&format!("| x | y | {many} |")), [""; 0]);
        for (rows, expected) in [
            ("| x | y | `cni` |", "the path cni of a test does not exist"),
            ("| x | y | `a/b.rs` |", "the path a/b.rs does not exist"),
            ("\n- text (`a/src/b`)", "the path a/src/b does not exist"),
        ] {
            let found = found_problems(rows);
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn the_pointer_lists_exactly_the_pages_on_compatibility() {
        let pages = [PathBuf::from("compatibility.md")].map(|path| (path, String::new()));
        let broken = find_problems(&pages.into(), "[x](docs/src/x.md)", |_| true);
        assert_eq!(broken.len(), 2);
        assert!(broken[0].ends_with("docs/src/compatibility.md"));
        assert!(broken[1].ends_with("docs/src/x.md"));
    }
}
