//! The language of names and doc comments, as far as a program can judge it: a doc comment names its subject, a test is
//! one claim, and names are the field's words.

use super::{source::Source, workspace::Package};

/// First words of doc comments that do not name their subject.
const PRONOUNS: &[&str] = &[
    "It", "That", "These", "They", "This", "Those", "What", "Whatever", "Who", "Whoever", "See",
];
/// Fewest words of a doc comment.
const MIN_WORDS: usize = 3;
/// Longest name of a test, in characters.
const MAX_TEST_NAME: usize = 70;
/// Words in names of files, items and tests for which the field has one of its own.
const PRIVATE_WORDS: &[&str] = &[
    "asked", "led", "leads", "leftover", "said", "says", "stood", "tellable", "telling", "told",
    "ways", "whoever",
];
/// Beginnings of declarations with a name.
const DECLARATIONS: &[&str] = &[
    "fn ", "struct ", "enum ", "trait ", "mod ", "const ", "static ", "type ",
];

/// Findings of crates from before the rules. They may only shrink: a crate that has fewer gets the smaller numbers, one
/// that has none goes off the list. Doc comments, names of tests, private words.
const KNOWN: &[(&str, Counts)] = &[
    ("ambit-agent", counts(0, 20, 15)),
    ("ambit-authz", counts(0, 1, 3)),
    ("ambit-bench", counts(0, 0, 2)),
    ("ambit-certificates", counts(0, 1, 5)),
    ("ambit-cli", counts(0, 2, 23)),
    ("ambit-cluster", counts(0, 0, 1)),
    ("ambit-cluster-tests", counts(0, 10, 5)),
    ("ambit-cni", counts(0, 1, 1)),
    ("ambit-codec", counts(0, 0, 1)),
    ("ambit-conformance-echo", counts(0, 0, 1)),
    ("ambit-control", counts(0, 13, 19)),
    ("ambit-control-channel", counts(0, 0, 1)),
    ("ambit-derive", counts(0, 12, 55)),
    ("ambit-dns", counts(0, 1, 5)),
    ("ambit-egress", counts(0, 1, 0)),
    ("ambit-handover", counts(0, 4, 10)),
    ("ambit-hbone", counts(0, 2, 2)),
    ("ambit-install", counts(0, 3, 2)),
    ("ambit-issuer", counts(0, 1, 1)),
    ("ambit-jwt", counts(0, 2, 3)),
    ("ambit-kube-kit", counts(0, 1, 5)),
    ("ambit-l7", counts(0, 4, 12)),
    ("ambit-lab", counts(0, 2, 1)),
    ("ambit-manifests", counts(0, 2, 0)),
    ("ambit-netlab", counts(0, 0, 1)),
    ("ambit-netplan", counts(0, 0, 3)),
    ("ambit-node-proxy", counts(0, 15, 10)),
    ("ambit-otlp", counts(0, 0, 1)),
    ("ambit-proxy", counts(0, 1, 4)),
    ("ambit-resilience", counts(0, 0, 2)),
    ("ambit-route", counts(0, 2, 6)),
    ("ambit-rt", counts(0, 0, 4)),
    ("ambit-sys", counts(0, 1, 4)),
    ("ambit-system-tests", counts(0, 24, 36)),
    ("ambit-telemetry", counts(0, 2, 1)),
    ("ambit-testkit", counts(0, 0, 2)),
    ("ambit-tls", counts(0, 0, 1)),
    ("ambit-wasm", counts(0, 0, 6)),
    ("ambit-waypoint", counts(0, 10, 41)),
    ("ambit-waypoint-objects", counts(0, 3, 6)),
    ("ambit-wire", counts(0, 0, 3)),
    ("ambit-xds", counts(0, 0, 3)),
    ("ambit-xds-core", counts(0, 0, 1)),
    ("ambit-zds", counts(0, 1, 1)),
    ("xtask", counts(0, 0, 3)),
];

/// Numbers of findings, by rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    docs: usize,
    tests: usize,
    words: usize,
}

const fn counts(docs: usize, tests: usize, words: usize) -> Counts {
    Counts { docs, tests, words }
}

/// Findings in sources, by rule.
#[derive(Debug, Default)]
struct Findings {
    docs: Vec<String>,
    tests: Vec<String>,
    words: Vec<String>,
}

impl Findings {
    fn counts(&self) -> Counts {
        counts(self.docs.len(), self.tests.len(), self.words.len())
    }
}

pub(super) fn broken(package: &Package, sources: &[Source]) -> Vec<String> {
    let known = KNOWN.iter().find(|(name, _)| *name == package.name);
    judge(
        &package.name,
        sources,
        known.map_or_else(Counts::default, |(_, counts)| *counts),
    )
}

fn judge(package: &str, sources: &[Source], known: Counts) -> Vec<String> {
    let mut findings = Findings::default();
    for source in sources.iter().filter(|source| !source.generated) {
        find(source, &mut findings);
    }
    let found = findings.counts();
    let rules = [
        (findings.docs, found.docs, known.docs),
        (findings.tests, found.tests, known.tests),
        (findings.words, found.words, known.words),
    ];
    let mut broken: Vec<_> = rules
        .into_iter()
        .filter(|(_, found, known)| found > known)
        .flat_map(|(findings, ..)| findings)
        .collect();
    if broken.is_empty() && found != known {
        let Counts { docs, tests, words } = found;
        broken.push(format!(
            "{package}: write counts({docs}, {tests}, {words}) into xtask/src/tidy/language.rs"
        ));
    }
    broken
}

fn find(source: &Source, findings: &mut Findings) {
    let path = source.path.display();
    let (mut doc, mut is_test) = (None::<(usize, String)>, false);
    if let Some(word) = private_word(source.name().trim_end_matches(".rs")) {
        findings.words.push(format!("{path}: {word:?} in its name"));
    }
    for (index, line) in source.text.lines().enumerate() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            let (_, doc) = doc.get_or_insert_with(|| (index + 1, String::new()));
            doc.push(' ');
            doc.push_str(text);
            continue;
        }
        if let Some((at, doc)) = doc.take()
            && let Some(why) = unclear(&doc)
        {
            findings
                .docs
                .push(format!("{path}:{at}: the doc comment {why}"));
        }
        is_test |= line.starts_with("#[") && line.contains("test");
        let Some(name) = declared(line) else {
            continue;
        };
        if is_test && name.chars().count() > MAX_TEST_NAME {
            let at = index + 1;
            findings.tests.push(format!(
                "{path}:{at}: the test {name} has more than {MAX_TEST_NAME} characters"
            ));
        }
        if let Some(word) = private_word(name) {
            findings
                .words
                .push(format!("{path}:{}: {word:?} in {name}", index + 1));
        }
        is_test = false;
    }
}

/// Why a doc comment cannot be understood alone.
fn unclear(doc: &str) -> Option<String> {
    let words: Vec<&str> = doc.split_whitespace().collect();
    let first = words.first()?;
    if words.len() < MIN_WORDS {
        return Some(format!("has fewer than {MIN_WORDS} words"));
    }
    PRONOUNS
        .contains(first)
        .then(|| format!("begins with {first:?} and not with its subject"))
}

/// The name that a line declares.
fn declared(line: &str) -> Option<&str> {
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

    fn findings(path: &str, text: &str, known: Counts) -> Vec<String> {
        let source = Source::new(Path::new(path), None, text.to_owned()).unwrap();
        judge("ambit-x", &[source], known)
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
            let found = findings("a.rs", &format!("{doc}\nfn a() {{}}\n"), Counts::default());
            assert_eq!(found.is_empty(), is_clear, "{doc}: {found:?}");
        }
    }

    #[test]
    fn a_test_has_a_short_name() {
        let name = "a".repeat(MAX_TEST_NAME);
        let of = |name: &str, attribute: &str| {
            let text = format!("{attribute}\nfn {name}() {{}}\n");
            findings("a.rs", &text, Counts::default())
        };
        assert!(of(&name, "#[test]").is_empty());
        assert_eq!(of(&format!("{name}a"), "#[test]").len(), 1);
        assert_eq!(of(&format!("{name}a"), "#[tokio::test]").len(), 1);
        assert!(of(&format!("{name}a"), "#[inline]").is_empty());
    }

    #[test]
    fn names_are_the_fields_words() {
        let of = |path: &str, text: &str| findings(path, text, Counts::default()).len();
        assert_eq!(of("told.rs", ""), 1);
        assert_eq!(of("a.rs", "pub(crate) fn led_by() {}"), 1);
        assert_eq!(of("a.rs", "pub struct Told;"), 1);
        assert_eq!(of("a.rs", "const SAYS: u8 = 1;"), 1);
        assert_eq!(of("a.rs", "fn toldest() {}\n// fn told() {}\n"), 0);
    }

    #[test]
    fn known_findings_may_only_shrink() {
        let text = "/// See the module.\nfn told() {}\n";
        assert!(findings("a.rs", text, counts(1, 0, 1)).is_empty());
        assert_eq!(findings("a.rs", text, counts(0, 0, 1)).len(), 1);
        let fewer = findings("a.rs", text, counts(2, 0, 1));
        assert!(fewer[0].contains("write counts(1, 0, 1)"), "{fewer:?}");
    }
}
