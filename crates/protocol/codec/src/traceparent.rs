//! `traceparent` header of tunnels, with random ids for each connection that both proxies log.

use std::fmt;

/// Length of a `traceparent` header in bytes: `00-<trace id>-<span id>-00`, with 32 and 16 hexadecimal digits.
const TRACEPARENT_BYTES: usize = 55;

/// Trace id and span id of one tunnelled connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// Id of the trace, never 0.
    pub trace_id: u128,
    /// Id of the parent span, never 0.
    pub span_id: u64,
}

/// Error of a text that is not a `traceparent` of version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent of the form 00-<32 hex>-<16 hex>-<2 hex>")]
pub struct ParseTraceParentError;

impl TraceParent {
    /// Creates the ids from random numbers; zeros, which the format forbids, become ones.
    pub fn from_random(trace_id: u128, span_id: u64) -> Self {
        Self {
            trace_id: trace_id.max(1),
            span_id: span_id.max(1),
        }
    }

    /// Parses a `traceparent` header of version 00. Flags are accepted and ignored.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly in the format of the header, or an id is 0.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseTraceParentError> {
        if bytes.len() != TRACEPARENT_BYTES {
            return Err(ParseTraceParentError);
        }
        let mut parts = bytes.split(|b| *b == b'-');
        let mut next = |digits: usize| {
            let part = parts
                .next()
                .filter(|p| p.len() == digits)
                .ok_or(ParseTraceParentError)?;
            parse_lowercase_hex(part).ok_or(ParseTraceParentError)
        };
        let version = next(2)?;
        let trace_id = next(32)?;
        let span_id = u64::try_from(next(16)?).map_err(|_| ParseTraceParentError)?;
        next(2)?;
        if version != 0 || trace_id == 0 || span_id == 0 {
            return Err(ParseTraceParentError);
        }
        Ok(Self { trace_id, span_id })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-00", self.trace_id, self.span_id)
    }
}

/// Parses hexadecimal digits in lower case only, as the format requires.
fn parse_lowercase_hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0u128, |n, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((n << 4) | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_exact_form_is_read() {
        let good = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(
            TraceParent::parse(good).unwrap().span_id,
            0xb7ad_6b71_6920_3331
        );
        for bad in [
            &b""[..],
            b"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            b"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            b"00-00000000000000000000000000000000-b7ad6b7169203331-01",
            b"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            b"00-0af7651916cd43dd8448eb211c80319cb7ad6b7169203331---01",
        ] {
            assert_eq!(TraceParent::parse(bad), Err(ParseTraceParentError));
        }
    }

    proptest! {
        #[test]
        fn encoded_values_parse_to_themselves(trace_id: u128, span_id: u64) {
            let id = TraceParent::from_random(trace_id, span_id);
            prop_assert_eq!(TraceParent::parse(id.to_string().as_bytes()), Ok(id));
        }

        #[test]
        fn parsing_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 55)) {
            let _ = TraceParent::parse(&bytes);
        }
    }
}
