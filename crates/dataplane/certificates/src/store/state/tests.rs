//! Tests of the order and timing of fetches, with a simulated clock.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

type TestEffect = Effect<u32, &'static str>;
type TestEvent = Event<u32, &'static str>;

fn id(name: &str) -> Identity {
    Identity::new("td", "ns", name)
}

fn day() -> Lifetime {
    Lifetime {
        renew_in: DAY / 2,
        expires_in: DAY,
    }
}

struct StateRun {
    state: State,
    now: Instant,
}

impl StateRun {
    fn new(parallel: usize) -> Self {
        let options = CertificatesOptions {
            max_parallel_fetches: parallel,
            ..CertificatesOptions::default()
        };
        Self {
            state: State::new(options),
            now: Instant::now(),
        }
    }

    fn on(&mut self, event: TestEvent) -> Vec<TestEffect> {
        self.state.on_event(event, self.now)
    }

    fn request(&mut self, name: &str, priority: Priority) -> Vec<TestEffect> {
        self.on(Event::Request(id(name), priority))
    }

    /// Advances the clock to the next wake-up and sends a tick. Returns the time that passed, and the effects.
    fn wake(&mut self) -> (Duration, Vec<TestEffect>) {
        let wake = self.state.next_wake().expect("something to come");
        let waited = wake - self.now;
        self.now = wake;
        (waited, self.on(Event::Tick))
    }
}

fn fetch(name: &str, attempt: u64) -> TestEffect {
    Effect::Fetch(id(name), attempt)
}

#[test]
fn a_request_is_fetched_at_once_and_a_second_one_joins_it() {
    let mut run = StateRun::new(8);
    assert_eq!(run.request("a", Priority::Warmup), [fetch("a", 1)]);
    assert_eq!(run.request("a", Priority::RealTime), []);
    assert_eq!(
        run.on(Event::Fetched(id("a"), 1, day(), 7)),
        [Effect::Publish(id("a"), 7)]
    );
    assert_eq!(run.request("a", Priority::RealTime), []);
}

#[test]
fn fetches_for_waiting_connections_go_first() {
    let mut run = StateRun::new(1);
    run.request("busy", Priority::Background);
    for (name, priority) in [
        ("background", Priority::Background),
        ("warm-1", Priority::Warmup),
        ("warm-2", Priority::Warmup),
        ("urgent", Priority::RealTime),
    ] {
        assert_eq!(run.request(name, priority), []);
        run.now += SECOND;
    }
    // A connection starts to wait for one that was only announced.
    assert_eq!(run.request("warm-2", Priority::RealTime), []);
    // A lower priority changes nothing.
    assert_eq!(run.request("warm-2", Priority::Background), []);
    let mut order = Vec::new();
    let mut running = ("busy".to_owned(), 1);
    for _ in 0..4 {
        let done = Event::Fetched(id(&running.0), running.1, day(), 0);
        for effect in run.on(done) {
            if let Effect::Fetch(identity, attempt) = effect {
                order.push(identity.service_account.to_string());
                running = (identity.service_account.to_string(), attempt);
            }
        }
    }
    assert_eq!(order, ["warm-2", "urgent", "warm-1", "background"]);
}

#[test]
fn concurrent_fetches_are_limited() {
    let mut run = StateRun::new(2);
    assert_eq!(run.request("a", Priority::Warmup).len(), 1);
    assert_eq!(run.request("b", Priority::Warmup).len(), 1);
    assert_eq!(run.request("c", Priority::RealTime), []);
    assert_eq!(
        run.on(Event::Failed(id("a"), 1, "no", 0.5)).last(),
        Some(&fetch("c", 3)),
        "a failure frees its place"
    );
}

#[test]
fn certificates_are_renewed_at_half_of_their_lifetime() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.on(Event::Fetched(id("a"), 1, day(), 1));
    let (waited, effects) = run.wake();
    assert_eq!((waited, effects), (DAY / 2, vec![fetch("a", 2)]));
    run.on(Event::Fetched(id("a"), 2, day(), 2));
    assert_eq!(run.wake().0, DAY / 2);
}

#[test]
fn certificate_without_lifetime_causes_no_busy_loop() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    let life = Lifetime {
        renew_in: Duration::ZERO,
        expires_in: Duration::ZERO,
    };
    run.on(Event::Fetched(id("a"), 1, life, 1));
    assert_eq!(run.wake().0, SECOND);
}

#[test]
fn failures_are_reported_at_once_and_retried_with_backoff() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::RealTime);
    let mut attempt = 1;
    let mut delays = Vec::new();
    for _ in 0..10 {
        let effects = run.on(Event::Failed(id("a"), attempt, "down", 0.5));
        assert_eq!(
            effects.first(),
            Some(&Effect::PublishError(id("a"), "down"))
        );
        // Another request does not hasten the retry.
        assert_eq!(run.request("a", Priority::RealTime), []);
        let (waited, effects) = run.wake();
        delays.push(waited.as_secs());
        attempt += 1;
        assert_eq!(effects, [fetch("a", attempt)]);
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]);
    assert_eq!(
        run.on(Event::Fetched(id("a"), attempt, day(), 1)),
        [Effect::Publish(id("a"), 1)]
    );
    run.wake();
    run.on(Event::Failed(id("a"), attempt + 1, "down", 0.5));
    assert_eq!(run.wake().0, SECOND, "a success resets the delays");
}

#[test]
fn an_unreachable_ca_is_probed_with_one_identity_for_all() {
    let mut run = StateRun::new(8);
    for (attempt, name) in (1..).zip(["a", "b", "c"]) {
        run.request(name, Priority::RealTime);
        assert_eq!(run.state.running, attempt);
    }
    for (attempt, name) in (1..).zip(["a", "b", "c"]) {
        run.on(Event::Unreachable(id(name), attempt, "down", 0.5));
    }
    let began = run.now;
    let (mut attempts, mut reports) = (3, 0);
    while run.now - began < SECOND * 600 {
        let (waited, effects) = run.wake();
        assert!(waited <= SECOND, "{waited:?} without a probe");
        for effect in effects {
            if let Effect::Fetch(identity, attempt) = effect {
                attempts += 1;
                let effects = run.on(Event::Unreachable(identity, attempt, "down", 0.5));
                let is_report = |effect: &&TestEffect| matches!(effect, Effect::Report { .. });
                reports += effects.iter().filter(is_report).count();
            }
        }
    }
    assert!((35..=40).contains(&reports), "{reports} reports");
    // A probe a second, and the identities' own retries, of which there are three in half a minute.
    assert!((600..700).contains(&attempts), "{attempts} attempts");
    // The CA is back: one probe, and all others at once.
    let (waited, effects) = run.wake();
    assert!(waited <= SECOND);
    let [Effect::Fetch(first, attempt)] = &effects[..] else {
        panic!("not one probe: {effects:?}");
    };
    let effects = run.on(Event::Fetched(first.clone(), *attempt, day(), 1));
    let fetches = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Fetch(..)));
    assert_eq!(fetches.count(), 2, "{effects:?}");
    assert_eq!(run.state.next_wake(), Some(run.now + DAY / 2));
}

#[test]
fn refusal_ends_the_outage_and_resets_delays() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::RealTime);
    let mut attempt = 1;
    for _ in 0..20 {
        run.on(Event::Unreachable(id("a"), attempt, "down", 0.5));
        attempt += 1;
        assert_eq!(run.wake().1, [fetch("a", attempt)]);
    }
    run.on(Event::Failed(id("a"), attempt, "unknown pod", 0.5));
    assert_eq!(run.wake().0, SECOND);
}

#[test]
fn outage_ends_when_no_identity_waits() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::RealTime);
    run.on(Event::Unreachable(id("a"), 1, "down", 0.5));
    run.on(Event::Forget(id("a")));
    run.wake();
    assert_eq!(run.state.next_wake(), None);
}

#[test]
fn retry_delays_are_randomized() {
    for (random, millis) in [(0.0, 800), (0.999_999, 1_199)] {
        let mut run = StateRun::new(8);
        run.request("a", Priority::RealTime);
        run.on(Event::Failed(id("a"), 1, "down", random));
        assert_eq!(run.wake().0.as_millis(), millis);
    }
}

#[test]
fn a_valid_certificate_stays_in_use_while_renewal_fails() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.on(Event::Fetched(id("a"), 1, day(), 1));
    let received = run.now;
    let mut attempt = 1;
    loop {
        let (_, effects) = run.wake();
        attempt += 1;
        assert_eq!(effects, [fetch("a", attempt)]);
        let effects = run.on(Event::Failed(id("a"), attempt, "down", 0.5));
        if run.now - received < DAY {
            assert!(
                matches!(&effects[..], [Effect::Report { kept: true, .. }]),
                "{:?} after: {effects:?}",
                run.now - received
            );
        } else {
            assert_eq!(
                effects.first(),
                Some(&Effect::PublishError(id("a"), "down"))
            );
            assert_eq!(
                run.now - received,
                DAY,
                "the last attempt comes right at expiry"
            );
            break;
        }
    }
}

#[test]
fn expired_certificate_is_fetched_at_once_and_retries_keep_delays() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.on(Event::Fetched(id("a"), 1, day(), 1));
    assert_eq!(run.on(Event::Expired(id("a"))), [fetch("a", 2)]);
    assert_eq!(run.on(Event::Expired(id("a"))), []);
    let effects = run.on(Event::Failed(id("a"), 2, "down", 0.5));
    assert_eq!(
        effects.first(),
        Some(&Effect::PublishError(id("a"), "down"))
    );
    assert_eq!(run.on(Event::Expired(id("a"))), []);
    assert_eq!(run.wake().0, SECOND);
}

#[test]
fn forgotten_identities_are_not_fetched_renewed_or_published() {
    let mut run = StateRun::new(1);
    run.request("fetching", Priority::Warmup);
    run.request("queued", Priority::Warmup);
    run.on(Event::Forget(id("queued")));
    run.on(Event::Forget(id("fetching")));
    assert_eq!(run.on(Event::Fetched(id("fetching"), 1, day(), 1)), []);
    assert_eq!(run.state.next_wake(), None);
    run.request("waiting", Priority::Warmup);
    run.on(Event::Fetched(id("waiting"), 2, day(), 1));
    run.on(Event::Forget(id("waiting")));
    assert_eq!(run.state.next_wake(), None);
    assert!(run.state.entries.is_empty() && run.state.ready.is_empty());
}

#[test]
fn stale_response_after_resubscription_is_ignored() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.on(Event::Forget(id("a")));
    assert_eq!(run.request("a", Priority::RealTime), [fetch("a", 2)]);
    assert_eq!(run.on(Event::Failed(id("a"), 1, "late", 0.5)), []);
    assert_eq!(
        run.on(Event::Fetched(id("a"), 2, day(), 2)),
        [Effect::Publish(id("a"), 2)]
    );
}

/// Step of a random test: an event for one of a few identities, or the passing of time.
#[derive(Clone, Debug)]
enum Step {
    Request(u8, Priority),
    Forget(u8),
    Expired(u8),
    /// Ends the oldest fetch in flight with a certificate, a rejection, or no response.
    End(Option<bool>),
    Advance(u32),
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::prelude::*;
    let priority = prop_oneof![
        Just(Priority::Background),
        Just(Priority::Warmup),
        Just(Priority::RealTime)
    ];
    let step = prop_oneof![
        4 => (0..12u8, priority).prop_map(|(name, priority)| Step::Request(name, priority)),
        2 => (0..12u8).prop_map(Step::Forget),
        1 => (0..12u8).prop_map(Step::Expired),
        4 => any::<Option<bool>>().prop_map(Step::End),
        2 => (0..100_000u32).prop_map(Step::Advance),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest::proptest! {
    #[test]
    fn any_order_of_events_keeps_the_invariants(steps in steps()) {
        let mut run = StateRun::new(3);
        let mut running: std::collections::VecDeque<(Identity, u64)> = Default::default();
        for step in steps {
            let effects = match step {
                Step::Request(name, priority) => run.request(&name.to_string(), priority),
                Step::Forget(name) => run.on(Event::Forget(id(&name.to_string()))),
                Step::Expired(name) => run.on(Event::Expired(id(&name.to_string()))),
                Step::End(answer) => match (running.pop_front(), answer) {
                    (Some((identity, attempt)), Some(true)) => {
                        run.on(Event::Fetched(identity, attempt, day(), 1))
                    }
                    (Some((identity, attempt)), Some(false)) => {
                        run.on(Event::Failed(identity, attempt, "no", 0.5))
                    }
                    (Some((identity, attempt)), None) => {
                        run.on(Event::Unreachable(identity, attempt, "down", 0.5))
                    }
                    (None, _) => Vec::new(),
                },
                Step::Advance(seconds) => {
                    run.now += SECOND * seconds;
                    run.on(Event::Tick)
                }
            };
            for effect in effects {
                if let Effect::Fetch(identity, attempt) = effect {
                    running.push_back((identity, attempt));
                }
            }
            let state = &run.state;
            assert_eq!(state.running, running.len());
            assert!(running.len() <= 3);
            // Nothing waits while there is room.
            assert!(state.ready.is_empty() || running.len() == 3);
            // Every identity is queued where its phase says, and only there.
            let mut ready = 0;
            let mut waiting = 0;
            for (identity, entry) in &state.entries {
                match entry.phase {
                    Phase::Queued(priority, due) => {
                        ready += 1;
                        assert!(state.ready.contains(&(Reverse(priority), due, identity.clone())));
                    }
                    Phase::Scheduled(due) => {
                        waiting += 1;
                        assert!(state.timers.contains(&(due, identity.clone())));
                    }
                    Phase::Fetching(attempt) => {
                        assert!(running.contains(&(identity.clone(), attempt)));
                    }
                }
            }
            assert_eq!((ready, waiting), (state.ready.len(), state.timers.len()));
        }
    }
}

#[test]
fn a_replaced_certificate_is_fetched_before_it_is_due() {
    let mut run = StateRun::new(8);
    assert_eq!(run.on(Event::Renew(id("unknown"))), []);
    run.request("a", Priority::Warmup);
    run.on(Event::Fetched(id("a"), 1, day(), 1));
    assert_eq!(run.on(Event::Renew(id("a"))), [fetch("a", 2)]);
    // Once more during the fetch, which may have seen the one before.
    assert_eq!(run.on(Event::Renew(id("a"))), []);
    assert_eq!(
        run.on(Event::Fetched(id("a"), 2, day(), 2)),
        [Effect::Publish(id("a"), 2), fetch("a", 3)]
    );
    let last = run.on(Event::Fetched(id("a"), 3, day(), 3));
    assert_eq!(last, [Effect::Publish(id("a"), 3)]);
}

#[test]
fn a_certificate_replaced_during_a_failing_fetch_is_fetched_at_once() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.on(Event::Renew(id("a")));
    let effects = run.on(Event::Failed(id("a"), 1, "no", 0.5));
    assert_eq!(effects.last(), Some(&fetch("a", 2)));
}
