//! Terminal screen of `ambit flows`: draws the view, and reads keys.

use std::time::Duration;

use crossterm::event::{Event, EventStream, KeyCode, KeyEventKind, KeyModifiers};
use futures_util::StreamExt as _;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Block, Paragraph, Row, Table, TableState, Wrap},
};
use tokio::{sync::mpsc, time::Instant};

use super::{
    follow::FlowUpdate,
    text,
    view::{FlowsView, Key, SortOrder},
};
use crate::{CliError, ErrorKind};

/// Minimum interval between two redraws of the screen.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Shows flows until the user ends the program, or the time `end`.
pub(super) async fn run(
    mut received: mpsc::Receiver<FlowUpdate>,
    end: Option<Instant>,
) -> Result<(), CliError> {
    let unusable = |error: std::io::Error| {
        CliError::new(ErrorKind::Failed, "the terminal cannot be used")
            .with_source(error)
            .with_hint("-o text prints lines instead")
    };
    // Restores the terminal on a panic, too.
    let mut terminal = ratatui::try_init().map_err(unusable)?;
    let mut view = FlowsView::default();
    let mut keys = EventStream::new();
    let mut redraw = tokio::time::interval(REDRAW_INTERVAL);
    let shown = loop {
        tokio::select! {
            _ = redraw.tick() => {
                if let Err(error) = terminal.draw(|frame| draw(frame, &view)) {
                    break Err(unusable(error));
                }
                if end.is_some_and(|end| Instant::now() >= end) {
                    break Ok(());
                }
            }
            next = received.recv() => match next {
                Some(next) => view.receive(next),
                None => break Ok(()),
            },
            event = keys.next() => match event {
                Some(Ok(event)) => if !handle_event(&mut view, &event) {
                    break Ok(());
                },
                Some(Err(error)) => break Err(unusable(error)),
                None => break Ok(()),
            },
        }
    };
    ratatui::restore();
    shown
}

/// Passes a key press to the view; returns false if the key ends the program.
fn handle_event(view: &mut FlowsView, event: &Event) -> bool {
    let Event::Key(key) = event else {
        return true;
    };
    if key.kind == KeyEventKind::Release {
        return true;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if is_control => false,
        KeyCode::Char(character) if !is_control => view.handle_key(Key::Char(character)),
        KeyCode::Enter => view.handle_key(Key::Enter),
        KeyCode::Esc => view.handle_key(Key::Escape),
        KeyCode::Backspace => view.handle_key(Key::Backspace),
        KeyCode::Up => view.handle_key(Key::Up),
        KeyCode::Down => view.handle_key(Key::Down),
        KeyCode::PageUp => view.handle_key(Key::PageUp),
        KeyCode::PageDown => view.handle_key(Key::PageDown),
        KeyCode::Home => view.handle_key(Key::Home),
        KeyCode::End => view.handle_key(Key::End),
        _ => true,
    }
}

fn draw(frame: &mut Frame<'_>, view: &FlowsView) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(header(view)), head);
    let shown = view.visible_flows();
    let selected = view.selected(shown.len());
    match (view.is_detailed, selected) {
        (true, Some(row)) => draw_detail(frame, body, shown.get(row).map(|(flow, _)| flow)),
        _ => draw_table(frame, body, &shown, selected, view.order),
    }
    frame.render_widget(Paragraph::new(footer(view)), foot);
}

fn draw_detail(frame: &mut Frame<'_>, area: Rect, flow: Option<&ambit_flow::Flow>) {
    let pretty = flow.and_then(|flow| serde_json::to_string_pretty(flow).ok());
    let pretty = pretty.unwrap_or_default();
    let lines: Vec<_> = pretty
        .lines()
        .map(|line| Line::from(crate::output::escape_unprintable(line)))
        .collect();
    let detail = Paragraph::new(lines)
        .wrap(Wrap { trim: false })
        .block(Block::bordered().title("one flow"));
    frame.render_widget(detail, area);
}

fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    shown: &[&(ambit_flow::Flow, text::FlowRow)],
    selected: Option<usize>,
    order: SortOrder,
) {
    // Only what fits is made into rows: thousands are kept.
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    let first = selected.map_or(0, |row| match order {
        SortOrder::Time => (row + 1).saturating_sub(room),
        _ => row - row % room,
    });
    let rows = shown.iter().skip(first).take(room).map(|(flow, row)| {
        let style = match flow.event {
            event if event.is_refusal() => Style::new().fg(Color::Red),
            _ if flow.transport == ambit_flow::Transport::Plaintext => {
                Style::new().fg(Color::Yellow)
            }
            _ => Style::new(),
        };
        let columns = [
            &row.time,
            &row.event,
            &row.from,
            &row.to,
            &row.path,
            &row.details,
            &row.bytes,
            &row.duration,
        ];
        Row::new(columns.map(String::as_str)).style(style)
    });
    let widths = [
        Constraint::Length(12),
        Constraint::Length(11),
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Fill(4),
        Constraint::Length(13),
        Constraint::Length(10),
    ];
    let header = [
        "TIME", "EVENT", "FROM", "TO", "PATH", "DETAILS", "BYTES", "DURATION",
    ];
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(bold))
        .row_highlight_style(reversed);
    let selected = selected.map(|row| row - first);
    let mut state = TableState::default().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn header(view: &FlowsView) -> String {
    let mut parts = vec![format!("{} proxies", view.connected_proxies.len())];
    if view.is_paused {
        parts.push(format!("PAUSED, {} wait", view.paused_count()));
    }
    if view.only_refused {
        parts.push("only refused".to_owned());
    }
    if view.only_plaintext {
        parts.push("only plaintext".to_owned());
    }
    if view.is_typing || !view.filter.is_empty() {
        let cursor = if view.is_typing { "_" } else { "" };
        parts.push(format!("filter: {}{cursor}", view.filter));
    }
    parts.push(format!("by {}", view.order.name()));
    if view.lost_counts != (0, 0) {
        parts.push(format!(
            "sampled: {} events, {} refusals are not shown",
            view.lost_counts.0, view.lost_counts.1
        ));
    }
    parts.extend(view.last_stream_error.clone());
    crate::output::escape_unprintable(&parts.join(" | "))
}

fn footer(view: &FlowsView) -> &'static str {
    match view.is_typing {
        true => "Enter keeps the filter, Esc removes it",
        false => {
            "q quit  space pause  / filter  s order  d refused  t plaintext  Enter detail  arrows select  Esc back  c clear"
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_flow::{Flow, FlowEventKind as FlowEvent, Refusal, StreamItem};
    use ratatui::{Terminal, backend::TestBackend};

    use super::{super::text::tests::flow, *};

    fn screen(view: &FlowsView) -> String {
        let mut terminal = Terminal::new(TestBackend::new(140, 24)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().to_string()
    }

    fn view() -> FlowsView {
        let mut view = FlowsView::default();
        view.receive(FlowUpdate::Connected("the proxy of node node-1".to_owned()));
        for number in 0..100 {
            let mut flow = flow();
            flow.source.owner = Some(format!("client-{number}"));
            view.receive(FlowUpdate::Item(Box::new(StreamItem::Flow(Box::new(flow)))));
        }
        let refused = Flow {
            event: FlowEvent::Refused,
            refusal: Some(Refusal {
                policy: Some("shop/strict".to_owned()),
                reason: "explicitly \u{1b}[2Jdenied".to_owned(),
            }),
            ..flow()
        };
        view.receive(FlowUpdate::Item(Box::new(StreamItem::Flow(Box::new(
            refused,
        )))));
        view
    }

    #[test]
    fn latest_flows_are_shown_with_why_they_were_refused() {
        let shown = screen(&view());
        assert!(shown.contains("client-99"), "{shown}");
        assert!(!shown.contains("client-1 "), "{shown}");
        assert!(shown.contains("shop/strict"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
        assert!(shown.contains("1 proxies | by time"), "{shown}");
    }

    #[test]
    fn selected_flow_is_shown_in_detail() {
        let mut view = view();
        view.handle_key(Key::Up);
        view.handle_key(Key::Enter);
        let shown = screen(&view);
        assert!(shown.contains("\"client-99\""), "{shown}");
        assert!(shown.contains("PAUSED"), "{shown}");
    }

    #[test]
    fn first_rows_are_shown_when_the_first_is_selected() {
        let mut view = view();
        view.handle_key(Key::Home);
        let shown = screen(&view);
        assert!(shown.contains("client-0 "), "{shown}");
        assert!(!shown.contains("client-99"), "{shown}");
    }
}
