//! Flow events of all proxies of a lab or cluster, parsed from JSON lines.

use ambit_flow::{Filter, ProxyState, StreamItem};
use ambit_flow_reader as reader;
use tokio::sync::mpsc;

use super::proxies::Proxies;

/// Maximum number of received batches of lines that are queued for parsing.
const MAX_QUEUED_EVENTS: usize = 64;

/// Flow event, or change of state of a proxy's stream.
#[derive(Clone, Debug)]
pub(crate) enum FlowUpdate {
    /// The stream of the proxy with this name has begun.
    Connected(String),
    /// Flow event, or count of events that a proxy did not send.
    Item(Box<StreamItem>),
    /// The stream of a proxy failed or ended (name and reason), and is retried.
    Disconnected(String, String),
}

/// Reads the flow events of all proxies until the receiver is dropped.
pub(crate) async fn follow(proxies: Proxies, filter: Filter, sender: mpsc::Sender<FlowUpdate>) {
    let (lines, mut received) = mpsc::channel(MAX_QUEUED_EVENTS);
    let _reading = ambit_rt::spawn_abortable("flows of proxies", async move {
        reader::follow(proxies, &filter, lines).await;
    });
    loop {
        let next = tokio::select! {
            next = received.recv() => next,
            () = sender.closed() => return,
        };
        let Some(next) = next else { return };
        for one in parse(next) {
            if sender.send(one).await.is_err() {
                return;
            }
        }
    }
}

/// Parses lines of JSON. Events of types that this version does not know are skipped.
fn parse(received: reader::ReaderEvent) -> Vec<FlowUpdate> {
    match received {
        reader::ReaderEvent::Connected(proxy) => vec![FlowUpdate::Connected(proxy)],
        reader::ReaderEvent::Disconnected(proxy, why) => vec![FlowUpdate::Disconnected(proxy, why)],
        reader::ReaderEvent::Lines(lines) => lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .filter_map(parse_line)
            .collect(),
    }
}

fn parse_line(line: &[u8]) -> Option<FlowUpdate> {
    if let Ok(item) = serde_json::from_slice(line) {
        return Some(FlowUpdate::Item(Box::new(item)));
    }
    match serde_json::from_slice(line).ok()? {
        ProxyState::Began { proxy } => Some(FlowUpdate::Connected(proxy)),
        ProxyState::Ended { proxy, reason } => Some(FlowUpdate::Disconnected(proxy, reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_lines(text: &str) -> Vec<String> {
        let lines = reader::ReaderEvent::Lines(text.to_owned().into());
        let parsed = parse(lines).into_iter();
        parsed.map(|one| format!("{one:?}")).collect()
    }

    #[test]
    fn events_and_states_of_proxies_are_distinguished() {
        let lost = StreamItem::Lost {
            sampled: 3,
            refusals: 0,
        };
        let lost = serde_json::to_string(&lost).unwrap();
        let ended = ProxyState::Ended {
            proxy: "pod a/b".to_owned(),
            reason: "away".to_owned(),
        };
        let ended = serde_json::to_string(&ended).unwrap();
        let expected = [
            "Item(Lost { sampled: 3, refusals: 0 })",
            "Disconnected(\"pod a/b\", \"away\")",
        ];
        assert_eq!(parsed_lines(&format!("\n{lost}\n{ended}\n\n")), expected);
    }

    #[test]
    fn lines_of_later_versions_are_skipped() {
        assert!(parsed_lines("{\"type\":\"later\"}\nnonsense\n").is_empty());
    }
}
