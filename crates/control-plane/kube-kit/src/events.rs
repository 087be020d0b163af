//! Events on objects, for those who look at them with `kubectl describe`.
//!
//! The same event again only counts up (kube's recorder); and there are only so many in a time: a
//! thousand broken objects must not become a thousand writes at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{sync::mpsc, time::Instant};

/// Events at once, after a pause.
const BURST: u32 = 25;
/// How often there may be a further one.
const EVERY: Duration = Duration::from_secs(2);
/// Longest text that the API takes, in characters.
const LONGEST: usize = 1000;

/// Something to say about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Remark {
    /// The object, with its uid: without it `kubectl describe` does not show it.
    pub object: ObjectReference,
    /// Whether something is wrong.
    pub is_warning: bool,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What the writer did or tried, one word in CamelCase.
    pub action: &'static str,
    /// For people.
    pub text: String,
}

/// How many events there may be. Pure.
#[derive(Debug, Default)]
struct Budget {
    /// When all of the burst is there again.
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

/// Writes remarks as events of `controller`, seen by `instance`; ends when nobody can remark any more.
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
            tracing::debug!(reason, text, "an event is left out: there are too many");
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
