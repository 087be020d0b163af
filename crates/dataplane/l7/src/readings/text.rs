//! Comparison of texts that exist in pieces, and of those without regard to case, without copying them.

use ambit_model::StringMatch;

/// Whether the concatenated pieces match.
pub(crate) fn matches_pieces<const N: usize>(pattern: &StringMatch, pieces: [&str; N]) -> bool {
    compare(pattern, &pieces, u8::eq)
}

/// Whether the concatenated pieces match, ignoring ASCII case.
pub(crate) fn matches_caseless<const N: usize>(pattern: &StringMatch, pieces: [&str; N]) -> bool {
    compare(pattern, &pieces, u8::eq_ignore_ascii_case)
}

fn compare(pattern: &StringMatch, pieces: &[&str], same: impl Fn(&u8, &u8) -> bool) -> bool {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let text = || pieces.iter().flat_map(|piece| piece.as_bytes());
    let begins = |with: &str| {
        with.len() <= length && with.as_bytes().iter().zip(text()).all(|(a, b)| same(a, b))
    };
    match pattern {
        StringMatch::Exact(exact) => exact.len() == length && begins(exact),
        StringMatch::Prefix(prefix) => begins(prefix),
        StringMatch::Suffix(suffix) => {
            let ends = suffix.as_bytes().iter().rev().zip(text().rev());
            suffix.len() <= length && ends.into_iter().all(|(a, b)| same(a, b))
        }
        StringMatch::Presence => length > 0,
    }
}

/// Whether bytes, which may be invalid UTF-8, match the pattern.
pub(super) fn matches_bytes(pattern: &StringMatch, bytes: &[u8]) -> bool {
    match pattern {
        StringMatch::Exact(exact) => bytes == exact.as_bytes(),
        StringMatch::Prefix(prefix) => bytes.starts_with(prefix.as_bytes()),
        StringMatch::Suffix(suffix) => bytes.ends_with(suffix.as_bytes()),
        StringMatch::Presence => !bytes.is_empty(),
    }
}

/// The pattern with its text rewritten.
pub(super) fn map_text(pattern: &StringMatch, map: impl Fn(&str) -> String) -> StringMatch {
    match pattern {
        StringMatch::Exact(text) => StringMatch::Exact(map(text).into()),
        StringMatch::Prefix(text) => StringMatch::Prefix(map(text).into()),
        StringMatch::Suffix(text) => StringMatch::Suffix(map(text).into()),
        StringMatch::Presence => StringMatch::Presence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_compared_as_one_text() {
        for pattern in ["*", "abcd", "ab*", "abc*", "*d", "*bcd", "abcd*", "*abcd"] {
            let pattern = StringMatch::from_pattern(pattern);
            assert!(matches_pieces(&pattern, ["ab", "", "cd"]), "{pattern:?}");
            assert!(matches_caseless(&pattern, ["AB", "c", "D"]), "{pattern:?}");
        }
        for pattern in ["abcde", "abc", "abx*", "*xd", "abcde*", "*zabcd", "ABCD"] {
            let pattern = StringMatch::from_pattern(pattern);
            assert!(!matches_pieces(&pattern, ["ab", "cd"]), "{pattern:?}");
        }
        assert!(!matches_pieces(&StringMatch::Presence, ["", ""]));
    }
}
