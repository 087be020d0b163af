//! Tests of the order and timing of fetches, with a simulated clock.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

type TestEffect = Effect<u32, &'static str>;
type TestEvent = Event<u32, &'static str>;

fn test_identity(name: &str) -> Identity {
    Identity::new("td", "ns", name)
}

fn one_day_lifetime() -> Lifetime {
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

    fn handle_event(&mut self, event: TestEvent) -> Vec<TestEffect> {
        self.state.on_event(event, self.now)
    }

    fn request(&mut self, name: &str, priority: Priority) -> Vec<TestEffect> {
        self.handle_event(Event::Request(test_identity(name), priority))
    }

    /// Advances the clock to the next wake-up and sends a tick. Returns the time that passed, and the effects.
    fn advance_to_wake(&mut self) -> (Duration, Vec<TestEffect>) {
        let wake = self.state.next_wake().expect("something to come");
        let waited = wake - self.now;
        self.now = wake;
        (waited, self.handle_event(Event::Tick))
    }
}

fn fetch_effect(name: &str, attempt: u64) -> TestEffect {
    Effect::Fetch(test_identity(name), attempt)
}

#[test]
fn a_request_is_fetched_at_once_and_a_second_one_joins_it() {
    let mut run = StateRun::new(8);
    assert_eq!(run.request("a", Priority::Warmup), [fetch_effect("a", 1)]);
    assert_eq!(run.request("a", Priority::RealTime), []);
    assert_eq!(
        run.handle_event(Event::Fetched(test_identity("a"), 1, one_day_lifetime(), 7)),
        [Effect::Publish(test_identity("a"), 7)]
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
        let done = Event::Fetched(test_identity(&running.0), running.1, one_day_lifetime(), 0);
        for effect in run.handle_event(done) {
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
        run.handle_event(Event::Failed(test_identity("a"), 1, "no", 0.5))
            .last(),
        Some(&fetch_effect("c", 3)),
        "a failure frees its place"
    );
}

#[test]
fn certificates_are_renewed_at_half_of_their_lifetime() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.handle_event(Event::Fetched(test_identity("a"), 1, one_day_lifetime(), 1));
    let (waited, effects) = run.advance_to_wake();
    assert_eq!((waited, effects), (DAY / 2, vec![fetch_effect("a", 2)]));
    run.handle_event(Event::Fetched(test_identity("a"), 2, one_day_lifetime(), 2));
    assert_eq!(run.advance_to_wake().0, DAY / 2);
}

#[test]
fn certificate_without_lifetime_causes_no_busy_loop() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    let life = Lifetime {
        renew_in: Duration::ZERO,
        expires_in: Duration::ZERO,
    };
    run.handle_event(Event::Fetched(test_identity("a"), 1, life, 1));
    assert_eq!(run.advance_to_wake().0, SECOND);
}

#[test]
fn failures_are_reported_at_once_and_retried_with_backoff() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::RealTime);
    let mut attempt = 1;
    let mut delays = Vec::new();
    for _ in 0..10 {
        let effects = run.handle_event(Event::Failed(test_identity("a"), attempt, "down", 0.5));
        assert_eq!(
            effects.first(),
            Some(&Effect::PublishError(test_identity("a"), "down"))
        );
        // Another request does not hasten the retry.
        assert_eq!(run.request("a", Priority::RealTime), []);
        let (waited, effects) = run.advance_to_wake();
        delays.push(waited.as_secs());
        attempt += 1;
        assert_eq!(effects, [fetch_effect("a", attempt)]);
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]);
    assert_eq!(
        run.handle_event(Event::Fetched(
            test_identity("a"),
            attempt,
            one_day_lifetime(),
            1
        )),
        [Effect::Publish(test_identity("a"), 1)]
    );
    run.advance_to_wake();
    run.handle_event(Event::Failed(test_identity("a"), attempt + 1, "down", 0.5));
    assert_eq!(
        run.advance_to_wake().0,
        SECOND,
        "a success resets the delays"
    );
}

#[test]
fn an_unreachable_ca_is_probed_with_one_identity_for_all() {
    let mut run = StateRun::new(8);
    for (attempt, name) in (1..).zip(["a", "b", "c"]) {
        run.request(name, Priority::RealTime);
        assert_eq!(run.state.fetches_in_flight, attempt);
    }
    for (attempt, name) in (1..).zip(["a", "b", "c"]) {
        run.handle_event(Event::Unreachable(
            test_identity(name),
            attempt,
            "down",
            0.5,
        ));
    }
    let began = run.now;
    let (mut attempts, mut reports) = (3, 0);
    while run.now - began < SECOND * 600 {
        let (waited, effects) = run.advance_to_wake();
        assert!(waited <= SECOND, "{waited:?} without a probe");
        for effect in effects {
            if let Effect::Fetch(identity, attempt) = effect {
                attempts += 1;
                let effects = run.handle_event(Event::Unreachable(identity, attempt, "down", 0.5));
                let is_report = |effect: &&TestEffect| matches!(effect, Effect::Report { .. });
                reports += effects.iter().filter(is_report).count();
            }
        }
    }
    assert!((35..=40).contains(&reports), "{reports} reports");
    // A probe a second, and the identities' own retries, of which there are three in half a minute.
    assert!((600..700).contains(&attempts), "{attempts} attempts");
    // The CA is back: one probe, and all others at once.
    let (waited, effects) = run.advance_to_wake();
    assert!(waited <= SECOND);
    let [Effect::Fetch(first, attempt)] = &effects[..] else {
        panic!("not one probe: {effects:?}");
    };
    let effects = run.handle_event(Event::Fetched(
        first.clone(),
        *attempt,
        one_day_lifetime(),
        1,
    ));
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
        run.handle_event(Event::Unreachable(test_identity("a"), attempt, "down", 0.5));
        attempt += 1;
        assert_eq!(run.advance_to_wake().1, [fetch_effect("a", attempt)]);
    }
    run.handle_event(Event::Failed(
        test_identity("a"),
        attempt,
        "unknown pod",
        0.5,
    ));
    assert_eq!(run.advance_to_wake().0, SECOND);
}

#[test]
fn outage_ends_when_no_identity_waits() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::RealTime);
    run.handle_event(Event::Unreachable(test_identity("a"), 1, "down", 0.5));
    run.handle_event(Event::Forget(test_identity("a")));
    run.advance_to_wake();
    assert_eq!(run.state.next_wake(), None);
}

#[test]
fn retry_delays_are_randomized() {
    for (random, millis) in [(0.0, 800), (0.999_999, 1_199)] {
        let mut run = StateRun::new(8);
        run.request("a", Priority::RealTime);
        run.handle_event(Event::Failed(test_identity("a"), 1, "down", random));
        assert_eq!(run.advance_to_wake().0.as_millis(), millis);
    }
}

#[test]
fn a_valid_certificate_stays_in_use_while_renewal_fails() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.handle_event(Event::Fetched(test_identity("a"), 1, one_day_lifetime(), 1));
    let received = run.now;
    let mut attempt = 1;
    loop {
        let (_, effects) = run.advance_to_wake();
        attempt += 1;
        assert_eq!(effects, [fetch_effect("a", attempt)]);
        let effects = run.handle_event(Event::Failed(test_identity("a"), attempt, "down", 0.5));
        if run.now - received < DAY {
            assert!(
                matches!(
                    &effects[..],
                    [Effect::Report {
                        previous_remains: true,
                        ..
                    }]
                ),
                "{:?} after: {effects:?}",
                run.now - received
            );
        } else {
            assert_eq!(
                effects.first(),
                Some(&Effect::PublishError(test_identity("a"), "down"))
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
    run.handle_event(Event::Fetched(test_identity("a"), 1, one_day_lifetime(), 1));
    assert_eq!(
        run.handle_event(Event::Expired(test_identity("a"))),
        [fetch_effect("a", 2)]
    );
    assert_eq!(run.handle_event(Event::Expired(test_identity("a"))), []);
    let effects = run.handle_event(Event::Failed(test_identity("a"), 2, "down", 0.5));
    assert_eq!(
        effects.first(),
        Some(&Effect::PublishError(test_identity("a"), "down"))
    );
    assert_eq!(run.handle_event(Event::Expired(test_identity("a"))), []);
    assert_eq!(run.advance_to_wake().0, SECOND);
}

#[test]
fn forgotten_identities_are_not_fetched_renewed_or_published() {
    let mut run = StateRun::new(1);
    run.request("fetching", Priority::Warmup);
    run.request("queued", Priority::Warmup);
    run.handle_event(Event::Forget(test_identity("queued")));
    run.handle_event(Event::Forget(test_identity("fetching")));
    assert_eq!(
        run.handle_event(Event::Fetched(
            test_identity("fetching"),
            1,
            one_day_lifetime(),
            1
        )),
        []
    );
    assert_eq!(run.state.next_wake(), None);
    run.request("waiting", Priority::Warmup);
    run.handle_event(Event::Fetched(
        test_identity("waiting"),
        2,
        one_day_lifetime(),
        1,
    ));
    run.handle_event(Event::Forget(test_identity("waiting")));
    assert_eq!(run.state.next_wake(), None);
    assert!(run.state.entries.is_empty() && run.state.ready_queue.is_empty());
}

#[test]
fn stale_response_after_resubscription_is_ignored() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.handle_event(Event::Forget(test_identity("a")));
    assert_eq!(run.request("a", Priority::RealTime), [fetch_effect("a", 2)]);
    assert_eq!(
        run.handle_event(Event::Failed(test_identity("a"), 1, "late", 0.5)),
        []
    );
    assert_eq!(
        run.handle_event(Event::Fetched(test_identity("a"), 2, one_day_lifetime(), 2)),
        [Effect::Publish(test_identity("a"), 2)]
    );
}

/// Step of a random test: an event for one of a few identities, or the passing of time.
#[derive(Clone, Debug)]
enum Step {
    Request(u8, Priority),
    Forget(u8),
    Expired(u8),
    /// Ends the oldest fetch in flight with a certificate, a rejection, or no response.
    EndFetch(Option<bool>),
    Advance(u32),
}

fn random_steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
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
        4 => any::<Option<bool>>().prop_map(Step::EndFetch),
        2 => (0..100_000u32).prop_map(Step::Advance),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest::proptest! {
    #[test]
    fn any_order_of_events_keeps_the_invariants(steps in random_steps()) {
        let mut run = StateRun::new(3);
        let mut running: std::collections::VecDeque<(Identity, u64)> = Default::default();
        for step in steps {
            let effects = match step {
                Step::Request(name, priority) => run.request(&name.to_string(), priority),
                Step::Forget(name) => run.handle_event(Event::Forget(test_identity(&name.to_string()))),
                Step::Expired(name) => run.handle_event(Event::Expired(test_identity(&name.to_string()))),
                Step::EndFetch(answer) => match (running.pop_front(), answer) {
                    (Some((identity, attempt)), Some(true)) => {
                        run.handle_event(Event::Fetched(identity, attempt, one_day_lifetime(), 1))
                    }
                    (Some((identity, attempt)), Some(false)) => {
                        run.handle_event(Event::Failed(identity, attempt, "no", 0.5))
                    }
                    (Some((identity, attempt)), None) => {
                        run.handle_event(Event::Unreachable(identity, attempt, "down", 0.5))
                    }
                    (None, _) => Vec::new(),
                },
                Step::Advance(seconds) => {
                    run.now += SECOND * seconds;
                    run.handle_event(Event::Tick)
                }
            };
            for effect in effects {
                if let Effect::Fetch(identity, attempt) = effect {
                    running.push_back((identity, attempt));
                }
            }
            let state = &run.state;
            assert_eq!(state.fetches_in_flight, running.len());
            assert!(running.len() <= 3);
            // Nothing waits while there is room.
            assert!(state.ready_queue.is_empty() || running.len() == 3);
            // Every identity is queued where its phase says, and only there.
            let mut ready = 0;
            let mut waiting = 0;
            for (identity, entry) in &state.entries {
                match entry.phase {
                    Phase::Queued(priority, due) => {
                        ready += 1;
                        assert!(state.ready_queue.contains(&(Reverse(priority), due, identity.clone())));
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
            assert_eq!((ready, waiting), (state.ready_queue.len(), state.timers.len()));
        }
    }
}

#[test]
fn a_replaced_certificate_is_fetched_before_it_is_due() {
    let mut run = StateRun::new(8);
    assert_eq!(run.handle_event(Event::Renew(test_identity("unknown"))), []);
    run.request("a", Priority::Warmup);
    run.handle_event(Event::Fetched(test_identity("a"), 1, one_day_lifetime(), 1));
    assert_eq!(
        run.handle_event(Event::Renew(test_identity("a"))),
        [fetch_effect("a", 2)]
    );
    // Once more during the fetch, which may have seen the one before.
    assert_eq!(run.handle_event(Event::Renew(test_identity("a"))), []);
    assert_eq!(
        run.handle_event(Event::Fetched(test_identity("a"), 2, one_day_lifetime(), 2)),
        [Effect::Publish(test_identity("a"), 2), fetch_effect("a", 3)]
    );
    let last = run.handle_event(Event::Fetched(test_identity("a"), 3, one_day_lifetime(), 3));
    assert_eq!(last, [Effect::Publish(test_identity("a"), 3)]);
}

#[test]
fn a_certificate_replaced_during_a_failing_fetch_is_fetched_at_once() {
    let mut run = StateRun::new(8);
    run.request("a", Priority::Warmup);
    run.handle_event(Event::Renew(test_identity("a")));
    let effects = run.handle_event(Event::Failed(test_identity("a"), 1, "no", 0.5));
    assert_eq!(effects.last(), Some(&fetch_effect("a", 2)));
}
