//! Packets on a node's interface, with their times, as reported by `tcpdump`.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

/// Running packet capture, with the packets captured so far. Dropping the value ends the capture.
pub(super) struct PacketCapture {
    tcpdump: Child,
    packets: Arc<Mutex<Vec<Packet>>>,
}

/// Captured TCP packet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packet {
    pub(super) unix: f64,
    pub(super) from: String,
    pub(super) port: u16,
    pub(super) bytes: u32,
}

impl PacketCapture {
    pub(super) fn start(mut tcpdump: Command) -> Result<Self> {
        let mut tcpdump = tcpdump
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run tcpdump")?;
        let errors = tcpdump.stderr.take().context("no standard error")?;
        let mut errors = BufReader::new(errors);
        let mut printed = String::new();
        while !printed.contains("listening on") {
            let more = errors.read_line(&mut printed)?;
            ensure!(more > 0, "tcpdump ended: {printed}");
        }
        let output = tcpdump.stdout.take().context("no standard output")?;
        let packets = Arc::<Mutex<Vec<Packet>>>::default();
        let seen = Arc::clone(&packets);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                seen.lock().extend(Packet::parse(&line));
            }
        });
        // Its further output must not block anything.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()).is_ok());
        Ok(Self { tcpdump, packets })
    }

    pub(super) fn packets(&self) -> Vec<Packet> {
        self.packets.lock().clone()
    }
}

impl Drop for PacketCapture {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.tcpdump.kill());
        drop(self.tcpdump.wait());
    }
}

impl Packet {
    /// Parses a line of `tcpdump`, such as `1763.5 IP 10.0.0.1.4000 > 10.0.0.2.8080: tcp 17`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let unix = words.next()?.parse().ok()?;
        let from = words.nth(1)?.to_owned();
        let to = words.nth(1)?.trim_end_matches(':');
        let port = to.rsplit('.').next()?.parse().ok()?;
        let bytes = words.last()?.parse().ok()?;
        Some(Self {
            unix,
            from,
            port,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_tcpdump_is_read() {
        let line = "1763709480.125 IP 10.244.1.4.40122 > 10.244.2.7.8080: tcp 17";
        let packet = Packet {
            unix: 1_763_709_480.125,
            from: "10.244.1.4.40122".into(),
            port: 8080,
            bytes: 17,
        };
        assert_eq!(Packet::parse(line), Some(packet));
        assert_eq!(Packet::parse("1763709480.125 ARP, Request"), None);
    }
}
