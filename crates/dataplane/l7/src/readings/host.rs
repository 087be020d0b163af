//! Readings of a request's authority.

use ambit_model::StringMatch;

use super::reading::ReadingMode;

/// Authority of a request, split into its parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    /// Authority as received.
    authority: &'a str,
    /// Host without user, port and trailing dots.
    name: &'a str,
    /// Port with the colon; empty without a port.
    port: &'a str,
    /// Port of the address that the client called.
    dialed_port: Option<u16>,
}

impl<'a> Host<'a> {
    pub(super) fn new(whole: &'a str, dialled: Option<u16>) -> Self {
        let authority = whole.rsplit('@').next().unwrap_or_default();
        // An IPv6 address has colons of its own, within brackets.
        let brackets = authority.find(']').map_or(0, |bracket| bracket + 1);
        let colon = authority
            .get(brackets..)
            .and_then(|rest| rest.rfind(':'))
            .map_or(authority.len(), |colon| brackets + colon);
        let (name, port) = authority.split_at(colon);
        Self {
            authority: whole,
            name: name.trim_end_matches('.'),
            port,
            dialed_port: dialled,
        }
    }

    /// Parses another host, which a header names, for the same destination port.
    pub(super) fn with_authority<'b>(&self, whole: &'b str) -> Host<'b> {
        Host::new(whole, self.dialed_port)
    }

    /// Sets the port of the destination address to which the client connected.
    pub(super) fn set_dialed_port(&mut self, port: u16) {
        self.dialed_port = Some(port);
    }

    /// Whether a pattern matches the host. Servers may ignore the port in `Host`, so a denial for the destination port
    /// applies whatever port `Host` has.
    pub(super) fn matches(&self, pattern: &StringMatch, reading: ReadingMode) -> bool {
        let Self {
            authority: whole,
            name,
            port,
            dialed_port: dialled,
        } = *self;
        if !has_port(pattern) {
            return pattern.matches_ignoring_case([name]);
        }
        let written = port.get(1..).and_then(|port| port.parse::<u16>().ok());
        let is_at = |port: u16| {
            !name.is_empty() && pattern.matches_ignoring_case([name, ":", &port.to_string()])
        };
        pattern.matches_ignoring_case([whole])
            || pattern.matches_ignoring_case([name, port])
            || reading == ReadingMode::AnyReading
                && [written, dialled].into_iter().flatten().any(is_at)
    }
}

/// Whether a host pattern contains a port.
fn has_port(pattern: &StringMatch) -> bool {
    let text = match pattern {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) => text,
        StringMatch::Presence => return false,
    };
    text.rsplit(']').next().unwrap_or_default().contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_have_names_and_ports() {
        for (whole, name, port) in [
            ("a.com", "a.com", ""),
            ("a.com:80", "a.com", ":80"),
            ("a.com.:80", "a.com", ":80"),
            ("a.com..", "a.com", ""),
            ("a.com:", "a.com", ":"),
            ("b@a.com:80", "a.com", ":80"),
            ("[::1]", "[::1]", ""),
            ("[::1]:80", "[::1]", ":80"),
            ("", "", ""),
        ] {
            let host = Host::new(whole, None);
            assert_eq!((host.name, host.port), (name, port), "{whole}");
        }
    }

    #[test]
    fn hosts_are_denied_at_the_dialed_port_whatever_the_authority() {
        let pattern = StringMatch::Exact("a.com:8080".into());
        for (whole, dialled, denied, allowed) in [
            ("a.com:8080", 80, true, true),
            ("A.com.:8080", 80, true, true),
            ("a.com:08080", 80, true, false),
            ("a.com:1", 8080, true, false),
            ("a.com", 8080, true, false),
            ("a.com", 80, false, false),
            ("b.com:8080", 8080, false, false),
            ("", 8080, false, false),
        ] {
            let host = Host::new(whole, Some(dialled));
            let matches = [ReadingMode::AnyReading, ReadingMode::AllReadings]
                .map(|reading| host.matches(&pattern, reading));
            assert_eq!(matches, [denied, allowed], "{whole} at {dialled}");
        }
    }
}
