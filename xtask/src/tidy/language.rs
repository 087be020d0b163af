//! Rules for the language of names and doc comments that a program can check: a doc comment names its subject, a test
//! is one claim, and names are the field's words.

use super::source::Source;

/// First words by which a doc comment does not name its subject.
const PRONOUNS: &[&str] = &[
    "It", "That", "These", "They", "This", "Those", "What", "Whatever", "Who", "Whoever", "See",
];
/// Headings in doc comments that a line break must follow: text on the heading's line would be part of the heading.
const HEADINGS: &[&str] = &["# Errors ", "# Panics "];
/// Minimum number of words of a doc comment.
const MIN_DOC_WORDS: usize = 3;
/// Maximum length of a test's name, in characters.
const MAX_TEST_NAME_CHARS: usize = 70;
/// Words that names of files, items and tests must not contain, since the field has other terms for them.
const PRIVATE_WORDS: &[&str] = &[
    "asked", "led", "leads", "leftover", "said", "says", "stood", "tellable", "telling", "told",
    "ways", "whoever",
];
/// Keywords that begin a declaration with a name.
const DECLARATIONS: &[&str] = &[
    "fn ", "struct ", "enum ", "trait ", "mod ", "const ", "static ", "type ",
];

pub(super) fn find_violations(sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| !source.is_generated) {
        check_source(source, &mut findings);
    }
    findings
}

fn check_source(source: &Source, findings: &mut Vec<String>) {
    let path = source.path.display();
    let (mut doc, mut is_test) = (None::<(usize, String)>, false);
    if let Some(word) = private_word(source.name().trim_end_matches(".rs")) {
        findings.push(format!("{path}: {word:?} in its name"));
    }
    for (index, line) in source.text.lines().enumerate() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            let (_, doc) = doc.get_or_insert_with(|| (index + 1, String::new()));
            doc.push(' ');
            doc.push_str(text);
            if HEADINGS
                .iter()
                .any(|heading| text.trim_start().starts_with(heading))
            {
                let at = index + 1;
                findings.push(format!("{path}:{at}: text on the line of a heading"));
            }
            continue;
        }
        if let Some((at, doc)) = doc.take()
            && let Some(why) = doc_problem(&doc)
        {
            findings.push(format!("{path}:{at}: the doc comment {why}"));
        }
        is_test |= line.starts_with("#[") && line.contains("test");
        let Some(name) = declared_name(line) else {
            continue;
        };
        if is_test && name.chars().count() > MAX_TEST_NAME_CHARS {
            let at = index + 1;
            findings.push(format!(
                "{path}:{at}: the test {name} has more than {MAX_TEST_NAME_CHARS} characters"
            ));
        }
        if let Some(word) = private_word(name) {
            findings.push(format!("{path}:{}: {word:?} in {name}", index + 1));
        }
        is_test = false;
    }
}

/// Returns the reason why a doc comment cannot be understood alone, if there is one.
fn doc_problem(doc: &str) -> Option<String> {
    let words: Vec<&str> = doc.split_whitespace().collect();
    let first = words.first()?;
    if words.len() < MIN_DOC_WORDS {
        return Some(format!("has fewer than {MIN_DOC_WORDS} words"));
    }
    PRONOUNS
        .contains(first)
        .then(|| format!("begins with {first:?} and not with its subject"))
}

/// Returns the name that a line of code declares.
fn declared_name(line: &str) -> Option<&str> {
    if line.starts_with("//") {
        return None;
    }
    let at = |begin: &&str| {
        let at = line.find(*begin)?;
        let before = line.get(..at)?;
        let is_word = before.is_empty() || before.ends_with([' ', ')']);
        is_word.then_some(at + begin.len())
    };
    let begin = DECLARATIONS.iter().find_map(at)?;
    let name = line.get(begin..)?;
    let end = name.find(|one: char| !one.is_alphanumeric() && one != '_');
    let name = name.get(..end.unwrap_or(name.len()))?;
    (!name.is_empty()).then_some(name)
}

fn private_word(name: &str) -> Option<&'static str> {
    let is_in = |word: &&&str| name.to_lowercase().split('_').any(|part| part == **word);
    PRIVATE_WORDS.iter().find(is_in).copied()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let source = Source::new(Path::new(path), None, text.to_owned()).unwrap();
        find_violations(&[source])
    }

    #[test]
    fn a_doc_comment_names_its_subject() {
        for (doc, is_clear) in [
            ("/// Returns the limit.", true),
            ("/// Idle connections of\n/// one endpoint.", true),
            ("/// See the module.", false),
            ("/// What a request was answered with.", false),
            ("/// Those of its namespace.", false),
            ("/// Requests.", false),
        ] {
            let found = findings("a.rs", &format!("{doc}\nfn a() {{}}\n"));
            assert_eq!(found.is_empty(), is_clear, "{doc}: {found:?}");
        }
    }

    #[test]
    fn text_is_not_on_the_line_of_a_heading() {
        for (line, is_right) in [
            ("# Errors\n/// When it fails.", true),
            ("# Errors When it fails.", false),
        ] {
            let found = findings(
                "a.rs",
                &format!("/// Reads a file.\n///\n/// {line}\nfn a() {{}}\n"),
            );
            assert_eq!(found.is_empty(), is_right, "{line}: {found:?}");
        }
    }

    #[test]
    fn a_test_has_a_short_name() {
        let name = "a".repeat(MAX_TEST_NAME_CHARS);
        let of = |name: &str, attribute: &str| {
            let text = format!("{attribute}\nfn {name}() {{}}\n");
            findings("a.rs", &text)
        };
        assert!(of(&name, "#[test]").is_empty());
        assert_eq!(of(&format!("{name}a"), "#[test]").len(), 1);
        assert_eq!(of(&format!("{name}a"), "#[tokio::test]").len(), 1);
        assert!(of(&format!("{name}a"), "#[inline]").is_empty());
    }

    #[test]
    fn names_are_the_fields_words() {
        let of = |path: &str, text: &str| findings(path, text).len();
        assert_eq!(of("told.rs", ""), 1);
        assert_eq!(of("a.rs", "pub(crate) fn\u{20}led_by() {}"), 1);
        assert_eq!(of("a.rs", "pub struct\u{20}Told;"), 1);
        assert_eq!(of("a.rs", "const SAYS: u8 = 1;"), 1);
        assert_eq!(of("a.rs", "fn toldest() {}\n// fn told() {}\n"), 0);
    }
}
