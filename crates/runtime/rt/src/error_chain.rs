//! Formats an error with its causes on one line.

use std::{error::Error, fmt};

/// Displays `error: cause: cause…`, omitting each cause whose text an earlier error already contains.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = self.0.to_string();
        let mut source = self.0.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !written.contains(&text) {
                written.push_str(": ");
                written.push_str(&text);
            }
            source = cause.source();
        }
        f.write_str(&written)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read {name}")]
    struct Outer {
        name: &'static str,
        source: io::Error,
    }

    #[test]
    fn causes_follow_once_each() {
        let error = Outer {
            name: "a",
            source: io::Error::other("inner"),
        };
        assert_eq!(ErrorChain(&error).to_string(), "cannot read a: inner");
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct RepeatingError(#[source] io::Error);
        assert_eq!(
            ErrorChain(&RepeatingError(io::Error::other("inner"))).to_string(),
            "outer: inner"
        );
    }
}
