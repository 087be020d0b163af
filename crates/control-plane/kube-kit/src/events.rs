//! Kubernetes Events on objects, as `kubectl describe` shows them.
//!
//! A repeated event only increments a count (kube's recorder), and the rate is limited: a thousand
//! invalid objects must not cause a thousand writes at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{sync::mpsc, time::Instant};

/// Maximum number of events in a burst.
const MAX_EVENT_BURST: u32 = 25;
/// Interval between further events after a burst.
const REFILL_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum length of an event's text that the API accepts, in characters.
const MAX_TEXT_CHARS: usize = 1000;

/// Event about an object, to be written to the API.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRecord {
    /// Reference to the object, with its uid: without it `kubectl describe` does not show the
    /// event.
    pub object: ObjectReference,
    /// Whether the event is a warning.
    pub is_warning: bool,
    /// Reason of the event, one word in CamelCase.
    pub reason: &'static str,
    /// Action that the controller took or tried, one word in CamelCase.
    pub action: &'static str,
    /// Message of the event, for operators.
    pub text: String,
}

/// Rate limit of events, without IO.
#[derive(Debug, Default)]
struct EventBudget {
    /// Time at which the full burst is available again.
    burst_restored_at: Option<Instant>,
}

impl EventBudget {
    fn try_spend(&mut self, now: Instant) -> bool {
        let full_at = self.burst_restored_at.map_or(now, |at| at.max(now));
        let affordable = full_at - now <= REFILL_INTERVAL * (MAX_EVENT_BURST - 1);
        if affordable {
            self.burst_restored_at = Some(full_at + REFILL_INTERVAL);
        }
        affordable
    }
}

/// Writes events of `controller`, reported by its `instance`; ends when all senders are dropped.
pub async fn run_event_recorder(
    client: Client,
    controller: &str,
    instance: &str,
    mut remarks: mpsc::UnboundedReceiver<EventRecord>,
) {
    let reporter = Reporter {
        controller: controller.to_owned(),
        instance: Some(instance.to_owned()),
    };
    let recorder = Recorder::new(client, reporter);
    let mut budget = EventBudget::default();
    while let Some(remark) = remarks.recv().await {
        let EventRecord {
            object,
            is_warning,
            reason,
            action,
            text,
        } = remark;
        if !budget.try_spend(Instant::now()) {
            tracing::debug!(reason, text, "an event is dropped: there are too many");
            continue;
        }
        let event = Event {
            type_: if is_warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: reason.to_owned(),
            note: Some(text.chars().take(MAX_TEXT_CHARS).collect()),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &object).await {
            tracing::debug!(reason, %error, "an event is not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_of_events_are_limited() {
        let now = Instant::now();
        let mut budget = EventBudget::default();
        let sent = (0..1000).filter(|_| budget.try_spend(now)).count();
        assert_eq!(sent, 25);
        assert!(!budget.try_spend(now + REFILL_INTERVAL - Duration::from_millis(1)));
        assert!(budget.try_spend(now + REFILL_INTERVAL));
        assert!(!budget.try_spend(now + REFILL_INTERVAL));
        let sent = (0..1000)
            .filter(|_| budget.try_spend(now + 100 * REFILL_INTERVAL))
            .count();
        assert_eq!(sent, 25);
    }
}
