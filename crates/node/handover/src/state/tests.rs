//! Tests of crashes, rollouts and terminations, in every order that matters.

use std::sync::Arc;

use super::*;

struct TestSupervisor {
    now: Instant,
    supervisor: State<u32>,
}

type Effects = Vec<Effect<u32>>;

impl TestSupervisor {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            now,
            supervisor: State::new(None, now),
        }
    }

    /// Creates a supervisor whose running worker serves `pods` pods of one socket each.
    fn with_serving_worker(pods: u32) -> Self {
        let mut world = Self::new();
        world.handle_event(started_event(false));
        world.handle_event(Event::FromWorker(Record::WorkerStarted, None));
        world.handle_event(Event::FromWorker(Record::Accepting, None));
        for number in 0..pods {
            for (record, fd) in pod_item_records(number) {
                assert_eq!(world.handle_event(Event::FromWorker(record, fd)), []);
            }
        }
        world
    }

    fn handle_event(&mut self, event: Event<u32>) -> Effects {
        self.supervisor.on_event(event, self.now)
    }

    fn advance_time(&mut self, time: Duration) {
        self.now += time;
    }

    fn advance_to_deadline(&mut self) -> Duration {
        let due = self.supervisor.deadline().unwrap();
        let wait = due.saturating_duration_since(self.now);
        self.now = due;
        wait
    }
}

fn started_event(predecessor: bool) -> Event<u32> {
    Event::Started {
        predecessor,
        holder: false,
    }
}

fn pod_item_records(number: u32) -> Vec<(Record, Option<u32>)> {
    let head = Record::Item {
        key: format!("pod-{number}").into(),
        about: Arc::from(&b"about"[..]),
        descriptors: 2,
    };
    let descriptors = [number * 10, number * 10 + 1];
    std::iter::once((head, None))
        .chain(descriptors.map(|fd| (Record::Descriptor, Some(fd))))
        .collect()
}

fn release_record(number: u32) -> Record {
    Record::RemoveItem {
        key: format!("pod-{number}").into(),
    }
}

fn start_effects(pods: u32, accept: AcceptCommand) -> Effects {
    let sent = (0..pods).flat_map(pod_item_records);
    let sent = sent.map(|(record, fd)| Effect::ToWorker(record, fd));
    std::iter::once(Effect::StartWorker)
        .chain(sent)
        .chain([Effect::ToWorker(Record::Accept(accept), None)])
        .collect()
}

#[test]
fn killed_worker_is_replaced_at_once_with_the_whole_handover() {
    let mut world = TestSupervisor::with_serving_worker(2);
    let killed = WorkerExit::Signal(9);
    let mut effects = world.handle_event(Event::WorkerExited(killed));
    let report = effects.remove(0);
    let wait = Duration::ZERO;
    assert_eq!(
        report,
        Effect::LogWorkerExit {
            ended: killed,
            wait
        }
    );
    assert_eq!(effects, start_effects(2, AcceptCommand::Now));
}

#[test]
fn restart_delay_is_at_most_half_a_second() {
    let mut world = TestSupervisor::with_serving_worker(1);
    world.handle_event(Event::WorkerExited(WorkerExit::Signal(9)));
    let mut waits = Vec::new();
    for _ in 0..10 {
        assert_eq!(
            world
                .handle_event(Event::WorkerExited(WorkerExit::Code(101)))
                .len(),
            1
        );
        assert_eq!(world.handle_event(Event::Tick), []);
        waits.push(world.advance_to_deadline().as_millis());
        assert_eq!(
            world.handle_event(Event::Tick),
            start_effects(1, AcceptCommand::Now)
        );
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 500, 500, 500, 500]);
    world.advance_time(MIN_STABLE_RUN);
    let effects = world.handle_event(Event::WorkerExited(WorkerExit::Signal(6)));
    assert_eq!(
        effects[1..],
        start_effects(1, AcceptCommand::Now),
        "a stable one is replaced at once"
    );
}

#[test]
fn files_go_to_the_next_worker_until_workers_crash_repeatedly() {
    let file = Record::StoreFile(0);
    let mut world = TestSupervisor::with_serving_worker(0);
    world.handle_event(Event::FromWorker(file.clone(), Some(7)));
    let sent = Effect::ToWorker(file.clone(), Some(7));
    let mut given = Vec::new();
    for _ in 0..5 {
        let mut effects = world.handle_event(Event::WorkerExited(WorkerExit::Signal(6)));
        if world.supervisor.deadline().is_some() {
            world.advance_to_deadline();
            effects = world.handle_event(Event::Tick);
        }
        given.push(effects.contains(&sent));
    }
    assert_eq!(given, [true, true, true, false, false]);
    world.handle_event(Event::FromWorker(file, Some(7)));
    let successor = world.handle_event(Event::SuccessorConnected);
    assert_eq!(
        successor,
        [Effect::ToSuccessor(
            Record::Accept(AcceptCommand::OnceReady),
            None
        )]
    );
}

#[test]
fn a_worker_that_never_started_ends_the_supervisor_with_its_code() {
    let mut world = TestSupervisor::new();
    assert_eq!(
        world.handle_event(started_event(false)),
        start_effects(0, AcceptCommand::Now)
    );
    assert_eq!(
        world.handle_event(Event::WorkerExited(WorkerExit::Code(1))),
        [Effect::Exit(1)]
    );
}

#[test]
fn worker_that_exits_on_request_ends_the_supervisor() {
    let mut world = TestSupervisor::with_serving_worker(1);
    assert_eq!(
        world.handle_event(Event::Terminate),
        [Effect::TerminateWorker]
    );
    assert_eq!(
        world.handle_event(Event::Terminate),
        [Effect::TerminateWorker]
    );
    assert_eq!(
        world.handle_event(Event::WorkerExited(WorkerExit::Code(0))),
        [Effect::Exit(0)]
    );
    // Terminated over the admin server.
    let mut world = TestSupervisor::with_serving_worker(1);
    assert_eq!(
        world.handle_event(Event::WorkerExited(WorkerExit::Code(0))),
        [Effect::Exit(0)]
    );
    // Killed while it ends after a successor took over: nothing is left to do.
    let mut world = TestSupervisor::with_serving_worker(1);
    world.handle_event(Event::SuccessorConnected);
    world.handle_event(Event::FromSuccessor(Record::Accepting));
    world.handle_event(Event::Terminate);
    assert_eq!(
        world.handle_event(Event::WorkerExited(WorkerExit::Signal(9))),
        [Effect::Exit(137)]
    );
}

#[test]
fn worker_killed_while_it_waits_for_a_successor_is_replaced() {
    let mut world = TestSupervisor::with_serving_worker(1);
    world.handle_event(Event::Terminate);
    let effects = world.handle_event(Event::WorkerExited(WorkerExit::Signal(9)));
    assert_eq!(effects[1..], start_effects(1, AcceptCommand::Now));
    assert_eq!(
        world.handle_event(Event::FromWorker(Record::WorkerStarted, None)),
        [Effect::TerminateWorker]
    );
}

#[test]
fn supervisor_terminated_between_workers_ends() {
    let mut world = TestSupervisor::with_serving_worker(1);
    world.handle_event(Event::WorkerExited(WorkerExit::Signal(9)));
    world.handle_event(Event::WorkerExited(WorkerExit::Signal(9)));
    assert_eq!(world.handle_event(Event::Terminate), [Effect::Exit(0)]);
}

#[test]
fn old_proxy_stops_accepting_once_the_new_one_is_ready() {
    let mut old = TestSupervisor::with_serving_worker(1);
    let mut new = TestSupervisor::new();
    assert_eq!(new.handle_event(started_event(true)), []);
    let mut sent = old.handle_event(Event::SuccessorConnected);
    assert_eq!(
        sent.pop(),
        Some(Effect::ToSuccessor(
            Record::Accept(AcceptCommand::OnceReady),
            None
        ))
    );
    for effect in sent {
        let Effect::ToSuccessor(record, fd) = effect else {
            panic!("{effect:?}")
        };
        assert_eq!(new.handle_event(Event::FromPredecessor(record, fd)), []);
    }
    let end = Event::FromPredecessor(Record::Accept(AcceptCommand::OnceReady), None);
    assert_eq!(
        new.handle_event(end),
        start_effects(1, AcceptCommand::OnceReady)
    );
    new.handle_event(Event::FromWorker(Record::WorkerStarted, None));
    // Its worker dies before it is ready: the old one still accepts the connections.
    let effects = new.handle_event(Event::WorkerExited(WorkerExit::Signal(9)));
    assert_eq!(effects[1..], start_effects(1, AcceptCommand::OnceReady));
    assert_eq!(
        new.handle_event(Event::FromWorker(Record::Accepting, None)),
        [Effect::ToPredecessor(Record::Accepting)]
    );
    assert_eq!(
        old.handle_event(Event::FromSuccessor(Record::Accepting)),
        [Effect::ToWorker(
            Record::Accept(AcceptCommand::Paused),
            None
        )]
    );
    // From here on both keep their roles, whatever dies.
    old.advance_time(MIN_STABLE_RUN);
    let effects = old.handle_event(Event::WorkerExited(WorkerExit::Signal(9)));
    assert_eq!(effects[1..], start_effects(1, AcceptCommand::Paused));
    new.advance_time(MIN_STABLE_RUN);
    let effects = new.handle_event(Event::WorkerExited(WorkerExit::Signal(9)));
    assert_eq!(effects[1..], start_effects(1, AcceptCommand::Now));
    assert_eq!(new.handle_event(Event::PredecessorDisconnected), []);
}

#[test]
fn old_proxy_accepts_again_when_the_new_one_is_gone() {
    let mut old = TestSupervisor::with_serving_worker(1);
    old.handle_event(Event::SuccessorConnected);
    assert_eq!(old.handle_event(Event::SuccessorDisconnected), []);
    old.handle_event(Event::SuccessorConnected);
    old.handle_event(Event::FromSuccessor(Record::Accepting));
    assert_eq!(
        old.handle_event(Event::SuccessorDisconnected),
        [Effect::ToWorker(Record::Accept(AcceptCommand::Now), None)]
    );
    // A terminated one does not accept again.
    old.handle_event(Event::SuccessorConnected);
    old.handle_event(Event::FromSuccessor(Record::Accepting));
    old.handle_event(Event::Terminate);
    assert_eq!(old.handle_event(Event::SuccessorDisconnected), []);
}

#[test]
fn dead_or_silent_predecessor_is_not_waited_for() {
    let mut new = TestSupervisor::new();
    new.handle_event(started_event(true));
    let (head, _) = pod_item_records(0).remove(0);
    new.handle_event(Event::FromPredecessor(head, None));
    assert_eq!(
        new.handle_event(Event::PredecessorDisconnected),
        start_effects(0, AcceptCommand::Now)
    );

    let mut new = TestSupervisor::new();
    new.handle_event(started_event(true));
    assert_eq!(new.advance_to_deadline(), ITEMS_TIMEOUT);
    assert_eq!(
        new.handle_event(Event::Tick),
        start_effects(0, AcceptCommand::OnceReady)
    );
    // If it dies later, the new one has the connections.
    assert_eq!(
        new.handle_event(Event::PredecessorDisconnected),
        [Effect::ToWorker(Record::Accept(AcceptCommand::Now), None)]
    );
}

/// Applies the records that `effects` send to the standby, and returns the items that it then stores.
fn items_sent_to_standby(effects: Effects) -> Handover<u32> {
    let mut held = Handover::default();
    for effect in effects {
        let Effect::ToStandby(record, fd) = effect else {
            panic!("{effect:?}")
        };
        held.apply(&record, fd).unwrap();
    }
    held
}

#[test]
fn standby_follows_the_handover_and_serves_it_at_once() {
    let mesh = Record::StoreFile(0);
    let mut first = TestSupervisor::with_serving_worker(1);
    first.handle_event(Event::FromWorker(mesh.clone(), Some(7)));
    let mut parts = pod_item_records(1);
    let (last, socket) = parts.pop().unwrap();
    for (record, fd) in parts {
        first.handle_event(Event::FromWorker(record, fd));
    }
    // A standby that connects in the middle of an item gets the item once it is complete.
    let mut sent = first.handle_event(Event::StandbyConnected);
    assert_eq!(
        sent.last(),
        Some(&Effect::ToStandby(
            Record::Accept(AcceptCommand::Paused),
            None
        ))
    );
    sent.extend(first.handle_event(Event::FromWorker(last, socket)));
    sent.extend(first.handle_event(Event::FromWorker(release_record(0), None)));
    let files = Record::StoreFile(1);
    sent.extend(first.handle_event(Event::FromWorker(files.clone(), Some(8))));
    let stray = first.handle_event(Event::FromWorker(Record::Descriptor, Some(9)));
    assert!(
        matches!(&stray[..], [Effect::LogUnexpectedRecord(_)]),
        "{stray:?}"
    );

    let mut second = TestSupervisor::new();
    second.supervisor = State::new(Some(items_sent_to_standby(sent)), second.now);
    let expected: Effects = std::iter::once(Effect::StartWorker)
        .chain(
            pod_item_records(1)
                .into_iter()
                .map(|(record, fd)| Effect::ToWorker(record, fd)),
        )
        .chain([(mesh, 7), (files, 8)].map(|(file, fd)| Effect::ToWorker(file, Some(fd))))
        .chain([Effect::ToWorker(Record::Accept(AcceptCommand::Now), None)])
        .collect();
    assert_eq!(second.handle_event(started_event(false)), expected);
    // The first one's worker may still have its ports.
    let effects = second.handle_event(Event::WorkerExited(WorkerExit::Code(1)));
    assert_eq!(effects[1..], expected);
    // No standby is left.
    first.handle_event(Event::StandbyDisconnected);
    assert_eq!(
        first.handle_event(Event::FromWorker(release_record(1), None)),
        []
    );
}

#[test]
fn a_standby_takes_over_only_from_a_started_process() {
    let mut world = TestSupervisor::new();
    world.handle_event(started_event(false));
    assert_eq!(world.handle_event(Event::StandbyConnected), []);
    let sent = [Effect::ToStandby(
        Record::Accept(AcceptCommand::Paused),
        None,
    )];
    assert_eq!(
        world.handle_event(Event::FromWorker(Record::WorkerStarted, None)),
        sent
    );
    world.handle_event(Event::WorkerExited(WorkerExit::Signal(9)));
    assert_eq!(
        world.handle_event(Event::FromWorker(Record::WorkerStarted, None)),
        []
    );
}

#[test]
fn standby_takes_over_from_a_serving_successor() {
    let mut held = Handover::default();
    for (record, fd) in pod_item_records(0) {
        held.apply(&record, fd).unwrap();
    }
    let mut world = TestSupervisor::new();
    world.supervisor = State::new(Some(held), world.now);
    assert_eq!(world.handle_event(started_event(true)), []);
    for (record, fd) in pod_item_records(1) {
        assert_eq!(world.handle_event(Event::FromPredecessor(record, fd)), []);
    }
    let end = Event::FromPredecessor(Record::Accept(AcceptCommand::OnceReady), None);
    let mut expected = start_effects(2, AcceptCommand::OnceReady);
    expected.drain(1..4);
    assert_eq!(world.handle_event(end), expected);
}

#[test]
fn unexpected_records_are_reported_and_change_nothing() {
    let mut world = TestSupervisor::with_serving_worker(1);
    let effects = world.handle_event(Event::FromWorker(Record::Descriptor, Some(7)));
    assert!(
        matches!(&effects[..], [Effect::LogUnexpectedRecord(_)]),
        "{effects:?}"
    );
    assert_eq!(world.supervisor.item_count(), 1);
}

#[test]
fn third_generation_takes_over_from_one_still_preparing() {
    let mut middle = TestSupervisor::new();
    middle.handle_event(started_event(true));
    for (record, fd) in pod_item_records(0) {
        middle.handle_event(Event::FromPredecessor(record, fd));
    }
    let end = Event::FromPredecessor(Record::Accept(AcceptCommand::OnceReady), None);
    assert_eq!(
        middle.handle_event(end),
        start_effects(1, AcceptCommand::OnceReady)
    );
    assert_eq!(middle.handle_event(Event::SuccessorConnected).len(), 4);
    let effects = middle.handle_event(Event::FromSuccessor(Record::Accepting));
    let expected = [
        Effect::ToWorker(Record::Accept(AcceptCommand::Paused), None),
        Effect::ToPredecessor(Record::Accepting),
    ];
    assert_eq!(effects, expected);
}

#[test]
fn draining_worker_stays_superseded_when_its_successor_is_gone() {
    let mut world = TestSupervisor::with_serving_worker(1);
    world.handle_event(Event::SuccessorConnected);
    world.handle_event(Event::FromSuccessor(Record::Accepting));
    world.handle_event(Event::Terminate);
    assert_eq!(world.handle_event(Event::SuccessorDisconnected), []);
    assert_eq!(
        world.handle_event(Event::WorkerExited(WorkerExit::Signal(9))),
        [Effect::Exit(137)],
        "its pods are another's"
    );
}

fn effects_to_holder(pods: std::ops::Range<u32>) -> Effects {
    let sent = pods.flat_map(pod_item_records);
    sent.map(|(record, fd)| Effect::ToHolder(record, fd))
        .chain([Effect::ToHolder(
            Record::Accept(AcceptCommand::Paused),
            None,
        )])
        .collect()
}

#[test]
fn holder_gets_items_without_files_from_the_serving_supervisor() {
    let mut world = TestSupervisor::with_serving_worker(1);
    world.handle_event(Event::FromWorker(Record::StoreFile(1), Some(7)));
    assert_eq!(
        world.handle_event(Event::HolderConnected),
        effects_to_holder(0..1)
    );
    assert_eq!(
        world.handle_event(Event::FromWorker(Record::StoreFile(1), Some(8))),
        []
    );
    let sent = [Effect::ToHolder(release_record(0), None)];
    assert_eq!(
        world.handle_event(Event::FromWorker(release_record(0), None)),
        sent
    );
    // The items of its successor are stored from now on.
    world.handle_event(Event::SuccessorConnected);
    world.handle_event(Event::FromSuccessor(Record::Accepting));
    for (record, fd) in pod_item_records(1) {
        assert_eq!(world.handle_event(Event::FromWorker(record, fd)), []);
    }
    let mut effects = world.handle_event(Event::SuccessorDisconnected);
    assert_eq!(
        effects.remove(0),
        Effect::ToWorker(Record::Accept(AcceptCommand::Now), None)
    );
    assert_eq!(effects, effects_to_holder(1..2));
    // A restarted holder is sent everything again.
    assert_eq!(world.handle_event(Event::HolderDisconnected), []);
    assert_eq!(
        world.handle_event(Event::HolderConnected),
        effects_to_holder(1..2)
    );
}

#[test]
fn holder_returns_its_items_when_nobody_else_is_left() {
    let with_holder = || Event::Started {
        predecessor: false,
        holder: true,
    };
    let mut world = TestSupervisor::new();
    assert_eq!(world.handle_event(with_holder()), []);
    for (record, fd) in pod_item_records(0) {
        assert_eq!(world.handle_event(Event::FromHolder(record, fd)), []);
    }
    let end = Event::FromHolder(Record::Accept(AcceptCommand::Paused), None);
    assert_eq!(
        world.handle_event(end),
        start_effects(1, AcceptCommand::Now)
    );
    let late = Event::FromHolder(release_record(0), None);
    assert_eq!(world.handle_event(late), []);
    assert_eq!(world.supervisor.item_count(), 1);
    assert_eq!(
        world.handle_event(Event::FromWorker(Record::Accepting, None)),
        effects_to_holder(0..1)
    );
    // A dead or silent holder is not waited for.
    let mut world = TestSupervisor::new();
    world.handle_event(with_holder());
    assert_eq!(
        world.handle_event(Event::HolderDisconnected),
        start_effects(0, AcceptCommand::Now)
    );
    let mut world = TestSupervisor::new();
    world.handle_event(with_holder());
    assert_eq!(world.advance_to_deadline(), ITEMS_TIMEOUT);
    assert_eq!(
        world.handle_event(Event::Tick),
        start_effects(0, AcceptCommand::Now)
    );
}
