//! State of the screen of `ambit flows`: stored flows, filter, order and selection. Handles events and keys; draws
//! nothing.

use std::collections::VecDeque;

use ambit_flow::{Flow, StreamItem, Transport};

use super::{follow::FlowUpdate, text::FlowRow};

/// Maximum number of stored flows; at the limit the oldest is dropped.
const MAX_STORED_FLOWS: usize = 5_000;
/// Maximum length of the filter text that the user types, in bytes.
const MAX_FILTER_BYTES: usize = 128;

/// Sort order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortOrder {
    /// By time of arrival, latest last.
    #[default]
    Time,
    From,
    To,
    /// By duration, longest first.
    Duration,
    /// By bytes sent in both directions, most first.
    Bytes,
}

impl SortOrder {
    fn next(self) -> Self {
        match self {
            Self::Time => Self::From,
            Self::From => Self::To,
            Self::To => Self::Duration,
            Self::Duration => Self::Bytes,
            Self::Bytes => Self::Time,
        }
    }

    /// Returns the name of the order that the screen shows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::From => "client",
            Self::To => "server",
            Self::Duration => "duration",
            Self::Bytes => "bytes",
        }
    }
}

/// Key press that the view handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// Stored flows with the user's view settings.
#[derive(Debug, Default)]
pub(super) struct FlowsView {
    flows: VecDeque<(Flow, FlowRow)>,
    /// Flows received while the view was paused.
    paused_flows: VecDeque<(Flow, FlowRow)>,
    pub(super) is_paused: bool,
    pub(super) only_refused: bool,
    pub(super) only_plaintext: bool,
    pub(super) filter: String,
    /// Whether the user is typing a filter, so that keys edit the filter.
    pub(super) is_typing: bool,
    pub(super) order: SortOrder,
    /// Index of the selected row among the visible ones; `None` if the user selected none.
    selected: Option<usize>,
    /// Whether the selected flow is shown in detail.
    pub(super) is_detailed: bool,
    /// Numbers of ordinary flow events, and of refusals, that proxies did not send.
    pub(super) lost_counts: (u64, u64),
    /// Names of the proxies that are being read.
    pub(super) connected_proxies: Vec<String>,
    /// Latest error of a proxy's stream.
    pub(super) last_stream_error: Option<String>,
}

impl FlowsView {
    /// Stores a flow event, or updates the state of the proxies' streams.
    pub(super) fn receive(&mut self, received: FlowUpdate) {
        match received {
            FlowUpdate::Item(item) => match *item {
                StreamItem::Flow(flow) => self.store_flow(*flow),
                StreamItem::Lost { sampled, refusals } => {
                    self.lost_counts.0 += sampled;
                    self.lost_counts.1 += refusals;
                }
            },
            FlowUpdate::Connected(proxy) => {
                self.last_stream_error = None;
                if !self.connected_proxies.contains(&proxy) {
                    self.connected_proxies.push(proxy);
                }
            }
            FlowUpdate::Disconnected(proxy, why) => {
                self.connected_proxies.retain(|one| *one != proxy);
                self.last_stream_error = Some(format!("{proxy}: {why}"));
            }
        }
    }

    fn store_flow(&mut self, flow: Flow) {
        let row = FlowRow::from_flow(&flow);
        let to = match self.is_paused {
            true => &mut self.paused_flows,
            false => &mut self.flows,
        };
        if to.len() == MAX_STORED_FLOWS {
            to.pop_front();
        }
        to.push_back((flow, row));
    }

    /// Returns the flows that pass the filters, in the selected order.
    pub(super) fn visible_flows(&self) -> Vec<&(Flow, FlowRow)> {
        let mut shown: Vec<_> = self
            .flows
            .iter()
            .filter(|one| self.matches_filter(one))
            .collect();
        match self.order {
            SortOrder::Time => {}
            SortOrder::From => shown.sort_by(|one, other| one.1.from.cmp(&other.1.from)),
            SortOrder::To => shown.sort_by(|one, other| one.1.to.cmp(&other.1.to)),
            SortOrder::Duration => {
                shown.sort_by(|one, other| other.0.duration_ms.total_cmp(&one.0.duration_ms));
            }
            SortOrder::Bytes => {
                let bytes = |flow: &Flow| flow.bytes_to_server.saturating_add(flow.bytes_to_client);
                shown.sort_by_key(|one| std::cmp::Reverse(bytes(&one.0)));
            }
        }
        shown
    }

    fn matches_filter(&self, (flow, row): &(Flow, FlowRow)) -> bool {
        let texts = [&row.event, &row.from, &row.to, &row.path, &row.details];
        let pattern = self.filter.to_lowercase();
        (!self.only_refused || flow.event.is_refusal())
            && (!self.only_plaintext || flow.transport == Transport::Plaintext)
            && (pattern.is_empty()
                || texts
                    .iter()
                    .any(|text| text.to_lowercase().contains(&pattern)))
    }

    /// Returns the number of flows that were received during the pause.
    pub(super) fn paused_count(&self) -> usize {
        self.paused_flows.len()
    }

    /// Returns the index of the selected row among `visible_count` rows. If the user selected none, it is the latest
    /// flow in order of time, and the first row in other orders.
    pub(super) fn selected(&self, visible_count: usize) -> Option<usize> {
        let last = visible_count.checked_sub(1)?;
        let latest = match self.order {
            SortOrder::Time => last,
            _ => 0,
        };
        Some(self.selected.map_or(latest, |row| row.min(last)))
    }

    /// Handles a key; returns false if the key ends the program.
    pub(super) fn handle_key(&mut self, key: Key) -> bool {
        if self.is_typing {
            self.type_filter(key);
            return true;
        }
        match key {
            Key::Char('q') => return false,
            Key::Escape if self.is_detailed => self.is_detailed = false,
            Key::Escape if self.selected.is_some() => self.selected = None,
            Key::Escape => self.filter.clear(),
            Key::Enter => self.is_detailed = !self.is_detailed && !self.flows.is_empty(),
            Key::Char(' ' | 'p') => self.pause(),
            Key::Char('/') => self.is_typing = true,
            Key::Char('s') => self.order = self.order.next(),
            Key::Char('d') => self.only_refused = !self.only_refused,
            Key::Char('t') => self.only_plaintext = !self.only_plaintext,
            Key::Char('c') => {
                self.flows.clear();
                self.lost_counts = (0, 0);
            }
            Key::Up | Key::Char('k') => self.move_selection(-1),
            Key::Down | Key::Char('j') => self.move_selection(1),
            Key::PageUp => self.move_selection(-20),
            Key::PageDown => self.move_selection(20),
            Key::Home => self.selected = Some(0),
            Key::End => self.selected = None,
            _ => {}
        }
        true
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(character) if self.filter.len() < MAX_FILTER_BYTES => {
                self.filter.push(character)
            }
            _ => {}
        }
    }

    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if !self.is_paused {
            self.flows.append(&mut self.paused_flows);
            let surplus = self.flows.len().saturating_sub(MAX_STORED_FLOWS);
            self.flows.drain(..surplus);
        }
    }

    fn move_selection(&mut self, rows: isize) {
        let shown = self.visible_flows().len();
        let Some(row) = self.selected(shown) else {
            return;
        };
        let moved = row.saturating_add_signed(rows).min(shown - 1);
        self.selected = Some(moved);
        // Rows that come would move under the reader's eyes.
        if !self.is_paused {
            self.pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_flow::FlowEventKind;

    use super::{super::text::tests::flow, *};

    fn receive(view: &mut FlowsView, flow: Flow) {
        view.receive(FlowUpdate::Item(Box::new(StreamItem::Flow(Box::new(flow)))));
    }

    fn named_flow(
        owner: &str,
        event: FlowEventKind,
        transport: Transport,
        milliseconds: f64,
    ) -> Flow {
        let mut flow = flow();
        flow.source.owner = Some(owner.to_owned());
        flow.event = event;
        flow.transport = transport;
        flow.duration_ms = milliseconds;
        flow
    }

    fn view() -> FlowsView {
        let mut view = FlowsView::default();
        for flow in [
            named_flow("b", FlowEventKind::Opened, Transport::Hbone, 1.0),
            named_flow("c", FlowEventKind::Refused, Transport::Plaintext, 3.0),
            named_flow("a", FlowEventKind::Closed, Transport::Plaintext, 2.0),
        ] {
            receive(&mut view, flow);
        }
        view
    }

    fn visible_clients(view: &FlowsView) -> Vec<&str> {
        let shown = view.visible_flows();
        shown
            .iter()
            .filter_map(|(flow, _)| flow.source.owner.as_deref())
            .collect()
    }

    fn press_keys(view: &mut FlowsView, keys: &str) {
        for key in keys.chars() {
            let key = match key {
                '\n' => Key::Enter,
                '\u{8}' => Key::Backspace,
                '\u{1b}' => Key::Escape,
                other => Key::Char(other),
            };
            assert!(view.handle_key(key));
        }
    }

    #[test]
    fn order_follows_its_key() {
        let mut view = view();
        assert_eq!(visible_clients(&view), ["b", "c", "a"]);
        press_keys(&mut view, "s");
        assert_eq!(visible_clients(&view), ["a", "b", "c"]);
        press_keys(&mut view, "ss");
        assert_eq!(visible_clients(&view), ["c", "a", "b"]);
        press_keys(&mut view, "ss");
        assert_eq!(visible_clients(&view), ["b", "c", "a"]);
    }

    #[test]
    fn filters_narrow_and_widen() {
        let mut view = view();
        press_keys(&mut view, "/shop/C\n");
        assert_eq!(visible_clients(&view), ["c"]);
        press_keys(&mut view, "\u{1b}");
        assert_eq!(visible_clients(&view).len(), 3);
        press_keys(&mut view, "t");
        assert_eq!(visible_clients(&view), ["c", "a"]);
        press_keys(&mut view, "d");
        assert_eq!(visible_clients(&view), ["c"]);
        press_keys(&mut view, "/x\u{8}q\n");
        assert_eq!(view.filter, "q");
        assert_eq!(visible_clients(&view), [""; 0]);
    }

    #[test]
    fn events_during_a_pause_are_shown_after_it() {
        let mut view = view();
        press_keys(&mut view, "p");
        receive(
            &mut view,
            named_flow("late", FlowEventKind::Opened, Transport::Hbone, 0.0),
        );
        assert_eq!((visible_clients(&view).len(), view.paused_count()), (3, 1));
        press_keys(&mut view, "p");
        assert_eq!(visible_clients(&view), ["b", "c", "a", "late"]);
    }

    #[test]
    fn selection_stays_on_its_row_and_returns_to_the_latest() {
        let mut view = view();
        assert_eq!(view.selected(3), Some(2));
        view.handle_key(Key::Up);
        assert_eq!(view.selected(3), Some(1));
        receive(
            &mut view,
            named_flow("late", FlowEventKind::Opened, Transport::Hbone, 0.0),
        );
        assert_eq!(visible_clients(&view).len(), 3);
        view.handle_key(Key::Home);
        view.handle_key(Key::Up);
        assert_eq!(view.selected(3), Some(0));
        view.handle_key(Key::End);
        assert_eq!(view.selected(3), Some(2));
        assert_eq!(view.selected(0), None);
    }

    #[test]
    fn stored_flows_are_bounded_paused_or_not() {
        let mut view = FlowsView::default();
        for _ in 0..MAX_STORED_FLOWS + 10 {
            receive(&mut view, flow());
        }
        view.handle_key(Key::Char('p'));
        for _ in 0..MAX_STORED_FLOWS + 10 {
            receive(&mut view, flow());
        }
        assert_eq!(
            (view.visible_flows().len(), view.paused_count()),
            (MAX_STORED_FLOWS, MAX_STORED_FLOWS)
        );
        view.handle_key(Key::Char('p'));
        assert_eq!(
            (view.visible_flows().len(), view.paused_count()),
            (MAX_STORED_FLOWS, 0)
        );
    }

    #[test]
    fn trouble_with_a_proxy_is_shown_until_one_comes() {
        let mut view = FlowsView::default();
        view.receive(FlowUpdate::Connected("a".to_owned()));
        view.receive(FlowUpdate::Disconnected("a".to_owned(), "broke".to_owned()));
        assert_eq!(view.last_stream_error.as_deref(), Some("a: broke"));
        assert!(view.connected_proxies.is_empty());
        view.receive(FlowUpdate::Connected("a".to_owned()));
        assert_eq!(view.last_stream_error, None);
    }

    #[test]
    fn only_q_ends_it_and_not_while_typing() {
        let mut view = FlowsView::default();
        assert!(!view.handle_key(Key::Char('q')));
        view.handle_key(Key::Char('/'));
        assert!(view.handle_key(Key::Char('q')));
    }
}
