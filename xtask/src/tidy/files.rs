//! Rules for single files: size, header, names, and forbidden words.

use super::source::Source;

const MAX_FILE_LINES: usize = 700;
const MAX_MAIN_LINES: usize = 60;
const HEADER_FROM_LINES: usize = 100;
/// Crate whose only purpose is a call that no library has without `unsafe`.
const CRATE_WITH_UNSAFE: &str = "crates/node/bpf-query";

pub(super) fn find_violations(source: &Source) -> Vec<String> {
    if source.is_generated {
        return Vec::new();
    }
    let shown = source.path.display();
    let text = source.text.as_str();
    let code = text
        .split("\n#[cfg(test)]\nmod ")
        .next()
        .unwrap_or_default()
        .lines()
        .count();
    let mut broken = Vec::new();
    let in_src = source.path_in_src.is_some();
    let is_lib = source
        .path_in_src
        .as_deref()
        .is_some_and(|path| path.as_os_str() == "lib.rs");
    let may_be_unsafe = source.path.starts_with(CRATE_WITH_UNSAFE);
    if is_lib && !may_be_unsafe && !text.contains("#![forbid(unsafe_code)]") {
        broken.push(format!("{shown}: no #![forbid(unsafe_code)]"));
    }
    if source.name() == "mod.rs" && in_src {
        broken.push(format!(
            "{shown}: a module is foo.rs beside foo/, never mod.rs"
        ));
    }
    if !source.is_test() && code > MAX_FILE_LINES {
        broken.push(format!(
            "{shown}: {code} lines; split it by subject (limit {MAX_FILE_LINES})"
        ));
    }
    if source.name() == "main.rs" && code > MAX_MAIN_LINES {
        broken.push(format!(
            "{shown}: {code} lines; a main only wires (limit {MAX_MAIN_LINES})"
        ));
    }
    if text.lines().count() > HEADER_FROM_LINES && !text.trim_start().starts_with("//!") {
        broken.push(format!(
            "{shown}: does not say what it owns (`//!` at its top)"
        ));
    }
    for (number, line) in text.lines().enumerate() {
        let at = format!("{shown}:{}", number + 1);
        if line.trim_start().starts_with("#[ignore") {
            broken.push(format!("{at}: an ignored test"));
        }
        let sleeps = line.contains("thread::sleep(") || line.contains("time::sleep(");
        if source.is_test() && sleeps && !line.contains("// tidy:") {
            broken.push(format!(
                "{at}: a sleep in a test; wait on a condition with a deadline"
            ));
        }
        for word in ["TODO", "FIXME", "XXX"] {
            if line.contains(word) && !line.contains('"') {
                broken.push(format!("{at}: {word}"));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::{super::source::test_source, *};

    #[test]
    fn each_rule_finds_its_violation() {
        let lines = |count: usize| "\n".repeat(count);
        for (path, text, expected) in [
            ("lib.rs", String::new(), "forbid(unsafe_code)"),
            ("a/mod.rs", String::new(), "never mod.rs"),
            (
                "a.rs",
                format!("//! A.{}", lines(701)),
                "split it by subject",
            ),
            ("main.rs", lines(61), "only wires"),
            ("a.rs", lines(101), "does not say what it owns"),
            (
                "a.rs",
                "#[test]\n#[ignore]\nfn f() {}".to_owned(),
                "ignored",
            ),
            (
                "tests.rs",
                "fn f() { std::thread::sleep(d) }".to_owned(),
                "a sleep in a test",
            ),
            ("a.rs", ["// TO", "DO: later"].concat(), "a.rs:1: TODO"),
        ] {
            let broken = find_violations(&test_source(path, &text));
            assert!(
                broken.iter().any(|problem| problem.contains(expected)),
                "{expected} {broken:?}"
            );
        }
        let fine = "#![forbid(unsafe_code)]\nfn f() {}";
        assert_eq!(
            find_violations(&test_source("lib.rs", fine)),
            Vec::<String>::new()
        );
    }
}
