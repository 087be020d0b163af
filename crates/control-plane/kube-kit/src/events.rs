//! Kubernetes Events on objects, as `kubectl describe` shows them.
//!
//! A repeated event only increments a count (kube's recorder), and the rate is limited: a thousand
//! broken objects must not cause a thousand writes at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{sync::mpsc, time::Instant};

/// Size of a burst, after a pause.
const BURST: u32 = 25;
/// Interval between further events.
const EVERY: Duration = Duration::from_secs(2);
/// Maximum length of a text that the API accepts, in characters.
const LONGEST: usize = 1000;

/// A remark about an object, to be written as an Event.
#[derive(Clone, Debug, PartialEq)]
pub struct Remark {
    /// The object, with its uid: without it `kubectl describe` does not show it.
    pub object: ObjectReference,
    /// Whether the event is a warning.
    pub is_warning: bool,
    /// Reason of the event, one word in CamelCase.
    pub reason: &'static str,
    /// Action that the writer did or tried, one word in CamelCase.
    pub action: &'static str,
    /// Text for operators.
    pub text: String,
}

/// The rate limit of events. Pure.
#[derive(Debug, Default)]
struct Budget {
    /// Time at which the full burst is available again.
    full_at: Option<Instant>,
}

impl Budget {
    fn spend(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.map_or(now, |at| at.max(now));
        let affordable = full_at - now <= EVERY * (BURST - 1);
        if affordable {
            self.full_at = Some(full_at + EVERY);
        }
        affordable
    }
}

/// Writes remarks as events of `controller`, reported by `instance`; ends when all senders are dropped.
pub async fn run(
    client: Client,
    controller: &str,
    instance: &str,
    mut remarks: mpsc::UnboundedReceiver<Remark>,
) {
    let reporter = Reporter {
        controller: controller.to_owned(),
        instance: Some(instance.to_owned()),
    };
    let recorder = Recorder::new(client, reporter);
    let mut budget = Budget::default();
    while let Some(remark) = remarks.recv().await {
        let Remark {
            object,
            is_warning,
            reason,
            action,
            text,
        } = remark;
        if !budget.spend(Instant::now()) {
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
            note: Some(text.chars().take(LONGEST).collect()),
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
    fn many_events_at_once_are_cut_and_later_ones_are_not() {
        let now = Instant::now();
        let mut budget = Budget::default();
        let sent = (0..1000).filter(|_| budget.spend(now)).count();
        assert_eq!(sent, 25);
        assert!(!budget.spend(now + EVERY - Duration::from_millis(1)));
        assert!(budget.spend(now + EVERY));
        assert!(!budget.spend(now + EVERY));
        let sent = (0..1000)
            .filter(|_| budget.spend(now + 100 * EVERY))
            .count();
        assert_eq!(sent, 25);
    }
}
